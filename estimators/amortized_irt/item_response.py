"""What the item response models share: reading answers, abilities, predictions, scores."""

from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.metrics import roc_auc_score
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from seedbed.checks import check_number
from seedbed.estimators.amortized_irt.ability import Method, estimate_ability
from seedbed.estimators.amortized_irt.calibration import Calibrated, Plan, calibrate
from seedbed.estimators.amortized_irt.em import Latent, expect
from seedbed.estimators.amortized_irt.items import Floats, Items
from seedbed.estimators.amortized_irt.local import fit_locally
from seedbed.estimators.amortized_irt.reading import ReadsAnswers
from seedbed.estimators.amortized_irt.responses import Responses, check_linked, code_groups

Calibration = Literal["mml", "moment", "jml", "cml", "mle", "bayes"]


def check_normal(name: str, prior: Any) -> None:
    """Raise unless a prior is None or a mean and a standard deviation."""
    if prior is not None:
        if len(prior) != 2:
            raise ValueError(f"{name} must be None or (mean, standard deviation), got {prior!r}")
        check_number(f"{name}[0]", prior[0])
        check_number(f"{name}[1]", prior[1], low=0, closed="neither")


def check_beta(name: str, prior: Any) -> None:
    """Raise unless a prior is None or the two parameters of a beta law with a mode inside."""
    if prior is not None:
        if len(prior) != 2:
            raise ValueError(f"{name} must be None or (alpha, beta), got {prior!r}")
        for k in (0, 1):
            check_number(f"{name}[{k}]", prior[k], low=1, closed="neither")


