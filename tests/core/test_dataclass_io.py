"""Plain data to dataclasses and back, strictly."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from rigl_compress.core.dataclass_io import join, parse, plain
from rigl_compress.core.errors import InputError


@dataclass(frozen=True)
class Inner:
    depth: int = 1
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outer:
    name: str
    rate: float = 0.5
    on: bool = False
    shape: Literal["round", "square"] = "round"
    drops: tuple[float, ...] = ()
    end: int | None = None
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    free: Mapping[str, Any] = field(default_factory=dict)


def error_of(**content: Any) -> str:
    with pytest.raises(InputError) as caught:
        parse(Outer, {"name": "a", **content})
    return str(caught.value)


def test_everything_at_once() -> None:
    content = {
        "name": "a",
        "rate": 2,
        "on": True,
        "shape": "square",
        "drops": [1, 2.5],
        "end": 7,
        "inner": {"depth": 3, "shares": {"fc1": 1, "x.y": 0.5}},
        "maybe": {},
        "free": {"hidden": [1, "b"]},
    }
    parsed = parse(Outer, content)
    inner = Inner(3, {"fc1": 1.0, "x.y": 0.5})
    assert parsed == Outer("a", 2.0, True, "square", (1.0, 2.5), 7, inner, Inner(), {"hidden": [1, "b"]})
    assert isinstance(parsed.rate, float)
    assert all(isinstance(drop, float) for drop in parsed.drops)


def test_defaults() -> None:
    assert parse(Outer, {"name": "a"}) == Outer("a")


def test_there_and_back() -> None:
    record = Outer("a", drops=(1.0,), inner=Inner(2, {"b": 0.1}), maybe=Inner())
    content = plain(record)
    assert parse(Outer, content) == record
    assert "end" not in content, "TOML has no None"
    assert content["drops"] == [1.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rate": "fast"}, "rate is 'fast', expected a number"),
        ({"rate": True}, "rate is True, expected a number"),
        ({"name": 3}, "name is 3, expected a text in quotes"),
        ({"on": 1}, "on is 1, expected true or false"),
        ({"on": "yes"}, "on is 'yes', expected true or false"),
        ({"end": 7.0}, "end is 7.0, expected a whole number"),
        ({"end": True}, "end is True, expected a whole number"),
        ({"end": "7"}, "end is '7', expected a whole number"),
        ({"shape": "oval"}, "shape is 'oval', expected one of round, square"),
        ({"shape": 1}, "shape is 1, expected one of round, square"),
        ({"drops": 3}, "drops is 3, expected a list"),
        ({"drops": "3"}, "drops is '3', expected a list"),
        ({"drops": [1, "b"]}, "drops[1] is 'b', expected a number"),
        ({"inner": 3}, "inner is 3, expected a table: set one of its keys, depth, shares"),
        ({"inner": [1]}, "inner is [1], expected a table: set one of its keys, depth, shares"),
        ({"inner": {"depth": "x"}}, "inner.depth is 'x', expected a whole number"),
        ({"inner": {"shares": 0.5}}, "inner.shares is 0.5, expected a table"),
        ({"inner": {"shares": {"fc1": "x"}}}, "inner.shares.fc1 is 'x', expected a number"),
        ({"maybe": {"dept": 1}}, "unknown key 'maybe.dept': did you mean 'depth'? Known: depth, shares"),
        ({"rat": 1}, "unknown key 'rat': did you mean 'rate'? Known: " + ", ".join(sorted(Outer.__annotations__))),
        ({"inner": {"": 1}}, "unknown key 'inner.': known: depth, shares"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_expected(content: dict[str, Any], message: str) -> None:
    assert error_of(**content) == message


def test_a_missing_key_is_named() -> None:
    with pytest.raises(InputError, match="key 'name' is missing"):
        parse(Outer, {})


@pytest.mark.parametrize("content", [3, "a", [1], None])
def test_the_top_level_is_a_table(content: object) -> None:
    with pytest.raises(InputError, match=r"the top level is .*, expected a table"):
        parse(Outer, content)


def test_join() -> None:
    assert join("a.b", "c") == "a.b.c"
