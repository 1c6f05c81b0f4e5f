"""RaschModel, TwoPLModel and ThreePLModel: calibration of items and abilities from a table of answers."""

from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from seedbed.estimators.amortized_irt.ability import Method
from seedbed.estimators.amortized_irt.calibration import Plan
from seedbed.estimators.amortized_irt.item_response import (
    Calibration,
    ItemResponseModel,
    check_beta,
    check_normal,
)
from seedbed.estimators.amortized_irt.responses import Responses

FEWEST_WITHOUT_PRIORS = 50
"""Takers that the 3PL needs where guessing or discrimination has no prior."""


class RaschModel(ItemResponseModel):
    """Rasch model: P(right) = sigma(theta - b), abilities theta ~ N(0, s^2).

    Rows of X are takers, columns are items. Missing answers are left out of the likelihood, so takers need
    not have met the same items.

    Parameters
    ----------
    method : {"mml", "moment", "jml", "cml", "mle", "bayes"}, default="mml"
        "mml": marginal maximum likelihood by EM. "moment": one root per item, from the share of right answers
        alone; by far the fastest, and biased where it depends on ability who met an item. "jml": abilities
        and difficulties together, biased for few items. "cml": conditional on the sum scores. "mle": the
        joint likelihood by first-order steps, on a GPU if there is one. "bayes": Gibbs sampling.
    latent_scale : "free" or float, default="free"
        s; "free" estimates it.
    latent_groups : {"pattern"} or None, default=None
        "pattern": takers who met the same items form a group with a mean ability of its own; groups of fewer
        than 10 are pooled. Needed where takers of different ability met different items.
    n_quadrature : int, default=9
        Nodes on the width of the narrowest posterior (with 9 the integrals are exact to some 1e-11), or
        number of fixed nodes.
    quadrature : {"adaptive", "fixed"}, default="adaptive"
        "fixed": nodes of the prior, which are too far apart for more than some fifty items.
    ability : {"eap", "map", "mle", "wle"}, default="eap"
        How abilities are estimated, see :func:`estimate_ability`.
    item_prior : tuple of float or None, default=None
        Mean and standard deviation of a normal prior of the difficulties.
    extreme_items : {"prior", "drop", "error"}, default="prior"
        Items whose answers are all alike: held by a prior N(0, 4^2), left out (their difficulty is infinite),
        or refused.
    max_iter : int, default=200
        Most iterations.
    tol : float, default=1e-8
        Relative gain of the log-likelihood at which EM ends.
    missing_values : float, default=nan
        What stands in X for an item that was not administered.
    allow_empty_takers : bool, default=False
        Whether takers without any answer are let in; they have the prior's ability.
    allow_disconnected : bool, default=False
        Whether takers and items may fall into parts that no answer links, whose scales cannot be compared.
    device : str, default="auto"
        With "cuda", "mml" integrates dense answers on a GPU and "mle" trains there. "auto" takes a GPU for
        "mle" if there is one, "cpu" never does.
    n_jobs : int or None, default=None
        Data sets that are calibrated at a time where ``item_groups`` are given, see joblib.
    random_state : int, RandomState instance or None, default=None
        For "mle" and "bayes".
    verbose : int, default=0
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    difficulty_ : ndarray of shape (n_items,)
        b; large is hard.
    discrimination_, guessing_, upper_ : ndarray of shape (n_items,)
        a, c and the upper asymptote.
    difficulty_std_ : ndarray of shape (n_items,)
        Standard errors of b from the observed information.
    extreme_items_ : ndarray of bool, shape (n_items,)
        Items whose answers are all alike.
    ability_, ability_std_ : ndarray of shape (n_takers,)
        Of the takers in ``fit``; (n_takers, n_item_groups) after ``item_groups``.
    latent_scale_ : float
        Standard deviation of ability within a group.
    latent_mean_ : ndarray of shape (n_groups,)
        Mean ability of each group; that of the first is 0.
    groups_ : ndarray of shape (n_groups,)
        Labels of the groups, after ``taker_groups``.
    reliability_ : float
        Share of the variance of ability that is not error: ``1 - mean(sd^2) / (var(ability) + mean(sd^2))``.
    log_likelihood_ : float
        Marginal log-likelihood of X; the joint one for "jml", the conditional one for "cml"; absent for
        "moment".
    posterior_ : object
        Draws, for "bayes".
    n_iter_, converged_ : int, bool
        Iterations, and whether they sufficed.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of str
        Their names, if they have some.

    See Also
    --------
    TwoPLModel : Items that discriminate differently.
    AmortizedIRT : Difficulties from features of the items.
    AdaptiveTest : Which item to ask next.

    References
    ----------
    Truong, Tu, Liang, Li and Koyejo, "Reliable and Efficient Amortized Model-based Evaluation", ICML 2025,
    Sec. 3.
    Liu, Rubin and Wu, "Parameter expansion to accelerate EM: the PX-EM algorithm", Biometrika 85, 1998.

    Examples
    --------
    >>> from seedbed.datasets import load_lsat6
    >>> from seedbed.estimators import RaschModel
    >>> model = RaschModel().fit(load_lsat6().data)
    >>> model.difficulty_.round(2).tolist(), round(model.latent_scale_, 2)
    ([-2.73, -1.0, -0.24, -1.31, -2.1], 0.76)
    >>> model.transform([[1, 1, 0, 1, 1]]).round(2)
    array([[0.06]])
    """

    _methods = frozenset({"mml", "moment", "jml", "cml", "mle", "bayes"})
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **ItemResponseModel._parameter_constraints,
        "latent_scale": [StrOptions({"free"}), Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        method: Calibration = "mml",
        *,
        latent_scale: Literal["free"] | float = "free",
        latent_groups: Literal["pattern"] | None = None,
        n_quadrature: int = 9,
        quadrature: Literal["adaptive", "fixed"] = "adaptive",
        ability: Method = "eap",
        item_prior: tuple[float, float] | None = None,
        extreme_items: Literal["prior", "drop", "error"] = "prior",
        max_iter: int = 200,
        tol: float = 1e-8,
        missing_values: float = np.nan,
        allow_empty_takers: bool = False,
        allow_disconnected: bool = False,
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.latent_scale = latent_scale
        self.latent_groups = latent_groups
        self.n_quadrature = n_quadrature
        self.quadrature = quadrature
        self.ability = ability
        self.item_prior = item_prior
        self.extreme_items = extreme_items
        self.max_iter = max_iter
        self.tol = tol
        self.missing_values = missing_values
        self.allow_empty_takers = allow_empty_takers
        self.allow_disconnected = allow_disconnected
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _plan(self, responses: Responses) -> Plan:
        scale = None if self.latent_scale == "free" else float(self.latent_scale)
        return replace(super()._plan(responses), latent_scale=scale)


class TwoPLModel(ItemResponseModel):
    """Two-parameter logistic model: P(right) = sigma(a (theta - b)), theta ~ N(0, 1).

    Parameters
    ----------
    method : {"mml", "mle", "bayes"}, default="mml"
        As in :class:`RaschModel`.
    discrimination_prior : "auto", tuple of float or None, default="auto"
        Mean and standard deviation of log a. "auto" takes (0, 0.5) where an item has
        fewer than 200 answers, in the median, else none.
    latent_groups : {"pattern"} or None, default=None
        "pattern": takers who met the same items form a group with a mean ability of its own; groups of fewer
        than 10 are pooled. Needed where takers of different ability met different items.
    n_quadrature : int, default=9
        Nodes on the width of the narrowest posterior (with 9 the integrals are exact to some 1e-11), or
        number of fixed nodes.
    quadrature : {"adaptive", "fixed"}, default="adaptive"
        "fixed": nodes of the prior, which are too far apart for more than some fifty items.
    ability : {"eap", "map", "mle", "wle"}, default="eap"
        How abilities are estimated, see :func:`estimate_ability`.
    item_prior : tuple of float or None, default=None
        Mean and standard deviation of a normal prior of the difficulties.
    extreme_items : {"prior", "drop", "error"}, default="prior"
        Items whose answers are all alike: held by a prior N(0, 4^2), left out (their difficulty is infinite),
        or refused.
    max_iter : int, default=500
        Most iterations.
    tol : float, default=1e-8
        Relative gain of the log-likelihood at which EM ends.
    missing_values : float, default=nan
        What stands in X for an item that was not administered.
    allow_empty_takers : bool, default=False
        Whether takers without any answer are let in; they have the prior's ability.
    allow_disconnected : bool, default=False
        Whether takers and items may fall into parts that no answer links, whose scales cannot be compared.
    device : str, default="auto"
        With "cuda", "mml" integrates dense answers on a GPU and "mle" trains there. "auto" takes a GPU for
        "mle" if there is one, "cpu" never does.
    n_jobs : int or None, default=None
        Data sets that are calibrated at a time where ``item_groups`` are given, see joblib.
    random_state : int, RandomState instance or None, default=None
        For "mle" and "bayes".
    verbose : int, default=0
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    difficulty_ : ndarray of shape (n_items,)
        b; large is hard.
    discrimination_, guessing_, upper_ : ndarray of shape (n_items,)
        a, c and the upper asymptote.
    difficulty_std_ : ndarray of shape (n_items,)
        Standard errors of b from the observed information.
    extreme_items_ : ndarray of bool, shape (n_items,)
        Items whose answers are all alike.
    ability_, ability_std_ : ndarray of shape (n_takers,)
        Of the takers in ``fit``; (n_takers, n_item_groups) after ``item_groups``.
    latent_scale_ : float
        Standard deviation of ability within a group.
    latent_mean_ : ndarray of shape (n_groups,)
        Mean ability of each group; that of the first is 0.
    groups_ : ndarray of shape (n_groups,)
        Labels of the groups, after ``taker_groups``.
    reliability_ : float
        Share of the variance of ability that is not error: ``1 - mean(sd^2) / (var(ability) + mean(sd^2))``.
    log_likelihood_ : float
        Marginal log-likelihood of X; the joint one for "jml", the conditional one for "cml"; absent for
        "moment".
    posterior_ : object
        Draws, for "bayes".
    n_iter_, converged_ : int, bool
        Iterations, and whether they sufficed.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of str
        Their names, if they have some.

    See Also
    --------
    RaschModel : All items discriminate alike.
    ThreePLModel : Items that can be guessed.

    References
    ----------
    Bock and Aitkin, "Marginal maximum likelihood estimation of item parameters: application of an EM
    algorithm", Psychometrika 46, 1981. Truong, Tu, Liang, Li and Koyejo, "Reliable and Efficient Amortized
    Model-based Evaluation", ICML 2025.

    Examples
    --------
    >>> from seedbed.datasets import load_lsat7
    >>> from seedbed.estimators import TwoPLModel
    >>> model = TwoPLModel().fit(load_lsat7().data)
    >>> model.discrimination_.round(2).tolist(), round(model.log_likelihood_, 2)
    ([0.99, 1.08, 1.71, 0.77, 0.74], -2658.81)
    """

    _n_parameters = 2
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **ItemResponseModel._parameter_constraints,
        "discrimination_prior": [StrOptions({"auto"}), tuple, list, None],
    }

    def __init__(
        self,
        method: Calibration = "mml",
        *,
        discrimination_prior: tuple[float, float] | Literal["auto"] | None = "auto",
        latent_groups: Literal["pattern"] | None = None,
        n_quadrature: int = 9,
        quadrature: Literal["adaptive", "fixed"] = "adaptive",
        ability: Method = "eap",
        item_prior: tuple[float, float] | None = None,
        extreme_items: Literal["prior", "drop", "error"] = "prior",
        max_iter: int = 500,
        tol: float = 1e-8,
        missing_values: float = np.nan,
        allow_empty_takers: bool = False,
        allow_disconnected: bool = False,
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.discrimination_prior = discrimination_prior
        self.latent_groups = latent_groups
        self.n_quadrature = n_quadrature
        self.quadrature = quadrature
        self.ability = ability
        self.item_prior = item_prior
        self.extreme_items = extreme_items
        self.max_iter = max_iter
        self.tol = tol
        self.missing_values = missing_values
        self.allow_empty_takers = allow_empty_takers
        self.allow_disconnected = allow_disconnected
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self, item_groups: Any) -> None:
        super()._check_parameters(item_groups)
        if not isinstance(self.discrimination_prior, str):
            check_normal("discrimination_prior", self.discrimination_prior)

    def _plan(self, responses: Responses) -> Plan:
        return replace(
            super()._plan(responses), latent_scale=1.0, discrimination_prior=self.discrimination_prior
        )