class ItemResponseModel(ReadsAnswers, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What the item response models have in common."""

    _n_parameters: ClassVar[int] = 1
    _methods: ClassVar[frozenset[str]] = frozenset({"mml", "mle", "bayes"})

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "method": [StrOptions({"mml", "moment", "jml", "cml", "mle", "bayes"})],
        "latent_groups": [StrOptions({"pattern"}), None],
        "n_quadrature": [Interval(Integral, 3, None, closed="left")],
        "quadrature": [StrOptions({"adaptive", "fixed"})],
        "ability": [StrOptions({"eap", "map", "mle", "wle"})],
        "item_prior": [tuple, list, None],
        "extreme_items": [StrOptions({"prior", "drop", "error"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "missing_values": [Real],
        "allow_empty_takers": ["boolean"],
        "allow_disconnected": ["boolean"],
        "device": [str],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    # Set by every subclass's __init__.
    method: str
    latent_groups: str | None
    n_quadrature: int
    quadrature: Literal["adaptive", "fixed"]
    ability: Method
    item_prior: tuple[float, float] | None
    extreme_items: str
    max_iter: int
    tol: float
    allow_empty_takers: bool
    allow_disconnected: bool
    device: str
    n_jobs: int | None
    random_state: Any
    verbose: int

    # -- fit -----------------------------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any = None,  # noqa: ARG002
        *,
        mask: Any = None,
        taker_groups: Any = None,
        item_groups: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Calibrate the items, and estimate the takers' abilities.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            1 for right, 0 for wrong, ``missing_values`` where an item was not administered.
        y : None
            Ignored.
        mask : {array-like, sparse matrix} of shape (n_takers, n_items), optional
            True where an item was administered, for a sparse X, in which nothing is missing by itself.
        taker_groups : array-like of shape (n_takers,), optional
            Labels of groups whose mean abilities differ; that of the first in X is 0, and so the origin.
        item_groups : array-like of shape (n_items,), optional
            Labels of data sets that are calibrated apart: every taker then has an ability for each.
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
        UserWarning
            If takers who met other items differ in ability and share one population.
        """
        self._check_parameters(item_groups)
        responses = self._read(X, mask, reset=True)
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, responses.right, ensure_non_negative=True)
            responses = responses.weighted(np.asarray(weight, dtype=float))
        for name in ("groups_", "item_groups_", "models_", "posterior_"):
            self.__dict__.pop(name, None)
        if item_groups is not None:
            fit_locally(self, responses, item_groups, taker_groups)
            return self
        return self._fit_responses(responses, taker_groups)

    def _fit_responses(self, responses: Responses, taker_groups: Any) -> Self:
        """Calibrate answers that were read before."""
        self._check_answers(responses)
        labels, group = code_groups(taker_groups, responses.n_takers)
        if taker_groups is not None:
            self.groups_ = labels
        self._keep(calibrate(responses, self._plan(responses), group=group), responses)
        return self

    def _check_parameters(self, item_groups: Any) -> None:
        if self.method not in self._methods:
            raise ValueError(
                f"method must be one of {sorted(self._methods)} for {type(self).__name__}, got "
                f"{self.method!r}"
            )
        check_normal("item_prior", self.item_prior)
        if self.device not in ("auto", "cpu") and not self.device.startswith("cuda"):
            raise ValueError(f"device must be 'auto', 'cpu' or 'cuda', got {self.device!r}")
        if item_groups is not None and self.latent_groups is not None:
            raise ValueError("latent_groups must be None where item_groups are calibrated apart")

    def _check_answers(self, responses: Responses) -> None:
        """What the data must have beyond cells of 0 and 1."""
        silent = np.flatnonzero(responses.seen_by_taker == 0)
        if len(silent) and not self.allow_empty_takers:
            raise ValueError(
                f"X must have an answer of every taker, got none in row {silent[0]}; leave it out, or set "
                "allow_empty_takers=True"
            )
        unseen = np.flatnonzero(responses.seen_by_item == 0)
        if len(unseen):
            raise ValueError(f"X must have an answer to every item, got none in column {unseen[0]}")
        if self.extreme_items == "error" and responses.extreme.any():
            raise ValueError(
                f"the answers to item {np.argmax(responses.extreme)} are all alike; leave it out, or set "
                "extreme_items='prior' or 'drop'"
            )
        if self.extreme_items == "drop" and (~responses.extreme).sum() < 2:
            raise ValueError("fewer than 2 items are left without those whose answers are all alike")
        if not self.allow_disconnected:
            check_linked(responses)

    def _plan(self, responses: Responses) -> Plan:  # noqa: ARG002
        """What is to be estimated, and how."""
        return Plan(
            method=self.method,
            n_parameters=self._n_parameters,
            latent_scale=None,
            pattern_groups=self.latent_groups == "pattern",
            quadrature=self.quadrature,
            n_quadrature=int(self.n_quadrature),
            item_prior=None if self.item_prior is None else (self.item_prior[0], self.item_prior[1]),
            drop_extreme=self.extreme_items == "drop",
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            device=self.device,
            random_state=self.random_state,
            verbose=int(self.verbose),
            ability=self.ability,
        )

    def _keep(self, found: Calibrated, responses: Responses) -> None:
        """Set what fit has learned."""
        items = found.items
        for name in ("difficulty", "discrimination", "guessing", "upper", "difficulty_std"):
            setattr(self, f"{name}_", getattr(items, name).astype(self._dtype))
        self.extreme_items_ = responses.extreme
        self.latent_scale_ = float(found.latent.scale)
        self.latent_mean_ = found.latent.mean
        self.__dict__.pop("log_likelihood_", None)
        if found.log_likelihood is not None:
            self.log_likelihood_ = float(found.log_likelihood)
        self.n_iter_, self.converged_ = int(found.n_iter), bool(found.converged)
        if found.posterior is not None:
            self.posterior_ = found.posterior
        self._group_weight = np.bincount(found.latent.group, responses.weight, len(found.latent.mean))
        prior = found.latent.prior_mean, self.latent_scale_
        ability, std = found.abilities or self._estimate(responses, *prior)
        self.ability_, self.ability_std_ = ability.astype(self._dtype), std.astype(self._dtype)
        known = np.isfinite(ability) & (responses.seen_by_taker > 0)
        noise = float(np.mean(std[known] ** 2)) if known.any() else np.nan
        self.reliability_ = 1 - noise / (float(np.var(ability[known])) + noise) if known.any() else 0.0

    def _estimate(self, responses: Responses, mean: Any, scale: float) -> tuple[Floats, Floats]:
        """Abilities and their standard deviations, the items as they are."""
        items, kept = self._curves(), responses
        if self.extreme_items == "drop" and self.extreme_items_.any():
            kept, items = kept.items(~self.extreme_items_), items.take(~self.extreme_items_)
        found = estimate_ability(
            kept,
            items,
            method=self.ability,
            latent_mean=mean,
            latent_scale=scale,
            difficulty_uncertainty=False,
        )
        return found.ability, found.std

    def _curves(self) -> Items:
        """The items' parameters without their errors."""
        return Items.of(self.difficulty_, self.discrimination_, self.guessing_, self.upper_)

    # -- what was learned ----------------------------------------------------------------------------------

    @property
    def items_(self) -> Items:
        """Parameters of the items, for :class:`AdaptiveTest` and functions that take items."""
        check_is_fitted(self)
        return Items.of(
            self.difficulty_, self.discrimination_, self.guessing_, self.upper_, self.difficulty_std_
        )

    @property
    def _n_features_out(self) -> int:
        return int(self.ability_.shape[1]) if self.ability_.ndim == 2 else 1

    def _prior(self, taker_groups: Any, n_takers: int) -> tuple[Any, float]:
        """Prior means and standard deviation of new takers: of their groups or, if unknown, of all."""
        if taker_groups is None or not hasattr(self, "groups_"):
            share = self._group_weight / self._group_weight.sum()
            mean = float(share @ self.latent_mean_)
            between = float(share @ (self.latent_mean_ - mean) ** 2)
            return mean, float(np.sqrt(self.latent_scale_**2 + between))
        wanted = np.asarray(taker_groups)
        if wanted.shape != (n_takers,):
            raise ValueError(f"taker_groups must have shape ({n_takers},), got {wanted.shape}")
        place = {label: k for k, label in enumerate(self.groups_.tolist())}
        strange = [label for label in wanted.tolist() if label not in place]
        if strange:
            raise ValueError(f"taker_groups has {strange[0]!r}, which was not in fit: {list(place)}")
        return self.latent_mean_[[place[label] for label in wanted.tolist()]], self.latent_scale_

    def transform(self, X: Any, *, mask: Any = None, taker_groups: Any = None) -> Floats:
        """Estimate abilities of old or new takers, the items as they are.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers, as in ``fit``.
        mask : {array-like, sparse matrix} of shape (n_takers, n_items), optional
            As in ``fit``.
        taker_groups : array-like of shape (n_takers,), optional
            Groups of the takers, for a model that was fitted with some. Without, takers may be of any group:
            their prior is that of all groups together.

        Returns
        -------
        ndarray of shape (n_takers, 1), or (n_takers, n_item_groups) after ``item_groups``
            Abilities; for "mle" infinite where all answers are right, or all wrong.

        Raises
        ------
        ValueError
            If a cell is neither 0, 1 nor missing, there is another number of items, or a group is unknown.
        """
        check_is_fitted(self)
        return self._abilities(self._read(X, mask), taker_groups).astype(self._dtype)

    def _abilities(self, responses: Responses, taker_groups: Any = None) -> Floats:
        if hasattr(self, "models_"):
            parts = [
                model._abilities(responses.items(columns), taker_groups)
                for model, columns in zip(self.models_, self._columns, strict=True)
            ]
            return np.concatenate(parts, axis=1)
        prior = self._prior(taker_groups, responses.n_takers)
        return self._estimate(responses, *prior)[0][:, None]

    def predict_proba(self, X: Any, *, mask: Any = None, taker_groups: Any = None) -> Floats:
        """Predict how likely each taker is to get each item right.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers of the takers.
        mask, taker_groups : optional
            As in :meth:`transform`.

        Returns
        -------
        ndarray of shape (n_takers, n_items)
            Probabilities at the takers' abilities.
        """
        check_is_fitted(self)
        ability = self._abilities(self._read(X, mask), taker_groups)
        if not hasattr(self, "models_"):
            return self._curves().probability(ability[:, 0]).astype(self._dtype)
        found = np.empty((len(ability), self.n_features_in_))
        for k, (model, columns) in enumerate(zip(self.models_, self._columns, strict=True)):
            found[:, columns] = model._curves().probability(ability[:, k])
        return found.astype(self._dtype)

    def predict(self, X: Any, *, mask: Any = None, taker_groups: Any = None) -> NDArray[np.int64]:
        """Predict which answers are right.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers of the takers.
        mask, taker_groups : optional
            As in :meth:`transform`.

        Returns
        -------
        ndarray of int64, shape (n_takers, n_items)
            1 where a right answer is more likely than a wrong one.
        """
        return (self.predict_proba(X, mask=mask, taker_groups=taker_groups) > 0.5).astype(np.int64)

    def score(
        self,
        X: Any,
        y: Any = None,  # noqa: ARG002
        *,
        mask: Any = None,
        taker_groups: Any = None,
    ) -> float:
        """Marginal log-likelihood of takers for each of their answers.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_takers, n_items)
            Answers of old or new takers.
        y : None
            Ignored.
        mask, taker_groups : optional
            As in :meth:`transform`.

        Returns
        -------
        float
            Higher is better; log(1/2) for guesses.
        """
        check_is_fitted(self)
        responses = self._read(X, mask)
        return self._total(responses, taker_groups) / max(responses.n_cells, 1)

    def _total(self, responses: Responses, taker_groups: Any) -> float:
        """Marginal log-likelihood."""
        if hasattr(self, "models_"):
            return sum(
                model._total(responses.items(columns), taker_groups)
                for model, columns in zip(self.models_, self._columns, strict=True)
            )
        n = responses.n_takers
        mean, scale = self._prior(taker_groups, n)
        latent = Latent(np.broadcast_to(mean, n).copy(), scale, np.arange(n))
        kept, items = responses, self._curves()
        if self.extreme_items == "drop" and self.extreme_items_.any():
            kept, items = kept.items(~self.extreme_items_), items.take(~self.extreme_items_)
        found = expect(
            kept, items, latent, n_parameters=0, quadrature=self.quadrature, n_quadrature=self.n_quadrature
        )
        return float(found.log_likelihood.sum())

    def score_items(self, X: Any, held_out: Any, *, taker_groups: Any = None) -> float:
        """Area under the ROC curve of cells that abilities were not estimated from.

        Parameters
        ----------
        X : array-like of shape (n_takers, n_items)
            Answers.
        held_out : array-like of bool, shape (n_takers, n_items)
            True where the answer is to be predicted from the taker's other answers.
        taker_groups : array-like of shape (n_takers,), optional
            As in :meth:`transform`.

        Returns
        -------
        float
            Over all cells that are held out and have an answer.

        Raises
        ------
        ValueError
            If ``held_out`` has another shape, or no such cells of both kinds.
        """
        answers = np.array(X, dtype=float)
        held = np.asarray(held_out, dtype=bool)
        if held.shape != answers.shape:
            raise ValueError(f"held_out must have the shape of X, {answers.shape}, got {held.shape}")
        missing = np.isnan(answers) if np.isnan(self.missing_values) else answers == self.missing_values
        cells = held & ~missing
        truth = answers[cells]
        if len(np.unique(truth)) < 2:
            raise ValueError("held_out must have right and wrong answers")
        chance = self.predict_proba(np.where(held, self.missing_values, answers), taker_groups=taker_groups)
        return float(roc_auc_score(truth, chance[cells]))

    def item_information(self, theta: Any) -> Floats:
        """Fisher information of every item.

        Parameters
        ----------
        theta : array-like of shape (n,)
            Abilities.

        Returns
        -------
        ndarray of shape (n, n_items)
            Information about ability.
        """
        check_is_fitted(self)
        return self._curves().information(np.atleast_1d(np.asarray(theta, dtype=float)))

    def test_information(self, theta: Any) -> Floats:
        """Fisher information of all items together.

        Parameters
        ----------
        theta : array-like of shape (n,)
            Abilities.

        Returns
        -------
        ndarray of shape (n,)
            Its inverse root is the standard error of a maximum-likelihood estimate.
        """
        return self.item_information(theta).sum(axis=1)
