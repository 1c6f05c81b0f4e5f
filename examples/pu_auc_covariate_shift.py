"""
Ranking a population that no label comes from
=============================================

A detector is trained where some positives are known and everything else is unlabeled, and it will run where
the mix is another: a new country, hospital or season. Odd digits are the positives here. Source digits are
mostly 0 to 5, target digits mostly 6 to 9; nobody ever labelled an even digit.
"""

# %%
# Three samples
# -------------
# 60 labelled odd digits and 400 unlabeled digits from the source, 200 unlabeled digits from the target. They
# are stacked; ``sample_domain`` is positive for source and negative for target rows. The labels of 300 more
# target digits are for us, not for the model.

import matplotlib.pyplot as plt
import numpy as np
import sklearn
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.model_selection import GridSearchCV

from seedbed.datasets import make_pu_digits
from seedbed.estimators import PUAUCClassifier, PUAUCDisplay, PUDomainStratifiedKFold, auc_from_pu_auc

data = make_pu_digits(random_state=0)
print("rows", data.X.shape, "positives", int((data.y == 1).sum()), "target", int((data.y == -1).sum()))

# %%
# With and without weights
# ------------------------
# ``density_ratio="none", trade_off=0`` maximises the AUC of positives against unlabeled rows on the source.
# The default weighs pairs by the density ratio of both populations, estimated by RuLSIF.

plain = PUAUCClassifier(density_ratio="none", trade_off=0, random_state=0)
model = PUAUCClassifier(random_state=0)
for name, one in (("no correction", plain), ("weighted pairs", model)):
    one.fit(data.X, data.y, sample_domain=data.sample_domain)
    print(
        f"{name}: AUC on target digits {roc_auc_score(data.y_test, one.decision_function(data.X_test)):.3f}"
    )
print("effective rows behind the weights:", {k: round(v) for k, v in model.effective_sample_size_.items()})

# %%
# Choosing a model without negatives
# ----------------------------------
# ``score`` is the weighted share of (positive, unlabeled) pairs in order: an increasing function of the AUC.
# Folds must keep both positives and target rows. With metadata routing, ``sample_domain`` finds its way. As
# an AUC the score is optimistic: estimated weights stand for a population between source and target. It
# compares models; it does not replace a test.

with sklearn.config_context(enable_metadata_routing=True):
    search = GridSearchCV(
        PUAUCClassifier(n_restarts=1, random_state=0),
        {"l2": [1e-4, 1e-3, 1e-2, 1e-1]},
        cv=PUDomainStratifiedKFold(4, random_state=0),
    ).fit(data.X, data.y, sample_domain=data.sample_domain)
for l2, score in zip(search.cv_results_["param_l2"], search.cv_results_["mean_test_score"], strict=True):
    print(f"l2 = {l2:g}: {score:.3f}")
estimate = auc_from_pu_auc(search.best_score_, class_prior=data.class_prior)
print(f"best l2: {search.best_params_['l2']:g}; with a class prior of 15 %, an AUC of {estimate:.3f}")

# %%
# Over many splits
# ----------------
# J1 weighs both rows of a pair, J2 the positive alone and takes target rows as they are. With estimated
# weights J2 also rewards telling the two populations apart.

settings = {
    "no correction": {"density_ratio": "none", "trade_off": 0.0},
    "J1": {"trade_off": 0.0},
    "default": {},
    "J2": {"trade_off": 1.0},
}
auc = {name: [] for name in settings}
for seed in range(12):
    split = make_pu_digits(random_state=seed)
    for name, options in settings.items():
        one = PUAUCClassifier(random_state=seed, **options)
        one.fit(split.X, split.y, sample_domain=split.sample_domain)
        auc[name].append(roc_auc_score(split.y_test, one.decision_function(split.X_test)))
for name, values in auc.items():
    print(f"{name}: {np.mean(values):.3f}")

figure, axes = plt.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
PUAUCDisplay.from_estimator(model, data.X, data.y, sample_domain=data.sample_domain, ax=axes[0])
axes[0, 0].set_title("Scores")
axes[0, 1].set_title("What can be seen without negatives")
for name, one in (("no correction", plain), ("weighted pairs", model)):
    axes[1, 0].plot(*roc_curve(data.y_test, one.decision_function(data.X_test))[:2], label=name)
axes[1, 0].set(xlabel="False positive rate", ylabel="True positive rate", title="The truth, on target digits")
axes[1, 0].legend()
for place, values in enumerate(auc.values()):
    axes[1, 1].plot(np.full(len(values), place), values, "o", alpha=0.5)
    axes[1, 1].plot([place - 0.25, place + 0.25], [np.mean(values)] * 2, color=f"C{place}", linewidth=2.5)
axes[1, 1].set_xticks(range(len(auc)), list(auc))
axes[1, 1].set(ylabel="AUC on target digits", title="12 splits")
plt.show()
