"""Registries: a duplicate is an error, an unknown name suggests the nearest."""

import pytest

from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.registry import Registry


@pytest.fixture
def colours() -> Registry[int]:
    registry = Registry[int]("colour")
    registry.register("red", 1)
    registry.register("green", 2)
    return registry


def test_it_is_a_mapping_in_the_order_of_registration(colours: Registry[int]) -> None:
    assert dict(colours) == {"red": 1, "green": 2}
    assert list(colours) == ["red", "green"]
    assert len(colours) == 2


def test_register_hands_the_item_back(colours: Registry[int]) -> None:
    assert colours.register("blue", 3) == 3


def test_a_second_item_of_a_name_is_refused_and_the_first_stays(colours: Registry[int]) -> None:
    with pytest.raises(InputError, match="colour 'red' is registered twice: choose another name"):
        colours.register("red", 9)
    assert colours["red"] == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gren", "unknown colour 'gren': did you mean 'green'? Known: green, red"),
        ("xyz", "unknown colour 'xyz': known: green, red"),
        ("", "unknown colour '': known: green, red"),
    ],
)
def test_an_unknown_name(colours: Registry[int], name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        colours[name]
    assert str(caught.value) == message


def test_looking_does_not_raise(colours: Registry[int]) -> None:
    assert "red" in colours
    assert "rad" not in colours
    assert 7 not in colours


def test_all_known_names_are_listed_sorted() -> None:
    assert did_you_mean("q", ["b", "a"]) == "known: a, b"
