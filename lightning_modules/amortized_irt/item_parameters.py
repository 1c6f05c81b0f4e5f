"""Parameters of the items: free ones, and difficulties that a network reads off the items' inputs."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from seedbed.lightning_modules.amortized_irt.marginal import Curves, log_beta, log_normal

ONE = 0.5413248546129181
"""softplus(ONE) = 1."""
GUESSING = -1.2237754316221157
"""Logit of 5 / 22, the mean of Beta(5, 17)."""


def difficulty_network(n_features: int, hidden_layer_sizes: Sequence[int]) -> nn.Sequential:
    """Network from features to a difficulty: linear, or with hidden layers of ELUs.

    Parameters
    ----------
    n_features : int
        Features of an item.
    hidden_layer_sizes : sequence of int
        Hidden units; none for a linear map.

    Returns
    -------
    Sequential
        From (n, n_features) to (n, 1).
    """
    layers: list[nn.Module] = []
    width = n_features
    for size in hidden_layer_sizes:
        layers += [nn.Linear(width, size), nn.ELU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 1))


def read_inputs(inputs: Any, n_items: int) -> tuple[Tensor, Tensor]:
    """Check the items' inputs and tell which items have some.

    Parameters
    ----------
    inputs : array-like of shape (n_items, ...)
        Features, or integers such as token ids. A row of NaN stands for an item without.
    n_items : int
        Number of items.

    Returns
    -------
    tuple of Tensor
        Inputs, zeros in place of NaN, and booleans of shape (n_items,).

    Raises
    ------
    ValueError
        If there is not one row per item, or a row holds NaN or infinity beside numbers.
    """
    found = torch.as_tensor(inputs)
    if found.ndim < 2 or len(found) != n_items:
        raise ValueError(
            f"item_inputs must have one row for each of {n_items} items, got shape {tuple(found.shape)}"
        )
    if not found.is_floating_point():
        return found, torch.ones(n_items, dtype=torch.bool)
    rows = found.reshape(n_items, -1)
    lost = rows.isnan().all(dim=1)
    wrong = ~rows.isfinite().all(dim=1) & ~lost
    if wrong.any():
        raise ValueError(
            f"item_inputs[{int(wrong.int().argmax())}] must be finite, or NaN throughout for an item without "
            "inputs"
        )
    return torch.nan_to_num(found, nan=0.0), ~lost


class ItemParameters(nn.Module):
    """Difficulties, discriminations, loadings and chances of guessing.

    Parameters
    ----------
    n_items : int
        Number of items.
    model : {"rasch", "2pl", "3pl"}
        Which parameters an item has.
    n_dimensions : int
        Dimensions of ability.
    loadings : {"softmax", "free"}
        Positive and with sum one, or any of length one.
    encoder : Module, optional
        From inputs of items to their difficulties.
    residual_std : float, optional
        Spread of the difficulties around what the encoder says.
    generator : Generator
        Source of the first loadings.
    """

    inputs: Tensor
    has_inputs: Tensor

    def __init__(
        self,
        n_items: int,
        model: str,
        n_dimensions: int,
        loadings: str,
        encoder: nn.Module | None,
        residual_std: float | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.n_items, self.n_dimensions = n_items, n_dimensions
        self.softmax = loadings == "softmax"
        self.residual_std = residual_std
        self.encoder = encoder
        # Without an encoder b = -intercept / a: slopes and intercepts are learned faster than slopes and b.
        self.free = nn.Parameter(torch.zeros(n_items))
        self.slope = nn.Parameter(torch.full((n_items,), ONE)) if model != "rasch" else None
        self.loading = None
        if n_dimensions > 1:
            self.loading = nn.Parameter(0.5 * torch.randn(n_items, n_dimensions, generator=generator))
        self.guessing = nn.Parameter(torch.full((n_items,), GUESSING)) if model == "3pl" else None
        if encoder is not None:
            self.register_buffer("inputs", torch.zeros(n_items, 0))
            self.register_buffer("has_inputs", torch.zeros(n_items, dtype=torch.bool))

    def set_inputs(self, inputs: Any) -> None:
        """Keep what the encoder reads.

        Parameters
        ----------
        inputs : array-like of shape (n_items, ...)
            See :func:`read_inputs`; floats become the encoder's dtype.
        """
        found, has = read_inputs(inputs, self.n_items)
        if found.is_floating_point():
            found = found.to(self.free.dtype)
        self.inputs = found.to(self.free.device)
        self.has_inputs = has.to(self.free.device)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take the inputs' shape from what is loaded: an empty module does not know it."""
        saved = state_dict.get(f"{prefix}inputs")
        if saved is not None and self.encoder is not None:
            self.inputs = torch.empty_like(saved, device=self.free.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def difficulties(self, items: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Difficulties of some items.

        Parameters
        ----------
        items : Tensor of int, shape (n,)
            Which.

        Returns
        -------
        Tensor of shape (n,)
            Large is hard.

        Raises
        ------
        ValueError
            If the encoder has no inputs, or returns something else than a number for each item.
        """
        own = self.free[items]
        if self.encoder is None:
            return -own / self.discrimination()[items]
        if self.inputs.numel() == 0:
            raise ValueError("item_inputs must be set before the encoder is used: see set_item_inputs")
        output = self.encoder(self.inputs[items])
        if output.shape not in ((len(items),), (len(items), 1)):
            raise ValueError(
                f"encoder must return one number for each of {len(items)} items, got shape "
                f"{tuple(output.shape)}"
            )
        read = output.reshape(len(items)).to(own.dtype)
        has = self.has_inputs[items]
        return torch.where(has, read, 0.0) + (own if self.residual_std else torch.where(has, 0.0, own))

    def discrimination(self) -> Float[Tensor, " items"]:
        """Discriminations of all items; ones under the Rasch model."""
        return torch.ones_like(self.free) if self.slope is None else softplus(self.slope)

    def unit_loadings(self) -> Float[Tensor, "items dims"]:
        """Loadings of all items on the dimensions, before they are multiplied by the discrimination."""
        if self.loading is None:
            return torch.ones_like(self.free)[:, None]
        if self.softmax:
            return torch.softmax(self.loading, dim=1)
        return self.loading / self.loading.norm(dim=1, keepdim=True)

    def curves(self, items: Int[Tensor, " n"]) -> Curves:
        """Response curves of some items.

        Parameters
        ----------
        items : Tensor of int, shape (n,)
            Which.

        Returns
        -------
        Curves
            Of n items.
        """
        slope = self.discrimination()[items]
        intercept = self.free[items] if self.encoder is None else -slope * self.difficulties(items)
        guessing = None if self.guessing is None else self.guessing[items]
        return Curves(slope[:, None] * self.unit_loadings()[items], intercept, guessing)

    def log_prior(
        self,
        item_prior: tuple[float, float] | None,
        discrimination_prior: tuple[float, float] | None,
        guessing_prior: tuple[float, float] | None,
    ) -> Float[Tensor, ""]:
        """Log density of the parameters of all items, but for a constant.

        Parameters
        ----------
        item_prior, discrimination_prior : tuple of float, optional
            Mean and standard deviation of the difficulties and of log a.
        guessing_prior : tuple of float, optional
            Parameters of the beta density of c.

        Returns
        -------
        Tensor of shape ()
            Sum over items.
        """
        total = self.free.new_zeros(())
        if self.residual_std:
            total = total + log_normal(self.free[self.has_inputs], 0.0, self.residual_std).sum()
        if item_prior is not None:
            every = torch.arange(self.n_items, device=self.free.device)
            total = total + log_normal(self.difficulties(every), *item_prior).sum()
        if discrimination_prior is not None and self.slope is not None:
            # The density of log a, as other estimates of these models have it.
            total = total + log_normal(self.discrimination().log(), *discrimination_prior).sum()
        if guessing_prior is not None and self.guessing is not None:
            total = total + log_beta(self.guessing, *guessing_prior).sum()
        return total

    def guessing_share(self) -> Float[Tensor, " items"]:
        """Chances of guessing right, of all items."""
        if self.guessing is None:
            return torch.zeros_like(self.free)
        return logsigmoid(self.guessing).exp()
