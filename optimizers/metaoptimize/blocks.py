"""Which weights share a step size."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor

from seedbed.optimizers.metaoptimize.arguments import FINE_BLOCKS, Blocks


class Partition:
    """The block of every parameter.

    A nodewise or weightwise partition has many blocks in one parameter; there the "block" of a parameter is
    the parameter itself.

    Parameters
    ----------
    blocks : str, sequence or callable
        See :class:`~seedbed.optimizers.MetaOptimize`.
    groups : sequence of mapping
        Parameter groups with ``params`` and, optionally, ``param_names``.

    Attributes
    ----------
    labels : list of str
        One per block.

    Raises
    ------
    KeyError
        If a name is unknown.
    ValueError
        If lists are not a partition: the message names what is missing or there twice.
    """

    def __init__(self, blocks: Blocks, groups: Sequence[Mapping[str, Any]]) -> None:
        self.blocks = blocks
        self.labels: list[str] = []
        self.names: dict[Tensor, str] = {}
        self._index: dict[Tensor, int] = {}
        self._keys: dict[Hashable, int] = {}
        self._groups = 0
        if isinstance(blocks, (list, tuple)):
            self._name(groups)
            self._assign_listed(blocks)
            self._groups = len(groups)
        else:
            for group in groups:
                self.extend(group)

    def __getitem__(self, parameter: Tensor) -> int:
        """Return the block of a parameter."""
        return self._index[parameter]

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.labels)

    def extend(self, group: Mapping[str, Any]) -> None:
        """Assign the parameters of a further group.

        A listed partition gets one new block for all of them.

        Parameters
        ----------
        group : mapping
            A parameter group.
        """
        self._name([group])
        number, self._groups = self._groups, self._groups + 1
        for parameter in group["params"]:
            self._put(parameter, *self._key(parameter, number))

    def of_group(self, group: Mapping[str, Any]) -> list[int]:
        """List the blocks that a group touches.

        Parameters
        ----------
        group : mapping
            A parameter group.

        Returns
        -------
        list of int
            In order of first appearance.
        """
        return list(dict.fromkeys(self._index[parameter] for parameter in group["params"]))

    def _key(self, parameter: Tensor, number: int) -> tuple[Hashable, str]:
        name = self.names[parameter]
        if callable(self.blocks):
            key = self.blocks(name, parameter)
            return key, str(key)
        if self.blocks == "scalar":
            return "scalar", "all"
        if self.blocks == "layerwise" or self.blocks in FINE_BLOCKS:
            return ("parameter", name), name
        return ("group", number), f"group{number}"

    def _put(self, parameter: Tensor, key: Hashable, label: str) -> None:
        if key not in self._keys:
            self._keys[key] = len(self.labels)
            self.labels.append(label)
        self._index[parameter] = self._keys[key]

    def _name(self, groups: Sequence[Mapping[str, Any]]) -> None:
        for group in groups:
            given = group.get("param_names")
            for position, parameter in enumerate(group["params"]):
                self.names[parameter] = given[position] if given else f"param{len(self.names)}"

    def _assign_listed(self, blocks: Sequence[Any]) -> None:
        parameters = list(self.names)
        if all(isinstance(entry, int) and not isinstance(entry, bool) for entry in blocks):
            self._assign_counts(blocks, parameters)
            return
        by_name = {name: parameter for parameter, name in self.names.items()}
        for number, members in enumerate(blocks):
            if isinstance(members, (str, Tensor)) or not isinstance(members, Sequence):
                raise TypeError(
                    f"blocks[{number}] must be a list of parameters or their names, got {members!r}"
                )
            for member in members:
                self._put_listed(self._find(member, by_name), number)
        missing = [self.names[parameter] for parameter in parameters if parameter not in self._index]
        if missing:
            raise ValueError(f"blocks must hold every parameter once; missing: {', '.join(missing)}")

    def _assign_counts(self, counts: Sequence[int], parameters: list[Tensor]) -> None:
        if any(count < 1 for count in counts) or sum(counts) != len(parameters):
            raise ValueError(
                f"blocks must be positive counts that sum to the {len(parameters)} tensors "
                f"({', '.join(self.names.values())}); {list(counts)} sums to {sum(counts)}"
            )
        rest = iter(parameters)
        for number, count in enumerate(counts):
            for _ in range(count):
                self._put_listed(next(rest), number)

    def _find(self, member: Any, by_name: Mapping[str, Tensor]) -> Tensor:
        if isinstance(member, Tensor):
            if member not in self.names:
                raise KeyError(
                    f"blocks has a tensor of shape {tuple(member.shape)} that the optimizer does not have"
                )
            return member
        if member not in by_name:
            raise KeyError(
                f"blocks names {member!r}; the optimizer has {', '.join(by_name)}. Names come from giving it "
                "model.named_parameters()"
            )
        return by_name[member]

    def _put_listed(self, parameter: Tensor, number: int) -> None:
        if parameter in self._index:
            raise ValueError(f"blocks must hold every parameter once; twice: {self.names[parameter]}")
        self._put(parameter, ("listed", number), f"block{number}")


def cells(partition: Partition | None, groups: Sequence[Mapping[str, Any]]) -> list[tuple[int, list[Tensor]]]:
    """Split groups so that within a part all parameters share group and block.

    Parameters
    ----------
    partition : Partition or None
        The blocks; None leaves the groups whole.
    groups : sequence of mapping
        Parameter groups.

    Returns
    -------
    list of (int, list of Tensor)
        Group number and parameters of each part.
    """
    parts: list[tuple[int, list[Tensor]]] = []
    for number, group in enumerate(groups):
        if partition is None:
            parts.append((number, list(group["params"])))
            continue
        split: dict[int, list[Tensor]] = {block: [] for block in partition.of_group(group)}
        for parameter in group["params"]:
            split[partition[parameter]].append(parameter)
        parts.extend((number, members) for members in split.values())
    return parts
