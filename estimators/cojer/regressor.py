"""CoJERRegressor: fit, conformalize, predict intervals whose share of misses is controlled batch by batch."""

import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import _num_samples, check_is_fitted

from seedbed.checks import check_choice, check_number
from seedbed.estimators.cojer.aggregation import AGGREGATIONS, NULLS, Aggregation, AggregationNull
from seedbed.estimators.cojer.calibrated import BOUNDS, Bound, Cut, Family
from seedbed.estimators.cojer.fitting import BaseCoJER, output_dtype
from seedbed.estimators.cojer.laws import Floats, false_coverage_proportion
from seedbed.estimators.cojer.scores import Band
from seedbed.estimators.cojer.thresholds import CALIBRATIONS, TEMPLATES, Calibration, Template, check_delta

_LEVEL = np.dtype([("k", np.int64), ("g", np.int64), ("t", np.float64)])


class CoJERRegressor(BaseCoJER):
    """Prediction intervals whose false coverage proportion (FCP) is controlled in the batch at hand.

    Split conformal intervals miss a share alpha of all points *on average*: in one batch of m points the
    share of misses exceeds alpha about every second time. CoJER returns intervals with ``P(FCP <= alpha) >= 1
    - delta``, where FCP is the realised share of misses among the m points and the probability is over
    calibration set and batch. The guarantee needs nothing but exchangeability of calibration and test points,
    and holds for all alpha *simultaneously*, so alpha may be chosen after seeing the widths.

    Parameters
    ----------
    estimator : regressor, list of regressors or list of (str, regressor), default=None
        Model, ``LinearRegression()`` if None; a pipeline is fine. Several models share the calibration points
        and their p-values are aggregated.
    alpha : float or array-like of shape (n_alpha,), default=0.1
        Allowed share of misses in the batch, in (0, 1).
    delta : float, default=0.1
        Probability with which the guarantee may fail, in (0, 1).
    conformity_score : {"absolute", "gamma", "residual_normalized", "std_normalized", "cqr"} or object, \
default="absolute"
        Conformity score: a name or a symmetric score instance of :mod:`mapie.conformity_scores`. The model of
        the residuals of "residual_normalized" is learned from training rows (cross-validated residuals), or,
        for a prefit estimator, from a quarter of the calibration rows that is then not used for calibration.
        "std_normalized" needs ``predict(X, return_std=True)``. "cqr" wraps ``estimator`` in
        :class:`QuantileBand`.
    template : {"quantile", "learned", "linear", "beta", "single"}, default="quantile"
        Threshold family, see :func:`cojer_thresholds`.
    calibration : {"exact", "monte_carlo"}, default="exact"
        Whether the joint error rate of the family is computed or estimated from ``n_draws`` simulated
        batches.
    n_draws : int, default=1000
        Simulated batches, for ``template="learned"``, ``calibration="monte_carlo"`` and
        ``aggregation_null="independent"``.
    k_max : int, default=None
        Number K of thresholds: alpha up to ``(K - 1) / m`` is covered. None means half of the batch, and
        enough for ``alpha``. Smaller is slightly tighter.
    simultaneous : bool, default=True
        False: the exact pointwise level. Tighter, but the guarantee is for one alpha that was fixed before
        looking at anything.
    prefit : bool, default=False
        Whether ``estimator`` is fitted already; then ``fit(X, y)`` and ``conformalize(X, y)`` both calibrate
        on their rows. Wrap it in ``FrozenEstimator`` where the object gets cloned.
    calibration_size : float, int or None, default=0.5
        Share or number of the rows given to ``fit`` that are set aside for calibration. None: all rows train,
        and ``conformalize`` has to be called with other ones.
    aggregation : {"harmonic", "arithmetic", "geometric", "quantile"}, default="harmonic"
        How p-values of several models are aggregated.
    aggregation_null : {"independent", "single", "split"}, default="independent"
        Law that the thresholds of the aggregate are calibrated on: that of independent p-values, of a single
        model (as in the paper's experiments), or "split", which has the full guarantee under any dependence
        and spends half of the calibration rows on it. The first two have no proof for dependent models; for
        the harmonic mean they hold up in simulations. "independent" fails for the other means, hence the
        warning.
    quantile_gamma : float, default=0.3
        gamma in (0, 1] of ``aggregation="quantile"``.
    n_test : int, default=None
        Size m of the batch that the guarantee is for. None means the rows of each call, so predicting
        in pieces changes the guarantee; set it to predict one batch in pieces.
    n_jobs : int, default=None
        Models fitted at a time (joblib).
    random_state : int, RandomState instance or None, default=None
        Split of the rows, and simulation.

    Attributes
    ----------
    estimators_ : list of regressors
        Fitted models.
    named_estimators_ : Bunch
        The same by name.
    conformity_scores_ : ndarray of shape (n_models, n)
        Sorted calibration scores; with ``aggregation_null="split"`` those of the half that gives the ranks.
    n_calibration_ : int
        Number of calibration scores of each model.
    levels_ : dict of int to structured ndarray
        For each batch size predicted so far: position ``k``, threshold ``g`` in units of ``1 / (n + 1)`` and
        ``t``. At most ``k - 1`` points of the batch have a p-value below ``t``.
    jer_, lambda_ : float
        Joint error rate and parameter of the family of the latest batch.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of str
        Their names, if they have some.

    See Also
    --------
    cojer_confidence_level : The same guarantee from another conformal library.
    from_mapie : The same guarantee for a fitted MAPIE regressor.
    CoJERDisplay : Plots of the bound beside the realised FCP.

    Notes
    -----
    The method is that of [1]_, on the theory of [2]_.

    The price of covering all alpha: 11 to 18 % wider than split conformal at n = 1000, m = 500,
    alpha = 0.1, delta = 0.2, where ``simultaneous=False`` costs 4 to 7 %.

    The guarantee is for one batch. Re-using one calibration set for many batches keeps it for each, but they
    then tend to fail together. Never tune the model on the calibration rows.

    In a pipeline, let a pipeline be ``estimator``; or, with CoJERRegressor as last step and calibration rows
    passed to ``fit``, use ``Pipeline(..., transform_input=["X_calibration"])`` with metadata routing.

    References
    ----------
    .. [1] A. Blain, B. Thirion, P. Neuvial, "False Coverage Proportion Control for Conformal Prediction",
       ICML 2025.
    .. [2] U. Gazin, G. Blanchard, E. Roquain, "Transductive conformal inference with adaptive scores",
       AISTATS 2024.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from seedbed.estimators import CoJERRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = CoJERRegressor(Ridge(), alpha=0.2, delta=0.1, random_state=0).fit(X[:342], y[:342])
    >>> points, intervals = model.predict_interval(X[342:])
    >>> intervals.shape
    (100, 2, 1)
    >>> model.fcp_score(X[342:], y[342:]) <= 0.2
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": [HasMethods(["predict"]), list, None],
        "alpha": [Interval(Real, 0, 1, closed="neither"), "array-like"],
        "delta": [Interval(Real, 0, 1, closed="neither")],
        "conformity_score": [str, HasMethods(["get_conformity_scores", "get_estimation_distribution"])],
        "template": [StrOptions(set(TEMPLATES))],
        "calibration": [StrOptions(set(CALIBRATIONS))],
        "n_draws": [Interval(Integral, 1, None, closed="left")],
        "k_max": [Interval(Integral, 1, None, closed="left"), None],
        "simultaneous": ["boolean"],
        "prefit": ["boolean"],
        "calibration_size": [
            Interval(Real, 0, 1, closed="neither"),
            Interval(Integral, 1, None, closed="left"),
            None,
        ],
        "aggregation": [StrOptions(set(AGGREGATIONS))],
        "aggregation_null": [StrOptions(set(NULLS))],
        "quantile_gamma": [Interval(Real, 0, 1, closed="right")],
        "n_test": [Interval(Integral, 1, None, closed="left"), None],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        alpha: Any = 0.1,
        delta: float = 0.1,
        conformity_score: Any = "absolute",
        template: Template = "quantile",
        calibration: Calibration = "exact",
        n_draws: int = 1000,
        k_max: int | None = None,
        simultaneous: bool = True,
        prefit: bool = False,
        calibration_size: float | int | None = 0.5,
        aggregation: Aggregation = "harmonic",
        aggregation_null: AggregationNull = "independent",
        quantile_gamma: float = 0.3,
        n_test: int | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.alpha = alpha
        self.delta = delta
        self.conformity_score = conformity_score
        self.template = template
        self.calibration = calibration
        self.n_draws = n_draws
        self.k_max = k_max
        self.simultaneous = simultaneous
        self.prefit = prefit
        self.calibration_size = calibration_size
        self.aggregation = aggregation
        self.aggregation_null = aggregation_null
        self.quantile_gamma = quantile_gamma
        self.n_test = n_test
        self.n_jobs = n_jobs
        self.random_state = random_state

    # -- batches -------------------------------------------------------------------------------------------

    def _check_calibrated(self) -> None:
        check_is_fitted(self, "estimators_")
        if not hasattr(self, "_calibrated"):
            raise NotFittedError(
                f"this {type(self).__name__} is fitted but not calibrated: call conformalize(X, y) first"
            )

    def _batch_size(self, rows: int) -> int:
        """Size of the batch that ``rows`` belong to."""
        if rows < 1:
            raise ValueError("X must have at least one row, got n_samples = 0")
        m = rows if self.n_test is None else self.n_test
        if m < rows:
            raise ValueError(f"n_test must be at least the number of rows of X, {rows}; got {m}")
        last = getattr(self, "_batch", m)
        if last != m:
            warnings.warn(
                f"this batch has {m} rows, the last one had {last}: the guarantee is per batch. To predict "
                "one batch in pieces, set n_test to its full size",
                UserWarning,
                stacklevel=3,
            )
        self._batch = m
        return m

    def _remember(self, m: int, found: list[tuple[int, Family]]) -> None:
        """Keep the families of the latest batch where users can look at them."""
        latest = found[-1][1]
        if latest.single:
            rows = [(k, family.g[k - 1], family.t[k - 1]) for k, family in found]
            self.levels_[m] = np.array(rows, dtype=_LEVEL)
        else:
            levels = np.empty(len(latest.g), dtype=_LEVEL)
            levels["k"], levels["g"], levels["t"] = np.arange(1, len(levels) + 1), latest.g, latest.t
            self.levels_[m] = levels
        self.jer_, self.lambda_ = latest.jer, latest.parameter

    def _cuts(self, m: int, alphas: Floats, delta: float, bound: Bound) -> list[Cut]:
        """Where the sets are cut for each alpha; warns of what a user should know."""
        if bound == "cojer":
            if self._calibrated.single and len(alphas) > 1:
                warnings.warn(
                    "simultaneous=False guarantees each alpha alone, not all of them together",
                    UserWarning,
                    stacklevel=3,
                )
            found = self._calibrated.families(m, alphas, delta)
            self._remember(m, found)
            cuts = [self._calibrated.cut(family, k) for k, family in found]
        else:
            cuts = self._calibrated.other_cuts(m, alphas, delta, bound)
        infinite = [
            float(a) for a, cut in zip(alphas, cuts, strict=True) if self._calibrated.is_infinite(cut)
        ]
        if infinite:
            advice = "use more calibration rows"
            if bound == "cojer" and not self.lambda_:
                advice = "use a larger n_draws: no simulated curve was low enough"
            elif bound == "cojer" and not self._calibrated.single:
                least = self._calibrated.smallest_alpha(found[0][1], m)
                advice = (
                    f"{advice} or a larger k_max"
                    if least is None
                    else f"the smallest feasible is {least:.6g}"
                )
            warnings.warn(
                f"intervals are infinite for alpha={infinite} ({self.n_calibration_} calibration rows, a "
                f"batch of {m}); {advice}",
                UserWarning,
                stacklevel=3,
            )
        return cuts

    def _delta(self, delta: float | None) -> float:
        value = self.delta if delta is None else delta
        check_delta(value)
        return float(value)

    def _bands(self, X: Any) -> list[Band]:
        return [scorer.band(X) for scorer in self._scorers]

    def _intervals(
        self, X: Any, cuts: Sequence[Cut], bound: Bound = "cojer"
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Points (m,) and intervals (m, 2, n_cuts)."""
        bands, dtype = self._bands(X), output_dtype(X)
        points = np.mean([band.center for band in bands], axis=0)
        low, high = self._calibrated.intervals(bands, cuts, bound)
        return points.astype(dtype), _outward(low, high, dtype)

    # -- predicting ----------------------------------------------------------------------------------------

    def predict_interval(
        self, X: ArrayLike, alpha: Any = None, delta: float | None = None, *, bound: Bound = "cojer"
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Predict points and closed intervals for a batch.

        Parameters
        ----------
        X : array-like of shape (m, n_features)
            The batch (or a piece of it, if ``n_test`` is set).
        alpha : float or array-like of shape (n_alpha,), optional
            Allowed share of misses; ``self.alpha`` by default. With ``simultaneous=True`` it may be chosen
            after seeing intervals.
        delta : float, optional
            Probability with which the guarantee may fail; ``self.delta`` by default.
        bound : {"cojer", "dkw", "marginal", "bonferroni", "cv_plus_like"}, default="cojer"
            Which intervals, for comparison: CoJER's, those of the DKW-type FCP bound, split conformal
            prediction (no FCP guarantee), the intersection of the models' split conformal intervals at
            ``alpha / n_models``, or twice the arithmetic mean of p-values, which behaves like CV+. The last
            three control the mean FCP at most.

        Returns
        -------
        points : ndarray of shape (m,)
            Predictions.
        intervals : ndarray of shape (m, 2, n_alpha)
            Lower and upper ends, the shape that MAPIE returns.

        Raises
        ------
        ValueError
            If ``alpha`` or ``delta`` is out of range, ``alpha`` needs more thresholds than ``k_max``, or
            ``n_test`` is less than the number of rows.
        NotFittedError
            Before ``fit`` or ``conformalize``.

        Warns
        -----
        UserWarning
            If intervals are infinite, the size of the batch changes between calls, or ``simultaneous=False``
            meets several alpha.
        """
        self._check_calibrated()
        alphas, delta = self._alphas(alpha), self._delta(delta)
        check_choice("bound", bound, BOUNDS)
        self._check_features(X)
        m = self._batch_size(_num_samples(X))
        return self._intervals(X, self._cuts(m, alphas, delta, bound), bound)

    def predict_interval_all(
        self, X: ArrayLike, delta: float | None = None
    ) -> tuple[NDArray[Any], NDArray[Any], Floats]:
        """Predict the intervals of every threshold: with probability 1 - delta all bounds hold together.

        Parameters
        ----------
        X : array-like of shape (m, n_features)
            The batch.
        delta : float, optional
            Probability with which the guarantee may fail; ``self.delta`` by default.

        Returns
        -------
        points : ndarray of shape (m,)
            Predictions.
        intervals : ndarray of shape (m, 2, K)
            Ends, from the widest to the narrowest.
        fcp : ndarray of shape (K,)
            Bound ``(k - 1) / m`` on the FCP of each.

        Raises
        ------
        ValueError
            If ``delta`` is out of range or the thresholds are not simultaneous.
        NotFittedError
            Before ``fit`` or ``conformalize``.
        """
        self._check_calibrated()
        delta = self._delta(delta)
        if self._calibrated.single:
            raise ValueError(
                "predict_interval_all needs simultaneous=True and a template other than 'single'"
            )
        self._check_features(X)
        m = self._batch_size(_num_samples(X))
        family = self._calibrated.family(m, delta)
        self._remember(m, [(len(family.g), family)])
        cuts = [self._calibrated.cut(family, k) for k in range(1, len(family.g) + 1)]
        points, intervals = self._intervals(X, cuts)
        return points, intervals, np.arange(len(family.g)) / m

    def predict_set(
        self, X: ArrayLike, alpha: float | None = None, delta: float | None = None
    ) -> list[Floats]:
        """Predict the exact sets of which :meth:`predict_interval` returns the hulls.

        Several models that disagree can leave gaps between their intervals.

        Parameters
        ----------
        X : array-like of shape (m, n_features)
            The batch.
        alpha, delta : float, optional
            As in :meth:`predict_interval`, one alpha.

        Returns
        -------
        list of m ndarrays of shape (pieces, 2)
            Disjoint closed intervals, sorted.

        Raises
        ------
        ValueError
            As :meth:`predict_interval`.
        NotFittedError
            Before ``fit`` or ``conformalize``.
        """
        self._check_calibrated()
        alphas, delta = self._alphas(alpha), self._delta(delta)
        if len(alphas) > 1:
            raise ValueError(f"alpha must be one number, got {alphas.tolist()}")
        self._check_features(X)
        m = self._batch_size(_num_samples(X))
        (cut,) = self._cuts(m, alphas, delta, "cojer")
        dtype = output_dtype(X)
        pieces = self._calibrated.sets(self._bands(X), cut)
        return [_outward(piece[:, 0], piece[:, 1], dtype) for piece in pieces]

    # -- what was promised, and what came ------------------------------------------------------------------

    def fcp_bound(self, level: ArrayLike, n_test: int | None = None, delta: float | None = None) -> Any:
        """Bound the FCP of the sets ``{y : p(x, y) >= level}``, post hoc and for all levels at once.

        Parameters
        ----------
        level : float or array-like
            Thresholds t of the p-value in [0, 1]. Split conformal intervals at alpha are the set at about t =
            alpha.
        n_test : int, optional
            Size of the batch; by default ``self.n_test``, or that of the latest batch.
        delta : float, optional
            Probability with which the bound may fail; ``self.delta`` by default.

        Returns
        -------
        float or ndarray
            ``(min{k : t_k >= t} - 1) / m``; 1 where no threshold reaches t.

        Raises
        ------
        ValueError
            If a level is outside [0, 1] or no size of the batch is known.
        NotFittedError
            Before ``fit`` or ``conformalize``.
        """
        self._check_calibrated()
        t = np.asarray(level, dtype=float)
        if not np.all((t >= 0) & (t <= 1)):
            raise ValueError(f"level must be in [0, 1], got {level!r}")
        m = n_test if n_test is not None else self.n_test or getattr(self, "_batch", None)
        if m is None:
            raise ValueError("n_test must be given before the first batch is predicted")
        check_number("n_test", m, low=1, integer=True)
        bound = self._calibrated.fcp_bound(t, m, self._delta(delta))
        return float(bound) if np.ndim(level) == 0 else bound

    @property
    def coverage_curve_(self) -> Floats:
        """Rows ``((k - 1) / m, t_k)`` of the latest batch, (K, 2): bound on the FCP and its threshold."""
        if not hasattr(self, "lambda_"):
            raise AttributeError("coverage_curve_ is there after the first call of predict_interval")
        levels = self.levels_[self._batch]
        return np.stack([(levels["k"] - 1) / self._batch, levels["t"]], axis=1)

    def fcp_score(self, X: ArrayLike, y: ArrayLike, alpha: Any = None, delta: float | None = None) -> Any:
        """Return the realised FCP of a batch.

        Parameters
        ----------
        X : array-like of shape (m, n_features)
            The batch.
        y : array-like of shape (m,)
            True values.
        alpha, delta : optional
            As in :meth:`predict_interval`.

        Returns
        -------
        float or ndarray of shape (n_alpha,)
            Share of misses.

        Raises
        ------
        ValueError
            As :meth:`predict_interval`.
        NotFittedError
            Before ``fit`` or ``conformalize``.
        """
        _, intervals = self.predict_interval(X, alpha, delta)
        share = false_coverage_proportion(y, intervals)
        return float(share[0]) if np.ndim(self.alpha if alpha is None else alpha) == 0 else share


def _outward(low: Floats, high: Floats, dtype: Any) -> NDArray[Any]:
    """Stack the ends; rounding to a smaller type never cuts a point off."""
    ends = np.stack([low, high], axis=1)
    if dtype == np.float64:
        return ends
    rounded = ends.astype(dtype)
    rounded[:, 0] = np.where(rounded[:, 0] > low, np.nextafter(rounded[:, 0], dtype(-np.inf)), rounded[:, 0])
    rounded[:, 1] = np.where(rounded[:, 1] < high, np.nextafter(rounded[:, 1], dtype(np.inf)), rounded[:, 1])
    return rounded
