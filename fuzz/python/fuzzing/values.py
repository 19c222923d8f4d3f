"""Mutations of plain data, as in JSON and TOML: values, types and keys change, the syntax stays valid."""

import json
import tomllib
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

import tomli_w

from fuzzing.binary import EDGES, mutate_bytes

TEXTS = (
    "",
    " ",
    ".",
    "..",
    "/",
    "a" * 300,
    "[bold]",
    "[/]",
    "\x00",
    "\ud7ff",
    "é",
    "nan",
    "1e999",
    "{seed}",
    "builtins:dict",
)
NUMBERS = (*EDGES, -(2**63), 2**64, 10**30, 0.5, -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"))


def mutate_json(data: bytes, rng: Random) -> bytes:
    """Change a JSON text in its values; now and then in its bytes."""
    if rng.random() < 0.1:
        return mutate_bytes(data, rng)
    try:
        content = json.loads(data)
    except ValueError:
        return mutate_bytes(data, rng)
    return json.dumps(mutate_value(content, rng), ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def mutate_json_lines(data: bytes, rng: Random) -> bytes:
    """Change one line of a file with a JSON text in each."""
    lines = data.splitlines() or [b"{}"]
    place = rng.randrange(len(lines))
    lines[place] = mutate_json(lines[place], rng)
    return b"\n".join(lines) + b"\n"


def mutate_toml(data: bytes, rng: Random) -> bytes:
    """Change a TOML text in its values; now and then in its bytes."""
    if rng.random() < 0.1:
        return mutate_bytes(data, rng)
    try:
        return tomli_w.dumps(mutate_value(tomllib.loads(data.decode()), rng)).encode("utf-8", "surrogatepass")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return mutate_bytes(data, rng)


def mutate_value(content: Any, rng: Random) -> Any:
    """Change plain data in one to three places."""
    holder = {"": deepcopy(content)}
    for _ in range(rng.randint(1, 3)):
        root, *inner = _places(holder)
        _change(*(rng.choice(inner) if inner and rng.random() < 0.97 else root), holder, rng)
    return holder.get("")


def _places(container: Any) -> Iterator[tuple[Any, Any]]:
    for key in container if isinstance(container, dict) else range(len(container)):
        yield container, key
        if isinstance(container[key], dict | list):
            yield from _places(container[key])


def _change(container: Any, key: Any, holder: dict[str, Any], rng: Random) -> None:
    chance = rng.random()
    if container is holder or chance < 0.6:
        container[key] = _another(container[key], holder, rng)
    elif chance < 0.75:
        del container[key]
    elif isinstance(container, dict):
        container[_another_key(key, holder, rng)] = container.pop(key) if chance < 0.9 else deepcopy(container[key])
    else:
        container.insert(key, deepcopy(container[key]))


def _another_key(key: str, holder: dict[str, Any], rng: Random) -> str:
    known = [name for container, name in _places(holder) if isinstance(container, dict)]
    return str(rng.choice((*known, *TEXTS, key + "x")))


def _another(value: Any, holder: dict[str, Any], rng: Random) -> Any:
    """Return another value: of the same type mostly, of any other, or one that stands elsewhere."""
    chance = rng.random()
    if chance < 0.15:
        container, key = rng.choice(list(_places(holder)))
        return deepcopy(container[key])
    if chance < 0.4:
        return rng.choice((None, True, False, 0, 1.5, "", "text", [], {}, [value], {"x": value}, [[]], *NUMBERS[:6]))
    return _same_type(value, rng)


def _same_type(value: Any, rng: Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice((*NUMBERS, value + 1, value - 1, value * 2, -value, str(value)))
    if isinstance(value, str):
        return _another_text(value, rng)
    if isinstance(value, list):
        return rng.choice((value[:-1], value * 2, value[::-1], [*value, *value[:1]], [value]))
    return {key: value[key] for key in list(value)[1:]} if isinstance(value, dict) else rng.choice(NUMBERS)


def _another_text(value: str, rng: Random) -> str:
    ways: tuple[Callable[[], str], ...] = (
        lambda: rng.choice(TEXTS),
        lambda: value[: rng.randrange(len(value) + 1)],
        lambda: value + rng.choice(TEXTS),
        lambda: mutate_bytes(value.encode("utf-8", "replace"), rng).decode("utf-8", "replace"),
        lambda: _mutated_inside(value, rng),
    )
    return rng.choice(ways)()


def _mutated_inside(value: str, rng: Random) -> str:
    """JSON within a text is JSON."""
    return mutate_json(value.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
