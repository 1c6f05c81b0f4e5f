"""PUAUCModule: a network that ranks, and the weights it learns beside."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from seedbed.checks import check_choice, check_number
from seedbed.lightning_modules.pu_auc_covariate_shift.losses import (
    LOSSES,
    SYMMETRIC,
    pu_risk,
    ratio_loss,
    relative_ratio,
)
from seedbed.lightning_modules.pu_auc_covariate_shift.metrics import Scores, weighted_auc
from seedbed.lightning_modules.pu_auc_covariate_shift.networks import (
    as_column,
    feature_network,
    feature_size,
)
from seedbed.training import isolated_rng

OptimizerCallable = Callable[[Iterable[Any]], torch.optim.Optimizer]
SchedulerCallable = Callable[[torch.optim.Optimizer], Any]
"""Lightning's types of these names, which the command line fills from class paths and their arguments."""

PARTS = ("positive", "unlabeled", "target")
WEIGHTS = tuple(f"{name}_weight" for name in PARTS)


class PUAUCModule(pl.LightningModule):
    """Network that maximises the AUC on a target population without a single negative.

    It learns from batches of labelled positives, unlabeled training rows and unlabeled target rows: a mapping
    with the keys "positive", "unlabeled" and "target", or a tuple in this order, such as
    :class:`~seedbed.datasets.PUDataModule` hands out. The loss is ``(1 - gamma) J1 + gamma J2`` over all
    pairs of the batch, see :class:`~seedbed.estimators.PUAUCClassifier`.

    Parameters
    ----------
    input_shape : int or list of int
        Columns of a row, or (channels, height, width): then two convolution blocks come first.
    hidden_layer_sizes : list of int
        Hidden layers of the features, and of the network of the ratio; [124, 124] by default.
    net : Module, optional
        Features of your own, (n, ...) to (n, k), if ``score_head`` is given; else the score, (n,) or (n, 1).
    score_head : Module, optional
        Features to the score.
    weight_head : Module, optional
        Rows, or features, to the logit of the density ratio, for ``weighting="dynamic"``.
    weight_input : {"rows", "features"}
        What the ratio is learned from. Features cost less, but they are made to rank: on digits they hardly
        tell the populations apart.
    trade_off : float in [0, 1]
        gamma.
    relative_alpha : float in [0, 1)
        alpha of the relative density ratio, which is at most ``1 / alpha``.
    loss : {"sigmoid", "ramp", "logistic", "squared_hinge", "squared"}
        Pair loss; the last three need ``class_prior_train``.
    weighting : {"dynamic", "two_step", "none"}
        Learn the weights beside the scores; take them from the batch ("positive_weight", "unlabeled_weight",
        "target_weight", or three more entries of the tuple); or give every row weight one.
    normalize : bool
        Divide by the batch's sums of weights, not by its numbers of pairs. Weights that come with the batch
        may instead be normalised over all rows beforehand.
    scenario : {"case_control", "single_set"}
        Whether unlabeled rows are a sample of their own, or what labelling left of one sample.
    class_prior_train : float in (0, 1), optional
        Share of positives in the training population.
    weight_floor : float
        Least learned weight.
    optimizer : {"adam", "adamw", "sgd"} or callable
        Name, or a callable from parameters to an optimizer.
    lr : float
        Learning rate of a named optimizer.
    weight_decay : float
        Of a named optimizer.
    lr_scheduler : callable, optional
        From the optimizer to a schedule, stepped once an epoch.
    random_state : int
        Seed of the initial weights. No global generator is used.

    Raises
    ------
    TypeError, ValueError
        If a parameter is out of range; the message has its name and what is allowed.

    Notes
    -----
    Logged are ``train_loss``, ``train_risk``, ``val_loss`` (the risk over the whole validation set),
    ``val_pu_auc`` (the weighted AUC against unlabeled rows, for model selection),
    ``val_effective_positives``, and, from labelled rows ``(x, y)``, ``test_loss`` and ``test_auc``.

    With several processes their scores are gathered, which are few numbers: the loss is that of the joined
    batch. The shares of a batch must have equal sizes.

    References
    ----------
    A. Kumagai et al., *Positive-unlabeled AUC Maximization under Covariate Shift*, ICML 2025.

    Examples
    --------
    >>> import torch
    >>> module = PUAUCModule(input_shape=4, hidden_layer_sizes=[8])
    >>> module(torch.zeros(2, 4)).shape
    torch.Size([2])
    """

    def __init__(
        self,
        input_shape: int | list[int] = 64,
        hidden_layer_sizes: list[int] | None = None,
        net: nn.Module | None = None,
        score_head: nn.Module | None = None,
        weight_head: nn.Module | None = None,
        weight_input: str = "rows",
        trade_off: float = 0.2,
        relative_alpha: float = 0.5,
        loss: str = "sigmoid",
        weighting: str = "dynamic",
        normalize: bool = True,
        scenario: str = "case_control",
        class_prior_train: float | None = None,
        weight_floor: float = 1e-3,
        optimizer: OptimizerCallable | str = "adam",
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        lr_scheduler: SchedulerCallable | None = None,
        random_state: int = 0,
    ) -> None:
        super().__init__()
        check_number("trade_off", trade_off, low=0, high=1)
        check_number("relative_alpha", relative_alpha, low=0, high=1, closed="left")
        check_choice("loss", loss, LOSSES)
        check_choice("weighting", weighting, ("dynamic", "two_step", "none"))
        check_choice("weight_input", weight_input, ("rows", "features"))
        check_choice("scenario", scenario, ("case_control", "single_set"))
        check_number("weight_floor", weight_floor, low=0)
        check_number("lr", lr, low=0)
        check_number("weight_decay", weight_decay, low=0)
        check_number("random_state", random_state, low=0, integer=True)
        if not callable(optimizer):
            check_choice("optimizer", optimizer, ("adam", "adamw", "sgd"))
        if class_prior_train is not None:
            check_number("class_prior_train", class_prior_train, low=0, high=1, closed="neither")
        elif loss not in SYMMETRIC:
            raise ValueError(
                f"class_prior_train must be given for loss={loss!r}, or the loss be of {SYMMETRIC}"
            )
        if net is None and (score_head is not None or weight_head is not None):
            raise ValueError("score_head and weight_head belong to a net of your own: give net, too")
        if net is not None and weighting == "dynamic" and weight_head is None:
            raise ValueError("weight_head must be given with net for weighting='dynamic', got None")
        if net is not None and score_head is None and weight_input == "features":
            raise ValueError("weight_input='features' needs a score_head: net alone returns scores")
        given = {"net": net, "score_head": score_head, "weight_head": weight_head}
        # Code and networks are no values that a checkpoint could hold without running code when it is read.
        ignored = [name for name, value in given.items() if value is not None]
        ignored += [
            name
            for name, value in (("optimizer", optimizer), ("lr_scheduler", lr_scheduler))
            if callable(value)
        ]
        self.save_hyperparameters(ignore=ignored)
        self.trade_off, self.relative_alpha, self.loss = float(trade_off), float(relative_alpha), loss
        self.weighting, self.weight_input, self.normalize = weighting, weight_input, bool(normalize)
        self.single_set = scenario == "single_set"
        self.class_prior_train, self.weight_floor = class_prior_train, float(weight_floor)
        self.optimizer, self.lr, self.weight_decay = optimizer, float(lr), float(weight_decay)
        self.lr_scheduler = lr_scheduler
        self.net: nn.Module
        self.score_head: nn.Module | None
        self.weight_head: nn.Module | None
        if net is None:
            self._build(
                input_shape, [124, 124] if hidden_layer_sizes is None else hidden_layer_sizes, random_state
            )
        else:
            self.net, self.score_head = net, score_head
            self.weight_head = weight_head if weighting == "dynamic" else None
        self.val_scores, self.test_scores = Scores(len(PARTS)), Scores(2)

    def _build(self, input_shape: int | list[int], sizes: Sequence[int], seed: int) -> None:
        """Features and heads with weights from this seed."""
        with isolated_rng(seed):
            self.net = feature_network(input_shape, sizes)
            width = feature_size(input_shape, self.net)
            self.score_head = nn.Linear(width, 1, bias=False)  # pairs do not see a constant
            self.weight_head = None
            if self.weighting == "dynamic" and self.weight_input == "rows":
                self.weight_head = nn.Sequential(*feature_network(input_shape, sizes), nn.Linear(width, 1))
            elif self.weighting == "dynamic":
                self.weight_head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    # -- scores and weights --------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """Score rows, higher for more probably positive ones.

        Parameters
        ----------
        x : Tensor of shape (n, ...)
            Rows.

        Returns
        -------
        Tensor of shape (n,)
            Scores.
        """
        return self._both(x)[0]

    def _both(self, x: Tensor, *, weigh: bool = False) -> tuple[Tensor, Tensor | None]:
        """Scores, and ratios if they are learned and wanted."""
        features = self.net(x)
        output = features if self.score_head is None else self.score_head(features)
        scores = as_column(output, "net" if self.score_head is None else "score_head")
        if not weigh or self.weight_head is None:
            return scores, None
        # The ratio must not move the features that scores are made of.
        logit = self.weight_head(x if self.weight_input == "rows" else features.detach())
        return scores, relative_ratio(as_column(logit, "weight_head"), self.relative_alpha)

    def importance_weights(self, x: Tensor) -> Tensor:
        """Learned density ratio of each row, at least ``weight_floor``.

        Parameters
        ----------
        x : Tensor of shape (n, ...)
            Rows.

        Returns
        -------
        Tensor of shape (n,)
            Weights.

        Raises
        ------
        ValueError
            If weights are not learned here.
        """
        ratio = self._both(x, weigh=True)[1]
        if ratio is None:
            raise ValueError(f"weights are learned only for weighting='dynamic', not {self.weighting!r}")
        return ratio.clamp_min(self.weight_floor)

    def _unpack(self, batch: Any) -> tuple[list[Tensor], list[Tensor] | None]:
        """Rows of the three samples, and the weights that came with them."""
        if isinstance(batch, Mapping):
            missing = [name for name in PARTS if name not in batch]
            if missing:
                raise ValueError(f"a batch must hold {PARTS}, {missing} are missing from {sorted(batch)}")
            entries = [batch[name] for name in (*PARTS, *WEIGHTS) if name in batch]
        else:
            entries = list(batch)
        if len(entries) not in (3, 6):
            raise ValueError(
                f"a batch must hold {PARTS}, with or without a weight for each; got {len(entries)} entries"
            )
        weights = entries[3:] or None
        if self.weighting == "two_step" and weights is None:
            raise ValueError("weighting='two_step' needs batches with weights of all three samples")
        return entries[:3], weights

    def _step(self, batch: Any) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Scores and weights of the three samples, and the loss of the density ratio."""
        rows, given = self._unpack(batch)
        sizes = [len(part) for part in rows]
        scores, ratio = self._both(torch.cat(rows), weigh=True)
        parts = list(torch.split(scores, sizes))
        weights = [torch.ones_like(part) for part in parts]
        criterion = scores.new_zeros(())
        if ratio is not None:
            p, u, t = torch.split(ratio, sizes)
            if sizes[2] and sizes[1]:
                criterion = ratio_loss(t, torch.cat([p, u]) if self.single_set else u, self.relative_alpha)
            weights[:2] = [part.detach().clamp_min(self.weight_floor) for part in (p, u)]
        elif given is not None and self.weighting == "two_step":
            weights = [weight.to(scores) for weight in given]
        return parts, weights, criterion

    def _risk(self, scores: list[Tensor], weights: list[Tensor]) -> Tensor:
        return pu_risk(
            *scores,
            *weights,
            loss=self.loss,
            trade_off=self.trade_off,
            normalize=self.normalize,
            class_prior_train=self.class_prior_train,
            single_set=self.single_set,
        )

    def _joined(self, parts: list[Tensor]) -> list[Tensor]:
        """The parts of all processes, so that a loss of pairs is that of the joined batch."""
        if self._trainer is None or self.trainer.world_size == 1:
            return parts
        gathered = [self.all_gather(part, sync_grads=part.requires_grad) for part in parts]
        return [part.flatten() for part in gathered]  # type: ignore[union-attr]

    # -- Lightning -----------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        """Loss of a batch: the risk, and the criterion of the ratio where it is learned."""
        scores, weights, criterion = self._step(batch)
        risk = self._risk(self._joined(scores), self._joined(weights))
        loss = risk + criterion
        size = len(scores[0])
        self.log("train_loss", loss.detach(), on_epoch=True, on_step=False, batch_size=size, sync_dist=True)
        self.log("train_risk", risk.detach(), on_epoch=True, on_step=False, batch_size=size, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Keep the scores and weights of a batch of the three samples."""
        scores, weights, _ = self._step(batch)
        self.val_scores.update(scores, weights)

    def on_validation_epoch_end(self) -> None:
        """Log the risk and the weighted AUC over the whole validation set.

        Raises
        ------
        ValueError
            If a sample is missing.
        """
        (p, a), (u, b), (t, c) = self.val_scores.compute()
        self.val_scores.reset()
        if not len(p) or not len(u) or (not len(t) and self.trade_off > 0):
            raise ValueError(f"validation needs rows of all of {PARTS}, got {len(p)}, {len(u)} and {len(t)}")
        gamma = self.trade_off if len(t) else 0.0
        auc = (1 - gamma) * weighted_auc(p, u, a, b)
        if gamma > 0:
            auc = auc + gamma * weighted_auc(p, t, a, c)
        found = {
            "val_loss": self._risk([p, u, t], [a, b, c]),
            "val_pu_auc": auc.float(),
            "val_effective_positives": a.sum().square() / a.square().sum(),
        }
        # Already over all processes: averaging equal numbers changes nothing, and Lightning asks for it.
        self.log_dict(found, sync_dist=True, prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Keep the scores of labelled rows ``(x, y)``."""
        x, y = batch[:2]
        scores = self(x)
        sides = [scores[y > 0], scores[y <= 0]]
        self.test_scores.update(sides, [torch.ones_like(side) for side in sides])

    def on_test_epoch_end(self) -> None:
        """Log the AUC risk and the AUC of the labelled rows.

        Raises
        ------
        ValueError
            If a label is missing.
        """
        (p, a), (n, b) = self.test_scores.compute()
        self.test_scores.reset()
        if not len(p) or not len(n):
            raise ValueError(f"test rows need both labels, got {len(p)} positives and {len(n)} negatives")
        loss = self.loss if self.loss in SYMMETRIC else "sigmoid"
        risk = pu_risk(p, n, n[:0], a, b, b[:0], loss=loss, trade_off=0.0)
        self.log_dict({"test_loss": risk, "test_auc": weighted_auc(p, n, a, b).float()}, sync_dist=True)

    def predict_step(self, batch: Any, batch_idx: int = 0) -> Tensor:  # noqa: ARG002
        """Scores of rows, or of the first entry of a batch.

        Parameters
        ----------
        batch : Tensor or sequence
            Rows.
        batch_idx : int
            Not used.

        Returns
        -------
        Tensor of shape (n,)
            Scores.
        """
        return self(batch if isinstance(batch, Tensor) else batch[0])

    def configure_optimizers(self) -> Any:
        """Build the optimizer, and the schedule if there is one."""
        if callable(self.optimizer):
            built = self.optimizer(self.parameters())
        else:
            kinds: dict[str, Any] = {
                "adam": torch.optim.Adam,
                "adamw": torch.optim.AdamW,
                "sgd": torch.optim.SGD,
            }
            built = kinds[self.optimizer](self.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        if self.lr_scheduler is None:
            return built
        return {"optimizer": built, "lr_scheduler": self.lr_scheduler(built)}
