"""The meta-parameters themselves: where beta is kept, how it moves, and what step size it stands for.

``SharedStepSizes`` keeps one value per block in one stacked vector; ``ElementStepSizes`` keeps a tensor per
parameter, with a value per weight or per output unit, in the optimizer's state.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp

from seedbed.optimizers.metaoptimize.arguments import Options
from seedbed.optimizers.metaoptimize.blocks import Partition
from seedbed.optimizers.metaoptimize.lists import as_dtype
from seedbed.optimizers.metaoptimize.meta_rules import MetaRule
from seedbed.optimizers.metaoptimize.products import BlockSum, dots, row_sums
from seedbed.optimizers.metaoptimize.spread import local, spread_like
from seedbed.optimizers.metaoptimize.work import Work

SLOTS = ("m", "v")


def step_size(options: Options, group: dict[str, Any], beta: float) -> tuple[float, float]:
    """Return sigma(beta) and its derivative.

    Parameters
    ----------
    options : Options
        Gives the parameterisation.
    group : dict
        Gives the present and the reference lr.
    beta : float
        Meta-parameter.

    Returns
    -------
    (float, float)
        alpha = lr exp(beta), or lr / lr0 * (lr0 + beta).
    """
    lr = float(group["lr"])
    if options.parameterisation == "identity":
        share = lr / group["meta_reference_lr"]
        return share * (group["meta_reference_lr"] + beta), share
    alpha = lr * math.exp(beta)
    return alpha, alpha


def beta_bounds(options: Options, reference_lr: float) -> tuple[float, float]:
    """Return the range of beta that keeps the step size, before any schedule, within ``alpha_bounds``.

    Parameters
    ----------
    options : Options
        Gives bounds and parameterisation.
    reference_lr : float
        The lr that beta = 0 stands for.

    Returns
    -------
    (float, float)
        Infinite where there is no bound.
    """
    if options.alpha_bounds is None:
        return -math.inf, math.inf
    low, high = options.alpha_bounds
    if options.parameterisation == "identity":
        return low - reference_lr, high - reference_lr
    return math.log(low / reference_lr), math.log(high / reference_lr)


def steps_between(options: Options, start: float, end: float) -> int:
    """Count steps of length meta_lr from one step size to another.

    Parameters
    ----------
    options : Options
        Gives the parameterisation and meta_lr.
    start, end : float
        Step sizes; with a start that is not positive no number of steps will do unless the steps are
        additive.

    Returns
    -------
    int
        Rounded up.
    """
    if options.parameterisation == "identity":
        return math.ceil(abs(end - start) / options.meta_lr - 1e-9)
    if start <= 0:
        raise ValueError(f"steps_to_reach needs positive step sizes to start from, one is {start!r}")
    length = options.meta_lr
    if options.parameterisation == "smd":
        length = math.log1p(length) if end > start else -math.log(max(0.5, 1 - length))
    return math.ceil(abs(math.log(end / start)) / length - 1e-9)


class SharedStepSizes:
    """One value per block and meta-parameter, on the device of the first parameter.

    Parameters
    ----------
    options : Options
        What was asked for.
    rule : MetaRule
        How beta moves.
    partition : Partition
        The blocks.
    groups : list of dict
        The wrapper's groups.
    total : BlockSum
        Sums over blocks and processes.
    """

    def __init__(
        self,
        options: Options,
        rule: MetaRule,
        partition: Partition,
        groups: list[dict[str, Any]],
        total: BlockSum,
    ) -> None:
        self.options, self.rule, self.partition, self.total = options, rule, partition, total
        device = next((p.device for group in groups for p in group["params"]), torch.device("cpu"))
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        rows = len(options.meta_parameters)
        self.beta = torch.zeros(rows, len(partition), dtype=self.dtype, device=device)
        self.slots = {name: torch.zeros_like(self.beta) for name in rule.slots}
        self.counts = torch.zeros(len(partition), dtype=self.dtype, device=device)
        self.skipped = torch.zeros((), dtype=self.dtype, device=device)
        self.z = torch.zeros_like(self.beta)
        self.low, self.high = self._bounds(groups)

    @property
    def lr_row(self) -> int | None:
        """The row of beta that the step sizes have, if they are learned."""
        learned = self.options.meta_parameters
        return learned.index("lr") if "lr" in learned else None

    def _bounds(self, groups: list[dict[str, Any]]) -> tuple[Tensor | None, Tensor | None]:
        if self.options.alpha_bounds is None:
            return None, None
        low = torch.full_like(self.counts, -math.inf)
        high = torch.full_like(self.counts, math.inf)
        for group in groups:
            bottom, top = beta_bounds(self.options, group["meta_reference_lr"])
            blocks = self.partition.of_group(group)
            low[blocks] = low[blocks].clamp(min=bottom)
            high[blocks] = high[blocks].clamp(max=top)
        return low, high

    def extend(self, groups: list[dict[str, Any]]) -> None:
        """Make room for blocks that the partition has gained.

        Parameters
        ----------
        groups : list of dict
            The wrapper's groups.
        """
        new = len(self.partition) - self.beta.shape[1]

        def pad(values: Tensor) -> Tensor:
            return torch.cat([values, values.new_zeros(*values.shape[:-1], new)], dim=-1)

        self.beta, self.counts, self.z = pad(self.beta), pad(self.counts), pad(self.z)
        self.slots = {name: pad(values) for name, values in self.slots.items()}
        self.low, self.high = self._bounds(groups)

    def meta_gradient(self, works: Sequence[Work], against: Sequence[list[Tensor]] | None = None) -> Tensor:
        """Return z = H^T g of every meta-parameter and block.

        Parameters
        ----------
        works : sequence of Work
            This step's tensors; traces as they were before it.
        against : sequence of list of Tensor, optional
            Other vectors in place of the gradients.

        Returns
        -------
        Tensor of shape (meta-parameters, blocks)
            Zero for blocks without a gradient.
        """
        rows = []
        for name in self.options.meta_parameters:
            entries: list[tuple[Tensor, Tensor, int]] = []
            for index, work in enumerate(works):
                traces = work.traces if name == "lr" else work.extra[name]
                vectors = work.grads if against is None else against[index]
                scalars = dots(traces, as_dtype(vectors, traces))
                if work.sign < 0:
                    scalars = [-scalar for scalar in scalars]
                entries.extend(zip(scalars, work.parameters, work.blocks))
            rows.append(self.total(entries, len(self.partition), self.beta))
        return torch.stack(rows)

    def move(self, z: Tensor, works: Sequence[Work]) -> None:
        """Take a meta step in the blocks that had a gradient, where z is finite.

        Parameters
        ----------
        z : Tensor of shape (meta-parameters, blocks)
            Meta-gradient.
        works : sequence of Work
            This step's tensors.
        """
        self.z = z
        finite = torch.isfinite(z)
        moving = finite
        active = {block for work in works for block in work.blocks}
        if len(active) < len(self.partition):
            present = torch.zeros(len(self.partition), dtype=torch.bool)
            present[list(active)] = True
            moving = finite & present.to(z.device)
        counts = self.counts + 1
        beta, slots = self.rule.move([self.beta], [z], {k: [v] for k, v in self.slots.items()}, [counts])
        moved = beta[0]
        if self.lr_row is not None and self.low is not None:
            moved[self.lr_row] = moved[self.lr_row].clamp(self.low, self.high)
        self.beta = torch.where(moving, moved, self.beta)
        self.slots = {name: torch.where(moving, value[0], self.slots[name]) for name, value in slots.items()}
        self.counts = torch.where(moving.any(dim=0), counts, self.counts)
        self.skipped = self.skipped + (~finite.all()).to(self.dtype)

    def history(self, shares: list[float], z: Tensor, trace_turn: Tensor | None) -> list[float]:
        """Move Y, the discounted share of beta (and the rule's memory) that moves with its own past.

        To be called before :meth:`move`.

        Parameters
        ----------
        shares : list of float
            Y of beta and of each slot.
        z : Tensor of shape (meta-parameters, blocks)
            Meta-gradient.
        trace_turn : Tensor of shape (meta-parameters, blocks) or None
            H^T (Hessian of the loss) gamma H: how z answers through the weights. None leaves that out.

        Returns
        -------
        list of float
            Y after the step.
        """
        gamma = self.options.gamma
        entering = [gamma * share + (1 - gamma) * (index == 0) for index, share in enumerate(shares)]
        if trace_turn is None:
            return [entering[0] * (1 - self.rule.lr * self.rule.weight_decay), *entering[1:]]
        names = list(self.slots)

        def step(beta: Tensor, z: Tensor, *memory: Tensor) -> tuple[Tensor, ...]:
            moved, slots = self.rule.move(
                [beta], [z], {k: [v] for k, v in zip(names, memory)}, [self.counts + 1]
            )
            return (moved[0], *(slots[name][0] for name in names))

        primals = (self.beta, z, *self.slots.values())
        tangents = (
            torch.full_like(self.beta, entering[0]),
            trace_turn,
            *(torch.full_like(self.beta, share) for share in entering[1 : 1 + len(names)]),
        )
        moved = [float(change[0, 0]) for change in jvp(step, primals, tangents)[1]]
        return moved + shares[len(moved) :]

    def read(self) -> list[list[float]]:
        """Return beta as floats: waits for the device.

        Returns
        -------
        list of list of float
            By meta-parameter and block.
        """
        return self.beta.tolist()

    def read_lr(self) -> list[float]:
        """Return beta of the step sizes as floats: waits for the device.

        Returns
        -------
        list of float
            By block; zeros if step sizes are not learned.
        """
        return [0.0] * len(self.partition) if self.lr_row is None else self.beta[self.lr_row].tolist()

    def apply(
        self,
        parts: Sequence[tuple[int, dict[str, Any]]],
        groups: Sequence[dict[str, Any]],
        works: Sequence[Work],
        learners: Sequence[Any],
    ) -> float:
        """Set step sizes (and what else is learned) in the wrapped optimizer's groups and in the work.

        Parameters
        ----------
        parts : sequence of (int, dict)
            The wrapped optimizer's groups, each with the number of the wrapper's group that it is a part of.
        groups : sequence of dict
            The wrapper's groups.
        works : sequence of Work
            This step's tensors.
        learners : sequence of Learner
            Of the further meta-parameters.

        Returns
        -------
        float
            Meta steps skipped so far; 0 if they were not looked up, since nothing else had to be.
        """
        shown: list[dict[int, Any]] = [{} for _ in groups]
        skipped = 0.0
        rows: list[list[float]] = [[]]
        if learners or not all(isinstance(cell["lr"], Tensor) for _, cell in parts):
            *flat, skipped = torch.cat([self.beta.flatten(), self.skipped.view(1)]).tolist()
            rows = [
                flat[start : start + len(self.partition)]
                for start in range(0, len(flat), len(self.partition))
            ]
        sizes: dict[tuple[int, int], tuple[Any, Any]] = {}
        for number, cell in parts:
            for block in self.partition.of_group(cell):
                if isinstance(cell["lr"], Tensor):
                    sizes[number, block] = self._as_tensor(groups[number], cell, block)
                else:
                    beta = 0.0 if self.lr_row is None else rows[self.lr_row][block]
                    sizes[number, block] = step_size(self.options, groups[number], beta)
                    cell["lr"] = sizes[number, block][0]
                shown[number][block] = sizes[number, block][0]
        for group, alphas in zip(groups, shown):
            group["meta_alpha"] = next(iter(alphas.values())) if len(alphas) == 1 else list(alphas.values())
        place = {id(cell): number for number, cell in parts}
        for work in works:
            pairs = [sizes[place[id(work.cell)], block] for block in work.blocks]
            one = len(set(work.blocks)) == 1
            work.alpha, work.slope = pairs[0] if one else ([a for a, _ in pairs], [s for _, s in pairs])
            for learner in learners:
                learner.assign(work, rows[self.options.meta_parameters.index(learner.name)][work.blocks[0]])
        return skipped

    def _as_tensor(self, group: dict[str, Any], cell: dict[str, Any], block: int) -> tuple[Tensor, Tensor]:
        """Write a step size into a tensor lr, in place: nothing waits for the device."""
        lr = group["lr"]
        beta = torch.zeros_like(self.skipped) if self.lr_row is None else self.beta[self.lr_row, block]
        if self.options.parameterisation == "identity":
            slope = lr / group["meta_reference_lr"]
            cell["lr"].copy_(slope * (group["meta_reference_lr"] + beta))
            return cell["lr"], slope
        cell["lr"].copy_(lr * beta.exp().to(lr.device))
        return cell["lr"], cell["lr"]

    def publish(self, group: dict[str, Any]) -> None:
        """Write a group's share of the state into it, as plain numbers.

        Parameters
        ----------
        group : dict
            One of the wrapper's groups.
        """
        blocks = self.partition.of_group(group)
        group["meta_beta"] = self.beta[:, blocks].tolist()
        for name in SLOTS:
            group[f"meta_{name}"] = self.slots[name][:, blocks].tolist() if name in self.slots else []
        group["meta_step"] = self.counts[blocks].tolist()
        group["meta_skipped"] = float(self.skipped)

    def restore(self, group: dict[str, Any]) -> None:
        """Read back what :meth:`publish` wrote.

        Parameters
        ----------
        group : dict
            One of the wrapper's groups.
        """
        blocks = self.partition.of_group(group)

        def fill(target: Tensor, values: Any) -> None:
            target[..., blocks] = torch.as_tensor(values, dtype=target.dtype, device=target.device)

        fill(self.beta, group["meta_beta"])
        fill(self.counts, group["meta_step"])
        for name, values in self.slots.items():
            fill(values, group[f"meta_{name}"])
        self.skipped = torch.full_like(self.skipped, group["meta_skipped"])


class ElementStepSizes:
    """A value per weight or output unit, in the state of each parameter.

    Parameters
    ----------
    options : Options
        What was asked for.
    rule : MetaRule
        How beta moves.
    total : BlockSum
        Sums over processes.
    """

    def __init__(self, options: Options, rule: MetaRule, total: BlockSum) -> None:
        self.options, self.rule, self.total = options, rule, total
        self.skipped = 0
        self.z: dict[Tensor, Tensor] = {}

    def _zeros(self, work: Work, index: int) -> Tensor:
        trace = work.traces[index]
        if self.options.blocks == "nodewise" and trace.ndim > 1:
            return torch.zeros(
                trace.shape[0], *[1] * (trace.ndim - 1), dtype=trace.dtype, device=trace.device
            )
        return torch.zeros_like(trace)

    def entries(self, work: Work, key: str) -> list[Tensor]:
        """Return this process's part of a state entry of every parameter, zeros where there is none yet.

        Parameters
        ----------
        work : Work
            Tensors of this step.
        key : {"beta", "m", "v"}
            Which entry.

        Returns
        -------
        list of Tensor
            Writing to one that is stored writes to the state.
        """
        found = []
        for index, state in enumerate(work.states):
            entry = state.get(f"meta_{key}")
            found.append(self._zeros(work, index) if entry is None else local(entry))
        return found

    def alphas(self, work: Work) -> tuple[list[Tensor], list[Tensor]]:
        """Return step sizes and their derivatives.

        Parameters
        ----------
        work : Work
            Tensors of this step.

        Returns
        -------
        (list of Tensor, list of Tensor)
            One tensor per parameter that broadcasts against it.
        """
        beta, lr = self.entries(work, "beta"), work.group["lr"]
        if self.options.parameterisation == "identity":
            reference = work.group["meta_reference_lr"]
            share = float(lr) / reference
            alphas = torch._foreach_mul(torch._foreach_add(beta, reference), share)
            return list(alphas), [torch.full_like(value, share) for value in beta]
        factors = list(torch._foreach_mul(torch._foreach_exp(beta), lr))
        return factors, factors

    def step_sizes(
        self,
        groups: Sequence[dict[str, Any]],
        names: Mapping[Tensor, str],
        state: Mapping[Tensor, dict[str, Any]],
    ) -> dict[str, Tensor]:
        """Return the step sizes of every parameter.

        Parameters
        ----------
        groups : sequence of dict
            The wrapper's groups.
        names : mapping
            Names of the parameters.
        state : mapping
            The optimizer's state.

        Returns
        -------
        dict of str to Tensor
            Of the parameter's shape, or with size 1 in all dimensions but the first; this process's part.
        """
        sizes = {}
        for group in groups:
            for parameter in group["params"]:
                work = Work(group, group)
                work.parameters.append(parameter)
                work.states.append(state.get(parameter, {}))
                work.traces.append(torch.zeros_like(local(parameter.detach())))
                sizes[names[parameter]] = self.alphas(work)[0][0]
        return sizes

    def history(self, shares: list[float], z: Any, trace_turn: Any) -> list[float]:  # noqa: ARG002
        """Move Y; see :meth:`SharedStepSizes.history`.

        Parameters
        ----------
        shares : list of float
            Y of beta and of each slot.
        z, trace_turn
            Not used.

        Returns
        -------
        list of float
            Y after the step.
        """
        gamma = self.options.gamma
        return [(gamma * shares[0] + 1 - gamma) * (1 - self.rule.lr * self.rule.weight_decay), *shares[1:]]

    def meta_gradient(
        self, works: Sequence[Work], against: Sequence[list[Tensor]] | None = None
    ) -> list[list[Tensor]]:
        """Return z = H^T g of every block.

        Parameters
        ----------
        works : sequence of Work
            This step's tensors; traces as they were before it.
        against : sequence of list of Tensor, optional
            Other vectors in place of the gradients.

        Returns
        -------
        list of list of Tensor
            By work and parameter.
        """
        gradients = []
        for index, work in enumerate(works):
            vectors = work.grads if against is None else against[index]
            products = list(torch._foreach_mul(work.traces, as_dtype(vectors, work.traces)))
            if work.sign < 0:
                torch._foreach_neg_(products)
            nodewise = self.options.blocks == "nodewise"
            gradients.append(row_sums(products, work.parameters) if nodewise else products)
        return gradients

    def move(self, gradients: Sequence[list[Tensor]], works: Sequence[Work]) -> None:
        """Take a meta step, unless some z is not finite: that is looked up, which waits for the device.

        Parameters
        ----------
        gradients : sequence of list of Tensor
            From :meth:`meta_gradient`.
        works : sequence of Work
            This step's tensors.
        """
        self.z = {p: z for work, zs in zip(works, gradients) for p, z in zip(work.parameters, zs)}
        if not self._finite(gradients, works):
            self.skipped += 1
            return
        for work, z in zip(works, gradients):
            counts = [float(state.get("meta_step", 0) + 1) for state in work.states]
            beta = self.entries(work, "beta")
            slots = {name: self.entries(work, name) for name in self.rule.slots}
            moved, new = self.rule.move(beta, z, slots, counts)
            if self.options.alpha_bounds is not None:
                low, high = beta_bounds(self.options, work.group["meta_reference_lr"])
                moved = torch._foreach_clamp_max(torch._foreach_clamp_min(moved, low), high)
            self._store(work, "beta", moved)
            for name, values in new.items():
                self._store(work, name, values)
            for state, count in zip(work.states, counts):
                state["meta_step"] = int(count)

    def _store(self, work: Work, key: str, values: Iterable[Tensor]) -> None:
        for parameter, state, value in zip(work.parameters, work.states, values):
            state[f"meta_{key}"] = spread_like(value, parameter)

    def _finite(self, gradients: Sequence[list[Tensor]], works: Sequence[Work]) -> bool:
        entries: list[tuple[Tensor, Tensor, int]] = []
        for work, z in zip(works, gradients):
            # 0 * x is 0 where x is finite and NaN elsewhere
            flags = torch._foreach_mul(torch._foreach_norm(z, 1), 0.0)
            entries.extend((flag, parameter, 0) for flag, parameter in zip(flags, work.parameters))
        total = self.total(entries, 1, torch.zeros((), device=gradients[0][0].device))
        return bool(torch.isfinite(total).item())

    def publish(self, group: dict[str, Any]) -> None:
        """Write the number of skipped steps into a group; the rest is in the optimizer's state.

        Parameters
        ----------
        group : dict
            One of the wrapper's groups.
        """
        group["meta_skipped"] = float(self.skipped)

    def restore(self, group: dict[str, Any]) -> None:
        """Read back what :meth:`publish` wrote.

        Parameters
        ----------
        group : dict
            One of the wrapper's groups.
        """
        self.skipped = int(group["meta_skipped"])
