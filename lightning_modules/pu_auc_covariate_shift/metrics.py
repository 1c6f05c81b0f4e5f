"""Risk and AUC of all pairs of an epoch, whatever the batches."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat


def weighted_auc(
    first: Float[Tensor, " n"],
    second: Float[Tensor, " m"],
    first_weight: Float[Tensor, " n"],
    second_weight: Float[Tensor, " m"],
) -> Float[Tensor, ""]:
    """Weighted share of pairs in order, ties half, in O(n log n).

    Parameters
    ----------
    first, second : Tensor of shape (n,) and (m,)
        Scores of positives and of the others.
    first_weight, second_weight : Tensor of shape (n,) and (m,)
        Weights.

    Returns
    -------
    Tensor
        Scalar in [0, 1].

    Examples
    --------
    >>> import torch
    >>> weighted_auc(torch.tensor([2.0, 1.0]), torch.tensor([0.0, 1.0]), torch.ones(2), torch.ones(2))
    tensor(0.8750, dtype=torch.float64)
    """
    ordered, order = second.sort()
    below = torch.cat([second_weight.new_zeros(1).double(), second_weight[order].double().cumsum(0)])
    less = below[torch.searchsorted(ordered, first)]
    at_most = below[torch.searchsorted(ordered, first, right=True)]
    weight = first_weight.double()
    return (weight @ (less + at_most)) / (2 * weight.sum() * below[-1])


class Scores(Metric):
    """Keeps scores and weights of several samples until the end of the epoch, over all processes.

    Parameters
    ----------
    n_samples : int
        Number of samples.
    **options
        For :class:`torchmetrics.Metric`.
    """

    full_state_update = False
    is_differentiable = False

    def __init__(self, n_samples: int, **options: Any) -> None:
        super().__init__(**options)
        self.n_samples = n_samples
        for name in ("scores", "weights", "samples"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, scores: list[Tensor], weights: list[Tensor]) -> None:
        """Add a batch.

        Parameters
        ----------
        scores, weights : list of Tensor
            One pair of tensors (rows,) per sample.
        """
        kept: list[list[Tensor]] = [self.scores, self.weights, self.samples]  # type: ignore[list-item]
        for sample, (score, weight) in enumerate(zip(scores, weights, strict=True)):
            number = torch.full_like(score, sample, dtype=torch.long)
            for state, part in zip(kept, (score.detach(), weight.detach(), number)):
                state.append(part)

    def compute(self) -> list[tuple[Tensor, Tensor]]:
        """Return scores and weights of each sample.

        Returns
        -------
        list of (Tensor, Tensor)
            Of shape (rows,).
        """
        scores, weights, samples = (
            dim_zero_cat(getattr(self, name)) for name in ("scores", "weights", "samples")
        )
        return [(scores[samples == k], weights[samples == k]) for k in range(self.n_samples)]
