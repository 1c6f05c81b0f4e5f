"""AmortizedIRTModule: item response models trained on batches of answers."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torchmetrics import MeanMetric, MeanSquaredError, MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryCalibrationError

from seedbed.checks import check_choice, check_number
from seedbed.lightning_modules.amortized_irt.gathering import gather_rows, total_over_ranks
from seedbed.lightning_modules.amortized_irt.item_parameters import ItemParameters, difficulty_network
from seedbed.lightning_modules.amortized_irt.marginal import (
    Curves,
    Marginal,
    Rule,
    accumulator,
    log_normal,
    marginal_likelihood,
)
from seedbed.training import isolated_rng

OptimizerCallable = Callable[[Iterable[Any]], torch.optim.Optimizer]
SchedulerCallable = Callable[[torch.optim.Optimizer], Any]
"""Lightning's types of these names, which the command line fills from class paths and their arguments."""

MODELS = ("rasch", "2pl", "3pl")
TINY = 1e-12
"""Adam's eps: a loss for each of ten million answers has gradients below its usual 1e-8."""
FEWEST_WITHOUT_PRIORS = 50
"""Takers that the 3PL needs where guessing or discrimination has no prior."""


class AmortizedIRTModule(pl.LightningModule):
    """Item response model P(right) = c + (1 - c) sigma(a (l . theta - b)), trained on batches of answers.

    A batch is ``(cells, y)`` or ``(cells, y, weight)``: ``cells`` of shape (n, 2) holds the numbers of the
    taker and the item of each answer, ``y`` 1 or 0, ``weight`` how often the taker counts. For the marginal
    loss all answers of a taker come in one batch, as :class:`~seedbed.datasets.ResponseDataModule` deals them
    out, also to several processes.

    Parameters
    ----------
    n_takers, n_items : int
        Size of the table of answers.
    model : {"rasch", "2pl", "3pl"}
        Whether items have discriminations a > 0, and chances c of guessing, too.
    n_dimensions : int
        Dimensions of ability; more than one needs discriminations.
    loadings : {"softmax", "free"}
        l of several dimensions: positive and with sum one, as in the paper, or any of length one.
    loss : {"marginal", "joint"}
        Abilities integrated out, with nodes around each taker's posterior, or estimated as parameters.
    n_quadrature : int
        Nodes of each dimension.
    latent_scale : float, optional
        Standard deviation of ability in the marginal loss. None: estimated for "rasch", else 1, which sets
        the scale.
    encoder : Module, optional
        Network from inputs of items, (n, ...), to their difficulties, (n,) or (n, 1).
    n_features : int, optional
        Without an encoder of your own: features of an item that a network reads difficulties off. The
        features are those of ``item_inputs``, or ``item_inputs`` of the Trainer's data module.
    hidden_layer_sizes : list of int, optional
        Hidden layers of ELUs of that network; linear without.
    item_inputs : array-like of shape (n_items, ...), optional
        Features, or integers such as token ids; a row of NaN gives its item a free difficulty.
    residual_std : float, optional
        With an encoder, b = encoder + e with e ~ N(0, residual_std^2) for every item; without, b = encoder.
    item_prior : tuple of float, optional
        Mean and standard deviation of the difficulties.
    discrimination_prior : tuple of float, optional
        Mean and standard deviation of log a. The joint loss needs it: it sets the scale.
    guessing_prior : tuple of float, optional
        Parameters of the beta density of c.
    ability_prior : float
        Standard deviation of abilities in the joint loss, a weak hold for takers with all answers alike.
    n_cells : int, optional
        Answers in the whole training data, by which priors are weighted; all of the table by default.
    optimizer : {"adam", "adamw", "sgd"} or callable
        Name, or a callable from parameters to an optimizer.
    lr : float
        Learning rate of a named optimizer.
    weight_decay : float
        Of a named optimizer.
    lr_scheduler : callable, optional
        From the optimizer to a schedule, stepped once an epoch.
    random_state : int
        Seed of the initial weights and loadings. No global generator is used.

    Raises
    ------
    TypeError, ValueError
        If a parameter is out of range; the message has its name and what is allowed.

    Notes
    -----
    The training loss is the negative log-likelihood plus log prior, per answer. Logged are ``train_loss``
    and, of held-out answers to takers whose abilities the training answers tell, ``val_loss`` (mean
    -log P(y)), ``val_auroc``, ``val_brier`` (mean squared error of P) and ``val_calibration`` (expected
    calibration error); ``test_...`` likewise.

    The posteriors of ability are buffers, renewed whenever a taker's answers are in a training batch; the
    next batch starts its quadrature from them, and predictions integrate over them.

    References
    ----------
    Truong, Tu, Liang, Li and Koyejo, "Reliable and Efficient Amortized Model-based Evaluation", ICML 2025,
    Sec. 3 and 4.1.

    Examples
    --------
    >>> import torch
    >>> module = AmortizedIRTModule(n_takers=3, n_items=2)
    >>> module(torch.tensor([[0, 0], [2, 1]])).detach()
    tensor([0.5000, 0.5000])
    """

    ability_mean: Tensor
    ability_factor: Tensor

    def __init__(
        self,
        n_takers: int,
        n_items: int,
        model: str = "rasch",
        n_dimensions: int = 1,
        loadings: str = "softmax",
        loss: str = "marginal",
        n_quadrature: int = 9,
        latent_scale: float | None = None,
        encoder: nn.Module | None = None,
        n_features: int | None = None,
        hidden_layer_sizes: list[int] | None = None,
        item_inputs: Any = None,
        residual_std: float | None = None,
        item_prior: tuple[float, float] | None = None,
        discrimination_prior: tuple[float, float] | None = (0.0, 0.5),
        guessing_prior: tuple[float, float] | None = (5.0, 17.0),
        ability_prior: float = 4.0,
        n_cells: int | None = None,
        optimizer: OptimizerCallable | str = "adam",
        lr: float = 0.05,
        weight_decay: float = 0.0,
        lr_scheduler: SchedulerCallable | None = None,
        random_state: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("n_takers", n_takers), ("n_items", n_items)):
            check_number(name, value, low=2, integer=True)
        check_choice("model", model, MODELS)
        check_number("n_dimensions", n_dimensions, low=1, integer=True)
        check_choice("loadings", loadings, ("softmax", "free"))
        check_choice("loss", loss, ("marginal", "joint"))
        check_number("n_quadrature", n_quadrature, low=3, integer=True)
        if n_dimensions > 1 and model == "rasch":
            raise ValueError(f"model must be '2pl' or '3pl' for n_dimensions={n_dimensions}, got 'rasch'")
        _check_inputs(encoder, n_features, hidden_layer_sizes, item_inputs, residual_std)
        _check_priors(
            item_prior=item_prior, discrimination_prior=discrimination_prior, guessing_prior=guessing_prior
        )
        for name, number in (("latent_scale", latent_scale), ("n_cells", n_cells)):
            if number is not None:
                check_number(name, number, low=0, closed="neither", integer=name == "n_cells")
        check_number("ability_prior", ability_prior, low=0, closed="neither")
        check_number("lr", lr, low=0)
        check_number("weight_decay", weight_decay, low=0)
        check_number("random_state", random_state, low=0, integer=True)
        if not callable(optimizer):
            check_choice("optimizer", optimizer, ("adam", "adamw", "sgd"))
        if loss == "joint" and model != "rasch" and discrimination_prior is None:
            raise ValueError(
                "discrimination_prior must be given for loss='joint': nothing else sets the scale of ability"
            )
        bare = guessing_prior is None or discrimination_prior is None
        if model == "3pl" and bare and n_takers < FEWEST_WITHOUT_PRIORS:
            raise ValueError(
                f"guessing_prior and discrimination_prior must be given for model='3pl' with fewer than "
                f"{FEWEST_WITHOUT_PRIORS} takers, got n_takers={n_takers}"
            )
        # Code and arrays are no values that a checkpoint could hold without running code when it is read.
        given = {"encoder": encoder, "item_inputs": item_inputs}
        ignored = [name for name, value in given.items() if value is not None]
        called = {"optimizer": optimizer, "lr_scheduler": lr_scheduler}
        ignored += [name for name, value in called.items() if callable(value)]
        self.save_hyperparameters(ignore=ignored)
        self.n_takers, self.n_items, self.n_dimensions = n_takers, n_items, n_dimensions
        self.loss, self.ability_prior = loss, float(ability_prior)
        self.priors = (item_prior, discrimination_prior, guessing_prior)
        self.n_cells = n_takers * n_items if n_cells is None else int(n_cells)
        self.optimizer, self.lr, self.weight_decay = optimizer, float(lr), float(weight_decay)
        self.lr_scheduler = lr_scheduler
        if encoder is None and n_features is not None:
            with isolated_rng(random_state):
                encoder = difficulty_network(n_features, hidden_layer_sizes or [])
        generator = torch.Generator().manual_seed(random_state)
        self.items = ItemParameters(n_items, model, n_dimensions, loadings, encoder, residual_std, generator)
        if item_inputs is not None:
            self.set_item_inputs(item_inputs)
        self.rule = Rule.product(n_quadrature, n_dimensions)
        self.log_scale: Tensor
        self._start_abilities(latent_scale, free=loss == "marginal" and model == "rasch")
        metrics: dict[str, Any] = {
            "loss": MeanMetric(), "auroc": BinaryAUROC(), "brier": MeanSquaredError(),
            "calibration": BinaryCalibrationError(n_bins=15),
        }  # fmt: skip
        self.val_metrics = MetricCollection(metrics, prefix="val_", compute_groups=False)
        self.test_metrics = self.val_metrics.clone(prefix="test_")
        # What never changes in training need not be sent to the other processes at every step.
        self._ddp_params_and_buffers_to_ignore = ["items.inputs", "items.has_inputs"]

    def _start_abilities(self, latent_scale: float | None, *, free: bool) -> None:
        """Abilities of all takers: posteriors, or parameters."""
        scale = 1.0 if latent_scale is None else float(latent_scale)
        log_scale = torch.tensor(math.log(scale))
        if free and latent_scale is None:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)
        zeros = torch.zeros(self.n_takers, self.n_dimensions)
        if self.loss == "joint":
            self.ability_mean = nn.Parameter(zeros)
            return
        self.register_buffer("ability_mean", zeros)
        self.register_buffer(
            "ability_factor", scale * torch.eye(self.n_dimensions).repeat(self.n_takers, 1, 1)
        )

    # -- the model -----------------------------------------------------------------------------------------

    @property
    def latent_scale(self) -> Float[Tensor, ""]:
        """Standard deviation of ability in the population."""
        return self.log_scale.exp()

    def set_item_inputs(self, inputs: Any) -> None:
        """Give the encoder its inputs.

        Parameters
        ----------
        inputs : array-like of shape (n_items, ...)
            Features, or integers such as token ids; a row of NaN stands for an item without.

        Raises
        ------
        ValueError
            If there is no encoder, the number of rows is wrong, or a row holds NaN beside numbers.
        """
        if self.items.encoder is None:
            raise ValueError("item_inputs need an encoder or n_features, got neither")
        self.items.set_inputs(inputs)

    @torch.no_grad()
    def item_parameters(self) -> dict[str, Tensor]:
        """Parameters of the items.

        Returns
        -------
        dict of str to Tensor
            ``difficulty``, ``discrimination`` and ``guessing`` of shape (n_items,), ``loadings`` of shape
            (n_items, n_dimensions).
        """
        every = torch.arange(self.n_items, device=self.device)
        return {
            "difficulty": self.items.difficulties(every),
            "discrimination": self.items.discrimination(),
            "guessing": self.items.guessing_share(),
            "loadings": self.items.unit_loadings(),
        }

    def forward(self, cells: Int[Tensor, "cells 2"]) -> Float[Tensor, " cells"]:
        """Predict answers.

        Parameters
        ----------
        cells : Tensor of int, shape (n, 2)
            Takers and items.

        Returns
        -------
        Tensor of shape (n,)
            Chances of right answers: at the takers' abilities for the joint loss, averaged over their
            posteriors for the marginal one.
        """
        taker = cells[:, 0]
        curves, item = self._curves(cells[:, 1])
        with self._full_precision():
            mean = self.ability_mean[taker]
            if self.loss == "joint":
                return curves.probability(item, mean)
            rule = self.rule.to(mean)
            chance = curves.probability(item, rule.around(mean, self.ability_factor[taker]))
            return chance @ rule.log_weights.exp()

    def _curves(self, item: Int[Tensor, " cells"]) -> tuple[Curves, Int[Tensor, " cells"]]:
        """Curves of the items that occur, and which of them each cell has."""
        if self.items.encoder is None:
            every = torch.arange(self.n_items, device=item.device)
            return self.items.curves(every), item
        found, which = torch.unique(item, return_inverse=True)
        return self.items.curves(found), which

    def _full_precision(self) -> torch.autocast:
        """Logarithms of likelihoods are not for half precision; an encoder may be."""
        return torch.autocast(self.device.type, enabled=False)

    def marginal(self, cells: Int[Tensor, "cells 2"], y: Tensor) -> tuple[Int[Tensor, " n"], Marginal]:
        """Marginal likelihoods and posteriors of takers.

        Parameters
        ----------
        cells : Tensor of int, shape (n_cells, 2)
            Takers and items, with all answers of each taker.
        y : Tensor of shape (n_cells,)
            1 for right, 0 for wrong.

        Returns
        -------
        tuple of Tensor and Marginal
            The takers, in order, and what their answers say.
        """
        takers, row = torch.unique(cells[:, 0], return_inverse=True)
        curves, item = self._curves(cells[:, 1])
        start = self.ability_mean.detach()[takers]
        with self._full_precision():
            found = marginal_likelihood(
                curves, row, item, y.to(start), self.latent_scale, start, self.rule.to(start)
            )
        return takers, found

    @torch.no_grad()
    def update_abilities(self, cells: Int[Tensor, "cells 2"], y: Tensor) -> None:
        """Renew the posteriors of takers from all of their answers, the items as they are.

        Parameters
        ----------
        cells : Tensor of int, shape (n_cells, 2)
            Takers and items.
        y : Tensor of shape (n_cells,)
            1 for right, 0 for wrong.

        Raises
        ------
        ValueError
            If abilities are parameters, as for the joint loss.
        """
        if self.loss == "joint":
            raise ValueError("loss='joint' has abilities that training alone changes")
        self._keep(*self.marginal(cells, y))

    def _keep(self, takers: Int[Tensor, " n"], found: Marginal) -> None:
        """Store posteriors, those that other processes found, too."""
        rows = [takers, found.mean, found.factor]
        if self._world > 1:
            rows = gather_rows(rows)
        self.ability_mean[rows[0]] = rows[1].detach()
        self.ability_factor[rows[0]] = rows[2].detach()

    @property
    def _world(self) -> int:
        return 1 if self._trainer is None else int(self.trainer.world_size)

    # -- losses --------------------------------------------------------------------------------------------

    def _marginal_loss(self, cells: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        """Negative marginal log-likelihood of the batch, for each answer of an average taker."""
        takers, found = self.marginal(cells, y)
        self._keep(takers, found)
        each = found.log_likelihood
        counts = torch.ones_like(each)
        if weight is not None:
            counts[torch.searchsorted(takers, cells[:, 0])] = weight.to(each)
        total = total_over_ranks(counts.sum(), self._world)
        likelihood = (counts * each).sum() * (self._world * self.n_takers / self.n_cells) / total
        return -likelihood.to(self.items.free.dtype)

    def _joint_loss(self, cells: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        """Negative joint log-likelihood of the batch, for each answer."""
        curves, item = self._curves(cells[:, 1])
        with self._full_precision():
            theta = self.ability_mean[cells[:, 0]]
            each = curves.log_likelihood(item, theta, y.to(theta)).to(accumulator(theta))
        counts = torch.ones_like(each) if weight is None else weight.to(each)
        total = total_over_ranks(counts.sum(), self._world)
        return -((counts * each).sum() * self._world / total).to(theta.dtype)

    def _log_prior(self) -> Tensor:
        with self._full_precision():
            total = self.items.log_prior(*self.priors)
            if self.loss == "joint":
                total = total + log_normal(self.ability_mean, 0.0, self.ability_prior).sum()
        return total

    def _unpack(self, batch: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        if isinstance(batch, Tensor) or not 2 <= len(batch) <= 3:
            raise ValueError("a batch must be (cells, y) or (cells, y, weight)")
        cells, y = batch[:2]
        if cells.ndim != 2 or cells.shape[1] != 2 or len(y) != len(cells):
            raise ValueError(
                f"cells must have shape (n, 2) and y shape (n,), got {tuple(cells.shape)} and "
                f"{tuple(y.shape)}"
            )
        return cells, y, batch[2] if len(batch) == 3 else None

    # -- Lightning -----------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:  # noqa: ARG002
        """Take the items' inputs from the data module, if none were given.

        Parameters
        ----------
        stage : str
            Lightning's stage.

        Raises
        ------
        ValueError
            If the data module has another number of takers or items.
        """
        data = getattr(self.trainer, "datamodule", None)
        shape = getattr(data, "shape", None)
        if shape is not None and tuple(shape) != (self.n_takers, self.n_items):
            raise ValueError(
                f"n_takers and n_items must be {tuple(shape)} for these data, got "
                f"{(self.n_takers, self.n_items)}"
            )
        inputs = getattr(data, "item_inputs", None)
        if self.items.encoder is not None and self.items.inputs.numel() == 0 and inputs is not None:
            self.set_item_inputs(inputs)

    def training_loss(self, batch: Any) -> Tensor:
        """Negative log-likelihood plus log prior for each answer, as a batch tells it.

        Parameters
        ----------
        batch : sequence of Tensor
            ``(cells, y)`` or ``(cells, y, weight)``.

        Returns
        -------
        Tensor of shape ()
            In nats. The marginal loss renews the posteriors of the batch's takers.

        Raises
        ------
        ValueError
            If the batch has other entries or shapes.
        """
        cells, y, weight = self._unpack(batch)
        loss = self._marginal_loss if self.loss == "marginal" else self._joint_loss
        return loss(cells, y, weight) - self._log_prior() / self.n_cells

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        """Loss of a batch, see :meth:`training_loss`."""
        value = self.training_loss(batch)
        self.log("train_loss", value.detach(), on_epoch=True, on_step=False, batch_size=1, sync_dist=True)
        return value

    def _evaluate(self, batch: Any, metrics: MetricCollection) -> None:
        """Compare predictions with the answers of a batch."""
        cells, y, _ = self._unpack(batch)
        chance = self(cells)
        inside = chance.clamp(1e-7, 1 - 1e-7)
        metrics["loss"].update(-torch.where(y > 0.5, inside.log(), (-inside).log1p()))
        metrics["brier"].update(chance, y.to(chance))
        for name in ("auroc", "calibration"):
            metrics[name].update(chance, y.long())

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Compare predictions with held-out answers."""
        self._evaluate(batch, self.val_metrics)

    def on_validation_epoch_end(self) -> None:
        """Log what validation found."""
        self.log_dict(self.val_metrics.compute(), sync_dist=True)
        self.val_metrics.reset()

    def test_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Compare predictions with held-out answers."""
        self._evaluate(batch, self.test_metrics)

    def on_test_epoch_end(self) -> None:
        """Log what the test found."""
        self.log_dict(self.test_metrics.compute(), sync_dist=True)
        self.test_metrics.reset()

    def predict_step(self, batch: Any, batch_idx: int = 0) -> Tensor:  # noqa: ARG002
        """Chances of right answers, see :meth:`forward`.

        Parameters
        ----------
        batch : Tensor or sequence
            Cells, or a batch whose first entry is cells.
        batch_idx : int
            Not used.

        Returns
        -------
        Tensor of shape (n,)
            Chances.
        """
        return self(batch if isinstance(batch, Tensor) else batch[0])

    def configure_optimizers(self) -> Any:
        """Build the optimizer, and the schedule if there is one."""
        if callable(self.optimizer):
            built = self.optimizer(self.parameters())
        else:
            kinds: dict[str, Any] = {
                "adam": (torch.optim.Adam, {"eps": TINY}),
                "adamw": (torch.optim.AdamW, {"eps": TINY}),
                "sgd": (torch.optim.SGD, {}),
            }
            kind, more = kinds[self.optimizer]
            built = kind(self.parameters(), lr=self.lr, weight_decay=self.weight_decay, **more)
        if self.lr_scheduler is None:
            return built
        return {"optimizer": built, "lr_scheduler": self.lr_scheduler(built)}


def _check_inputs(
    encoder: nn.Module | None,
    n_features: int | None,
    hidden_layer_sizes: Sequence[int] | None,
    item_inputs: Any,
    residual_std: float | None,
) -> None:
    """What belongs to an encoder comes with one."""
    if encoder is not None and n_features is not None:
        raise ValueError("n_features builds an encoder: give it or encoder, not both")
    if n_features is not None:
        check_number("n_features", n_features, low=1, integer=True)
    elif hidden_layer_sizes:
        raise ValueError("hidden_layer_sizes need n_features")
    for size in hidden_layer_sizes or ():
        check_number("hidden_layer_sizes", size, low=1, integer=True)
    if residual_std is not None:
        check_number("residual_std", residual_std, low=0, closed="neither")
    if encoder is None and n_features is None:
        for name, value in (("item_inputs", item_inputs), ("residual_std", residual_std)):
            if value is not None:
                raise ValueError(f"{name} needs an encoder or n_features, got neither")


def _check_priors(**priors: tuple[float, float] | None) -> None:
    for name, prior in priors.items():
        if prior is None:
            continue
        if len(prior) != 2:
            raise ValueError(f"{name} must be None or two numbers, got {prior!r}")
        if name == "guessing_prior":
            for k in (0, 1):
                check_number(f"{name}[{k}]", prior[k], low=1, closed="neither")
        else:
            check_number(f"{name}[0]", prior[0])
            check_number(f"{name}[1]", prior[1], low=0, closed="neither")
