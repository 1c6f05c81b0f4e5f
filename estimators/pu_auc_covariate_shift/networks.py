"""Networks behind the classifier: scores trained on batches, and a density ratio by a network."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import CombinedLoader
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import nn

from seedbed.datasets.pu_modules import PUBatches
from seedbed.estimators.pu_auc_covariate_shift.losses import Floats
from seedbed.estimators.pu_auc_covariate_shift.risk import PURisk, Weighted
from seedbed.estimators.pu_auc_covariate_shift.samples import PUSamples, Rows
from seedbed.estimators.pu_auc_covariate_shift.scorers import KernelMap
from seedbed.lightning_modules.pu_auc_covariate_shift.module import PUAUCModule
from seedbed.lightning_modules.pu_auc_covariate_shift.ratio import RatioModule
from seedbed.training import TensorBatches, fit_module, predict_batches, quiet

PREDICT_ROWS = 4096
"""Rows predicted at a time."""

PATIENCE = 10
"""Epochs without a better validation risk after which early stopping ends the training."""


@dataclass(frozen=True)
class NetworkFit:
    """A trained network and how it was trained.

    Attributes
    ----------
    module : LightningModule
        On the CPU, in evaluation mode.
    coef : ndarray of shape (1, n_columns) or None
        Coefficients of a linear score.
    loss_curve : list of float
        Mean training loss of each epoch.
    n_iter : int
        Number of epochs.
    """

    module: LightningModule
    coef: Floats | None
    loss_curve: list[float]
    n_iter: int


def _narrow(rows: Any) -> torch.Tensor:
    """Rows as float32, refusing what does not fit into it."""
    with np.errstate(over="ignore"):
        array = np.asarray(rows).astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError("X has values too large for float32; scale its columns")
    return torch.from_numpy(array)


def _hidden(sizes: Any) -> list[int]:
    """Check widths of hidden layers."""
    found = list(sizes)
    for size in found:
        if isinstance(size, bool | np.bool_) or not isinstance(size, Integral) or size < 1:
            raise ValueError(f"hidden_layer_sizes must hold integers of at least 1, got {sizes!r}")
    return [int(size) for size in found]


def network_scores(module: LightningModule, X: Rows) -> Floats:
    """Scores of checked rows.

    Parameters
    ----------
    module : LightningModule
        The trained network.
    X : ndarray of shape (n, n_features)
        Rows.

    Returns
    -------
    ndarray of shape (n,)
        Scores.
    """
    batches = TensorBatches(_narrow(X), batch_size=PREDICT_ROWS)
    found = predict_batches(module, batches, module.device, nullcontext)
    return found[:, 0].numpy().astype(np.float64)


def _in_scale(risk: PURisk) -> PURisk:
    """The risk with weights divided by their mean over the training population.

    Normalising each batch by itself would be biased where it holds few positives.
    """
    whole = Weighted.joined(risk.positive, risk.unlabeled) if risk.single_set else risk.unlabeled
    mean = float(np.average(whole.ratio, weights=whole.count))

    def scaled(part: Weighted) -> Weighted:
        return Weighted(part.ratio / mean, part.count / part.count.mean())

    target = risk.target
    if target is not None:
        target = Weighted(target.ratio / np.average(target.ratio, weights=target.count), target.count)
        target = Weighted(target.ratio, target.count / target.count.mean())
    return replace(
        risk,
        positive=scaled(risk.positive),
        unlabeled=scaled(risk.unlabeled),
        target=target,
        normalize=False,
    )


def _pick(
    samples: list[torch.Tensor], risk: PURisk, rows: list[np.ndarray]
) -> tuple[list[torch.Tensor], PURisk]:
    """Some rows of each sample, and the risk of them."""

    def part(weighted: Weighted | None, index: np.ndarray) -> Weighted | None:
        return None if weighted is None else Weighted(weighted.ratio[index], weighted.count[index])

    p, u, t = (part(one, index) for one, index in zip((risk.positive, risk.unlabeled, risk.target), rows))
    assert p is not None
    assert u is not None
    chosen = [tensor[torch.from_numpy(index)] for tensor, index in zip(samples, rows)]
    return chosen, replace(risk, positive=p, unlabeled=u, target=t)


def _negative_risk(outputs: np.ndarray, *, risk: PURisk, sizes: Sequence[int]) -> float:
    """Validation score: the lower the risk, the higher."""
    p, u, t = np.split(outputs[:, 0].astype(np.float64), np.cumsum(sizes)[:-1])
    return -risk(p, u, t if risk.target is not None else None, gradient=False)[0]


def _split(
    sizes: list[int], fraction: float, rng: np.random.RandomState
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Rows of each sample for training and for validation."""
    train, held = [], []
    for name, n in zip(("positives", "unlabeled rows", "target rows"), sizes):
        order = rng.permutation(n)
        many = round(fraction * n)
        if n and not 0 < many < n:
            raise ValueError(f"validation_fraction={fraction:g} cannot split {n} {name}")
        train.append(np.sort(order[many:]))
        held.append(np.sort(order[:many]))
    return train, held


