"""The E-step of dense answers with PyTorch, for a GPU: the same sums as in ``expectation``."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from seedbed.estimators.amortized_irt.expectation import (
    CUT,
    FIXED_RANGE,
    Expectation,
    Latent,
    Quadrature,
    Sums,
    _shared_grid,
    expect,
)
from seedbed.estimators.amortized_irt.items import Floats, Items
from seedbed.estimators.amortized_irt.responses import Responses

TABLE = 1 << 25
"""Numbers of a table of items by nodes that are worked on at a time."""
SMALLEST = 1e-12


class DeviceExpectation:
    """E-step that keeps the answers on a device between calls.

    It is called as :func:`expect`. Sparse answers and fixed nodes go there; what a GPU is good at are the
    products of dense tables.

    Parameters
    ----------
    device : torch.device or str
        Where to compute. Tables are float64.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import Items
    >>> from seedbed.estimators.amortized_irt.device_expectation import DeviceExpectation
    >>> from seedbed.estimators.amortized_irt.expectation import Latent
    >>> from seedbed.estimators.amortized_irt.responses import read_responses
    >>> answers = read_responses(np.array([[1, 1, 0], [0, 1, 0]]))
    >>> found = DeviceExpectation("cpu")(answers, Items.of([-1.0, 0.0, 1.0]), Latent.single(2))
    >>> found.mean.round(3)
    array([ 0.315, -0.315])
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._held: tuple[Responses, Tensor, Tensor | None] | None = None

    @torch.no_grad()
    def __call__(
        self,
        responses: Responses,
        items: Items,
        latent: Latent,
        *,
        n_parameters: Sums = 1,
        quadrature: Quadrature = "adaptive",
        n_quadrature: int = 9,
        start: Expectation | None = None,
    ) -> Expectation:
        """Integrate over ability.

        Parameters
        ----------
        responses, items, latent, n_parameters, quadrature, n_quadrature, start
            As for :func:`expect`.

        Returns
        -------
        Expectation
            Posteriors, and sums over takers.
        """
        settings = {"n_parameters": n_parameters, "quadrature": quadrature, "n_quadrature": n_quadrature}
        if responses.is_sparse or quadrature == "fixed":
            return expect(responses, items, latent, **settings, start=start)  # type: ignore[arg-type]
        right, seen = self._tables(responses)
        grid = self._tensor(self._grid(responses, items, latent, start, n_quadrature))
        parameters = tuple(
            self._tensor(part)
            for part in (items.discrimination, items.intercept, items.guessing, items.upper)
        )
        scale = self._tensor(latent.prior_scale)[:, None]
        z = (grid - self._tensor(latent.prior_mean)[:, None]) / scale
        density = self._log_likelihood(right, seen, parameters, grid)
        density += -0.5 * z * z - torch.log(scale * np.sqrt(2 * np.pi))
        total = torch.logsumexp(density, dim=1, keepdim=True)
        mass = torch.exp(density - total)
        if mass[:, [0, -1]].max() > CUT:  # a posterior runs off the grid: that is for a longer one
            return expect(responses, items, latent, **settings, start=start)  # type: ignore[arg-type]
        mean = mass @ grid
        std = (mass @ grid**2 - mean**2).clamp_min(0).sqrt()
        log_likelihood = total[:, 0] + torch.log(grid[1] - grid[0])
        weighted = mass * self._tensor(responses.weight)[:, None]
        gradient, curvature = self._sums(right, seen, parameters, grid, weighted, n_parameters)
        return Expectation(*(_array(part) for part in (log_likelihood, mean, std, gradient, curvature)))

    def _grid(
        self,
        responses: Responses,
        items: Items,
        latent: Latent,
        start: Expectation | None,
        n_quadrature: int,
    ) -> Floats:
        """The grid that ``expect`` takes."""
        if start is not None:
            return _shared_grid(responses, items, latent, start, n_quadrature=n_quadrature)
        # Where posteriors are is told by a coarse grid, here, since it costs as much as an E-step.
        reach = FIXED_RANGE * latent.widest
        coarse = np.linspace(latent.mean.min() - reach, latent.mean.max() + reach, 49)
        right, seen = self._tables(responses)
        parameters = tuple(
            self._tensor(part)
            for part in (items.discrimination, items.intercept, items.guessing, items.upper)
        )
        nodes = self._tensor(coarse)
        z = (nodes - self._tensor(latent.prior_mean)[:, None]) / self._tensor(latent.prior_scale)[:, None]
        density = self._log_likelihood(right, seen, parameters, nodes) - 0.5 * z * z
        modes = coarse[_array(density.argmax(dim=1))]
        gap = coarse[1] - coarse[0]
        ends = np.array([modes.min() - gap, modes.max() + gap])
        wide = np.full(2, latent.widest)
        near = Expectation(np.zeros(2), ends, wide, np.empty((0, 0)), np.empty((0, 0, 0)))
        return _shared_grid(responses, items, latent, near, n_quadrature=n_quadrature)

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values, dtype=np.float64), device=self.device)

    def _tables(self, responses: Responses) -> tuple[Tensor, Tensor | None]:
        """Right and seen answers on the device."""
        if self._held is None or self._held[0] is not responses:
            seen = None if responses.seen is None else self._tensor(responses.seen)
            self._held = (responses, self._tensor(responses.right), seen)
        return self._held[1:]

    def _log_likelihood(
        self, right: Tensor, seen: Tensor | None, parameters: tuple[Tensor, ...], grid: Tensor
    ) -> Tensor:
        """Of every taker at every node, (n_takers, n_nodes)."""
        a, d, low, high = parameters
        total = torch.zeros(len(right), len(grid), dtype=grid.dtype, device=self.device)
        for columns in _chunks(len(a), len(grid)):
            z = a[columns, None] * grid + d[columns, None]
            if _logistic(low, high):
                wrong, odds = -softplus(z), z
            else:
                chance = _chance(z, low[columns, None], high[columns, None])[1]
                wrong = torch.log1p(-chance)
                odds = torch.log(chance) - wrong
            total += right[:, columns] @ odds
            total += wrong.sum(dim=0) if seen is None else seen[:, columns] @ wrong
        return total

    def _sums(
        self,
        right: Tensor,
        seen: Tensor | None,
        parameters: tuple[Tensor, ...],
        grid: Tensor,
        weighted: Tensor,
        n_parameters: int,
    ) -> tuple[Tensor, Tensor]:
        """Gradient and information of the items."""
        a, d, low, high = parameters
        n = len(a)
        gradient = torch.zeros(n, n_parameters, dtype=grid.dtype, device=self.device)
        curvature = torch.zeros(n, n_parameters, n_parameters, dtype=grid.dtype, device=self.device)
        if n_parameters == 0:
            return gradient, curvature
        for columns in _chunks(n, len(grid)):
            expected = weighted.sum(dim=0, keepdim=True) if seen is None else seen[:, columns].T @ weighted
            z = a[columns, None] * grid + d[columns, None]
            gain = high[columns, None] - low[columns, None]
            curve, chance = _chance(z, low[columns, None], high[columns, None])
            slope, variance = gain * curve * (1 - curve), chance * (1 - chance)
            parts = [slope * grid, slope, 1 - curve, curve][:n_parameters]
            if n_parameters == 1:
                parts = [-a[columns, None] * slope]
            stacked = torch.stack(parts, dim=1)
            residual = (right[:, columns].T @ weighted - expected * chance) / variance
            gradient[columns] = torch.einsum("iq,ikq->ik", residual, stacked)
            scaled = stacked * torch.sqrt(expected / variance)[:, None]
            curvature[columns] = scaled @ scaled.mT
        return gradient, curvature


def _array(values: Tensor) -> Any:
    return values.cpu().numpy()


def _logistic(low: Tensor, high: Tensor) -> bool:
    return not bool(low.any()) and bool((high == 1).all())


def _chance(z: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The logistic curve, and the chance of a right answer, kept away from 0 and 1."""
    curve = torch.sigmoid(z)
    return curve, (low + (high - low) * curve).clamp(SMALLEST, 1 - SMALLEST)


def _chunks(n_items: int, n_nodes: int) -> list[slice]:
    size = max(1, TABLE // n_nodes)
    return [slice(first, min(first + size, n_items)) for first in range(0, n_items, size)]
