"""Calibration of several data sets apart: every taker has an ability for each."""

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.parallel import Parallel, delayed

from seedbed.estimators.amortized_irt.responses import Responses, code_groups

PARTS = ("difficulty_", "discrimination_", "guessing_", "upper_", "difficulty_std_", "extreme_items_")


def fit_locally(model: Any, responses: Responses, item_groups: Any, taker_groups: Any) -> None:
    """Fit one model for each group of items and gather what they have learned.

    Parameters
    ----------
    model : estimator
        Gets the attributes; one that was not fitted gets clones for the groups.
    responses : Responses
        Answers.
    item_groups : array-like of shape (n_items,)
        Labels.
    taker_groups : array-like of shape (n_takers,) or None
        As in ``fit``.

    Raises
    ------
    ValueError
        If there is not one label for each item, or a group has fewer than two items.
    """
    labels, group = code_groups(item_groups, responses.n_items, name="item_groups", of="item")
    columns = [np.flatnonzero(group == k) for k in range(len(labels))]
    for label, chosen in zip(labels, columns, strict=True):
        if len(chosen) < 2:
            raise ValueError(f"item_groups must have two items or more of each group, got one of {label!r}")
    empty = clone(model).set_params(allow_empty_takers=True, n_jobs=None)
    fitted = Parallel(n_jobs=model.n_jobs)(
        delayed(_fit_part)(empty, responses.items(chosen), taker_groups, model._dtype) for chosen in columns
    )
    model.models_, model.item_groups_, model._columns = fitted, labels, columns
    for name in PARTS:
        whole = np.empty(responses.n_items, dtype=getattr(fitted[0], name).dtype)
        for part, chosen in zip(fitted, columns, strict=True):
            whole[chosen] = getattr(part, name)
        setattr(model, name, whole)
    model.ability_ = np.stack([part.ability_ for part in fitted], axis=1)
    model.ability_std_ = np.stack([part.ability_std_ for part in fitted], axis=1)
    for name in ("latent_scale_", "reliability_", "n_iter_"):
        setattr(model, name, np.array([getattr(part, name) for part in fitted]))
    model.latent_mean_ = np.stack([part.latent_mean_ for part in fitted])
    model.converged_ = all(part.converged_ for part in fitted)
    if all(hasattr(part, "log_likelihood_") for part in fitted):
        model.log_likelihood_ = float(sum(part.log_likelihood_ for part in fitted))


def _fit_part(model: Any, responses: Responses, taker_groups: Any, dtype: Any) -> Any:
    """Fit the model of one group of items; takers who met none of them do not count."""
    part = clone(model)
    part._dtype, part.n_features_in_ = dtype, responses.n_items
    met = responses.seen_by_taker > 0
    return part._fit_responses(responses.weighted(np.where(met, responses.weight, 0.0)), taker_groups)
