"""AUC maximisation from positives and unlabeled rows under covariate shift.

- ``samples``: from X, y and target rows to three samples,
- ``losses``, ``risk``: losses of a pair, the two risks and their gradient, the AUC by ranks,
- ``weights``: importance weights, over :mod:`seedbed.estimators.density_ratio`,
- ``scorers``, ``networks``: linear and kernel scores by L-BFGS, networks by Adam,
- ``threshold``, ``splitting``: where to cut the scores, folds,
- ``classifier`` trains, ``ranking`` answers, ``display`` draws.
"""

from seedbed.estimators.pu_auc_covariate_shift.classifier import PUAUCClassifier
from seedbed.estimators.pu_auc_covariate_shift.display import PUAUCDisplay
from seedbed.estimators.pu_auc_covariate_shift.risk import auc_from_pu_auc, pu_auc_risk, weighted_pu_auc_score
from seedbed.estimators.pu_auc_covariate_shift.splitting import PUDomainStratifiedKFold

__all__ = [
    "PUAUCClassifier",
    "PUAUCDisplay",
    "PUDomainStratifiedKFold",
    "auc_from_pu_auc",
    "pu_auc_risk",
    "weighted_pu_auc_score",
]
