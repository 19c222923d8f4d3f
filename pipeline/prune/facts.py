"""What is known of the values in a network: which unit each channel belongs to, and which channels never change."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor


class Source(Enum):
    """Values without tracked channels."""

    INPUT = "computed from the network's input alone"  # a layer may pick what it needs of it
    OPAQUE = "not understood"  # whatever feeds it stays


@dataclass(frozen=True)
class Channels:
    """A value whose channels along `axis` are units of the network.

    Two channels of the same unit stay or go together. A channel that has the same value for every input and at every
    position has it in `constant`; nan marks the others.
    """

    axis: int
    units: Tensor  # int64 [channels]
    constant: Tensor  # float64 [channels]

    @property
    def varies(self) -> Tensor:
        """Which channels depend on the input."""
        return self.constant.isnan()

    def picked(self, index: Tensor | slice, axis: int | None = None) -> "Channels":
        """Some of the channels, possibly along another axis."""
        return Channels(self.axis if axis is None else axis, self.units[index], self.constant[index])

    def with_constant(self, constant: Tensor) -> "Channels":
        """The same units after an operation on each channel by itself. A constant that is not finite is not folded."""
        return replace(self, constant=torch.where(constant.isfinite(), constant, torch.nan))

    def unknown(self) -> "Channels":
        """The same units, of whose values nothing is known."""
        return replace(self, constant=torch.full_like(self.constant, torch.nan))

    def along(self, axis: int) -> "Channels":
        """The same channels on another axis."""
        return replace(self, axis=axis)

    def repeated(self, times: int, axis: int) -> "Channels":
        """Each channel `times` times in a row: flattening with the axes behind the channels."""
        return Channels(axis, self.units.repeat_interleave(times), self.constant.repeat_interleave(times))

    def tiled(self, times: int, axis: int) -> "Channels":
        """All channels in a row, `times` times: flattening with the axes ahead of the channels."""
        return Channels(axis, self.units.repeat(times), self.constant.repeat(times))


Fact = Channels | Source | tuple["Channels | Source", ...] | None


class Units:
    """The units of a network, and which of them must stay or go together (union-find)."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._pinned: set[int] = set()
        self._staying: set[int] | None = None  # roots of the pinned units, until something changes

    def fresh(self, count: int) -> Tensor:
        """New units, each on its own."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return torch.arange(first, first + count)

    def couple(self, *together: Tensor) -> None:
        """Let the units at the same position of each list stay or go together.

        >>> units = Units()
        >>> a, b = units.fresh(2), units.fresh(2)
        >>> units.couple(a, b)
        >>> units.pin(a[:1])
        >>> units.pinned(b).tolist()
        [True, False]
        """
        self._staying = None
        for members in zip(*(part.tolist() for part in together), strict=True):
            for other in members[1:]:
                self._parent[self._root(other)] = self._root(members[0])

    def couple_all(self, members: Tensor) -> None:
        """Let all these units stay or go together."""
        self._staying = None
        for other in members.tolist()[1:]:
            self._parent[self._root(other)] = self._root(int(members[0]))

    def pin(self, units: Tensor) -> None:
        """Let these units stay in any case."""
        self._staying = None
        self._pinned.update(units.tolist())

    def pinned(self, units: Tensor) -> Tensor:
        """Say which of the units stay, because they or units coupled with them are pinned."""
        if self._staying is None:
            self._staying = {self._root(unit) for unit in self._pinned}
        return torch.tensor([self._root(unit) in self._staying for unit in units.tolist()], dtype=torch.bool)

    def _root(self, unit: int) -> int:
        path = []
        while self._parent[unit] != unit:
            path.append(unit)
            unit = self._parent[unit]
        for passed in path:  # shorten the way for the next one
            self._parent[passed] = unit
        return unit


def joined(parts: Sequence[Channels], axis: int) -> Channels:
    """Several values one behind the other along their channel axis."""
    return Channels(axis, torch.cat([part.units for part in parts]), torch.cat([part.constant for part in parts]))