def _build(scorer: Any, columns: int, settings: Mapping[str, Any], **options: Any) -> PUAUCModule:
    """The module, with its network."""
    if isinstance(scorer, nn.Module):
        return PUAUCModule(net=deepcopy(scorer), **options)
    if scorer == "mlp":
        hidden = _hidden(settings["hidden_layer_sizes"])
        return PUAUCModule(input_shape=columns, hidden_layer_sizes=hidden, **options)
    return PUAUCModule(net=_zero_start(columns), **options)


def _zero_start(columns: int) -> nn.Linear:
    """A linear score that starts at zero, so no generator is needed."""
    with torch.device("meta"):
        layer = nn.Linear(columns, 1, bias=False)
    layer = layer.to_empty(device=torch.get_default_device())
    nn.init.zeros_(layer.weight)
    return layer


def fit_network(
    scorer: Any,
    samples: PUSamples,
    risk: PURisk,
    settings: Mapping[str, Any],
    rng: np.random.RandomState,
    transform: KernelMap | None,
) -> NetworkFit:
    """Train a score by Adam on batches of the three samples.

    Parameters
    ----------
    scorer : {"linear", "kernel", "mlp"} or Module
        The score.
    samples : PUSamples
        Dense samples.
    risk : PURisk
        Their weights and the objective.
    settings : mapping
        Parameters of the classifier.
    rng : RandomState
        Seeds everything.
    transform : KernelMap or None
        Features of the "kernel" scorer.

    Returns
    -------
    NetworkFit
        The trained network.

    Raises
    ------
    ValueError
        If settings are out of range, a sample is too small to split, or training diverges.
    TypeError
        If the scorer is a network that cannot be copied.
    """
    rows = [samples.positive, samples.unlabeled]
    rows.append(samples.positive[:0] if samples.target is None else samples.target)
    tensors = [_narrow(part if transform is None else transform(part)) for part in rows]
    seed = int(rng.randint(np.iinfo(np.int32).max))
    validation = score = None
    if settings["early_stopping"]:
        train, held = _split([len(part) for part in tensors], float(settings["validation_fraction"]), rng)
        held_tensors, held_risk = _pick(tensors, risk, held)
        tensors, risk = _pick(tensors, risk, train)
        validation = TensorBatches(torch.cat(held_tensors), batch_size=PREDICT_ROWS)
        score = partial(_negative_risk, risk=held_risk, sizes=[len(part) for part in held_tensors])
    # One batch holds everything: then its own sums are the sums over all rows.
    whole = sum(len(part) for part in tensors) <= settings["batch_size"]
    used = risk if whole else _in_scale(risk) if risk.normalize else risk
    parts = (used.positive, used.unlabeled, used.target)
    p, u, t = (torch.tensor([] if part is None else part.weight, dtype=torch.float32) for part in parts)
    module = _build(
        scorer,
        tensors[0].shape[1],
        settings,
        weighting="two_step",
        trade_off=risk.gamma,
        loss=risk.loss.name,
        normalize=used.normalize,
        scenario="single_set" if risk.single_set else "case_control",
        class_prior_train=risk.class_prior_train,
        lr=float(settings["learning_rate"]),
        weight_decay=float(settings["l2"]),
        random_state=seed,
    )
    found = fit_module(
        module,
        PUBatches(*tensors, weights=(p, u, t), batch_size=int(settings["batch_size"]), seed=seed),
        max_epochs=int(settings["max_iter"]),
        validation=validation,
        score=score,
        patience=PATIENCE if validation is not None else None,
        random_state=seed,
        verbose=int(settings["verbose"]),
    )
    coef = None
    if isinstance(scorer, str) and scorer != "mlp":
        coef = module.net.weight.detach().numpy().astype(np.float64)  # type: ignore[union-attr, operator]
    return NetworkFit(module, coef, found.loss_curve, found.n_iter)


