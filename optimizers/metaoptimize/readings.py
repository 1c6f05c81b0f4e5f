"""What a MetaOptimize shows of what it has learned."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from seedbed.checks import check_number
from seedbed.optimizers.metaoptimize.arguments import Options
from seedbed.optimizers.metaoptimize.blocks import Partition
from seedbed.optimizers.metaoptimize.learned import Learner
from seedbed.optimizers.metaoptimize.products import BlockSum, dots
from seedbed.optimizers.metaoptimize.spread import local
from seedbed.optimizers.metaoptimize.step_sizes import (
    ElementStepSizes,
    SharedStepSizes,
    step_size,
    steps_between,
)


class Readings:
    """The part of :class:`~seedbed.optimizers.MetaOptimize` that only looks."""

    param_groups: list[dict[str, Any]]
    state: Any
    _options: Options
    _partition: Partition
    _scales: SharedStepSizes | ElementStepSizes | None
    _learners: list[Learner]
    _total: BlockSum
    _warned: bool

    @property
    def meta(self) -> str | None:
        """The meta rule."""
        return self._options.meta

    @property
    def meta_parameters(self) -> tuple[str, ...]:
        """What is learned."""
        return self._options.meta_parameters

    @property
    def needs_graph(self) -> bool:
        """Whether the loss must be differentiated with ``create_graph=True``."""
        return self._options.hessian in ("hvp", "diag")

    @property
    def skipped_meta_steps(self) -> int:
        """Steps in which some meta-gradient was not finite."""
        count = 0 if self._scales is None else int(self._scales.skipped)
        self._warn_skipped(count)
        return count

    @torch.no_grad()
    def step_sizes(self) -> dict[str, Any]:
        """Return the present step sizes, schedule included.

        Returns
        -------
        dict of str to float or Tensor
            By block; by parameter, as tensors, for "nodewise" and "weightwise". A block over groups with
            different lr has an entry for each, ``"block@group0"``.
        """
        if isinstance(self._scales, ElementStepSizes):
            return self._scales.step_sizes(self.param_groups, self._partition.names, self.state)
        beta = [0.0] * len(self._partition) if self._scales is None else self._scales.read_lr()
        by_block: dict[int, list[float]] = {}
        keys: dict[int, list[str]] = {}
        for number, group in enumerate(self.param_groups):
            for block in self._partition.of_group(group):
                by_block.setdefault(block, []).append(step_size(self._options, group, beta[block])[0])
                keys.setdefault(block, []).append(f"{self._partition.labels[block]}@group{number}")
        sizes: dict[str, Any] = {}
        for block, values in sorted(by_block.items()):
            same = len(set(values)) == 1
            sizes.update({self._partition.labels[block]: values[0]} if same else zip(keys[block], values))
        return sizes

    def learned_values(self) -> dict[str, dict[str, float]]:
        """Return the present values of the other meta-parameters.

        Returns
        -------
        dict of str to dict of str to float
            By meta-parameter ("weight_decay", "momentum") and block.
        """
        values: dict[str, dict[str, float]] = {}
        rows = self._scales.read() if isinstance(self._scales, SharedStepSizes) else []
        for learner in self._learners:
            beta = rows[self._options.meta_parameters.index(learner.name)]
            values[learner.name] = {
                self._partition.labels[block]: learner.value(group, beta[block])[0]
                for group in self.param_groups
                for block in self._partition.of_group(group)
            }
        return values

    def meta_gradients(self) -> dict[str, Any]:
        """Return z of the last step: its sign says whether a smaller step size would have been better.

        Returns
        -------
        dict of str to float or Tensor
            By block or parameter, as in :meth:`step_sizes`; those of other meta-parameters under
            ``"block.weight_decay"`` and ``"block.momentum"``. Empty if ``meta=None``.
        """
        if self._scales is None:
            return {}
        if isinstance(self._scales, ElementStepSizes):
            return {self._partition.names[p]: z.clone() for p, z in self._scales.z.items()}
        gradients = {}
        for name, row in zip(self._options.meta_parameters, self._scales.z.tolist()):
            end = "" if name == "lr" else f".{name}"
            gradients.update({f"{label}{end}": value for label, value in zip(self._partition.labels, row)})
        return gradients

    @torch.no_grad()
    def trace_norms(self) -> dict[str, float]:
        """Return the length of the trace of every block.

        Returns
        -------
        dict of str to float
            By block, or by parameter for "nodewise" and "weightwise".
        """
        entries = []
        for group in self.param_groups:
            for p in group["params"]:
                if "meta_trace" in self.state.get(p, {}):
                    trace = local(self.state[p]["meta_trace"])
                    entries.append((dots([trace], [trace])[0], p, self._partition[p]))
        like = torch.zeros((), device=self.param_groups[0]["params"][0].device)
        squares = self._total(entries, len(self._partition), like).tolist()
        return {label: math.sqrt(square) for label, square in zip(self._partition.labels, squares)}

    def steps_to_reach(self, lr: float) -> int:
        """Count the meta steps of length ``meta_lr`` from here to a step size.

        With "lion" no run can be quicker; with "adam" and "rmsprop", whose steps vary, it is a guide.

        Parameters
        ----------
        lr : float
            The step size, positive.

        Returns
        -------
        int
            Steps for the block that is farthest away.

        Raises
        ------
        ValueError
            If ``lr`` is not positive, the meta rule is "sgd" or None, whose steps have no length of their
            own, or step sizes are not learned.
        """
        check_number("lr", lr, low=0.0, closed="neither")
        if self._options.meta in ("sgd", None) or "lr" not in self._options.meta_parameters:
            raise ValueError(
                "steps_to_reach needs step sizes that are learned in steps of a set length, "
                f"got meta={self._options.meta!r}, meta_parameters={self._options.meta_parameters!r}"
            )
        ends = [
            end
            for size in self.step_sizes().values()
            for end in ((float(size.min()), float(size.max())) if isinstance(size, Tensor) else (size,))
        ]
        return max(steps_between(self._options, end, lr) for end in ends)

    def _warn_skipped(self, count: int | float) -> None:
        if count and not self._warned:
            self._warned = True
            warnings.warn(
                "a meta-gradient was not finite: those step sizes did not move (see skipped_meta_steps)",
                stacklevel=4,
            )
