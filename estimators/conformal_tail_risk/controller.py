"""The estimator: the largest threshold at which a tail risk of human losses is under control."""

import math
import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import spearmanr
from sklearn.base import BaseEstimator, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import _check_feature_names, check_array, check_is_fitted

from seedbed.checks import missing_extra
from seedbed.estimators.conformal_tail_risk.prompts import Floats, Ladder, as_table, positions
from seedbed.estimators.distortion import (
    BOUNDS,
    CVaR,
    DistortionRisk,
    ExponentialDistortion,
    Mean,
    PowerDistortion,
    VaR,
    WangDistortion,
    check_bound,
    upper_bounds,
)
from seedbed.estimators.distribution_bands import berk_jones_level

MOST_THRESHOLDS, COARSE = 2000, 1000
MONOTONE = ("dkw", "ks", "berk_jones", "berk_jones_truncated", "order_statistic", "plug_in")
PAIRS = 100_000
"""Pairs that the rank correlation is taken of at most."""


class ConformalTailRiskController(BaseEstimator):
    r"""Accept answers up to a machine score at which a tail risk of human losses is provably small.

    For each prompt there are candidate answers with a machine score ``M`` and, in a calibration set, a human
    loss ``H``; low is good for both. Answers with ``M <= lambda_`` may be shown. A prompt's loss is that of
    its worst acceptable answer, and ``loss_lower`` where there is none: then the system abstains. ``lambda_``
    is the largest threshold below the first one at which an upper confidence bound of the risk exceeds
    ``alpha``; with probability ``1 - delta`` the true risk there is at most ``alpha`` [1]_, whichever
    acceptable answer is shown.

    Parameters
    ----------
    risk : {"cvar", "var", "mean", "power", "exponential", "wang"} or DistortionRisk
        Risk of the prompts' losses, see :mod:`seedbed.estimators.distortion`; a name takes its default but
        for ``beta``.
    beta : float
        Of "cvar" and "var": .75 looks at the worst quarter of prompts.
    alpha : float
        Largest risk that is allowed.
    delta : float
        Probability that it is exceeded.
    bound : str
        "l_statistic": asymptotic. "dkw", "ks", "berk_jones", "berk_jones_truncated": hold for every sample
        size and risk. "order_statistic": exact, for "var". "bootstrap": asymptotic, for "var". "plug_in": no
        margin, for comparison. "auto": "order_statistic" for "var"; else "l_statistic" where 50 prompts or
        more are in the tail (100 in all) and losses take 20 values or more, "berk_jones" where not.
    loss_upper, loss_lower : float
        Range of human losses; never estimate it from the sample.
    reduction : {"max", "first", "mean"}
        Loss of a prompt: of its worst acceptable answer, of the first, or their mean. The latter two need not
        grow with the threshold, and need another ``selection``.
    selection : {"first_crossing", "max_valid", "fixed_sequence", "bonferroni"}
        How the threshold is chosen: below the first at which the bound exceeds ``alpha``; the largest at
        which it does not; below the first as a sequence of tests; the largest at ``delta`` over the number of
        thresholds. Only the first needs losses that grow, and "max_valid" has no proof.
    lambdas : "auto" or array-like
        Thresholds to choose from: all distinct scores, or 1000 quantiles of more than 2000.
    max_samples : int, optional
        Candidates per prompt that count, the first ones: as many as will be drawn at most. All if None.

    Attributes
    ----------
    lambda_ : float
        The threshold; minus infinity where none is under control.
    ucb_, risk_estimate_ : float
        Upper bound and estimate of the risk there.
    lambdas_ : ndarray
        Thresholds that were to choose from.
    bound_ : str
        The bound that was used.
    berk_jones_level_ : float
        Level of its beta quantiles; NaN for other bounds.
    n_prompts_ : int
        Prompts.
    abstention_rate_ : float
        Share of prompts without an acceptable answer.
    expected_samples_ : float
        Mean place, from 1, of the first acceptable answer, over prompts that have one.
    spearman_ : float
        Rank correlation of scores and losses, of 100,000 pairs at most.
    n_features_in_ : int
        Candidates per prompt, N.
    feature_names_in_ : ndarray of str
        Names of columns, if they have some.

    See Also
    --------
    RejectionSampler : Draws answers until one is acceptable.
    tail_risk_p_value : For several risks at once.

    Notes
    -----
    Calibration prompts and later ones must be exchangeable, with as many candidates drawn in the same way. A
    strict threshold looks safe because it abstains: read ``abstention_rate_`` beside the risk.

    References
    ----------
    .. [1] C. Y.-C. Chen, J. Shen, Z. Deng, L. Lei, "Conformal Tail Risk Control for Large Language Model
       Alignment", ICML 2025.

    Examples
    --------
    >>> from seedbed.datasets import make_tail_alignment
    >>> from seedbed.estimators import ConformalTailRiskController
    >>> data = make_tail_alignment(1000, random_state=0)
    >>> model = ConformalTailRiskController(alpha=0.25, delta=0.1)
    >>> model.fit(data.machine_scores, data.human_losses).bound_
    'l_statistic'
    >>> round(model.lambda_, 1), round(model.abstention_rate_, 1)
    (0.3, 0.1)
    """

    # They come with long format or padded tables, where cross-validation splits other rows.
    __metadata_request__fit: ClassVar[dict[str, Any]] = {"mask": UNUSED, "groups": UNUSED}
    __metadata_request__score: ClassVar[dict[str, Any]] = {}

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "risk": [StrOptions({"cvar", "var", "mean", "power", "exponential", "wang"}), DistortionRisk],
        "beta": [Interval(Real, 0, 1, closed="left")],
        "alpha": [Interval(Real, None, None, closed="neither")],
        "delta": [Interval(Real, 0, 1, closed="neither")],
        "bound": [StrOptions({"auto", *BOUNDS})],
        "loss_upper": [Interval(Real, None, None, closed="neither")],
        "loss_lower": [Interval(Real, None, None, closed="neither")],
        "reduction": [StrOptions({"max", "first", "mean"})],
        "selection": [StrOptions({"first_crossing", "max_valid", "fixed_sequence", "bonferroni"})],
        "lambdas": [StrOptions({"auto"}), "array-like"],
        "max_samples": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(
        self,
        risk: Any = "cvar",
        *,
        beta: float = 0.75,
        alpha: float = 0.35,
        delta: float = 0.05,
        bound: str = "auto",
        loss_upper: float = 1.0,
        loss_lower: float = 0.0,
        reduction: str = "max",
        selection: str = "first_crossing",
        lambdas: Any = "auto",
        max_samples: int | None = None,
    ) -> None:
        self.risk = risk
        self.beta = beta
        self.alpha = alpha
        self.delta = delta
        self.bound = bound
        self.loss_upper = loss_upper
        self.loss_lower = loss_lower
        self.reduction = reduction
        self.selection = selection
        self.lambdas = lambdas
        self.max_samples = max_samples

    # -- fitting ------------------------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: ArrayLike, y: ArrayLike, *, mask: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Choose the threshold.

        Parameters
        ----------
        X : array-like of shape (n, N), or (rows,) with groups
            Machine scores of the candidates of each prompt, in the order in which they were drawn; NaN where
            a prompt has fewer.
        y : array-like of the shape of X
            Human losses.
        mask : array-like of bool of the shape of X, optional
            Which candidates there are, in place of NaN.
        groups : array-like of shape (rows,), optional
            Prompt of each candidate, for long format.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ValueError
            If arrays or parameters are not allowed.

        Warns
        -----
        UserWarning
            If no threshold is under control or all are, the tail is too small for the bound, or scores and
            losses do not rise together.
        """
        risk = self._risk(self.risk)
        self._check_levels(self.alpha)
        scores, losses, there = self._tables(X, y, mask, groups)
        assert losses is not None
        self.n_prompts_ = len(scores)
        self._ladder = Ladder(
            scores,
            losses,
            self._grid(scores[there]),
            self.reduction,  # type: ignore[arg-type]
            float(self.loss_lower),
        )
        self.lambdas_ = self._ladder.grid
        self._distinct = len(np.unique(losses[there][:: max(there.sum() // PAIRS, 1)]))
        self.spearman_ = _rank_correlation(scores[there], losses[there])
        self.bound_ = self._choose_bound(risk, self.bound)
        self._warn_of(risk)
        step = self._search(risk, self.alpha, self.delta, self.bound_)
        self._settle(scores, risk, step)
        return self

    def _settle(self, scores: Floats, risk: DistortionRisk, step: int) -> None:
        """Write what is known at the chosen threshold."""
        chosen = step >= 0
        self.lambda_ = float(self.lambdas_[step]) if chosen else -math.inf
        ordered = np.sort(
            self._ladder.at(step) if chosen else np.full(self.n_prompts_, float(self.loss_lower))
        )
        self.risk_estimate_ = float(ordered @ risk.weights(len(ordered)))
        self.ucb_ = float(self._bounds(risk, ordered[None], self._level(self.delta), self.bound_)[0])
        place = positions(scores, self.lambda_)
        self.abstention_rate_ = float((place < 0).mean())
        self.expected_samples_ = float((place[place >= 0] + 1).mean()) if chosen else math.nan
        exact = self.bound_ == "berk_jones"
        self.berk_jones_level_ = berk_jones_level(self.n_prompts_, float(self.delta)) if exact else math.nan
        if not chosen:
            warnings.warn(
                f"no threshold is under control at alpha={self.alpha!r} with {self.n_prompts_} prompts: "
                "every answer is rejected; allow more risk, or calibrate with more prompts",
                UserWarning,
                stacklevel=3,
            )
        elif step == len(self.lambdas_) - 1 and self.abstention_rate_ == 0:
            warnings.warn(
                "every threshold is under control: the risk of all answers is below alpha",
                UserWarning,
                stacklevel=3,
            )

    def control(
        self,
        alpha: float | None = None,
        delta: float | None = None,
        risk: Any = None,
        bound: str | None = None,
    ) -> float:
        """Return the threshold for other targets, on the same calibration data.

        Choosing among targets after seeing their thresholds breaks the guarantee.

        Parameters
        ----------
        alpha, delta : float, optional
            In place of the estimator's.
        risk : str or DistortionRisk, optional
            Likewise.
        bound : str, optional
            Likewise.

        Returns
        -------
        float
            The threshold that a fresh fit would find; minus infinity if there is none.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        ValueError
            If a target is not allowed.
        """
        check_is_fitted(self, "lambda_")
        wanted = self._risk(self.risk if risk is None else risk)
        level = self.alpha if alpha is None else alpha
        error = self.delta if delta is None else delta
        self._check_levels(level)
        if not 0 < error < 1:
            raise ValueError(f"delta must be in (0, 1), got {error!r}")
        chosen = self._choose_bound(wanted, self.bound if bound is None else bound)
        step = self._search(wanted, level, error, chosen)
        return float(self.lambdas_[step]) if step >= 0 else -math.inf

    # -- answers ------------------------------------------------------------------------------------------

    def predict(self, X: ArrayLike) -> Any:
        """Return the first acceptable candidate of each prompt.

        Parameters
        ----------
        X : array-like of shape (n, N)
            Machine scores; NaN where a prompt has fewer candidates.

        Returns
        -------
        ndarray of int, shape (n,)
            Columns; -1 where none is acceptable.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        ValueError
            If there are more candidates than the guarantee covers.
        """
        return positions(self._scores(X), self.lambda_)

    def accept(self, X: ArrayLike) -> Any:
        """Tell which candidates are acceptable.

        Parameters
        ----------
        X : array-like of shape (n, N)
            Machine scores.

        Returns
        -------
        ndarray of bool, shape (n, N)
            ``X <= lambda_``.

        Raises
        ------
        NotFittedError, ValueError
            As :meth:`predict`.
        """
        return self._scores(X) <= self.lambda_

    def decision_function(self, X: ArrayLike) -> Any:
        """Return how far candidates are below the threshold.

        Parameters
        ----------
        X : array-like of shape (n, N)
            Machine scores.

        Returns
        -------
        ndarray of shape (n, N)
            ``lambda_ - X``, not negative for acceptable ones; the lowest number there is where there is no
            candidate, or no threshold under control.

        Raises
        ------
        NotFittedError, ValueError
            As :meth:`predict`.
        """
        scores = self._scores(X)
        dtype = np.float32 if getattr(X, "dtype", None) == np.float32 else np.float64
        with np.errstate(invalid="ignore"):
            margin = np.where(np.isfinite(scores), self.lambda_ - scores, -np.inf)
        return np.maximum(margin, np.finfo(dtype).min).astype(dtype)

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return minus the estimated risk of the acceptable answers of other prompts.

        Parameters
        ----------
        X, y : array-like of shape (n, N)
            Machine scores and human losses.

        Returns
        -------
        float
            Larger is better; abstaining is best, so look at :meth:`evaluate` too.

        Raises
        ------
        NotFittedError, ValueError
            As :meth:`predict`.
        """
        return -self.evaluate(X, y)["risk"]

    def evaluate(self, X: ArrayLike, y: ArrayLike) -> dict[str, float]:
        """Measure the threshold on other prompts.

        Parameters
        ----------
        X, y : array-like of shape (n, N)
            Machine scores and human losses.

        Returns
        -------
        dict
            ``risk``: estimate over prompts; ``abstention_rate``; ``expected_samples``, place from 1 of the
            first acceptable answer; ``shown_mean``, ``shown_p95`` and ``shown_max`` of its loss (NaN if none
            is).

        Raises
        ------
        NotFittedError, ValueError
            As :meth:`predict`.
        """
        check_is_fitted(self, "lambda_")
        scores, losses, _ = self._tables(X, y, None, None, fresh=False)
        assert losses is not None
        ladder = Ladder(scores, losses, np.array([self.lambda_]), self.reduction, float(self.loss_lower))  # type: ignore[arg-type]
        place = positions(scores, self.lambda_)
        some = place >= 0
        shown = losses[some, place[some]]
        return {
            "risk": self._risk(self.risk).plug_in(ladder.at(0)),
            "abstention_rate": float((~some).mean()),
            "expected_samples": float((place[some] + 1).mean()) if some.any() else math.nan,
            "shown_mean": float(shown.mean()) if some.any() else math.nan,
            "shown_p95": float(np.quantile(shown, 0.95)) if some.any() else math.nan,
            "shown_max": float(shown.max()) if some.any() else math.nan,
        }

    def curve(self, n_points: int = 200) -> Mapping[str, Floats]:
        """Return estimate and bound along the thresholds.

        Parameters
        ----------
        n_points : int
            Thresholds at most, evenly among ``lambdas_``.

        Returns
        -------
        dict of ndarray
            ``lambda``, ``estimate``, ``ucb``, ``abstention`` and ``expected_samples``.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        """
        check_is_fitted(self, "lambda_")
        risk, ladder = self._risk(self.risk), self._ladder
        steps = np.unique(np.linspace(0, len(ladder) - 1, max(int(n_points), 1)).astype(int))
        ordered = np.stack([np.sort(ladder.at(step)) for step in steps])
        accepted = [ladder.steps <= step for step in steps]
        samples = [
            float((part.argmax(axis=1) + 1)[part.any(axis=1)].mean()) if part.any() else math.nan
            for part in accepted
        ]
        return {
            "lambda": ladder.grid[steps],
            "estimate": ordered @ risk.weights(ladder.n_prompts),
            "ucb": self._bounds(risk, ordered, self._level(self.delta), self.bound_),
            "abstention": ladder.abstention()[steps],
            "expected_samples": np.array(samples),
        }

    def risk_curve(self, n_points: int = 200) -> Any:
        """Return :meth:`curve` as a table.

        Parameters
        ----------
        n_points : int
            Thresholds at most.

        Returns
        -------
        pandas.DataFrame
            A row per threshold.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        ImportError
            If pandas is missing.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise missing_extra("pandas", "data", "risk_curve") from error
        return pd.DataFrame(self.curve(n_points))

    # -- inside -------------------------------------------------------------------------------------------

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.input_tags.allow_nan = True
        return tags

    def _risk(self, risk: Any) -> DistortionRisk:
        if isinstance(risk, DistortionRisk):
            return risk
        named: dict[str, Any] = {
            "cvar": lambda: CVaR(self.beta),
            "var": lambda: VaR(self.beta),
            "mean": Mean,
            "power": PowerDistortion,
            "exponential": ExponentialDistortion,
            "wang": WangDistortion,
        }
        if not isinstance(risk, str) or risk not in named:
            raise ValueError(
                f"risk must be one of {', '.join(map(repr, named))} or a DistortionRisk, got {risk!r}"
            )
        return named[risk]()

    def _check_levels(self, alpha: float) -> None:
        low, high = float(self.loss_lower), float(self.loss_upper)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"loss_lower must be below loss_upper, got {low!r} and {high!r}")
        if not low < alpha < high:
            raise ValueError(
                f"alpha must be between loss_lower={low!r} and loss_upper={high!r}, got {alpha!r}"
            )
        if self.reduction != "max" and self.selection in ("first_crossing", "max_valid"):
            raise ValueError(
                f"reduction={self.reduction!r} needs selection='fixed_sequence' or 'bonferroni': its losses "
                "do not grow with the threshold"
            )

    def _tables(
        self, X: Any, y: Any, mask: Any, groups: Any, *, fresh: bool = True
    ) -> tuple[Floats, Floats | None, Any]:
        """Check arrays; return tables of the candidates that count."""
        long = groups is not None
        _check_feature_names(self, X, reset=fresh)
        X = check_array(
            X, dtype=np.float64, ensure_2d=not long, ensure_all_finite="allow-nan", input_name="X"
        )
        y = check_array(y, dtype=np.float64, ensure_2d=False, ensure_all_finite="allow-nan", input_name="y")
        scores, losses, there = as_table(X, y, mask, groups)
        assert losses is not None
        if fresh:
            self.n_features_in_ = scores.shape[1]
            if len(scores) < 2:
                raise ValueError(
                    f"X must have two prompts or more, a minimum of 2 is required, got {len(scores)}"
                )
        self._check_width(scores)
        if self.max_samples is not None:
            kept = there & (np.cumsum(there, axis=1) <= self.max_samples)
            scores, there = np.where(kept, scores, np.inf), kept
        inside = losses[there]
        wrong = ~((inside >= self.loss_lower) & (inside <= self.loss_upper))
        if wrong.any():
            row, column = (int(part[0]) for part in np.nonzero(there & ~_within(losses, self)))
            raise ValueError(
                f"y must be in [{self.loss_lower!r}, {self.loss_upper!r}], got {losses[row, column]:g} for "
                f"candidate {column} of prompt {row}"
            )
        return scores, losses, there

    def _check_width(self, scores: Any) -> None:
        if scores.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {scores.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input: the guarantee covers that many candidates per "
                "prompt (pad fewer with NaN)"
            )

    def _scores(self, X: Any) -> Floats:
        """Check scores to be judged; infinite where there is no candidate, or one too many."""
        check_is_fitted(self, "lambda_")
        _check_feature_names(self, X, reset=False)
        scores = check_array(X, dtype=np.float64, ensure_all_finite="allow-nan", input_name="X")
        self._check_width(scores)
        there = ~np.isnan(scores)
        if self.max_samples is not None:
            there &= np.cumsum(there, axis=1) <= self.max_samples
        return np.where(there, scores, np.inf)

    def _grid(self, scores: Floats) -> Floats:
        if isinstance(self.lambdas, str):
            grid = np.unique(scores)
            if len(grid) > MOST_THRESHOLDS:
                grid = np.unique(grid[np.linspace(0, len(grid) - 1, COARSE).round().astype(int)])
            return grid
        grid = np.asarray(self.lambdas, dtype=float)
        if grid.ndim != 1 or not len(grid) or not np.isfinite(grid).all():
            raise ValueError(
                f"lambdas must be 1-D and finite, of one threshold or more, got shape {grid.shape}"
            )
        return np.unique(grid)

    def _choose_bound(self, risk: DistortionRisk, bound: str) -> str:
        if bound == "auto":
            if isinstance(risk, VaR):
                return "order_statistic"
            many = self.n_prompts_ * risk.tail >= 50 and self.n_prompts_ >= 100
            return "l_statistic" if many and risk.smooth and self._distinct >= 20 else "berk_jones"
        check_bound(risk, bound, self.n_prompts_, self.delta)
        return bound

    def _warn_of(self, risk: DistortionRisk) -> None:
        notes = []
        if self.bound_ == "l_statistic" and self.n_prompts_ * risk.tail < 50:
            notes.append(
                "bound='l_statistic' is asymptotic, and the tail has "
                f"{self.n_prompts_ * risk.tail:.0f} prompts only; 'berk_jones' holds for any number"
            )
        if self.bound_ == "l_statistic" and isinstance(risk, PowerDistortion) and risk.rho <= 0.5:
            notes.append(
                "bound='l_statistic' may fail for a power rho of 1/2 or less: psi is too steep at the end"
            )
        if self.spearman_ <= 0:
            notes.append(
                f"scores and losses do not rise together (rank correlation {self.spearman_:.2f}): low scores "
                "must be good"
            )
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=4)

    def _level(self, delta: float) -> float:
        return delta / len(self.lambdas_) if self.selection == "bonferroni" else delta

    def _bounds(self, risk: DistortionRisk, ordered: Floats, delta: float, bound: Any) -> Floats:
        return np.maximum(
            upper_bounds(risk, ordered, delta, bound, float(self.loss_upper)), float(self.loss_lower)
        )

    def _search(self, risk: DistortionRisk, alpha: float, delta: float, bound: str) -> int:
        """Return the step of the chosen threshold, -1 if there is none."""
        level = self._level(delta)
        last = len(self._ladder) - 1
        if self.selection in ("max_valid", "bonferroni"):
            for stop in range(last + 1, 0, -self._ladder.width):
                start = max(stop - self._ladder.width, 0)
                valid = np.flatnonzero(self._valid(risk, alpha, level, bound, start, stop))
                if len(valid):
                    return start + int(valid[-1])
            return -1
        growing = self.reduction == "max"
        if growing and bound in MONOTONE:
            return self._bisect(lambda step: self._bounds(risk, self._row(step), level, bound)[0] <= alpha)
        start = 0
        if growing and math.isfinite(risk.steepest) and bound == "l_statistic":
            # The estimate grows, and its deviation is at most half the range of its influence: far below
            # alpha no bound can cross, so the search begins where one might.
            span = (self.loss_upper - self.loss_lower) * risk.steepest / 2
            margin = span * self._z(level) / math.sqrt(self.n_prompts_)
            weights = risk.weights(self.n_prompts_)
            start = max(self._bisect(lambda step: self._row(step)[0] @ weights + margin <= alpha), 0)
        width = 4
        while start <= last:
            stop = min(start + min(self._ladder.width, width), last + 1)
            width = min(2 * width, 256)
            broken = np.flatnonzero(~self._valid(risk, alpha, level, bound, start, stop))
            if len(broken):
                return start + int(broken[0]) - 1
            start = stop
        return last

    @staticmethod
    def _z(delta: float) -> float:
        from scipy.special import ndtri

        return max(-float(ndtri(delta)), 0.0)

    def _row(self, step: int) -> Floats:
        return np.sort(self._ladder.at(step))[None]

    def _valid(
        self, risk: DistortionRisk, alpha: float, delta: float, bound: str, start: int, stop: int
    ) -> Any:
        ordered = np.sort(self._ladder.block(start, stop), axis=1)
        return self._bounds(risk, ordered, delta, bound) <= alpha

    def _bisect(self, holds: Any) -> int:
        """Last step at which a condition holds that fails from some step on; -1 if it never does."""
        low, high = -1, len(self._ladder)
        while high - low > 1:
            middle = (low + high) // 2
            if holds(middle):
                low = middle
            else:
                high = middle
        return low


def _within(losses: Floats, model: ConformalTailRiskController) -> Any:
    with np.errstate(invalid="ignore"):
        return (losses >= model.loss_lower) & (losses <= model.loss_upper)


def _rank_correlation(scores: Floats, losses: Floats) -> float:
    every = max(len(scores) // PAIRS, 1)
    one, other = scores[::every], losses[::every]
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(spearmanr(one, other).statistic)
