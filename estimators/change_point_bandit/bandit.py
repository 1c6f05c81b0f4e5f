"""The estimator: ask which point to query, tell what came, stop when every reported change is certain."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted, validate_data

from seedbed.estimators.change_point_bandit.engine import Rules
from seedbed.estimators.change_point_bandit.progress import Progress
from seedbed.estimators.change_point_bandit.readings import Readings
from seedbed.estimators.change_point_bandit.sessions import LARGEST, Sessions
from seedbed.estimators.change_point_bandit.single import Single
from seedbed.estimators.change_point_bandit.thresholds import THRESHOLDS, Floats, warn_uncertified


class ChangePointBandit(Sessions, Readings, RegressorMixin, BaseEstimator):
    r"""Find where a noisy step function jumps, with few queries and a bound on the error probability.

    Points are ordered, each query of one returns its level plus noise, and levels are constant but for some
    jumps. The estimator says which point to query next (``ask``), learns from the answer (``tell``), and is
    ``done`` once every change it reports is certain: with probability ``1 - delta`` none of them is false, at
    whatever time it stops. It samples beside the estimated changes in proportion to ``1 / jump²``, which is
    optimal as delta falls [1]_.

    Parameters
    ----------
    n_change_points : int
        Changes to find, N. Not used with ``objective="all"``.
    objective : {"exact", "any", "all"}
        "exact": there are exactly N. "any": there are N or more, N true ones are wanted. "all": their number
        is unknown, every jump of ``min_jump`` or more is wanted.
    delta : float
        Probability of a false report.
    sigma : float or array-like of shape (n_points,)
        Standard deviation of the noise, or what makes it sub-Gaussian (1/2 for rewards in [0, 1]).
    min_jump : float, optional
        With ``objective="all"``, the smallest jump that matters.
    estimator : {"auto", "segmentation", "pairwise"}
        How changes are estimated: by least squares over all data, which "auto" takes, or as the largest
        jumps between neighbours. No guarantee depends on it. With more than one change, least squares takes
        time in proportion to the square of the number of points; beyond 256 it is done anew each time the
        rewards have grown by one percent.
    statistic : {"paired", "pooled"}
        What certifies a boundary: the first n rewards on either side, or all of them, which unequal ``sigma``
        needs.
    threshold : {"mixture", "kaufmann-koolen", "garivier-kaufmann", "heuristic"} or callable
        When a boundary is certain, see :func:`~seedbed.estimators.stopping_threshold`; the last two and
        callables, which get ``(n_left, n_right, t, n_arms, delta)``, are not certified.
    kappa : float
        Prior of the mixture, in rewards: jumps of about ``sigma / sqrt(kappa)`` are found soonest.
    sampling : {"mcpi", "uniform", "elimination", "track-and-stop", "cluster"}
        Which point is next. The paper's rule [1]_; the least queried; the least queried beside a boundary
        that may still be among the N largest; targets from the numeric program; targets that take segments
        for clusters without an order.
    tracking : {"D", "C"}
        Whether counts follow the present targets or the mean of all so far.
    forced_exploration : float
        A point with fewer than this times ``sqrt(t)`` queries comes first. The paper has 1, which for 30
        points or more costs most of the queries; any positive value has the same limit.
    batch_size : int
        Points per ``ask`` and per call of an oracle.
    max_evals : int, optional
        Queries after which ``fit`` with an oracle gives up.
    verbose : int
        Whether ``fit`` with an oracle shows its progress, on a terminal.

    Attributes
    ----------
    domain_ : ndarray of shape (n_arms_,)
        Points, in order.
    n_arms_ : int
        Number of points K.
    counts_ : ndarray of shape (n_arms_,)
        Queries of each.
    means_ : ndarray of shape (n_arms_,)
        Mean of each; NaN without queries.
    change_points_ : ndarray of int
        Reported boundaries: b lies between ``domain_[b]`` and ``domain_[b + 1]``.
    change_intervals_ : ndarray of shape (n_changes, 2)
        Those points.
    jumps_, jump_intervals_ : ndarray of shape (n_changes,) and (n_changes, 2)
        Size of each, and an interval; all intervals at all times hold together with probability 1 - delta.
    levels_ : ndarray of shape (n_changes + 1,)
        Mean of each segment.
    log_e_values_, p_values_ : ndarray of shape (n_arms_ - 1,)
        Evidence that a boundary is a change, and anytime p-values adjusted for all boundaries.
    cleared_ : ndarray of bool, shape (n_arms_ - 1,)
        With ``objective="all"``: boundaries shown to have no jump of ``min_jump``.
    confidence_ : float
        1 minus the largest p-value of a reported change: the level at which the report would already have
        been certified.
    certified_, stopped_ : bool
        Whether the report is certain at ``delta``; whether the stopping rule was met (the same but for rules
        that are not certified).
    n_evals_ : int
        Rewards told.
    sampling_weights_ : ndarray of shape (n_arms_,)
        Target shares at the present estimates.
    characteristic_time_ : float
        ``T*`` at the present estimates, see :func:`~seedbed.estimators.characteristic_time`.
    history_ : structured ndarray
        ``arm``, ``y`` and ``round`` of each reward.
    stopping_curve_ : ndarray of shape (n_checks, 2)
        Number of rewards, and least log e-value of the changes reported then.
    n_features_in_ : int
        1.
    feature_names_in_ : ndarray of str
        Name of the column, if it has one.

    See Also
    --------
    simulate_policy : Runs it many times on a known instance.
    characteristic_time : What an instance costs.

    Notes
    -----
    ``fit(X, y)`` takes data that are already there; ``fit(X, oracle=f)`` queries ``f`` until it is done;
    ``start``, ``ask`` and ``tell`` leave the loop to the caller. The paper divides delta by N; what covers
    any report is one event over all K - 1 boundaries, so thresholds here have ``log((K - 1) / delta)``.

    References
    ----------
    .. [1] J. Lazzaro, C. Pike-Burke, "Fixed-Confidence Multiple Change Point Identification under Bandit
       Feedback", ICML 2025, algorithms 1 and 2.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import ChangePointBandit
    >>> rng = np.random.default_rng(0)
    >>> model = ChangePointBandit(delta=0.05).start(np.arange(20))
    >>> while not model.done:
    ...     x = model.ask()
    ...     _ = model.tell(x, (x[:, 0] > 12) + rng.normal(size=len(x)))
    >>> model.change_intervals_.tolist(), bool(model.n_evals_ < 200)
    ([[12.0, 13.0]], True)
    """

    # Candidate points come with it, and cross-validation splits rewards: it is no metadata of rows.
    __metadata_request__fit: ClassVar[dict[str, Any]] = {"oracle": UNUSED}

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_change_points": [Interval(Integral, 1, None, closed="left")],
        "objective": [StrOptions({"exact", "any", "all"})],
        "delta": [Interval(Real, 0, 1, closed="neither")],
        "sigma": [Interval(Real, 0, None, closed="neither"), "array-like"],
        "min_jump": [Interval(Real, 0, None, closed="neither"), None],
        "estimator": [StrOptions({"auto", "segmentation", "pairwise"})],
        "statistic": [StrOptions({"paired", "pooled"})],
        "threshold": [StrOptions(set(THRESHOLDS)), callable],
        "kappa": [Interval(Real, 0, None, closed="neither")],
        "sampling": [StrOptions({"mcpi", "uniform", "elimination", "track-and-stop", "cluster"})],
        "tracking": [StrOptions({"D", "C"})],
        "forced_exploration": [Interval(Real, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "max_evals": [Interval(Integral, 1, None, closed="left"), None],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_change_points: int = 1,
        *,
        objective: str = "exact",
        delta: float = 0.05,
        sigma: float | ArrayLike = 1.0,
        min_jump: float | None = None,
        estimator: str = "auto",
        statistic: str = "paired",
        threshold: Any = "mixture",
        kappa: float = 1.0,
        sampling: str = "mcpi",
        tracking: str = "D",
        forced_exploration: float = 0.25,
        batch_size: int = 1,
        max_evals: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_change_points = n_change_points
        self.objective = objective
        self.delta = delta
        self.sigma = sigma
        self.min_jump = min_jump
        self.estimator = estimator
        self.statistic = statistic
        self.threshold = threshold
        self.kappa = kappa
        self.sampling = sampling
        self.tracking = tracking
        self.forced_exploration = forced_exploration
        self.batch_size = batch_size
        self.max_evals = max_evals
        self.verbose = verbose

    # -- fitting --------------------------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, *, oracle: Callable[[Floats], Any] | None = None) -> Self:
        """Learn from data, or query an oracle until done.

        Parameters
        ----------
        X : array-like of shape (n,) or (n, 1), or callable
            Queried points, in order of time; with an oracle, the candidate points, each once. A callable
            with a ``domain`` is oracle and candidate points in one.
        y : array-like of shape (n,), optional
            Rewards.
        oracle : callable, optional
            Maps points (b, 1) to rewards (b,).

        Returns
        -------
        self
            The fitted estimator. After ``max_evals`` queries, ``stopped_`` tells that it has not stopped.

        Raises
        ------
        ValueError
            If arguments or rewards are not allowed.
        TypeError
            If the oracle returns no numbers, or not one per point.
        KeyboardInterrupt
            After Ctrl-C; what was told stays, and ``ask`` goes on from there.
        """
        if oracle is None and callable(X) and hasattr(X, "domain"):
            X, oracle = X.domain, X
        if oracle is None:
            if y is None:
                raise ValueError(
                    "y must be given, or an oracle: requires y to be passed, but the target y is None"
                )
            rows, rewards = validate_data(
                self, _as_column(X), y, dtype=[np.float64, np.float32], ensure_2d=True, y_numeric=True
            )
            rewards = _checked(np.asarray(rewards, dtype=float), "y")
            self._begin(np.unique(_single(rows)))
            self._record(np.searchsorted(self.domain_, rows[:, 0]), rewards)
            self._conclude()
            return self
        if y is not None:
            raise ValueError("y must be None with an oracle: it gives the rewards")
        if not callable(oracle):
            raise TypeError(f"oracle must be callable, got {type(oracle).__name__}")
        self._begin(self._candidates(X))
        return self._query(oracle)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Tell of further rewards; the first call's points are the domain.

        Parameters
        ----------
        X : array-like of shape (n,) or (n, 1)
            Queried points.
        y : array-like of shape (n,)
            Rewards.

        Returns
        -------
        self
            The estimator.

        Raises
        ------
        ValueError
            If a point is not in the domain, or a reward not finite.
        """
        if not hasattr(self, "_engine"):
            return self.fit(X, y)
        rows, rewards = validate_data(
            self, _as_column(X), y, dtype=[np.float64, np.float32], y_numeric=True, reset=False
        )
        return self.tell(rows, rewards)

    @_fit_context(prefer_skip_nested_validation=True)
    def start(self, X: ArrayLike) -> Self:
        """Begin a session.

        Parameters
        ----------
        X : array-like of shape (n_points,) or (n_points, 1)
            Candidate points, each once; they are sorted.

        Returns
        -------
        self
            Ready to be asked.

        Raises
        ------
        ValueError
            If points are not finite, not unique or fewer than two, or a parameter does not fit them.
        """
        self._begin(self._candidates(X))
        self._conclude()
        return self

    def ask(self, n_points: int | None = None, *, force: bool = False) -> Floats:
        """Return the points to query next.

        Parameters
        ----------
        n_points : int, optional
            How many; ``batch_size`` if None. Points asked for and not yet told count as if they were.
        force : bool
            Whether to go on after the session is done.

        Returns
        -------
        ndarray of shape (n_points, 1)
            Points.

        Raises
        ------
        NotFittedError
            Before ``start``.
        RuntimeError
            If the session is done.
        """
        self._check_started()
        n = self.batch_size if n_points is None else n_points
        if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
            raise ValueError(f"n_points must be a positive integer, got {n_points!r}")
        if self.stopped_ and not force:
            raise RuntimeError("the session is done: read change_points_, or go on with ask(force=True)")
        arms = np.empty(n, dtype=np.int64)
        for place in range(n):
            arms[place] = self._engine.choose(self._pending[None] if self._n_pending else None)[0]
            self._pending[arms[place]] += 1
            self._n_pending += 1
        return self.domain_[arms][:, None]

    def tell(self, x: ArrayLike, y: ArrayLike) -> Self:
        """Learn the rewards of points, asked for or not, in any order.

        Parameters
        ----------
        x : array-like of shape (b,) or (b, 1)
            Points of the domain.
        y : array-like of shape (b,)
            Rewards.

        Returns
        -------
        self
            The estimator.

        Raises
        ------
        NotFittedError
            Before ``start``.
        ValueError
            If a point is not in the domain, a reward not finite, or the lengths differ; nothing is recorded
            then.
        """
        self._check_started()
        points, rewards = np.array(x, dtype=float, ndmin=1), np.array(y, dtype=float, ndmin=1)
        points = _single(points) if points.ndim == 2 else points
        if points.ndim != 1 or points.shape != rewards.shape:
            raise ValueError(f"x and y must have the same length, got {points.shape} and {rewards.shape}")
        rewards = _checked(rewards, "y")
        arms = np.minimum(np.searchsorted(self.domain_, points), self.n_arms_ - 1)
        strange = self.domain_[arms] != points
        if strange.any():
            point = points[strange][0]
            near = self.domain_[np.argsort(np.abs(self.domain_ - point), kind="stable")[:2]]
            raise ValueError(f"x has {point!r}, which is not in the domain; nearest are {near.tolist()}")
        self._record(arms, rewards)
        self._conclude()
        return self

    @property
    def done(self) -> bool:
        """Whether the stopping rule is met."""
        self._check_started()
        return self.stopped_

    # -- answers --------------------------------------------------------------------------------------------

    def predict(self, X: ArrayLike) -> Floats:
        """Return the level of each point.

        Parameters
        ----------
        X : array-like of shape (n,) or (n, 1)
            Points; one between two of the domain takes the left one's level, one outside that of the end.

        Returns
        -------
        ndarray of shape (n,)
            Pooled means of the segments.

        Raises
        ------
        NotFittedError
            Before there is a reward of every point.
        """
        check_is_fitted(self, "domain_")
        levels = self.levels_
        if np.isnan(levels).any():
            raise NotFittedError("a segment has no reward yet: tell more before predicting")
        rows = validate_data(self, _as_column(X), dtype=[np.float64, np.float32], reset=False)
        arms = np.searchsorted(self.domain_, rows[:, 0], side="right") - 1
        segment = np.searchsorted(self.change_points_, arms.clip(0), side="left")
        return levels[segment].astype(rows.dtype)

    # -- inside ---------------------------------------------------------------------------------------------

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False  # but for a single column
        tags.target_tags.required = False
        return tags

    def rules(self, n_arms: int) -> Rules:
        """Return how a session over so many points runs.

        Parameters
        ----------
        n_arms : int
            Number of points.

        Returns
        -------
        Rules
            Checked settings.

        Raises
        ------
        ValueError
            If a parameter does not fit the number of points or another parameter.
        """
        self._validate_params()
        if self.objective == "all":
            if self.min_jump is None:
                raise ValueError("min_jump must be positive with objective='all', got None")
        elif self.min_jump is not None:
            raise ValueError(
                f"min_jump is for objective='all', got {self.min_jump!r} with {self.objective!r}"
            )
        elif self.n_change_points >= n_arms:
            raise ValueError(
                f"n_change_points must be below the number of points, {n_arms}, got {self.n_change_points}"
            )
        if isinstance(self.sigma, Real):
            sigma = np.full(n_arms, float(self.sigma))
            if not math.isfinite(self.sigma):
                raise ValueError(f"sigma must be finite, got {self.sigma!r}")
        else:
            try:
                sigma = np.asarray(self.sigma, dtype=float)
            except (TypeError, ValueError) as error:
                raise ValueError(f"sigma must hold numbers: {error}") from error
            if sigma.shape != (n_arms,) or not (np.isfinite(sigma).all() and (sigma > 0).all()):
                raise ValueError(
                    f"sigma must be positive and finite, one number or {n_arms}, got shape {sigma.shape}"
                )
            if self.statistic == "paired" and len(set(sigma.tolist())) > 1:
                raise ValueError("statistic='paired' needs one sigma for all points; use statistic='pooled'")
        for name in ("kappa", "forced_exploration"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)!r}")
        return Rules(
            n_change_points=int(self.n_change_points),
            objective=self.objective,  # type: ignore[arg-type]
            delta=float(self.delta),
            sigma=sigma,
            min_jump=self.min_jump,
            estimator=self.estimator,  # type: ignore[arg-type]
            statistic=self.statistic,  # type: ignore[arg-type]
            threshold=self.threshold,
            kappa=float(self.kappa),
            sampling=self.sampling,  # type: ignore[arg-type]
            tracking=self.tracking,  # type: ignore[arg-type]
            forced_exploration=float(self.forced_exploration),
        )

    def _check_started(self) -> None:
        if "_engine" not in self.__dict__:
            raise NotFittedError("This ChangePointBandit is not fitted yet: call start or fit first")

    def _candidates(self, X: Any) -> Floats:
        """Check candidate points; return them sorted."""
        rows = validate_data(self, _as_column(X), dtype=[np.float64, np.float32], ensure_min_samples=2)
        points = np.sort(_single(rows).astype(float))
        twice = points[1:][np.diff(points) == 0]
        if len(twice):
            raise ValueError(f"X must have each candidate point once, {twice[0]!r} comes twice")
        return points

    def _begin(self, domain: Floats) -> None:
        if len(domain) < 2:
            raise ValueError(f"X must have two different points or more, got {len(domain)}")
        rules = self.rules(len(domain))
        warn_uncertified(self.threshold)
        self.domain_, self.n_arms_ = domain.astype(float), len(domain)
        self._engine = Single(rules)
        self._pending, self._n_pending = np.zeros(len(domain)), 0
        self._log: list[tuple[int, float, int]] = []
        self._round = 0
        self._curve: list[tuple[int, float]] = []

    def _record(self, arms: NDArray[np.int64], rewards: Floats) -> None:
        """Take in rewards, one round."""
        for arm, reward in zip(arms.tolist(), rewards.tolist(), strict=True):
            self._engine.take(arm, reward)
            self._log.append((arm, reward, self._round))
            if self._pending[arm] > 0:
                self._pending[arm] -= 1
                self._n_pending -= 1
        self._round += 1

    def _query(self, oracle: Callable[[Floats], Any]) -> Self:
        """Ask and tell until done."""
        self._conclude()
        limit = math.inf if self.max_evals is None else self.max_evals
        with Progress(self) as progress:
            while not self.done and self.n_evals_ < limit:
                points = self.ask(int(min(self.batch_size, limit - self.n_evals_)))
                try:
                    rewards = _from_oracle(oracle(points), len(points))
                except BaseException:
                    self._pending[:], self._n_pending = 0, 0  # nobody will answer these
                    raise
                self.tell(points, rewards)
                progress.show()
        return self

    def _conclude(self) -> None:
        """See whether this is the end."""
        engine = self._engine
        self.stopped_ = bool(engine.stopped()[0])
        if engine.rules.objective == "all":
            reported = np.flatnonzero(engine.accepted[0]).tolist()
        elif engine.rules.trivial or not engine.complete:
            return
        else:
            reported = engine.changes[0].tolist()
        if reported:
            self._curve.append((engine.t, engine.weakest(reported)))


