"""Calibration by first-order steps on the joint likelihood of abilities and items: method="mle".

Adam on batches of cells, with PyTorch: the cost of a step does not grow with the table, and it runs on a GPU.
As with every joint estimate, items with few answers per taker come out too far apart.
"""

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import logit
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from torch import Tensor

from seedbed.estimators.amortized_irt.calibration import (
    EXTREME_STD,
    WEAK_SLOPES,
    Calibrated,
    Plan,
    first_items,
    free_step,
)
from seedbed.estimators.amortized_irt.em import run_em
from seedbed.estimators.amortized_irt.expectation import Expectation, Latent, expect
from seedbed.estimators.amortized_irt.items import Floats, Items
from seedbed.estimators.amortized_irt.responses import Responses
from seedbed.estimators.amortized_irt.standard_errors import difficulty_std, item_covariances
from seedbed.lightning_modules.amortized_irt.module import AmortizedIRTModule
from seedbed.training import TensorBatches, fit_module

MODELS = {1: "rasch", 2: "2pl", 3: "3pl"}
RATE = 0.1
"""First learning rate; it falls to zero by half a cosine."""
BATCH = 1 << 18
"""Most cells of a batch."""
NEAR = 0.02
"""Converged, if no ability and no intercept would move by more logits in a Newton step of its own."""


def resolve_device(device: str) -> torch.device:
    """Say where to compute.

    Parameters
    ----------
    device : str
        "auto" takes CUDA where there is a GPU, else the CPU; or a name that PyTorch knows, such as "cpu" or
        "cuda".

    Returns
    -------
    torch.device
        Which is there.

    Raises
    ------
    ValueError
        If it is none of these, or not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu' or 'cuda', got {device!r}")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r} is not there: PyTorch finds no GPU; use 'auto' or 'cpu'")
    return found


def calibrate_first_order(responses: Responses, plan: Plan, latent: Latent) -> Calibrated:
    """Maximise the joint likelihood of abilities and items, priors included.

    Abilities are held by N(0, 4^2), difficulties by the same or ``plan.item_prior``. Discriminations have a
    prior in any case, which sets the scale; the result is moved to the scale of the marginal estimates, on
    which the first group has mean 0 and, with discriminations, ability has standard deviation 1.

    Parameters
    ----------
    responses : Responses
        Answers.
    plan : Plan
        What and how; ``max_iter`` counts passes over the answers.
    latent : Latent
        The takers' groups.

    Returns
    -------
    Calibrated
        Estimates, and the marginal log-likelihood at them.

    Raises
    ------
    ValueError
        If an upper asymptote is to be estimated, discriminations have no prior, or the device is not there.

    Warns
    -----
    ConvergenceWarning
        If ``max_iter`` passes are not enough.
    """
    resolve_device(plan.device)
    if plan.n_parameters not in MODELS:
        raise ValueError("method='mle' has no upper asymptote: use method='mml' with upper_prior")
    slopes = WEAK_SLOPES if isinstance(plan.discrimination_prior, str) else plan.discrimination_prior
    if slopes is None and plan.n_parameters > 1:
        raise ValueError(
            "discrimination_prior must be given for method='mle', got None: nothing else sets the scale"
        )
    module = AmortizedIRTModule(
        responses.n_takers,
        responses.n_items,
        model=MODELS[plan.n_parameters],
        loss="joint",
        item_prior=plan.item_prior or (0.0, EXTREME_STD),
        discrimination_prior=slopes,
        guessing_prior=plan.guessing_prior,
        ability_prior=EXTREME_STD,
        n_cells=_weight_of_cells(responses),
        lr=RATE,
        lr_scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=plan.max_iter),
    )
    _start(module, first_items(responses, plan), first_abilities(responses))
    n_iter, converged = train_joint(module, responses, plan, stacklevel=7)
    return _calibrated(responses, plan, latent, _items(module), n_iter, converged)


def _weight_of_cells(responses: Responses) -> int:
    return max(1, round(float(responses.weight @ responses.seen_by_taker)))


def first_abilities(responses: Responses) -> Floats:
    """Guess abilities from shares of right answers.

    Parameters
    ----------
    responses : Responses
        Answers.

    Returns
    -------
    ndarray of shape (n_takers,)
        Zero for takers without answers.
    """
    return np.asarray(logit((responses.right_by_taker + 0.5) / (responses.seen_by_taker + 1.0)))


def _start(module: AmortizedIRTModule, items: Items, ability: Floats) -> None:
    """Put the first guess into the module."""
    with torch.no_grad():
        module.ability_mean.copy_(torch.as_tensor(ability - ability.mean())[:, None])
        module.items.free.copy_(torch.as_tensor(items.intercept))
        if module.items.guessing is not None:
            module.items.guessing.copy_(torch.as_tensor(logit(items.guessing)))


def joint_batches(responses: Responses, *, seed: int | None) -> TensorBatches:
    """Cells, answers and weights for :class:`AmortizedIRTModule`.

    Parameters
    ----------
    responses : Responses
        Answers.
    seed : int, optional
        Seed of their order.

    Returns
    -------
    TensorBatches
        Batches of about equal size.
    """
    taker, item, y = responses.long()
    parts = [
        torch.from_numpy(np.stack([taker, item], axis=1)),
        torch.from_numpy(y.astype(np.float32)),
        torch.from_numpy(responses.weight[taker].astype(np.float32)),
    ]
    n_batches = -(-len(y) // BATCH)
    return TensorBatches(*parts, batch_size=-(-len(y) // n_batches), seed=seed if n_batches > 1 else None)


def train_joint(
    module: AmortizedIRTModule, responses: Responses, plan: Any, *, stacklevel: int
) -> tuple[int, bool]:
    """Train a module with the joint loss.

    Parameters
    ----------
    module : AmortizedIRTModule
        With ``loss="joint"``.
    responses : Responses
        Answers.
    plan : Plan or estimator
        Its ``max_iter``, ``device``, ``random_state`` and ``verbose``.
    stacklevel : int
        Of the warning, so that it points at the call to ``fit``.

    Returns
    -------
    tuple of int and bool
        Passes over the answers, and whether they sufficed.

    Warns
    -----
    ConvergenceWarning
        If a Newton step of its own would still move an ability or an intercept by more than ``NEAR``.
    """
    seed = int(check_random_state(plan.random_state).randint(np.iinfo(np.int32).max))
    device = resolve_device(plan.device)
    batches = joint_batches(responses, seed=seed)
    fit = fit_module(
        module,
        batches,
        max_epochs=plan.max_iter,
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=1 if device.index is None or device.type == "cpu" else [device.index],
        random_state=seed,
        verbose=plan.verbose,
    )
    distance = _farthest(module, batches)
    converged = distance <= NEAR
    if not converged and not fit.interrupted:
        warnings.warn(
            f"max_iter={plan.max_iter} passes did not suffice: a Newton step would still move an ability or "
            f"an intercept by {distance:.2g} logits; raise max_iter",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )
    return fit.n_iter, converged


def _farthest(module: AmortizedIRTModule, batches: TensorBatches) -> float:
    """Largest Newton step of an ability or an intercept alone."""
    module.zero_grad()
    loss: Tensor = -module._log_prior() / module.n_cells
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        slope = module.items.curves(torch.arange(module.n_items)).slope
        by_item = torch.full((module.n_items,), 1e-9)
        by_taker = torch.full((module.n_takers, module.n_dimensions), module.ability_prior**-2)
    size = float(batches.tensors[2].sum())
    for cells, y, weight in batches.share(0, 1):
        part = module._joint_loss(cells, y, weight) * (float(weight.sum()) / size)
        part.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            curves, item = module._curves(cells[:, 1])
            information = weight * curves.scores(item, module.ability_mean[cells[:, 0]], y)[1]
            by_item.index_add_(0, item, information)
            by_taker.index_add_(0, cells[:, 0], information[:, None] * slope[item].square())
    steps = []
    for parameter, information in ((module.items.free, by_item), (module.ability_mean, by_taker)):
        assert parameter.grad is not None
        steps.append(float((parameter.grad.abs() * module.n_cells / information.clamp_min(1e-2)).max()))
    module.zero_grad()
    return max(steps)


def _items(module: AmortizedIRTModule) -> Items:
    """The module's items."""
    found = {
        name: value.double().cpu().numpy()
        for name, value in module.item_parameters().items()
        if name != "loadings"
    }
    return Items.of(**found)


