"""PUAUCClassifier: rank rows of a population that no label comes from."""

import warnings
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, Options, StrOptions

from seedbed.estimators.pu_auc_covariate_shift.losses import LOSSES, SYMMETRIC
from seedbed.estimators.pu_auc_covariate_shift.ranking import FittedRanker, named
from seedbed.estimators.pu_auc_covariate_shift.risk import PURisk, Weighted
from seedbed.estimators.pu_auc_covariate_shift.samples import PUSamples, split_samples
from seedbed.estimators.pu_auc_covariate_shift.scorers import KernelMap, centred, draw_landmarks, fit_linear
from seedbed.estimators.pu_auc_covariate_shift.threshold import upper_share_threshold, youden_threshold
from seedbed.estimators.pu_auc_covariate_shift.weights import (
    RATIOS,
    effective_sample_size,
    make_ratio,
    predict_ratio,
    warn_of,
)

SCORERS = ("linear", "kernel", "mlp")
RELATIVE = ("rulsif", "neural", "logistic")
"""Density ratios that ``relative_alpha`` applies to."""


class PUAUCClassifier(FittedRanker):
    """Ranks rows of a target population from positives and unlabeled rows of another one.

    Some positives are labelled, everything else is not: the rest of the training population, and rows of the
    target population, where inputs are distributed otherwise but the same x means the same y (covariate
    shift). There are no negatives and no class priors. The scores maximise the AUC on the *target*
    population: with ``w = p_te / p_tr`` and a symmetric loss, ``J1 = E_tr+ E_tr[w(x) w(x') l]`` and ``J2 =
    E_tr+ E_te[w(x) l]``, for ``l = l(s(x) - s(x'))``, are both increasing affine functions of its AUC risk.
    The objective is ``(1 - gamma) J1 + gamma J2``.

    Columns should be standardised. ``decision_function`` ranks; there are no probabilities, since without
    negatives they could not be calibrated.

    Parameters
    ----------
    scorer : {"linear", "kernel", "mlp"} or torch.nn.Module, default="linear"
        Kind of the score: linear in the columns, linear in Gaussian kernels on landmarks, a multilayer
        perceptron, or a network of one output. A network given is copied.
    trade_off : float in [0, 1], default=0.2
        gamma. 0 leaves target rows to the weights and the threshold. With estimated weights J2 also rewards
        telling the two populations apart; large values are for weights that are known.
    density_ratio : {"rulsif", "neural", "logistic", "none", "precomputed"} or estimator, default="rulsif"
        Where weights come from: :class:`RuLSIF`, a network with the same criterion, a logistic regression
        that tells the populations apart, nowhere (all ones), ``sample_weight``, or an object with
        ``fit(X_target, X_train)`` and ``predict(X)``, which is cloned.
    relative_alpha : float in [0, 1), default=0.1
        alpha of the relative ratio ``p_te / (alpha p_te + (1 - alpha) p_tr)`` of the named estimators, which
        is at most ``1 / alpha``. 0 is the plain ratio: without bias, and unstable.
    loss : {"sigmoid", "ramp", "logistic", "squared_hinge", "squared"}, default="sigmoid"
        Pair loss. The last three are not symmetric and need ``class_prior_train``.
    normalize : bool, default=True
        Divide by sums of weights, not by numbers of pairs.
    scenario : {"case_control", "single_set"}, default="case_control"
        Whether unlabeled source rows are a sample of the training population of their own, or what labelling
        left of one sample.
    target_weighting : {"none", "relative"}, default="none"
        Whether target rows in J2 are weighted by ``p_tr / (alpha p_te + (1 - alpha) p_tr)``, which makes J2
        the AUC risk of the population that relative weights stand for.
    weight_floor : float, default=1e-3
        Least estimated weight.
    weight_clip : float or None, default=None
        Largest weight.
    l2 : float, default=1e-3
        Half of it multiplies the squared norm of the coefficients; weight decay of a network.
    n_components : int, default=100
        Landmarks of the "kernel" scorer, drawn from all rows.
    gamma : float or None, default=None
        ``exp(-gamma |x - c|^2)`` of the "kernel" scorer; None takes the median distance between rows.
    hidden_layer_sizes : array-like of int, default=(124, 124)
        Hidden layers of the "mlp" scorer.
    solver : {"lbfgs", "adam"}, default="lbfgs"
        For "linear" and "kernel": all pairs at once, or batches. Networks always use Adam.
    learning_rate : float, default=1e-3
        Of Adam.
    batch_size : int, default=1024
        Rows of a step of Adam, shared out among the three samples by their sizes.
    max_iter : int, default=300
        Most iterations of L-BFGS, or epochs of Adam.
    n_restarts : int, default=3
        Random starts of L-BFGS, of which the best counts.
    early_stopping : bool, default=False
        With Adam: hold out rows and keep the weights of the lowest risk on them.
    validation_fraction : float in (0, 1), default=0.2
        Share of the rows held out.
    threshold : {"youden", "prior"} or float, default="youden"
        Where ``predict`` cuts the scores: at the largest ``TPR - P(s >= t)``, which is where Youden's J is
        largest and needs no prior; so that a share ``class_prior`` of the target rows is positive; or here.
    class_prior : float in (0, 1) or None, default=None
        Share of positives among target rows, for ``threshold="prior"``.
    class_prior_train : float in (0, 1) or None, default=None
        Share of positives in the training population, for a loss that is not symmetric.
    pos_label : label or None, default=None
        Label of positives; None takes the larger one.
    random_state : int, RandomState instance or None, default=None
        Starts, landmarks, centres, folds, batches.
    n_jobs : int or None, default=None
        Random starts of L-BFGS at a time, see joblib; the result does not depend on it.
    verbose : int, default=0
        With Adam, 1 shows a progress bar on a terminal.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        Labels of unlabeled and of positive rows.
    coef_ : ndarray of shape (1, n_columns)
        Coefficients of the "linear" and "kernel" scorers.
    landmarks_ : {ndarray, sparse} of shape (n_landmarks, n_features_in_)
        Centres of the "kernel" scorer.
    module_ : LightningModule
        The network, of the other scorers.
    density_ratio_ : estimator or None
        Fitted ratio; None where weights are not estimated.
    threshold_ : float
        Cut of the raw scores; ``decision_function`` is the score less this.
    weights_positive_, weights_unlabeled_ : ndarray
        Importance weights of the source rows, in the order of X.
    effective_sample_size_ : dict
        ``(sum w)^2 / sum w^2`` of "positive" and "unlabeled" rows.
    loss_curve_ : list of float
        Objective after each iteration or epoch.
    n_iter_ : int
        Number of them.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of str
        Their names, if they have some.

    See Also
    --------
    PUDomainStratifiedKFold : Folds that keep positives and target rows.
    PUAUCDisplay : Scores and the curve behind the score.

    Notes
    -----
    Weighting pays where the scorer cannot fit both populations at once, and costs variance where it can: a
    well-specified network does better without weights. ``density_ratio="none", trade_off=0`` is PU-AUC
    maximisation without correction, and the baseline to beat.

    References
    ----------
    A. Kumagai, T. Iwata, H. Takahashi, T. Nishiyama, K. Adachi, Y. Fujiwara, *Positive-unlabeled AUC
    Maximization under Covariate Shift*, ICML 2025.

    Examples
    --------
    >>> from sklearn.metrics import roc_auc_score
    >>> from seedbed.datasets import make_pu_covariate_shift
    >>> from seedbed.estimators import PUAUCClassifier
    >>> data = make_pu_covariate_shift(100, 1000, 1000, random_state=0)
    >>> plain = PUAUCClassifier(density_ratio="none", trade_off=0, random_state=0).fit(data.X, data.y,
    ...     sample_domain=data.sample_domain)
    >>> model = PUAUCClassifier(random_state=0)
    >>> _ = model.fit(data.X, data.y, sample_domain=data.sample_domain)
    >>> auc = [roc_auc_score(data.y_test, one.decision_function(data.X_test)) for one in (plain, model)]
    >>> bool(auc[0] < 0.35 < 0.6 < auc[1])
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "scorer": [StrOptions(set(SCORERS)), HasMethods(["forward", "parameters"])],
        "trade_off": [Interval(Real, 0, 1, closed="both")],
        "density_ratio": [StrOptions(set(RATIOS)), HasMethods(["fit", "predict"])],
        "relative_alpha": [Interval(Real, 0, 1, closed="left")],
        "loss": [StrOptions(set(LOSSES))],
        "normalize": ["boolean"],
        "scenario": [StrOptions({"case_control", "single_set"})],
        "target_weighting": [StrOptions({"none", "relative"})],
        "weight_floor": [Interval(Real, 0, None, closed="left")],
        "weight_clip": [Interval(Real, 0, None, closed="neither"), None],
        "l2": [Interval(Real, 0, None, closed="left")],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "gamma": [Interval(Real, 0, None, closed="neither"), None],
        "hidden_layer_sizes": ["array-like"],
        "solver": [StrOptions({"lbfgs", "adam"})],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 3, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "n_restarts": [Interval(Integral, 1, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "threshold": [StrOptions({"youden", "prior"}), Interval(Real, None, None, closed="neither")],
        "class_prior": [Interval(Real, 0, 1, closed="neither"), None],
        "class_prior_train": [Interval(Real, 0, 1, closed="neither"), None],
        "pos_label": [Real, str, "boolean", Options(type(None), {None})],
        "random_state": ["random_state"],
        "n_jobs": [Integral, None],
        "verbose": ["verbose"],
    }

    # Where metadata are routed, target rows need no further request.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"sample_domain": True, "X_target": True}
    __metadata_request__score: ClassVar[dict[str, bool]] = {"sample_domain": True, "X_target": True}

    def __init__(
        self,
        scorer: Any = "linear",
        *,
        trade_off: float = 0.2,
        density_ratio: Any = "rulsif",
        relative_alpha: float = 0.1,
        loss: str = "sigmoid",
        normalize: bool = True,
        scenario: str = "case_control",
        target_weighting: str = "none",
        weight_floor: float = 1e-3,
        weight_clip: float | None = None,
        l2: float = 1e-3,
        n_components: int = 100,
        gamma: float | None = None,
        hidden_layer_sizes: Any = (124, 124),
        solver: str = "lbfgs",
        learning_rate: float = 1e-3,
        batch_size: int = 1024,
        max_iter: int = 300,
        n_restarts: int = 3,
        early_stopping: bool = False,
        validation_fraction: float = 0.2,
        threshold: Any = "youden",
        class_prior: float | None = None,
        class_prior_train: float | None = None,
        pos_label: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.scorer = scorer
        self.trade_off = trade_off
        self.density_ratio = density_ratio
        self.relative_alpha = relative_alpha
        self.loss = loss
        self.normalize = normalize
        self.scenario = scenario
        self.target_weighting = target_weighting
        self.weight_floor = weight_floor
        self.weight_clip = weight_clip
        self.l2 = l2
        self.n_components = n_components
        self.gamma = gamma
        self.hidden_layer_sizes = hidden_layer_sizes
        self.solver = solver
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.n_restarts = n_restarts
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.threshold = threshold
        self.class_prior = class_prior
        self.class_prior_train = class_prior_train
        self.pos_label = pos_label
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = self._takes_sparse
        return tags

    @property
    def _linear(self) -> bool:
        """Whether the score is linear in features and found by L-BFGS."""
        return named(self.scorer, "linear", "kernel") and named(self.solver, "lbfgs")

    @property
    def _takes_sparse(self) -> bool:
        return self._linear and not named(self.density_ratio, "neural")

    @property
    def _options(self) -> dict[str, Any]:
        """How rows are validated."""
        return {"accept_sparse": "csr" if self._takes_sparse else False, "dtype": (np.float64, np.float32)}

    def _check_parameters(self, sample_weight: Any) -> None:
        """Combinations that cannot be."""
        if LOSSES[self.loss].name not in SYMMETRIC and self.class_prior_train is None:
            raise ValueError(
                f"class_prior_train must be given for loss={self.loss!r}, or the loss be one of {SYMMETRIC}: "
                "without symmetry, pairs of two positives do not add up to a constant"
            )
        if named(self.threshold, "prior") and self.class_prior is None:
            raise ValueError("class_prior must be given for threshold='prior', got None")
        if named(self.density_ratio, "precomputed") and sample_weight is None:
            raise ValueError("sample_weight must hold the weights for density_ratio='precomputed', got None")
        if self.target_weighting == "relative" and not named(self.density_ratio, *RELATIVE):
            raise ValueError(
                f"target_weighting='relative' needs a density_ratio of {RELATIVE}, got {self.density_ratio!r}"
            )
        if self.weight_clip is not None and self.weight_clip < self.weight_floor:
            raise ValueError(
                f"weight_clip must be at least weight_floor={self.weight_floor:g}, got {self.weight_clip!r}"
            )

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        sample_domain: ArrayLike | None = None,
        X_target: Any = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Estimate the weights, then the scores, then the threshold.

        Target rows come either stacked into X and marked by ``sample_domain``, which works in pipelines and,
        with :class:`PUDomainStratifiedKFold`, in cross-validation; or as ``X_target``, which a pipeline
        transforms only with ``transform_input=["X_target"]``.

        Parameters
        ----------
        X : {array-like, sparse} of shape (n, n_features)
            Rows.
        y : array-like of shape (n,)
            Two labels, such as 1 for labelled positives and 0 or -1 for unlabeled rows. Labels of target rows
            are ignored.
        sample_domain : array-like of shape (n,), optional
            Positive for source rows (the training population), negative for target rows.
        X_target : {array-like, sparse} of shape (n_target, n_features) or list of them, optional
            Target rows that are not in X. An array with as many rows as X is refused, since cross-validation
            would slice it; in a list it stays whole.
        sample_weight : array-like of shape (n,), optional
            Non-negative weight of each row, as if it were there so many times; it multiplies estimated
            weights. With ``density_ratio="precomputed"`` these are the importance weights.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ValueError
            If there are no positives, no unlabeled rows or fewer than two target rows, labels or domains are
            malformed, or parameters do not go together.

        Warns
        -----
        UserWarning
            If there are no target rows, few positives carry all weight, or many weights are at their bound.
        """
        self._check_parameters(sample_weight)
        precomputed = named(self.density_ratio, "precomputed")
        samples = split_samples(
            self,
            X,
            y,
            sample_domain=sample_domain,
            X_target=X_target,
            sample_weight=sample_weight,
            fitting=True,
            pos_label=self.pos_label,
            drop_zero_weights=not precomputed,
            **self._options,
        )
        rng = np.random.RandomState() if self.random_state is None else check_random_state(self.random_state)
        positive, unlabeled, target = self._weigh(samples, rng, precomputed=precomputed)
        risk = PURisk(
            positive,
            unlabeled,
            target,
            loss=LOSSES[self.loss],
            trade_off=float(self.trade_off),
            normalize=bool(self.normalize),
            class_prior_train=self.class_prior_train,
            single_set=self.scenario == "single_set",
        )
        if not risk.loss.symmetric and len(positive.ratio) < 2:
            raise ValueError(f"loss={self.loss!r} needs at least 2 positives, got 1")
        for name in ("coef_", "landmarks_", "module_", "_kernel"):
            self.__dict__.pop(name, None)
        if self._linear:
            self._fit_linear(samples, risk, rng)
        else:
            self._fit_network(samples, risk, rng)
        self.threshold_ = self._find_threshold(samples, risk)
        return self

    def _weigh(
        self, samples: PUSamples, rng: np.random.RandomState, *, precomputed: bool
    ) -> tuple[Weighted, Weighted, Weighted | None]:
        """Estimate the ratio and weigh the three samples."""
        ratio = make_ratio(self.density_ratio, float(self.relative_alpha), rng)
        if samples.target is None and (ratio is not None or self.trade_off > 0):
            warnings.warn(
                "no target rows: all weights are 1 and trade_off is of no account, so scores are those for "
                "the training population; pass sample_domain or X_target, or say so by "
                "density_ratio='none', trade_off=0",
                UserWarning,
                stacklevel=3,
            )
            ratio = None
        if ratio is not None:
            ratio.fit(samples.target, samples.source(single_set=self.scenario == "single_set"))
        self.density_ratio_ = ratio
        single = {"positive": samples.positive_weight, "unlabeled": samples.unlabeled_weight}
        weighted: dict[str, Weighted] = {}
        for name, rows in (("positive", samples.positive), ("unlabeled", samples.unlabeled)):
            given = single[name]
            if precomputed:
                w = given if self.weight_clip is None else np.minimum(given, self.weight_clip)
                weighted[name] = Weighted(w, np.ones(len(w)))
            else:
                w = np.ones(len(given)) if ratio is None else self._bounded(predict_ratio(ratio, rows))
                weighted[name] = Weighted(w, given)
        self.weights_positive_, self.weights_unlabeled_ = (part.ratio for part in weighted.values())
        self.effective_sample_size_ = {
            name: effective_sample_size(part.ratio, part.count) for name, part in weighted.items()
        }
        if ratio is not None or precomputed:
            relative = named(self.density_ratio, *RELATIVE)
            bound = 1 / self.relative_alpha if relative and self.relative_alpha > 0 else None
            warn_of(self.weights_positive_, self.effective_sample_size_["positive"], bound)
        target = None
        if samples.target is not None:
            target = Weighted(self._target_ratio(samples.target), samples.target_weight)
        return weighted["positive"], weighted["unlabeled"], target

    def _fit_linear(self, samples: PUSamples, risk: PURisk, rng: np.random.RandomState) -> None:
        """L-BFGS on all pairs."""
        if named(self.scorer, "kernel"):
            self._kernel = draw_landmarks(samples, self.n_components, self.gamma, rng)
            self.landmarks_ = self._kernel.landmarks
            parts: list[Any] = [
                None if part is None else self._kernel(part)
                for part in (samples.positive, samples.unlabeled, samples.target)
            ]
        else:
            parts = centred(samples)
        found = fit_linear(
            parts,
            risk,
            l2=float(self.l2),
            max_iter=int(self.max_iter),
            n_restarts=int(self.n_restarts),
            rng=rng,
            n_jobs=self.n_jobs,
        )
        self.coef_ = found.coef[None]
        self.loss_curve_, self.n_iter_ = found.loss_curve, found.n_iter

    def _fit_network(self, samples: PUSamples, risk: PURisk, rng: np.random.RandomState) -> None:
        """Adam on batches."""
        from seedbed.estimators.pu_auc_covariate_shift.networks import fit_network

        transform: KernelMap | None = None
        if named(self.scorer, "kernel"):
            self._kernel = transform = draw_landmarks(samples, self.n_components, self.gamma, rng)
            self.landmarks_ = transform.landmarks
        found = fit_network(self.scorer, samples, risk, self.get_params(deep=False), rng, transform)
        self.module_ = found.module
        if found.coef is not None:
            self.coef_ = found.coef
        self.loss_curve_, self.n_iter_ = found.loss_curve, found.n_iter

    def _find_threshold(self, samples: PUSamples, risk: PURisk) -> float:
        """Cut of the raw scores."""
        if not isinstance(self.threshold, str):
            return float(self.threshold)
        if samples.target is not None:
            population, weight = self._raw_scores(samples.target), samples.target_weight
        else:
            population, weight = self._raw_scores(samples.unlabeled), risk.unlabeled.weight
        if self.threshold == "prior":
            assert self.class_prior is not None
            return upper_share_threshold(population, weight, float(self.class_prior))
        scores = self._raw_scores(samples.positive)
        return youden_threshold(scores, population, risk.positive.weight, weight)
