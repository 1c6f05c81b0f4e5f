"""Items of several abilities by first-order steps on the joint likelihood."""

from functools import partial
from typing import Any

import numpy as np
import torch

from seedbed.estimators.amortized_irt.calibration import EXTREME_STD
from seedbed.estimators.amortized_irt.first_order import RATE, train_joint
from seedbed.estimators.amortized_irt.items import Floats
from seedbed.estimators.amortized_irt.multidimensional_em import Planes, Rule, Step, integrate, moments
from seedbed.estimators.amortized_irt.responses import Responses
from seedbed.lightning_modules.amortized_irt.module import AmortizedIRTModule


def fit_planes(
    responses: Responses, start: Planes, step: Step, rule: Rule, settings: Any
) -> tuple[Planes, int, bool]:
    """Maximise the joint likelihood of abilities and items, and bring abilities to unit spread.

    Parameters
    ----------
    responses : Responses
        Answers.
    start : Planes
        To begin with.
    step : Step
        Whether slopes are positive, and priors of log a and c.
    rule : Rule
        Nodes, for the population's moments.
    settings : estimator
        Its ``max_iter``, ``device``, ``random_state`` and ``verbose``.

    Returns
    -------
    tuple of Planes, int and bool
        Items, passes over the answers, and whether they sufficed.

    Warns
    -----
    ConvergenceWarning
        If ``max_iter`` passes are not enough.
    """
    center, spread = (float(part[0]) for part in step.slope_prior)
    module = AmortizedIRTModule(
        responses.n_takers,
        responses.n_items,
        model="2pl" if start.guessing is None else "3pl",
        n_dimensions=start.n_dimensions,
        loadings="softmax" if step.positive else "free",
        loss="joint",
        item_prior=(0.0, EXTREME_STD),
        discrimination_prior=(center, spread),
        guessing_prior=step.guessing_prior,
        ability_prior=EXTREME_STD,
        n_cells=max(1, round(float(responses.weight @ responses.seen_by_taker))),
        lr=RATE,
        lr_scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=settings.max_iter),
    )
    _start(module, start, _abilities(responses, start))
    n_iter, converged = train_joint(module, responses, settings, stacklevel=6)
    return _standardised(module, responses, step, rule), n_iter, converged


def _abilities(responses: Responses, planes: Planes) -> Floats:
    """Posterior modes at the first guess of the items."""
    return integrate(responses, planes, Rule.product("adaptive", 1, planes.n_dimensions)).mean


def _start(module: AmortizedIRTModule, planes: Planes, ability: Floats) -> None:
    """Put the first guess into the module."""
    items = module.items
    with torch.no_grad():
        module.ability_mean.copy_(torch.as_tensor(ability))
        items.free.copy_(torch.as_tensor(planes.intercept))
        length = planes.slope.sum(axis=1) if items.softmax else np.linalg.norm(planes.slope, axis=1)
        if items.loading is not None:
            unit = planes.slope / length[:, None]
            items.loading.copy_(torch.as_tensor(np.log(unit) if items.softmax else unit))
        assert items.slope is not None
        items.slope.copy_(torch.as_tensor(np.log(np.expm1(length))))
        if items.guessing is not None and planes.guessing is not None:
            items.guessing.copy_(torch.as_tensor(np.log(planes.guessing / (1 - planes.guessing))))


def _standardised(module: AmortizedIRTModule, responses: Responses, step: Step, rule: Rule) -> Planes:
    """The module's items on the scale on which abilities have mean 0 and unit spread."""
    with torch.no_grad():
        curves = module.items.curves(torch.arange(module.n_items))
        share = module.items.guessing_share() if module.items.guessing is not None else None
    guessing = None if share is None else share.double().numpy()
    planes = Planes(curves.slope.double().numpy(), curves.intercept.double().numpy(), guessing)
    start = None
    for _ in range(50):  # until the population's moments are those of the prior
        found = integrate(responses, planes, rule, start=start)
        start = found.mean
        mean, covariance = moments(found, responses.weight)
        root = np.diag(np.sqrt(np.diagonal(covariance)))
        if not step.positive:
            values, vectors = np.linalg.eigh(covariance)
            root = vectors * np.sqrt(values) @ vectors.T
        planes = Planes(planes.slope @ root, planes.intercept + planes.slope @ mean, planes.guessing)
        if np.abs(root - np.eye(len(root))).max() < 1e-3:
            break
    return planes
