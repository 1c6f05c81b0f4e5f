"""Factors on the rows of a batch."""

from torch import Tensor


def spread(weight: Tensor, like: Tensor) -> Tensor:
    """Append dimensions to a weight until it multiplies ``like`` row by row.

    Parameters
    ----------
    weight : Tensor of shape (batch,) or (batch, time)
        Weights.
    like : Tensor
        What they shall multiply.

    Returns
    -------
    Tensor
        The weight with trailing dimensions of size one.
    """
    return weight.to(like).reshape(*weight.shape, *(1,) * (like.ndim - weight.ndim))


def weighted(rows: Tensor, sample_weight: Tensor | None) -> Tensor:
    """Multiply each row by its weight.

    Parameters
    ----------
    rows : Tensor of shape (batch, ...)
        One sample's share of an update per row.
    sample_weight : Tensor of shape (batch,), optional
        Weights.

    Returns
    -------
    Tensor
        Of the shape of ``rows``.
    """
    return rows if sample_weight is None else rows * spread(sample_weight, rows)
