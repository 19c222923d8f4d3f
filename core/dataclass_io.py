"""Plain data ↔ frozen dataclasses, strictly: a wrong type or an unknown key is an error."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rigl_compress.core.errors import InputError, did_you_mean

T = TypeVar("T")


def parse(kind: type[T], content: Any, where: str = "") -> T:
    """Build a dataclass from nested plain data.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     x: float
    ...     label: str = ""
    >>> parse(Point, {"x": 1})
    Point(x=1.0, label='')
    >>> parse(Point, {"x": 1, "lable": "a"})
    Traceback (most recent call last):
    rigl_compress.core.errors.InputError: unknown key 'lable': did you mean 'label'? Known: label, x
    """
    if not isinstance(content, Mapping):
        keys = ", ".join(sorted(field.name for field in fields(kind)))  # type: ignore[arg-type]
        raise InputError(f"{where or 'the top level'} is {content!r}, expected a table: set one of its keys, {keys}")
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in content:
        if key not in known:
            raise InputError(f"unknown key {join(where, key)!r}: {_where_else(key, hints) or did_you_mean(key, known)}")
    for name, field in known.items():
        if name not in content and field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"key {join(where, name)!r} is missing")
    return kind(**{key: convert(hints[key], value, join(where, key)) for key, value in content.items()})


def _where_else(key: str, hints: Mapping[str, Any]) -> str:
    """Name the tables that have a key of this name, if any."""
    tables = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    found = [f"{name}.{key}" for name, hint in tables.items() if key in {field.name for field in fields(hint)}]
    return f"write {' or '.join(found)}" if found else ""


def join(where: str, key: str) -> str:
    """Name a key of a table.

    >>> join("train", "lr"), join("", "seed")
    ('train.lr', 'seed')
    """
    return f"{where}.{key}" if where else key


def convert(hint: Any, value: Any, where: str) -> Any:
    """Check a plain value against a type, and make tuples and nested dataclasses of it."""
    if hint is Any:
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        return parse(hint, value, where)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else convert(next(arg for arg in arguments if arg is not type(None)), value, where)
    if origin is Literal:
        if value not in arguments:
            raise InputError(f"{where} is {value!r}, expected one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"{where} is {value!r}, expected a list")
        hints = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(hints) != len(value):
            raise InputError(f"{where} is {value!r}, expected a list of {len(hints)}")
        pairs = zip(hints, value, strict=True)
        return tuple(convert(each, item, f"{where}[{index}]") for index, (each, item) in enumerate(pairs))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise InputError(f"{where} is {value!r}, expected a table")
        return {key: convert(arguments[1], item, join(where, key)) for key, item in value.items()}
    return _scalar(hint, value, where)


def _scalar(hint: type, value: Any, where: str) -> Any:
    if isinstance(value, int) and abs(value) >= 2**64:
        raise InputError(f"{where} is a number of {value.bit_length()} bits, expected at most 64")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{where} is {value!r}, expected {_NAMES.get(hint, hint.__name__)}")
    return value


_NAMES = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}


def plain(record: Any) -> dict[str, Any]:
    """Turn a dataclass into nested plain data that TOML and JSON can hold; what is None is left out."""
    content: dict[str, Any] = _plain(asdict(record))
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
