"""A network that learns a density ratio from rows of both populations."""

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from seedbed.lightning_modules.pu_auc_covariate_shift.losses import ratio_loss, relative_ratio
from seedbed.lightning_modules.pu_auc_covariate_shift.networks import as_column, feature_network, feature_size
from seedbed.training import isolated_rng


class RatioModule(pl.LightningModule):
    """Relative density ratio ``sigmoid(net(x)) / alpha`` by the criterion of RuLSIF.

    Batches are pairs of one-tuples: rows of the numerator's density, rows of the denominator's.

    Parameters
    ----------
    input_shape : int or list of int
        Columns of a row, or (channels, height, width).
    hidden_layer_sizes : sequence of int
        Hidden layers.
    relative_alpha : float in [0, 1)
        Share of the numerator in the mixture; 0 takes a softplus for the sigmoid.
    lr, weight_decay : float
        Of AdamW.
    random_state : int
        Seed of the initial weights.

    Examples
    --------
    >>> import torch
    >>> RatioModule(3, [8], relative_alpha=0.5)(torch.zeros(2, 3)).max() < 2
    tensor(True)
    """

    def __init__(
        self,
        input_shape: int | list[int],
        hidden_layer_sizes: Sequence[int] = (124, 124),
        relative_alpha: float = 0.1,
        lr: float = 1e-3,
        weight_decay: float = 1e-2,
        random_state: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.relative_alpha, self.lr, self.weight_decay = relative_alpha, lr, weight_decay
        with isolated_rng(random_state):
            features = feature_network(input_shape, hidden_layer_sizes)
            self.net = nn.Sequential(*features, nn.Linear(feature_size(input_shape, features), 1))

    def forward(self, x: Tensor) -> Tensor:
        """Ratio of each row.

        Parameters
        ----------
        x : Tensor of shape (n, ...)
            Rows.

        Returns
        -------
        Tensor of shape (n,)
            In ``(0, 1 / alpha)``.
        """
        return relative_ratio(as_column(self.net(x), "net"), self.relative_alpha)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        """Criterion of a batch."""
        (numerator,), (denominator,) = batch
        ratio = self(torch.cat([numerator, denominator]))
        return ratio_loss(ratio[: len(numerator)], ratio[len(numerator) :], self.relative_alpha)

    def predict_step(self, batch: Any, batch_idx: int = 0) -> Tensor:  # noqa: ARG002
        """Ratio of the first entry of a batch."""
        return self(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)
