"""AmortizedIRT: item response theory in which the difficulty of a question is predicted from its features."""

import copy
import warnings
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from seedbed.estimators.amortized_irt.ability import Method
from seedbed.estimators.amortized_irt.ability_step import (
    AbilityStep,
    Population,
    estimate_abilities,
    read_ability_features,
)
from seedbed.estimators.amortized_irt.amortized_fitting import (
    Calibration,
    calibrate_joint,
    calibrate_plugin,
    check_answers,
)
from seedbed.estimators.amortized_irt.em import Latent, expect
from seedbed.estimators.amortized_irt.item_features import (
    Design,
    ItemFeatures,
    fit_encoder,
    item_feature_names,
    read_item_features,
)
from seedbed.estimators.amortized_irt.items import Items
from seedbed.estimators.amortized_irt.predictors import LinearPredictor, NetworkPredictor, Predictor
from seedbed.estimators.amortized_irt.reading import ReadsAnswers
from seedbed.estimators.amortized_irt.responses import Responses

Floats = NDArray[Any]


class AmortizedIRT(ReadsAnswers, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Abilities of test takers, and difficulties of items as a function of the items' features.

    ``P(y_ni = 1) = sigma(theta_n - b_i)`` with ``b_i = f(x_i) + eps_i``: the difficulty of a question follows
    from its features, such as an embedding of its text, up to a residual ``eps_i ~ N(0, tau^2)``. So a
    question that nobody has answered has a difficulty (with an honest error), and one with few answers
    borrows from the others.

    Parameters
    ----------
    model : {"rasch", "2pl"}, default="rasch"
        "2pl": every item has a discrimination too.
    style : {"joint", "plugin"}, default="joint"
        "joint" maximises the marginal likelihood over f. "plugin" calibrates each item on its own and
        regresses the difficulties on the features.
    residual : {"normal", None}, default="normal"
        None: difficulties are f(x) exactly, as in the paper.
    network : {"linear", "mlp"}, default="linear"
        f of style "joint". An MLP needs many thousand items to beat a linear f of good features.
    hidden_layer_sizes : tuple of int, default=()
        Widths of the MLP's hidden layers (ELU).
    l2 : float, default=0.01
        Penalty ``l2 |w|^2 / 2`` of a linear f: the precision of a normal prior on w.
    difficulty_regressor : regressor, default=None
        f of style "plugin"; None for :class:`~sklearn.linear_model.RidgeCV`. One that takes
        ``sample_weight`` gets ``1 / (SE_i^2 + tau^2)``.
    ability_network : {"linear", "mlp"}, default="linear"
        Function g of the takers' features, where ``fit`` gets some.
    ability_hidden_layer_sizes : tuple of int, default=(64, 64)
        Widths of its hidden layers, for "mlp".
    ability_residual : {"normal", None}, default="normal"
        Whether abilities vary about g; None: they are g exactly, as in the paper.
    feature_encoder : transformer or callable, default=None
        Turns item features into a matrix: a transformer is fitted on the items that have features, such as
        :class:`SentenceEncoder` on texts or a StandardScaler on numbers.
    item_features : ItemFeatures or array-like, default=None
        Features for ``fit`` where none are passed to it; see :meth:`set_item_features`.
    ability : {"eap", "map", "mle", "wle"}, default="eap"
        How ``transform`` and the predictions estimate ability, see :func:`estimate_ability`.
    latent_scale : "free" or float, default="free"
        Standard deviation of ability of the Rasch model. It is 1 for "2pl".
    n_quadrature : int, default=9
        Nodes of the adaptive quadrature for each taker, 3 at least.
    max_iter : int, default=200
        EM iterations.
    tol : float, default=1e-8
        Relative gain of the log-likelihood at which EM ends.
    learning_rate, weight_decay : float, default=1e-3, 1e-4
        Of Adam, for an MLP.
    n_network_steps : int, default=50
        Steps of Adam in each EM iteration.
    missing_values : float, default=nan
        What stands in X for an item that was not administered.
    allow_disconnected : bool, default=False
        Whether takers and items may fall into parts that no answer links. Features link all items, so this
        matters only without them.
    random_state : int, RandomState instance or None, default=None
        First weights of an MLP.

    Attributes
    ----------
    difficulty_, discrimination_, difficulty_std_ : ndarray of shape (n_items,)
        Items; large b is hard. The standard deviation is that of the posterior of b_i given f and tau or,
        where difficulties are f(x), that of a new item with these features.
    ability_, ability_std_ : ndarray of shape (n_takers,)
        Posterior means and standard deviations of the takers in ``fit``.
    latent_scale_ : float
        Standard deviation of ability, with ability features about g.
    ability_coef_, ability_intercept_ : ndarray of shape (n_ability_features_,) and float
        Of a linear g, where ``fit`` got ability features.
    residual_std_ : float
        tau, corrected for the coefficients that were fitted.
    coef_, intercept_ : ndarray of shape (n_item_features_,) and float
        Of a linear f; of style "plugin" where the regressor has them.
    difficulty_regressor_ : regressor
        Fitted, for style "plugin".
    feature_encoder_ : transformer or callable
        Fitted.
    log_likelihood_ : float
        Marginal log-likelihood of X.
    n_iter_ : int
        EM iterations.
    converged_ : bool
        Whether EM came to an end before ``max_iter``.
    reliability_ : float
        Share of the variance of ability that is not error: ``1 - mean(sd^2) / (var(mean) + mean(sd^2))``.
    n_item_features_ : int
        Columns of the features after encoding; 0 without features.
    item_feature_names_in_ : ndarray of str
        Their names before encoding, if they have some.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of str
        Their names, if they have some.

    See Also
    --------
    ItemDifficultyRegressor : The same for cross-validation over items.
    SentenceEncoder : Turns questions into features.

    Notes
    -----
    The method is that of [1]_. The residual is an extension: with few answers for each item it halves the
    error of the difficulties, and its tau says how far a predicted difficulty can be trusted. A response
    curve averaged over that error is flatter by ``(1 + pi tau^2 / 8)^(-1/2)``, which all predictions take
    into account. Without ``item_features`` f is an intercept: an empirical-Bayes calibration. An MLP's tau is
    measured on a fifth of the items that a second network, trained alike, has not seen.

    In a GridSearchCV over takers pass ``item_features=ItemFeatures(...)`` with metadata routing
    (``set_fit_request(item_features=True)``), or use :meth:`set_item_features`, which needs none.

    References
    ----------
    .. [1] S. T. Truong, Y. Tu, P. Liang, B. Li, S. Koyejo, "Reliable and Efficient Amortized Model-based
       Evaluation", ICML 2025.

    Examples
    --------
    >>> from seedbed.datasets import load_classifier_responses
    >>> from seedbed.estimators import AmortizedIRT
    >>> found = load_classifier_responses()
    >>> seen, new = slice(0, 1500), slice(1500, None)
    >>> model = AmortizedIRT().fit(found.data[:, seen], item_features=found.item_features[seen])
    >>> b, std = model.predict_difficulty(found.item_features[new])
    >>> b.shape, bool(np.corrcoef(b, found.data[:, new].mean(axis=0))[0, 1] < -0.8)
    ((297,), True)
    >>> model.predict_proba(found.data[:2, seen], item_features=found.item_features[new]).shape
    (2, 297)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "model": [StrOptions({"rasch", "2pl"})],
        "style": [StrOptions({"joint", "plugin"})],
        "residual": [StrOptions({"normal"}), None],
        "network": [StrOptions({"linear", "mlp"})],
        "hidden_layer_sizes": ["array-like"],
        "l2": [Interval(Real, 0, None, closed="left")],
        "difficulty_regressor": [HasMethods(["fit", "predict"]), None],
        "ability_network": [StrOptions({"linear", "mlp"})],
        "ability_hidden_layer_sizes": ["array-like"],
        "ability_residual": [StrOptions({"normal"}), None],
        "feature_encoder": [HasMethods(["fit", "transform"]), callable, None],
        "item_features": "no_validation",
        "ability": [StrOptions({"eap", "map", "mle", "wle"})],
        "latent_scale": [StrOptions({"free"}), Interval(Real, 0, None, closed="neither")],
        "n_quadrature": [Interval(Integral, 3, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "n_network_steps": [Interval(Integral, 1, None, closed="left")],
        "missing_values": [Real],
        "allow_disconnected": ["boolean"],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        model: Literal["rasch", "2pl"] = "rasch",
        *,
        style: Literal["joint", "plugin"] = "joint",
        residual: Literal["normal"] | None = "normal",
        network: Literal["linear", "mlp"] = "linear",
        hidden_layer_sizes: tuple[int, ...] = (),
        l2: float = 1e-2,
        difficulty_regressor: Any = None,
        ability_network: Literal["linear", "mlp"] = "linear",
        ability_hidden_layer_sizes: tuple[int, ...] = (64, 64),
        ability_residual: Literal["normal"] | None = "normal",
        feature_encoder: Any = None,
        item_features: Any = None,
        ability: Method = "eap",
        latent_scale: Any = "free",
        n_quadrature: int = 9,
        max_iter: int = 200,
        tol: float = 1e-8,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        n_network_steps: int = 50,
        missing_values: float = np.nan,
        allow_disconnected: bool = False,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.style = style
        self.residual = residual
        self.network = network
        self.hidden_layer_sizes = hidden_layer_sizes
        self.l2 = l2
        self.difficulty_regressor = difficulty_regressor
        self.ability_network = ability_network
        self.ability_hidden_layer_sizes = ability_hidden_layer_sizes
        self.ability_residual = ability_residual
        self.feature_encoder = feature_encoder
        self.item_features = item_features
        self.ability = ability
        self.latent_scale = latent_scale
        self.n_quadrature = n_quadrature
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.n_network_steps = n_network_steps
        self.missing_values = missing_values
        self.allow_disconnected = allow_disconnected
        self.random_state = random_state

    def set_item_features(self, item_features: Any, *, missing: Any = None) -> Self:
        """Set the features that ``fit`` uses where none are passed to it.

        They are kept whole by ``clone`` and cross-validation over takers, without metadata routing.

        Parameters
        ----------
        item_features : ItemFeatures, array-like of shape (n_items, n_item_features) or list of str
            Features of the items.
        missing : array-like of bool, shape (n_items,), optional
            True for items without features.

        Returns
        -------
        self
            The estimator.
        """
        self.item_features = ItemFeatures(item_features, missing=missing)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any = None,  # noqa: ARG002
        *,
        item_features: Any = None,
        ability_features: Any = None,
        mask: Any = None,
    ) -> Self:
        """Fit difficulties and the distribution of ability to answers.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            1 for right, 0 for wrong, ``missing_values`` for items that were not administered. In a sparse
            matrix nothing is missing by itself.
        y : None
            Ignored.
        item_features : ItemFeatures, array-like of shape (n_items, n_item_features) or list of str, optional
            Features of the items. Items without (``ItemFeatures(values, missing=...)``) have difficulties of
            their own. Without any, f is an intercept and the residual normal.
        ability_features : array-like of shape (n_takers,) or (n_takers, n_ability_features), optional
            What abilities are a function of, such as the log of the compute a model was trained with. Takers
            with a NaN have abilities of their own.
        mask : {array-like, sparse matrix} of shape (n_takers, n_items), optional
            True where an item was administered, for a sparse X.

        Returns
        -------
        self
            The fitted model.

        Raises
        ------
        ValueError
            If a cell is neither 0, 1 nor missing; a taker has no answer, or an item has none and no features;
            there are fewer than 2 takers or items; features have another number of rows or are infinite, or
            those of items NaN; or, without item features, takers and items fall into parts that no answer
            links.
        """
        for network, widths in (
            (self.network, "hidden_layer_sizes"),
            (self.ability_network, "ability_hidden_layer_sizes"),
        ):
            if network == "mlp" and not len(getattr(self, widths)):
                raise ValueError(f"{widths} must have at least one width for a network 'mlp', got ()")
        responses = self._read(X, mask, reset=True)
        features = self.item_features if item_features is None else item_features
        design = self._read_design(features, responses.n_items)
        check_answers(responses, design, self.allow_disconnected)
        rng = check_random_state(self.random_state)
        step = self._ability_step(ability_features, responses, rng)
        self.n_item_features_ = design.n_features
        self._keep(self._calibrate(responses, design, step, rng), responses, step)
        return self

    def _ability_step(
        self, features: Any, responses: Responses, rng: np.random.RandomState
    ) -> AbilityStep | None:
        """M-step of abilities with features."""
        if features is None:
            return None
        design = read_ability_features(features, responses.n_takers)
        rows = design.matrix[design.known]
        predictor: Predictor = LinearPredictor.zero(rows.shape[1], self.l2)
        if self.ability_network == "mlp":
            predictor = self._network(rows, self.ability_hidden_layer_sizes, rng)
        scale = 1.0 if self.latent_scale == "free" else float(self.latent_scale)
        return AbilityStep(
            design,
            predictor,
            responses.weight,
            residual=self.ability_residual == "normal",
            free_scale=self.latent_scale == "free",
            scale=scale,
            spread=scale,
        )

    def _read_design(self, features: Any, n_items: int) -> Design:
        """Encode the features of the items in ``fit``; without features there are no columns."""
        self.feature_encoder_ = None
        if features is None:
            return Design(np.zeros((n_items, 0)), np.ones(n_items, dtype=bool))
        wrapped = ItemFeatures(features)
        if wrapped.n_items != n_items:
            raise ValueError(
                f"item_features must have one row for each of {n_items} items, got {wrapped.n_items} rows"
            )
        self.feature_encoder_ = fit_encoder(self.feature_encoder, wrapped)
        names = item_feature_names(wrapped)
        if names is not None:
            self.item_feature_names_in_ = names
        elif hasattr(self, "item_feature_names_in_"):
            del self.item_feature_names_in_
        return read_item_features(wrapped, encoder=self.feature_encoder_, n_items=n_items)

    def _calibrate(
        self, responses: Responses, design: Design, step: AbilityStep | None, rng: np.random.RandomState
    ) -> Calibration:
        scale = 1.0 if self.latent_scale == "free" or self.model == "2pl" else float(self.latent_scale)
        latent = Latent(np.zeros(1), scale, np.zeros(responses.n_takers, dtype=np.int64))
        settings: dict[str, Any] = {
            "max_iter": self.max_iter,
            "tol": self.tol,
            "n_quadrature": self.n_quadrature,
            "slopes": self.model == "2pl",
            "free_scale": self.latent_scale == "free",
            "latent_step": step,
        }
        if step is not None:
            latent = step.latent()
        bare = design.n_features == 0
        residual = self.residual == "normal" or bare
        if self.style == "joint" or bare:
            predictor: Predictor = LinearPredictor.zero(design.n_features, self.l2)
            if self.network == "mlp" and not bare:
                predictor = self._network(design.rows(), self.hidden_layer_sizes, rng)
            return calibrate_joint(responses, design, predictor, latent, residual=residual, **settings)
        return calibrate_plugin(
            responses,
            design,
            self.difficulty_regressor,
            latent,
            residual=residual,
            **settings,
        )

    def _network(self, rows: Any, widths: Any, rng: np.random.RandomState) -> NetworkPredictor:
        """Draw an untrained network for features like these."""
        return NetworkPredictor.draw(
            rows.toarray() if sparse.issparse(rows) else rows,
            tuple(int(width) for width in widths),
            rng,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            n_steps=self.n_network_steps,
        )

    def _keep(self, found: Calibration, responses: Responses, step: AbilityStep | None) -> None:
        """Set what fit has learned."""
        items, fitted = found.items, found.fitted
        self._forecast = found.forecast
        self.difficulty_ = items.difficulty.astype(self._dtype)
        self.discrimination_ = items.discrimination.astype(self._dtype)
        self.difficulty_std_ = items.difficulty_std.astype(self._dtype)
        self.residual_std_ = float(found.forecast.tau)
        for name in ("coef_", "intercept_", "difficulty_regressor_", "ability_coef_", "ability_intercept_"):
            self.__dict__.pop(name, None)
        predictor = found.forecast.predictor
        if isinstance(predictor, LinearPredictor):
            self.coef_, self.intercept_ = predictor.coef.astype(self._dtype), predictor.intercept
        elif not isinstance(predictor, NetworkPredictor):
            self.difficulty_regressor_ = predictor
            if hasattr(predictor, "coef_") and np.ndim(predictor.coef_) == 1:
                self.coef_, self.intercept_ = predictor.coef_, predictor.intercept_
        self._keep_abilities(responses, fitted.latent, step)
        self.log_likelihood_ = float(fitted.log_likelihood)
        self.n_iter_ = int(fitted.n_iter)
        self.converged_ = bool(fitted.converged)
        if not self.converged_:
            warnings.warn(
                f"EM has not converged in max_iter={self.max_iter} iterations",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.extreme_items_ = responses.extreme

    def _keep_abilities(self, responses: Responses, latent: Latent, step: AbilityStep | None) -> None:
        """Set the takers' abilities and their distribution."""
        self._population = Population.of(latent, step)
        predictor = self._population.predictor
        if isinstance(predictor, LinearPredictor):
            self.ability_coef_, self.ability_intercept_ = predictor.coef, predictor.intercept
        self.latent_scale_ = self._population.scale if step is None else self._population.about
        mean = latent.mean[latent.group]
        scale = np.broadcast_to(np.asarray(latent.scale, dtype=float), mean.shape)
        ability, std = estimate_abilities(responses, self.items_, self.ability, mean, scale)
        self.ability_, self.ability_std_ = ability.astype(self._dtype), std.astype(self._dtype)
        finite = np.isfinite(ability)
        noise = float(np.mean(std[finite] ** 2))
        self.reliability_ = 1 - noise / (float(np.var(ability[finite])) + noise)

    # -- what was learned ----------------------------------------------------------------------------------

    @property
    def items_(self) -> Items:
        """Parameters of the items, for :class:`AdaptiveTest` and other functions that take items."""
        check_is_fitted(self)
        return Items.of(
            self.difficulty_, self.discrimination_, difficulty_std=self.difficulty_std_.astype(float)
        )

    def predict_difficulty(self, item_features: Any) -> tuple[Floats, Floats]:
        """Predict the difficulties of items that nobody needs to have answered.

        Parameters
        ----------
        item_features : ItemFeatures, array-like of shape (n_items, n_item_features) or list of str
            Features of the items.

        Returns
        -------
        b : ndarray of shape (n_items,)
            Difficulties.
        std : ndarray of shape (n_items,)
            Standard deviations of their errors: tau, and for a linear f (of at most 2000 features) also the
            error of its coefficients.

        Raises
        ------
        ValueError
            If the model was fitted without item features, or these are not like those in ``fit``.
        """
        check_is_fitted(self)
        matrix = self._encode(item_features)
        b, std = self._forecast.predict(matrix), self._forecast.std(matrix)
        return b.astype(self._dtype), std.astype(self._dtype)

    def _encode(self, item_features: Any) -> Any:
        """Features of new items, as a matrix."""
        if self.n_item_features_ == 0:
            raise ValueError("item_features must be None for a model that was fitted without item features")
        design = read_item_features(
            item_features, encoder=self.feature_encoder_, n_features=self.n_item_features_
        )
        if not design.known.all():
            missing = int(np.flatnonzero(~design.known)[0])
            raise ValueError(f"item_features must not be missing for a new item, got none for item {missing}")
        return design.matrix

    def _new_items(self, item_features: Any) -> Items:
        """Items predicted from features, with the discrimination that is typical."""
        b, std = self.predict_difficulty(item_features)
        slope = float(np.exp(np.log(self.discrimination_).mean()))
        return Items.of(b, slope, difficulty_std=std.astype(float))

    def extend(self, item_features: Any, *, item_names: Any = None) -> "AmortizedIRT":
        """Return a model of more items, the new ones with predicted difficulties.

        Parameters
        ----------
        item_features : ItemFeatures, array-like of shape (n_new_items, n_item_features) or list of str
            Features of the new items.
        item_names : array-like of str, shape (n_new_items,), optional
            Their names, needed where the items in ``fit`` had names that are to be checked.

        Returns
        -------
        AmortizedIRT
            A fitted model whose items are the old ones, then the new ones.

        Raises
        ------
        ValueError
            As from :meth:`predict_difficulty`, or if there is another number of names.
        """
        check_is_fitted(self)
        new = self._new_items(item_features)
        if item_names is not None and len(item_names) != len(new):
            raise ValueError(
                f"item_names must have one name for each of {len(new)} items, got {len(item_names)}"
            )
        longer = copy.copy(self)
        for name, added in (
            ("difficulty_", new.difficulty),
            ("discrimination_", new.discrimination),
            ("difficulty_std_", new.difficulty_std),
            ("extreme_items_", np.zeros(len(new), dtype=bool)),
        ):
            old = getattr(self, name)
            setattr(longer, name, np.concatenate([old, added.astype(old.dtype)]))
        longer.n_features_in_ = len(longer.difficulty_)
        if hasattr(self, "feature_names_in_"):
            if item_names is None:
                del longer.feature_names_in_
            else:
                names = np.asarray(item_names, dtype=object)
                longer.feature_names_in_ = np.concatenate([self.feature_names_in_, names])
        return longer

    def transform(self, X: Any, *, ability_features: Any = None, mask: Any = None) -> Floats:
        """Estimate abilities of old or new takers, the items as they are.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers, as in ``fit``.
        ability_features : array-like of shape (n_takers,) or (n_takers, n_ability_features), optional
            Features of the takers, for a model that was fitted with some. A taker without could be any.
        mask : optional
            As in ``fit``.

        Returns
        -------
        ndarray of shape (n_takers, 1)
            Abilities; for "mle" infinite where all answers are right, or all wrong.

        Raises
        ------
        ValueError
            If a cell is neither 0, 1 nor missing, or there is another number of items.
        """
        check_is_fitted(self)
        return self._abilities(X, mask, ability_features)[:, None].astype(self._dtype)

    def _abilities(self, X: Any, mask: Any, ability_features: Any) -> Floats:
        responses = self._read(X, mask)
        prior = self._population.prior(ability_features, responses.n_takers)
        return estimate_abilities(responses, self.items_, self.ability, *prior)[0]

    def predict_ability(self, ability_features: Any) -> tuple[Floats, Floats]:
        """Predict abilities of takers that have not answered anything.

        Parameters
        ----------
        ability_features : array-like of shape (n_takers,) or (n_takers, n_ability_features)
            Features of the takers.

        Returns
        -------
        theta : ndarray of shape (n_takers,)
            Abilities.
        std : ndarray of shape (n_takers,)
            Standard deviations about them.

        Raises
        ------
        ValueError
            If the model was fitted without ability features, or these are not like those in ``fit``.
        """
        check_is_fitted(self)
        mean, scale = self._population.prior(ability_features, len(ability_features))
        return mean.astype(self._dtype), scale.astype(self._dtype)

    @property
    def _n_features_out(self) -> int:
        return 1

    def predict_proba(
        self, X: Any, *, item_features: Any = None, ability_features: Any = None, mask: Any = None
    ) -> Floats:
        """Predict how likely each taker is to get each item right.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers of the takers to the items in ``fit``.
        item_features : ItemFeatures, array-like (n_new_items, n_item_features) or list of str, optional
            Features of new items to predict answers to; None for the items in ``fit``.
        ability_features : array-like of shape (n_takers,) or (n_takers, n_ability_features), optional
            Features of the takers, for a model that was fitted with some. A taker without could be any.
        mask : optional
            As in ``fit``.

        Returns
        -------
        ndarray of shape (n_takers, n_items) or (n_takers, n_new_items)
            Probabilities of a right answer, at the takers' abilities and averaged over the errors of the
            difficulties.

        Raises
        ------
        ValueError
            As from :meth:`transform` and :meth:`predict_difficulty`.
        """
        check_is_fitted(self)
        items = self.items_ if item_features is None else self._new_items(item_features)
        theta = self._abilities(X, mask, ability_features)
        return items.softened().probability(theta).astype(self._dtype)

    def predict(
        self, X: Any, *, item_features: Any = None, ability_features: Any = None, mask: Any = None
    ) -> NDArray[np.int64]:
        """Predict which answers are right.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers of the takers to the items in ``fit``.
        item_features : ItemFeatures, array-like (n_new_items, n_item_features) or list of str, optional
            Features of new items.
        ability_features, mask : optional
            As in :meth:`predict_proba`.

        Returns
        -------
        ndarray of int64, shape (n_takers, n_items) or (n_takers, n_new_items)
            1 where a right answer is more likely than a wrong one.
        """
        chance = self.predict_proba(
            X, item_features=item_features, ability_features=ability_features, mask=mask
        )
        return (chance > 0.5).astype(np.int64)

    def score(self, X: Any, y: Any = None, *, ability_features: Any = None, mask: Any = None) -> float:  # noqa: ARG002
        """Marginal log-likelihood of takers for each of their answers.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers of old or new takers.
        y : None
            Ignored.
        ability_features : array-like of shape (n_takers,) or (n_takers, n_ability_features), optional
            Features of the takers, for a model that was fitted with some. A taker without could be any.
        mask : optional
            As in ``fit``.

        Returns
        -------
        float
            Higher is better; log(1/2) for guesses.
        """
        check_is_fitted(self)
        responses = self._read(X, mask)
        mean, scale = self._population.prior(ability_features, responses.n_takers)
        latent = Latent(mean, scale, np.arange(responses.n_takers))
        found = expect(responses, self.items_.softened(), latent, n_quadrature=self.n_quadrature)
        return float(found.log_likelihood.sum() / responses.n_cells)