class ThreePLModel(ItemResponseModel):
    """Three-parameter logistic model: P(right) = c + (u - c) sigma(a (theta - b)), theta ~ N(0, 1).

    Guessing and difficulty of an item can hardly be told apart from answers alone, so c and a have priors.

    Parameters
    ----------
    method : {"mml", "mle", "bayes"}, default="mml"
        As in :class:`RaschModel`; "bayes" is the posterior mode and the curvature there (Laplace).
    guessing_prior : tuple of float or None, default=(5, 17)
        Parameters of the beta density of c.
    discrimination_prior : tuple of float or None, default=(0, 0.5)
        Mean and standard deviation of log a.
    upper_prior : tuple of float or None, default=None
        Parameters of the beta density of 1 - u, which makes this the four-parameter model; None: u = 1.
    latent_groups : {"pattern"} or None, default=None
        "pattern": takers who met the same items form a group with a mean ability of its own; groups of fewer
        than 10 are pooled. Needed where takers of different ability met different items.
    n_quadrature : int, default=9
        Nodes on the width of the narrowest posterior (with 9 the integrals are exact to some 1e-11), or
        number of fixed nodes.
    quadrature : {"adaptive", "fixed"}, default="adaptive"
        "fixed": nodes of the prior, which are too far apart for more than some fifty items.
    ability : {"eap", "map", "mle", "wle"}, default="eap"
        How abilities are estimated, see :func:`estimate_ability`.
    item_prior : tuple of float or None, default=None
        Mean and standard deviation of a normal prior of the difficulties.
    extreme_items : {"prior", "drop", "error"}, default="prior"
        Items whose answers are all alike: held by a prior N(0, 4^2), left out (their difficulty is infinite),
        or refused.
    max_iter : int, default=500
        Most iterations.
    tol : float, default=1e-8
        Relative gain of the log-likelihood at which EM ends.
    missing_values : float, default=nan
        What stands in X for an item that was not administered.
    allow_empty_takers : bool, default=False
        Whether takers without any answer are let in; they have the prior's ability.
    allow_disconnected : bool, default=False
        Whether takers and items may fall into parts that no answer links, whose scales cannot be compared.
    device : str, default="auto"
        With "cuda", "mml" integrates dense answers on a GPU and "mle" trains there. "auto" takes a GPU for
        "mle" if there is one, "cpu" never does.
    n_jobs : int or None, default=None
        Data sets that are calibrated at a time where ``item_groups`` are given, see joblib.
    random_state : int, RandomState instance or None, default=None
        For "mle" and "bayes".
    verbose : int, default=0
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    difficulty_ : ndarray of shape (n_items,)
        b; large is hard.
    discrimination_, guessing_, upper_ : ndarray of shape (n_items,)
        a, c and the upper asymptote.
    difficulty_std_ : ndarray of shape (n_items,)
        Standard errors of b from the observed information.
    extreme_items_ : ndarray of bool, shape (n_items,)
        Items whose answers are all alike.
    ability_, ability_std_ : ndarray of shape (n_takers,)
        Of the takers in ``fit``; (n_takers, n_item_groups) after ``item_groups``.
    latent_scale_ : float
        Standard deviation of ability within a group.
    latent_mean_ : ndarray of shape (n_groups,)
        Mean ability of each group; that of the first is 0.
    groups_ : ndarray of shape (n_groups,)
        Labels of the groups, after ``taker_groups``.
    reliability_ : float
        Share of the variance of ability that is not error: ``1 - mean(sd^2) / (var(ability) + mean(sd^2))``.
    log_likelihood_ : float
        Marginal log-likelihood of X; the joint one for "jml", the conditional one for "cml"; absent for
        "moment".
    posterior_ : object
        Draws, for "bayes".
    n_iter_, converged_ : int, bool
        Iterations, and whether they sufficed.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of str
        Their names, if they have some.

    See Also
    --------
    TwoPLModel : Without guessing.

    References
    ----------
    Mislevy, "Bayes modal estimation in item response models", Psychometrika 51, 1986. Truong, Tu, Liang, Li
    and Koyejo, "Reliable and Efficient Amortized Model-based Evaluation", ICML 2025.

    Examples
    --------
    >>> from seedbed.datasets import make_irt_responses
    >>> from seedbed.estimators import ThreePLModel
    >>> data = make_irt_responses(1000, 20, "3pl", random_state=0)
    >>> model = ThreePLModel().fit(data.data)
    >>> bool(0.1 < model.guessing_.mean() < 0.3)
    True
    """

    _n_parameters = 3
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **ItemResponseModel._parameter_constraints,
        "guessing_prior": [tuple, list, None],
        "discrimination_prior": [tuple, list, None],
        "upper_prior": [tuple, list, None],
    }

    def __init__(
        self,
        method: Calibration = "mml",
        *,
        guessing_prior: tuple[float, float] | None = (5, 17),
        discrimination_prior: tuple[float, float] | None = (0, 0.5),
        upper_prior: tuple[float, float] | None = None,
        latent_groups: Literal["pattern"] | None = None,
        n_quadrature: int = 9,
        quadrature: Literal["adaptive", "fixed"] = "adaptive",
        ability: Method = "eap",
        item_prior: tuple[float, float] | None = None,
        extreme_items: Literal["prior", "drop", "error"] = "prior",
        max_iter: int = 500,
        tol: float = 1e-8,
        missing_values: float = np.nan,
        allow_empty_takers: bool = False,
        allow_disconnected: bool = False,
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.guessing_prior = guessing_prior
        self.discrimination_prior = discrimination_prior
        self.upper_prior = upper_prior
        self.latent_groups = latent_groups
        self.n_quadrature = n_quadrature
        self.quadrature = quadrature
        self.ability = ability
        self.item_prior = item_prior
        self.extreme_items = extreme_items
        self.max_iter = max_iter
        self.tol = tol
        self.missing_values = missing_values
        self.allow_empty_takers = allow_empty_takers
        self.allow_disconnected = allow_disconnected
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self, item_groups: Any) -> None:
        super()._check_parameters(item_groups)
        check_normal("discrimination_prior", self.discrimination_prior)
        for name in ("guessing_prior", "upper_prior"):
            check_beta(name, getattr(self, name))

    def _check_answers(self, responses: Responses) -> None:
        super()._check_answers(responses)
        bare = self.guessing_prior is None or self.discrimination_prior is None
        if bare and responses.n_takers < FEWEST_WITHOUT_PRIORS:
            raise ValueError(
                "guessing_prior and discrimination_prior must be given for fewer than "
                f"{FEWEST_WITHOUT_PRIORS} takers, got {responses.n_takers} takers"
            )

    def _plan(self, responses: Responses) -> Plan:
        return replace(
            super()._plan(responses),
            n_parameters=3 if self.upper_prior is None else 4,
            latent_scale=1.0,
            discrimination_prior=_pair(self.discrimination_prior),
            guessing_prior=_pair(self.guessing_prior),
            upper_prior=_pair(self.upper_prior),
        )


def _pair(prior: Any) -> tuple[float, float] | None:
    return None if prior is None else (float(prior[0]), float(prior[1]))
