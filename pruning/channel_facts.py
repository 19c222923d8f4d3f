"""Facts about the values in a network: which unit each channel belongs to, and which channels are constant."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor


class Source(Enum):
    """Values without tracked channels."""

    INPUT = "computed from the network's input alone"  # a layer may pick what it needs of it
    OPAQUE = "computed by an operation without a rule"  # all units of its inputs are pinned


@dataclass(frozen=True)
class Channels:
    """A value whose channels along `axis` are units of the network.

    Channels of the same unit are kept or removed together. `constant` has the value of each channel that is equal for
    every input and at every position; nan marks the others.
    """

    axis: int
    units: Tensor  # int64 [channels]
    constant: Tensor  # float64 [channels]

    @property
    def varies(self) -> Tensor:
        """Which channels depend on the input."""
        return self.constant.isnan()

    def picked(self, index: Tensor | slice, axis: int | None = None) -> "Channels":
        """Return some of the channels, possibly along another axis."""
        return Channels(self.axis if axis is None else axis, self.units[index], self.constant[index])

    def with_constant(self, constant: Tensor) -> "Channels":
        """Return the same units after an operation per channel. A constant that is not finite is not folded."""
        return replace(self, constant=torch.where(constant.isfinite(), constant, torch.nan))

    def unknown(self) -> "Channels":
        """Return the same units, with unknown values."""
        return replace(self, constant=torch.full_like(self.constant, torch.nan))

    def along(self, axis: int) -> "Channels":
        """Return the same channels on another axis."""
        return replace(self, axis=axis)

    def repeated(self, times: int, axis: int) -> "Channels":
        """Return each channel `times` times in a row: flattening with the axes behind the channels."""
        return Channels(axis, self.units.repeat_interleave(times), self.constant.repeat_interleave(times))

    def tiled(self, times: int, axis: int) -> "Channels":
        """Return all channels in a row, `times` times: flattening with the axes ahead of the channels."""
        return Channels(axis, self.units.repeat(times), self.constant.repeat(times))


@dataclass(frozen=True)
class Grid:
    """A value whose channels lie along several axes, as the heads of attention and their features do.

    An axis of length 1 is none of them, so the scores of a single head have no axis at all.
    """

    axes: tuple[int, ...]  # ascending
    units: Tensor  # int64, with an axis for each of `axes`
    constant: Tensor  # float64, of the same shape

    @property
    def varies(self) -> Tensor:
        """Which channels depend on the input."""
        return self.constant.isnan()

    def with_constant(self, constant: Tensor) -> "Grid":
        """Return the same units after an operation per channel. A constant that is not finite is not folded."""
        return replace(self, constant=torch.where(constant.isfinite(), constant, torch.nan))

    def unknown(self) -> "Grid":
        """Return the same units, with unknown values."""
        return replace(self, constant=torch.full_like(self.constant, torch.nan))


Tracked = Channels | Grid
# A tuple is a value with several parts: a split, the answer of a recurrent layer, the states of its cells.
Fact = Channels | Grid | Source | tuple["Fact", ...] | None


def axes_of(fact: Tracked) -> tuple[int, ...]:
    """Return the axes along which a value has channels."""
    return (fact.axis,) if isinstance(fact, Channels) else fact.axes


def along_axes(mask: Tensor) -> list[Tensor]:
    """Return for each axis of a mask which of its slices have anything.

    >>> [kept.tolist() for kept in along_axes(torch.tensor([[True, True, False], [False, False, False]]))]
    [[True, False], [True, True, False]]
    """
    return [mask.movedim(axis, 0).flatten(1).any(dim=1) if mask.dim() > 1 else mask for axis in range(mask.dim())]


class Units:
    """The units of a network, and which of them are kept or removed together (union-find)."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._pinned: set[int] = set()
        self._staying: set[int] | None = None  # roots of the pinned units, until something changes

    def fresh(self, count: int) -> Tensor:
        """Create units, each independent of the others."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return torch.arange(first, first + count)

    def couple(self, *together: Tensor) -> None:
        """Couple the units at the same position of each list: they are kept or removed together.

        >>> units = Units()
        >>> a, b = units.fresh(2), units.fresh(2)
        >>> units.couple(a, b)
        >>> units.pin(a[:1])
        >>> units.pinned(b).tolist()
        [True, False]
        """
        self._staying = None
        for members in zip(*(part.flatten().tolist() for part in together), strict=True):
            for other in members[1:]:
                self._parent[self._root(other)] = self._root(members[0])

    def couple_all(self, members: Tensor) -> None:
        """Couple all these units: they are kept or removed together."""
        self._staying = None
        first, *others = members.flatten().tolist()
        for other in others:
            self._parent[self._root(other)] = self._root(first)

    def pin(self, units: Tensor) -> None:
        """Pin units: they are always kept."""
        self._staying = None
        self._pinned.update(units.flatten().tolist())

    def pinned(self, units: Tensor) -> Tensor:
        """Return which of the units are kept, because they or units coupled with them are pinned."""
        if self._staying is None:
            self._staying = {self._root(unit) for unit in self._pinned}
        staying = [self._root(unit) in self._staying for unit in units.flatten().tolist()]
        return torch.tensor(staying, dtype=torch.bool).reshape(units.shape)

    def _root(self, unit: int) -> int:
        path = []
        while self._parent[unit] != unit:
            path.append(unit)
            unit = self._parent[unit]
        for passed in path:  # path compression
            self._parent[passed] = unit
        return unit


def joined(parts: Sequence[Channels], axis: int) -> Channels:
    """Concatenate values along their channel axis."""
    return Channels(axis, torch.cat([part.units for part in parts]), torch.cat([part.constant for part in parts]))
