"""MultidimensionalIRT: takers with several abilities, items that draw on them in different measure."""

import warnings
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from seedbed.estimators.amortized_irt.axes import first_planes, orientation
from seedbed.estimators.amortized_irt.calibration import EXTREME_STD, FEW_TAKERS, WEAK_SLOPES
from seedbed.estimators.amortized_irt.item_response import ItemResponseModel, check_beta, check_normal
from seedbed.estimators.amortized_irt.items import Floats
from seedbed.estimators.amortized_irt.models import FEWEST_WITHOUT_PRIORS
from seedbed.estimators.amortized_irt.multidimensional_em import (
    Planes,
    Posteriors,
    Rule,
    Step,
    distinct,
    integrate,
    run_em,
)
from seedbed.estimators.amortized_irt.progress import reporter
from seedbed.estimators.amortized_irt.responses import Responses

MOST_DIMENSIONS = 3
"""Product rules have ``n_quadrature ** n_dimensions`` nodes."""
NODES = {"adaptive": {1: 9, 2: 7, 3: 5}, "fixed": {1: 61, 2: 21, 3: 15}}


class MultidimensionalIRT(ItemResponseModel):
    """Model of several abilities: P(right) = c + (1 - c) sigma(a sum_k l_k theta_k - a b), theta ~ N(0, I).

    Rows of X are takers, columns are items. Missing answers are left out of the likelihood.

    Parameters
    ----------
    n_dimensions : int, default=2
        Abilities of a taker.
    method : {"mml", "mle"}, default="mml"
        "mml": marginal maximum likelihood by EM, for at most three dimensions. "mle": the joint likelihood of
        abilities and items by first-order steps with PyTorch, on a GPU if there is one.
    loadings : {"softmax", "free"}, default="softmax"
        "softmax": the loadings l of an item are positive and their sum is one, as in the paper; the axes may
        change places only, and are sorted by their sums of squared slopes. "free": any of length one; the
        axes are the principal ones of the slopes, each with a positive sum.
    guessing : bool, default=False
        Whether items have chances c of guessing; else c = 0.
    discrimination_prior : "auto", tuple of float or None, default="auto"
        Mean and standard deviation of log a. "auto" takes (0, 0.5) where items have fewer than 200
        answers (in the median), for "mle" and with guessing, else none.
    guessing_prior : tuple of float or None, default=(5, 17)
        Parameters of the beta density of c.
    quadrature : {"adaptive", "fixed"}, default="adaptive"
        Nodes around the mode of each taker's posterior, or the same for all, which is faster and wrong for
        more than some fifty items.
    n_quadrature : int or None, default=None
        Nodes of each dimension; None: 9, 7 or 5 for one, two or three dimensions, and 61, 21 or 15 fixed
        ones.
    extreme_items : {"prior", "drop", "error"}, default="prior"
        Items whose answers are all alike: their intercept is held by N(0, 4^2), left out (their difficulty is
        infinite), or refused.
    max_iter : int, default=500
        Most iterations.
    tol : float, default=1e-8
        Relative gain of the log-likelihood at which EM ends.
    missing_values : float, default=nan
        What stands in X for an item that was not administered.
    allow_empty_takers : bool, default=False
        Whether takers without any answer are let in; they have the prior's abilities.
    allow_disconnected : bool, default=False
        Whether takers and items may fall into parts that no answer links.
    device : str, default="auto"
        For "mle": "cpu", "cuda" or "auto".
    random_state : int, RandomState instance or None, default=None
        For "mle".
    verbose : int, default=0
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    ability_ : ndarray of shape (n_takers, n_dimensions)
        Posterior means of the takers in ``fit``; their modes for more than three dimensions.
    ability_std_ : ndarray of shape (n_takers, n_dimensions)
        Posterior standard deviations.
    loadings_ : ndarray of shape (n_items, n_dimensions)
        l.
    discrimination_ : ndarray of shape (n_items,)
        a: the sum of an item's slopes, or for free loadings their length.
    difficulty_ : ndarray of shape (n_items,)
        b; large is hard.
    guessing_ : ndarray of shape (n_items,)
        c.
    slope_, intercept_ : ndarray of shape (n_items, n_dimensions) and (n_items,)
        a l and -a b.
    difficulty_std_ : ndarray of shape (n_items,)
        Standard errors of b from the cross-products of the takers' scores, other items taken as known.
    extreme_items_ : ndarray of bool, shape (n_items,)
        Items whose answers are all alike.
    reliability_ : ndarray of shape (n_dimensions,)
        ``1 - mean(sd^2) / (var(ability) + mean(sd^2))`` of each ability.
    latent_scale_ : float
        1: the standard deviation of each ability.
    log_likelihood_ : float
        Marginal log-likelihood of X; by Laplace's method for more than three dimensions.
    n_iter_, converged_ : int, bool
        Iterations, and whether they sufficed.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of str
        Their names, if they have some.

    See Also
    --------
    TwoPLModel : One ability.
    AmortizedIRTModule : The same model in batches, with difficulties from features.

    Notes
    -----
    With softmax loadings the likelihood still allows small common rotations unless some items load on one
    ability alone; of these solutions the fit returns the one that a start from varimax-rotated principal
    components leads to, which depends on nothing but the answers.

    References
    ----------
    Truong, Tu, Liang, Li and Koyejo, "Reliable and Efficient Amortized Model-based Evaluation", ICML 2025,
    appendix. Reckase, *Multidimensional Item Response Theory*, Springer, 2009. Schilling and Bock,
    "High-dimensional maximum marginal likelihood item factor analysis by adaptive quadrature", Psychometrika
    70, 2005.

    Examples
    --------
    >>> from seedbed.datasets import load_lsat7
    >>> from seedbed.estimators import MultidimensionalIRT
    >>> X = load_lsat7().data
    >>> model = MultidimensionalIRT(1).fit(X)
    >>> model.discrimination_.round(1).tolist(), round(model.log_likelihood_, 1)
    ([1.0, 1.1, 1.7, 0.8, 0.7], -2658.8)
    >>> model.transform(X).shape
    (1000, 1)
    """

    _methods = frozenset({"mml", "mle"})
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_dimensions": [Interval(Integral, 1, None, closed="left")],
        "method": [StrOptions({"mml", "mle"})],
        "loadings": [StrOptions({"softmax", "free"})],
        "guessing": ["boolean"],
        "discrimination_prior": [StrOptions({"auto"}), tuple, list, None],
        "guessing_prior": [tuple, list, None],
        "quadrature": [StrOptions({"adaptive", "fixed"})],
        "n_quadrature": [Interval(Integral, 3, None, closed="left"), None],
        "extreme_items": [StrOptions({"prior", "drop", "error"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "missing_values": [Real],
        "allow_empty_takers": ["boolean"],
        "allow_disconnected": ["boolean"],
        "device": [str],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_dimensions: int = 2,
        *,
        method: Literal["mml", "mle"] = "mml",
        loadings: Literal["softmax", "free"] = "softmax",
        guessing: bool = False,
        discrimination_prior: tuple[float, float] | Literal["auto"] | None = "auto",
        guessing_prior: tuple[float, float] | None = (5, 17),
        quadrature: Literal["adaptive", "fixed"] = "adaptive",
        n_quadrature: int | None = None,
        extreme_items: Literal["prior", "drop", "error"] = "prior",
        max_iter: int = 500,
        tol: float = 1e-8,
        missing_values: float = np.nan,
        allow_empty_takers: bool = False,
        allow_disconnected: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_dimensions = n_dimensions
        self.method = method
        self.loadings = loadings
        self.guessing = guessing
        self.discrimination_prior = discrimination_prior
        self.guessing_prior = guessing_prior
        self.quadrature = quadrature
        self.n_quadrature = n_quadrature  # type: ignore[assignment]
        self.extreme_items = extreme_items
        self.max_iter = max_iter
        self.tol = tol
        self.missing_values = missing_values
        self.allow_empty_takers = allow_empty_takers
        self.allow_disconnected = allow_disconnected
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # -- fit -----------------------------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, *, mask: Any = None, sample_weight: Any = None) -> Self:  # type: ignore[override]  # noqa: ARG002
        """Estimate items and abilities.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            1 for right, 0 for wrong, ``missing_values`` where an item was not administered.
        y : None
            Ignored.
        mask : {array-like, sparse matrix} of shape (n_takers, n_items), optional
            True where an item was administered, for a sparse X, in which nothing is missing by itself.
        sample_weight : array-like of shape (n_takers,), optional
            How often each taker counts.

        Returns
        -------
        self
            The fitted model.

        Raises
        ------
        ValueError
            If a cell is neither 0, 1 nor missing; there are fewer than 2 takers or items, a taker or an item
            without answers; takers and items fall into parts that no answer links; an item has answers that
            are all alike and ``extreme_items="error"``; or parameters do not go together.

        Warns
        -----
        ConvergenceWarning
            If ``max_iter`` iterations are not enough, or fixed nodes lie too far apart.
        """
        self._check_settings()
        responses = self._read(X, mask, reset=True)
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, responses.right, ensure_non_negative=True)
            responses = responses.weighted(np.asarray(weight, dtype=float))
        self._check_answers(responses)
        kept = ~responses.extreme if self.extreme_items == "drop" else np.ones(responses.n_items, dtype=bool)
        used = responses if kept.all() else responses.items(kept)
        step = self._step(used)
        if self.method == "mml":
            planes = self._marginal(distinct(used), step)
        else:
            planes = self._first_order(used, step)
        turn = orientation(planes.slope, positive=step.positive)
        planes = Planes(planes.slope @ turn, planes.intercept, planes.guessing)
        rule = self._rule(adaptive=True)
        found = integrate(used, planes, rule, products=True)
        self.extreme_items_ = responses.extreme
        self._set_items(planes, _errors(planes, step, found), kept, responses)
        self._set_takers(found, responses)
        return self

    def _check_settings(self) -> None:
        """Whether parameters go together."""
        if self.method == "mml" and self.n_dimensions > MOST_DIMENSIONS:
            raise ValueError(
                f"n_dimensions must be at most {MOST_DIMENSIONS} for method='mml', got {self.n_dimensions}; "
                "use method='mle'"
            )
        if not isinstance(self.discrimination_prior, str):
            check_normal("discrimination_prior", self.discrimination_prior)
        if self.method == "mle":
            from seedbed.estimators.amortized_irt.first_order import resolve_device

            resolve_device(self.device)
        if self.method == "mle" and self.discrimination_prior is None:
            raise ValueError(
                "discrimination_prior must be given for method='mle', got None: nothing else sets the scale"
            )
        check_beta("guessing_prior", self.guessing_prior)

    def _check_answers(self, responses: Responses) -> None:
        super()._check_answers(responses)
        bare = self.guessing_prior is None or self.discrimination_prior is None
        if self.guessing and bare and responses.n_takers < FEWEST_WITHOUT_PRIORS:
            raise ValueError(
                "guessing_prior and discrimination_prior must be given for fewer than "
                f"{FEWEST_WITHOUT_PRIORS} takers, got {responses.n_takers} takers"
            )

    def _step(self, responses: Responses) -> Step:
        """M-step with the priors that hold."""
        prior: Any = self.discrimination_prior
        if isinstance(prior, str):
            few = np.median(responses.seen_by_item) < FEW_TAKERS
            prior = WEAK_SLOPES if few or self.guessing or self.method == "mle" else None
        center, spread = (0.0, np.inf) if prior is None else prior
        extreme = responses.extreme
        spreads = np.where(extreme, min(spread, WEAK_SLOPES[1]), spread)
        return Step(
            self.loadings == "softmax",
            np.where(extreme, EXTREME_STD, np.inf),
            (np.full(responses.n_items, float(center)), spreads),
            None
            if self.guessing_prior is None
            else (float(self.guessing_prior[0]), float(self.guessing_prior[1])),
        )

    def _rule(self, *, adaptive: bool = False) -> Rule:
        """Nodes; for many dimensions the posterior mode alone."""
        if self.n_dimensions > MOST_DIMENSIONS:
            return Rule.product("adaptive", 1, self.n_dimensions)
        kind: Literal["adaptive", "fixed"] = "adaptive" if adaptive else self.quadrature
        given = self.n_quadrature if kind == self.quadrature else None
        return Rule.product(kind, given or NODES[kind][self.n_dimensions], self.n_dimensions)

    def _first_planes(self, responses: Responses) -> Planes:
        chance = None
        if self.guessing:
            alpha, beta = self.guessing_prior or (5.0, 17.0)
            chance = alpha / (alpha + beta)
        return first_planes(
            responses, self.n_dimensions, positive=self.loadings == "softmax", guessing=chance
        )

    def _marginal(self, responses: Responses, step: Step) -> Planes:
        with reporter(int(self.verbose), self.max_iter) as report:
            fitted = run_em(
                responses,
                self._first_planes(responses),
                step,
                self._rule(),
                max_iter=self.max_iter,
                tol=self.tol,
                report=report,
            )
        self.n_iter_, self.converged_ = fitted.n_iter, fitted.converged
        if not fitted.converged:
            warnings.warn(
                f"EM did not converge in max_iter={self.max_iter} iterations: raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        return fitted.planes

    def _first_order(self, responses: Responses, step: Step) -> Planes:
        from seedbed.estimators.amortized_irt.first_order_planes import fit_planes

        planes, self.n_iter_, self.converged_ = fit_planes(
            responses, self._first_planes(responses), step, self._rule(adaptive=True), self
        )
        return planes

    def _set_items(self, planes: Planes, errors: Floats, kept: Any, responses: Responses) -> None:
        """Set the items' attributes; what was dropped is infinitely easy or hard."""
        n, dims = len(kept), self.n_dimensions
        length = (
            planes.slope.sum(axis=1) if self.loadings == "softmax" else np.linalg.norm(planes.slope, axis=1)
        )
        easy = 2 * responses.right_by_item > responses.seen_by_item
        slope, loadings = np.zeros((n, dims)), np.full((n, dims), 1 / dims)
        intercept, difficulty = np.where(easy, np.inf, -np.inf), np.where(easy, -np.inf, np.inf)
        discrimination, guessing, std = np.ones(n), np.zeros(n), np.zeros(n)
        slope[kept], intercept[kept] = planes.slope, planes.intercept
        loadings[kept], discrimination[kept] = planes.slope / length[:, None], length
        difficulty[kept], std[kept] = -planes.intercept / length, errors
        if planes.guessing is not None:
            guessing[kept] = planes.guessing
        named = {
            "slope": slope, "intercept": intercept, "loadings": loadings, "discrimination": discrimination,
            "difficulty": difficulty, "guessing": guessing, "difficulty_std": std,
        }  # fmt: skip
        for name, value in named.items():
            setattr(self, f"{name}_", value.astype(self._dtype))
        self._kept, self._planes = kept, planes
        self.latent_scale_ = 1.0

    def _set_takers(self, found: Posteriors, responses: Responses) -> None:
        """Set what is known of the takers."""
        spread = np.sqrt(np.diagonal(found.covariance, axis1=1, axis2=2))
        self.ability_, self.ability_std_ = found.mean.astype(self._dtype), spread.astype(self._dtype)
        self.log_likelihood_ = float(responses.weight @ found.log_likelihood)
        noise = (spread**2).mean(axis=0)
        self.reliability_ = 1 - noise / (found.mean.var(axis=0) + noise)

    # -- what was learned ----------------------------------------------------------------------------------

    @property
    def items_(self) -> Any:
        """Items of one ability do not describe these.

        Raises
        ------
        AttributeError
            Always: functions that take items know one ability.
        """
        raise AttributeError("MultidimensionalIRT has slope_ and intercept_ instead of items_")

    @property
    def _n_features_out(self) -> int:
        return int(self.n_dimensions)

    def _posteriors(self, responses: Responses) -> Posteriors:
        used = responses if self._kept.all() else responses.items(self._kept)
        return integrate(used, self._planes, self._rule(adaptive=True))

    def transform(self, X: Any, *, mask: Any = None) -> Floats:  # type: ignore[override]
        """Estimate abilities of old or new takers, the items as they are.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers, as in ``fit``.
        mask : {array-like, sparse matrix} of shape (n_takers, n_items), optional
            As in ``fit``.

        Returns
        -------
        ndarray of shape (n_takers, n_dimensions)
            Posterior means.

        Raises
        ------
        ValueError
            If a cell is neither 0, 1 nor missing, or there is another number of items.
        """
        check_is_fitted(self)
        return self._posteriors(self._read(X, mask)).mean.astype(self._dtype)

    def predict_proba(self, X: Any, *, mask: Any = None) -> Floats:  # type: ignore[override]
        """Predict how likely each taker is to get each item right.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers of the takers.
        mask : optional
            As in :meth:`transform`.

        Returns
        -------
        ndarray of shape (n_takers, n_items)
            Probabilities at the takers' abilities.
        """
        check_is_fitted(self)
        ability = self._posteriors(self._read(X, mask)).mean
        return self._all_planes().probability(ability).astype(self._dtype)

    def _all_planes(self) -> Planes:
        """All items, those that were dropped, too."""
        return Planes(self.slope_.astype(float), self.intercept_.astype(float), self.guessing_.astype(float))

    def predict(self, X: Any, *, mask: Any = None) -> Any:  # type: ignore[override]
        """Predict which answers are right.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers of the takers.
        mask : optional
            As in :meth:`transform`.

        Returns
        -------
        ndarray of int64, shape (n_takers, n_items)
            1 where a right answer is more likely than a wrong one.
        """
        return (self.predict_proba(X, mask=mask) > 0.5).astype(np.int64)

    def score(self, X: Any, y: Any = None, *, mask: Any = None) -> float:  # type: ignore[override]  # noqa: ARG002
        """Marginal log-likelihood of takers for each of their answers.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers of old or new takers.
        y : None
            Ignored.
        mask : optional
            As in :meth:`transform`.

        Returns
        -------
        float
            Higher is better; log(1/2) for guesses.
        """
        check_is_fitted(self)
        responses = self._read(X, mask)
        return float(self._posteriors(responses).log_likelihood.sum()) / max(responses.n_cells, 1)

    def score_items(self, X: Any, held_out: Any) -> float:  # type: ignore[override]
        """Area under the ROC curve of cells that abilities were not estimated from.

        Parameters
        ----------
        X : array-like of shape (n_takers, n_items)
            Answers.
        held_out : array-like of bool, shape (n_takers, n_items)
            True where the answer is to be predicted from the taker's other answers.

        Returns
        -------
        float
            Over all cells that are held out and have an answer.

        Raises
        ------
        ValueError
            If ``held_out`` has another shape, or no such cells of both kinds.
        """
        return _held_out_auc(self, X, held_out)

    def item_information(self, theta: Any) -> Floats:
        """Fisher information of every item in the direction in which it tells most.

        Parameters
        ----------
        theta : array-like of shape (n, n_dimensions)
            Abilities.

        Returns
        -------
        ndarray of shape (n, n_items)
            Squared length of the slopes times the information about the logit.
        """
        return self._logit_information(theta) * (self.slope_.astype(float) ** 2).sum(axis=1)

    def test_information(self, theta: Any) -> Floats:
        """Fisher information matrix of all items together.

        Parameters
        ----------
        theta : array-like of shape (n, n_dimensions)
            Abilities.

        Returns
        -------
        ndarray of shape (n, n_dimensions, n_dimensions)
            Its inverse is the covariance of a maximum-likelihood estimate.
        """
        slope = self.slope_.astype(float)
        return np.einsum("ni,ij,ik->njk", self._logit_information(theta), slope, slope)

    def _logit_information(self, theta: Any) -> Floats:
        """Information of each answer about its logit, (n, n_items)."""
        check_is_fitted(self)
        points = np.atleast_2d(np.asarray(theta, dtype=float))
        if points.ndim != 2 or points.shape[1] != self.n_dimensions:
            raise ValueError(f"theta must have shape (n, {self.n_dimensions}), got {np.shape(theta)}")
        planes = self._all_planes()
        low = planes.guessing
        assert low is not None
        chance = planes.probability(points)
        curve = (chance - low) / (1 - low)
        return np.asarray((1 - low) * curve**2 * (1 - curve) / np.maximum(chance, 1e-300))


def _held_out_auc(model: MultidimensionalIRT, X: Any, held_out: Any) -> float:
    from sklearn.metrics import roc_auc_score

    answers = np.array(X, dtype=float)
    held = np.asarray(held_out, dtype=bool)
    if held.shape != answers.shape:
        raise ValueError(f"held_out must have the shape of X, {answers.shape}, got {held.shape}")
    missing = np.isnan(answers) if np.isnan(model.missing_values) else answers == model.missing_values
    cells = held & ~missing
    truth = answers[cells]
    if len(np.unique(truth)) < 2:
        raise ValueError("held_out must have right and wrong answers")
    chance = model.predict_proba(np.where(held, model.missing_values, answers))
    return float(roc_auc_score(truth, chance[cells]))


def _errors(planes: Planes, step: Step, found: Posteriors) -> Floats:
    """Standard errors of -d / a, from the cross-products of scores and the priors."""
    dims = planes.n_dimensions
    assert found.products is not None
    none = Posteriors(
        found.log_likelihood,
        found.mean,
        found.covariance,
        np.zeros_like(found.gradient),
        np.zeros_like(found.curvature),
    )
    _, precision = Step(False, step.intercept_std, step.slope_prior, step.guessing_prior).scores(planes, none)
    covariance = np.linalg.pinv(found.products + precision, hermitian=True)
    a = step.discrimination(planes)
    direction = np.ones_like(planes.slope) if step.positive else planes.slope / a[:, None]
    gradient = np.zeros_like(found.gradient)
    gradient[:, :dims] = (planes.intercept / a**2)[:, None] * direction
    gradient[:, dims] = -1 / a
    variance = np.einsum("ij,ijk,ik->i", gradient, covariance, gradient)
    return np.asarray(np.sqrt(np.maximum(variance, 0)))