class _KnownItems:
    """M-step that leaves the items where they are: only the distribution of ability is estimated."""

    n_parameters = 1

    def update(self, items: Items, expectation: Expectation) -> Items:  # noqa: ARG002
        return items

    def log_prior(self, items: Items) -> float:  # noqa: ARG002
        return 0.0

    def shift(self, items: Items, mean: float, scale: float) -> Items:
        return replace(items, difficulty=(items.difficulty - mean) / scale)


def _calibrated(
    responses: Responses, plan: Plan, latent: Latent, items: Items, n_iter: int, converged: bool
) -> Calibrated:
    """Bring the estimates to the scale of the marginal ones, with standard errors there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = run_em(
            responses, items, latent, _KnownItems(), max_iter=200, tol=1e-7, n_quadrature=plan.n_quadrature,
            free_scale=plan.n_parameters > 1 or plan.latent_scale is None,
        )  # fmt: skip
    items, latent = fitted.items, fitted.latent
    if plan.n_parameters > 1:
        width = float(latent.scale)
        items = replace(
            items, difficulty=items.difficulty / width, discrimination=items.discrimination * width
        )
        latent = Latent(latent.mean / width, 1.0, latent.group)
    found = expect(responses, items, latent, n_parameters=plan.n_parameters, n_quadrature=plan.n_quadrature)
    errors: Floats = difficulty_std(
        items, item_covariances(responses, items, found, free_step(responses, plan).precision(items))
    )
    return Calibrated(
        replace(items, difficulty_std=errors),
        latent,
        float(responses.weight @ found.log_likelihood),
        n_iter,
        converged,
        abilities=(found.mean, found.std) if plan.ability == "eap" else None,
    )
