"""Channels of values that can only be removed together: a channel goes through element-wise operators unchanged.

Each channel of each value is a member of a class. A class is needed if an operator reads one of its members with a
weight that is not zero, and pinned if an operator that is not followed has to do with it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass
class ChannelClasses:
    """Values with their channel axis, and which of their channels belong together."""

    axes: dict[str, int] = field(default_factory=dict)
    members: dict[str, Array] = field(default_factory=dict)  # by value: the number of each channel
    parents: list[int] = field(default_factory=list)
    pinned: dict[int, str] = field(default_factory=dict)  # channels that stay, with the operator that reads them
    needed: set[int] = field(default_factory=set)

    def add(self, value: str, axis: int, count: int) -> None:
        """Add a value with channels of its own."""
        first = len(self.parents)
        self.parents.extend(range(first, first + count))
        self.axes[value], self.members[value] = axis, np.arange(first, first + count)

    def share(self, value: str, axis: int, channels: Array) -> None:
        """Add a value whose channels are those of others."""
        self.axes[value], self.members[value] = axis, np.asarray(channels)

    def root(self, channel: int) -> int:
        """Return the channel that stands for a class."""
        while self.parents[channel] != channel:
            self.parents[channel] = self.parents[self.parents[channel]]
            channel = self.parents[channel]
        return channel

    def roots(self, value: str) -> list[int]:
        """Return the classes of the channels of a value."""
        return [self.root(int(each)) for each in self.members[value]]

    def join(self, one: str, other: str) -> None:
        """Let the channels of two values belong together."""
        for a, b in zip(self.members[one], self.members[other], strict=True):
            self.parents[self.root(int(a))] = self.root(int(b))

    def pin(self, values: Iterable[str], reason: str) -> None:
        """Keep all channels of some values."""
        for value in values:
            self.pinned.update({int(each): reason for each in self.members.get(value, ())})

    def need(self, value: str, used: Array) -> None:
        """Mark the channels of a value that are read."""
        self.needed.update(int(each) for each, reads in zip(self.members[value], used, strict=True) if reads)

    def marked(self, channels: Iterable[int]) -> set[int]:
        """Return the classes of some channels."""
        return {self.root(each) for each in channels}