def _as_column(X: Any) -> Any:
    """Turn one column of points into rows; leave everything else for validation to judge."""
    if hasattr(X, "iloc") and getattr(X, "ndim", 0) == 1:
        return X.to_frame() if isinstance(X.name, str) else X.to_numpy()[:, None]
    if hasattr(X, "iloc") or hasattr(X, "toarray"):
        return X
    array = np.asarray(X) if isinstance(X, (list, tuple, np.ndarray)) else X
    return array[:, None] if isinstance(array, np.ndarray) and array.ndim == 1 else X


def _single(rows: Any) -> Any:
    if rows.shape[1] != 1:
        raise ValueError(f"X must have one column, the points, got {rows.shape[1]} columns")
    return rows[:, 0]


def _checked(rewards: Floats, name: str) -> Floats:
    if not (np.abs(rewards) <= LARGEST).all():
        if not np.isfinite(rewards).all():
            raise ValueError(f"{name} must be finite, got {rewards[~np.isfinite(rewards)][0]!r}")
        raise ValueError(f"{name} must be at most {LARGEST:g} in size, got {np.abs(rewards).max():g}")
    return rewards


def _from_oracle(rewards: Any, n: int) -> Floats:
    try:
        values = np.asarray(rewards, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"oracle must return numbers, got {type(rewards).__name__}") from error
    if values.shape != (n,):
        raise TypeError(f"oracle must return one number per point, shape ({n},), got {values.shape}")
    return values
