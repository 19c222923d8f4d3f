"""A named collection: every extension point of the package is one of these."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from threading import RLock
from typing import Any, Generic, TypeVar, cast, overload

from rigl_compress.core.errors import InputError, did_you_mean, first_line
from rigl_compress.core.import_by_name import is_reference, load_reference

T = TypeVar("T")
F = TypeVar("F")
# (name, object) → the item it stands for; raises InputError for an object of another kind.
Adapt = Callable[[str, Any], T]


def _as_it_is(name: str, found: Any) -> Any:
    del name
    return found


class Registry(Mapping[str, T], Generic[T]):
    """Names to items of one kind. A duplicate name is an error, an unknown one suggests the nearest.

    With a `group` of entry points the registry is open: `package.module:NAME` is imported wherever a name is expected,
    and installed packages add items by entry points, which are loaded when a name is not found or all are listed.
    `adapt` turns what code outside of this package provides into an item. `modules` are those of this package that
    register their items on import. `libraries` are other packages by a prefix: the item `prefix:NAME` is what a
    function of this package, given as a reference, makes of NAME.

    >>> colours = Registry[int]("colour")
    >>> colours.register("red", 0xFF0000)
    16711680
    >>> list(colours), colours["red"]
    (['red'], 16711680)
    >>> colours["rad"]
    Traceback (most recent call last):
    rigl_compress.core.errors.InputError: unknown colour 'rad': did you mean 'red'? Known: red
    """

    def __init__(
        self,
        kind: str,
        *,
        group: str = "",
        adapt: Adapt[T] = _as_it_is,
        modules: Sequence[str] = (),
        libraries: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.group = group
        self._adapt = adapt
        self._modules = tuple(modules)
        self._libraries = dict(libraries or {})
        self._items: dict[str, T] = {}
        self._entry_points_loaded = not group
        self._lock = RLock()

    @overload
    def register(self, name: str) -> Callable[[F], F]: ...
    @overload
    def register(self, name: str, item: F) -> F: ...
    def register(self, name: str, item: Any = None) -> Any:
        """Add an item under a new name and return it; without an item, return a decorator that does so.

        >>> sizes = Registry[object]("size")
        >>> @sizes.register("small")
        ... def small(): ...
        >>> sizes["small"] is small
        True
        """
        if item is None:
            return lambda decorated: self.register(name, decorated)
        if is_reference(name):
            raise InputError(f"{self.kind} {name!r} has a colon in its name, which stands for package.module:NAME")
        if name in self._items:
            raise InputError(f"{self.kind} {name!r} is registered twice: choose another name")
        self._items[name] = self._adapt(name, item)
        return item

    @property
    def loaded(self) -> Mapping[str, T]:
        """The items that are registered so far; nothing more is loaded."""
        return self._items

    def check(self, name: str) -> None:
        """Raise if a name is unknown. A reference is not imported, so nothing is known about it yet."""
        if not (self.group and is_reference(name)):
            self[name]

    def __getitem__(self, name: str) -> T:
        prefix, _, rest = name.partition(":")
        if prefix in self._libraries and is_reference(name):
            return self._of_library(self._libraries[prefix], rest)
        if self.group and is_reference(name):
            return self._adapt(name, load_reference(name, self.kind))
        if name not in self:
            raise InputError(f"unknown {self.kind} {name!r}: {did_you_mean(name, self._items)}")
        return self._items[name]

    @staticmethod
    def _of_library(function: str, name: str) -> T:
        """Return what a function of this package makes of a name; it is imported only now, for it needs the library."""
        module, _, attribute = function.partition(":")
        return cast(T, getattr(import_module(module), attribute)(name))

    def __contains__(self, name: object) -> bool:
        if name not in self._items:
            self._load_modules()
        if name not in self._items:
            self._load_entry_points()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        self._load_modules()
        self._load_entry_points()
        return iter(self._items)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _load_modules(self) -> None:
        for module in self._modules:
            import_module(module)

    def _load_entry_points(self) -> None:
        with self._lock:
            if not self._entry_points_loaded:
                self._entry_points_loaded = True  # before the loop: what is loaded may look up names itself
                for entry in entry_points(group=self.group):
                    self._load_entry_point(entry)

    def _load_entry_point(self, entry: EntryPoint) -> None:
        """Add what an installed package provides. One that fails is left out with a warning: the others still work."""
        try:
            item = self._adapt(entry.name, entry.load())
        except (Exception, SystemExit) as error:
            self._leave_out(entry, f"{type(error).__name__}: {first_line(error)}")
            return
        if self._items.setdefault(entry.name, item) != item:
            self._leave_out(entry, "the name is taken by another")

    def _leave_out(self, entry: EntryPoint, reason: str) -> None:
        package = f"package {entry.dist.name!r}" if entry.dist else "its package"
        text = f"{self.kind} {entry.name!r} ({entry.value}) is left out: {reason}; update or uninstall {package}"
        warnings.warn(text, stacklevel=5)


def instance_of(kind: type[T], what: str) -> Adapt[T]:
    """Return an `adapt` for values of a type.

    >>> instance_of(int, "number")("three", 3)
    3
    >>> instance_of(int, "number")("mine:three", "3")
    Traceback (most recent call last):
    rigl_compress.core.errors.InputError: number 'mine:three' is a str, expected a int
    """

    def adapt(name: str, found: Any) -> T:
        if not isinstance(found, kind):
            raise InputError(f"{what} {name!r} is a {type(found).__name__}, expected a {kind.__name__}")
        return found

    return adapt


def as_callable(found: Any, what: str) -> Callable[..., Any]:
    """Check that an object is a function.

    >>> as_callable(3, "decay 'mine:three'")
    Traceback (most recent call last):
    rigl_compress.core.errors.InputError: decay 'mine:three' is a int, expected a function
    """
    if not callable(found):
        raise InputError(f"{what} is a {type(found).__name__}, expected a function")
    return cast(Callable[..., Any], found)
