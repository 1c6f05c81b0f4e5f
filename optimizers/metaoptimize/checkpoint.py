"""State dicts: what the wrapper adds to the wrapped optimizer's, and the way back.

Per-parameter entries (the traces) are in ``state`` beside the optimizer's own. What belongs to blocks is in
``param_groups`` as plain numbers, so that a checkpoint loads with ``weights_only=True`` and passes through
distributed checkpoints.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from seedbed.optimizers.metaoptimize.arguments import Options
from seedbed.optimizers.metaoptimize.blocks import Partition

KEYS = (
    "meta_alpha",
    "meta_rule",
    "meta_learns",
    "meta_blocks",
    "meta_reference_lr",
    "meta_taken",
    "meta_y",
    "meta_beta",
    "meta_m",
    "meta_v",
    "meta_step",
    "meta_skipped",
)
"""What the wrapper adds to each group."""

_WHAT = {"meta_rule": "meta", "meta_learns": "meta_parameters", "meta_blocks": "blocks"}


def signature(options: Options, partition: Partition, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint must agree with, in plain values.

    Parameters
    ----------
    options : Options
        What was asked for.
    partition : Partition
        The blocks.
    group : mapping
        A parameter group.

    Returns
    -------
    dict
        Rule, meta-parameters and blocks.
    """
    blocks = options.blocks if options.fine else [partition[parameter] for parameter in group["params"]]
    return {
        "meta_rule": str(options.meta),
        "meta_learns": list(options.meta_parameters),
        "meta_blocks": blocks,
    }


def complete(state_dict: Mapping[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Check a state dict and fill in what it lacks if it is that of a bare optimizer.

    Parameters
    ----------
    state_dict : mapping
        To be loaded.
    groups : list of dict
        The wrapper's groups, published.

    Returns
    -------
    dict
        A copy, with all of the wrapper's keys in every group.

    Raises
    ------
    ValueError
        If it comes from another meta rule, other meta-parameters or other blocks.
    """
    saved_groups = []
    for number, saved in enumerate(state_dict["param_groups"]):
        filled = dict(saved)
        if number < len(groups):
            for key in KEYS:
                if key in _WHAT and key in saved and _plain(saved[key]) != _plain(groups[number][key]):
                    raise ValueError(
                        f"the state dict was made with other {_WHAT[key]} in group {number}: {saved[key]!r}, "
                        f"not {groups[number][key]!r}"
                    )
                filled.setdefault(key, groups[number].get(key))
        saved_groups.append(filled)
    return {**state_dict, "param_groups": saved_groups}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def restore_types(
    state_dict: Mapping[str, Any],
    groups: list[dict[str, Any]],
    state: Mapping[Tensor, dict[str, Any]],
    type_of: Callable[[Tensor], torch.dtype],
) -> None:
    """Put the wrapper's entries back in their own type: loading has cast them to the parameters'.

    Parameters
    ----------
    state_dict : mapping
        Just loaded.
    groups : list of dict
        The wrapper's groups.
    state : mapping
        The wrapper's state; changed in place.
    type_of : callable
        Type of a parameter's trace.
    """
    for number, parameter in _parameters(state_dict, groups):
        for key, value in state_dict["state"].get(number, {}).items():
            if key.startswith("meta_") and isinstance(value, Tensor):
                state[parameter][key] = value.to(device=parameter.device, dtype=type_of(parameter))


def _parameters(state_dict: Mapping[str, Any], groups: list[dict[str, Any]]) -> Iterator[tuple[Any, Tensor]]:
    saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    return zip(saved, chain.from_iterable(group["params"] for group in groups))
