"""A named collection: every extension point of the package is one of these."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from rigl_compress.models.errors import InputError, did_you_mean

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Names to things of one kind. A duplicate name is an error, an unknown one suggests the nearest.

    >>> colours = Registry[int]("colour")
    >>> colours.register("red", 0xFF0000)
    16711680
    >>> list(colours), colours["red"]
    (['red'], 16711680)
    >>> colours["rad"]
    Traceback (most recent call last):
    rigl_compress.models.errors.InputError: unknown colour 'rad': did you mean 'red'? Known: red
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def register(self, name: str, item: T) -> T:
        """Add an item under a new name and hand it back."""
        if name in self._items:
            raise InputError(f"{self.kind} {name!r} is registered twice: choose another name")
        self._items[name] = item
        return item

    def __getitem__(self, name: str) -> T:
        try:
            return self._items[name]
        except KeyError:
            raise InputError(f"unknown {self.kind} {name!r}: {did_you_mean(name, self._items)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