class NeuralRatio(BaseEstimator):
    """Relative density ratio by a network with the criterion of :class:`~seedbed.estimators.RuLSIF`.

    Columns are standardised inside.

    Parameters
    ----------
    alpha : float in [0, 1), default=0.1
        Share of the numerator in the mixture; 0 is the plain ratio.
    hidden_layer_sizes : array-like of int, default=(124, 124)
        Hidden layers.
    learning_rate : float, default=1e-3
        Of AdamW.
    weight_decay : float, default=1e-2
        Of AdamW.
    batch_size : int, default=512
        Rows of each sample in a step.
    max_iter : int, default=60
        Epochs.
    random_state : int, default=0
        Seed.

    Attributes
    ----------
    module_ : RatioModule
        The network.
    """

    def __init__(
        self,
        alpha: float = 0.1,
        *,
        hidden_layer_sizes: Any = (124, 124),
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-2,
        batch_size: int = 512,
        max_iter: int = 60,
        random_state: int = 0,
    ) -> None:
        self.alpha = alpha
        self.hidden_layer_sizes = hidden_layer_sizes
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X_numerator: Any, X_denominator: Any) -> Self:
        """Train the network.

        Parameters
        ----------
        X_numerator, X_denominator : ndarray of shape (n, n_features)
            Rows of both densities.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ValueError
            If training diverges.
        """
        rows = np.vstack([X_numerator, X_denominator]).astype(np.float64)
        scale = rows.std(axis=0)
        self._mean, self._scale = rows.mean(axis=0), np.where(scale == 0, 1.0, scale)
        loaders = [
            TensorBatches(self._tensor(part), batch_size=self.batch_size, seed=self.random_state + index)
            for index, part in enumerate((X_numerator, X_denominator))
        ]
        self.module_ = RatioModule(
            rows.shape[1],
            _hidden(self.hidden_layer_sizes),
            relative_alpha=float(self.alpha),
            lr=float(self.learning_rate),
            weight_decay=float(self.weight_decay),
            random_state=self.random_state,
        )
        with quiet(0):
            both = CombinedLoader(loaders, mode="max_size_cycle")
        fit_module(
            self.module_,
            both,
            max_epochs=self.max_iter,
            random_state=self.random_state,
        )
        return self

    def _tensor(self, X: Any) -> torch.Tensor:
        return _narrow((np.asarray(X, dtype=np.float64) - self._mean) / self._scale)

    def predict(self, X: Any) -> Floats:
        """Ratio at these rows.

        Parameters
        ----------
        X : ndarray of shape (n, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n,)
            In ``(0, 1 / alpha)``.
        """
        check_is_fitted(self, "module_")
        batches = TensorBatches(self._tensor(X), batch_size=PREDICT_ROWS)
        found = predict_batches(self.module_, batches, self.module_.device, nullcontext)
        return found[:, 0].numpy().astype(np.float64)
