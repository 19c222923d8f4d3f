"""Registries: a duplicate is an error, an unknown name suggests the nearest."""

import operator
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.registry import Registry, as_callable
from rigl_compress.core.trust import FromFile


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


# Decorators and references


def double(x: int) -> int:
    return 2 * x


def functions(**options: object) -> Registry[object]:
    return Registry("function", adapt=lambda name, found: as_callable(found, f"function {name!r}"), **options)  # type: ignore[arg-type]


def test_register_is_a_decorator_too() -> None:
    registry = functions()
    assert registry.register("double")(double) is double
    assert registry["double"] is double


def test_what_is_registered_is_of_the_kind() -> None:
    with pytest.raises(InputError, match="function 'three' is a int, expected a function"):
        functions().register("three", 3)


def test_a_name_is_no_reference() -> None:
    with pytest.raises(InputError, match="'a:b' has a colon in its name"):
        functions().register("a:b", double)


def test_an_open_registry_imports_references() -> None:
    registry = functions(group="rigl_compress.nothing")
    assert registry["operator:add"] is operator.add
    with pytest.raises(InputError, match="function 'math:pi' is a float, expected a function"):
        registry["math:pi"]
    with pytest.raises(InputError, match=r"function 'operator:add' of a\.toml is code that would be imported"):
        registry[FromFile("operator:add", "a.toml")]
    assert "operator:add" not in registry, "it has no name here"


def test_a_closed_registry_imports_nothing(colours: Registry[int]) -> None:
    with pytest.raises(InputError, match="unknown colour 'operator:add'"):
        colours["operator:add"]


def test_check_imports_nothing() -> None:
    registry = functions(group="rigl_compress.nothing")
    registry.check("no_such_module:at_all")
    with pytest.raises(InputError, match="unknown function 'add'"):
        registry.check("add")


# Entry points

MODULE = """
def add(a, b):
    return a + b

NUMBER = 3
"""
ENTRIES = """
[rigl_compress.functions]
add = outside_functions:add
double = outside_functions:add
number = outside_functions:NUMBER
absent = outside_functions:no_such_function
broken = outside_broken:function
stopping = outside_stopping:function
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package outside of this one, as pip leaves it."""
    (tmp_path / "outside_functions.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "outside_broken.py").write_text("1 / 0", encoding="utf-8")
    (tmp_path / "outside_stopping.py").write_text("raise SystemExit('stopped')", encoding="utf-8")
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRIES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("outside_functions", "outside_broken", "outside_stopping"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("installed")
def test_entry_points_are_loaded_when_a_name_is_not_found() -> None:
    registry = functions(group="rigl_compress.functions")
    registry.register("double", double)
    assert registry["double"] is double
    assert "outside_functions" not in sys.modules
    with pytest.warns(UserWarning, match="is left out") as warned:
        assert registry["add"](2, 3) == 5  # type: ignore[operator]
    found = sorted(str(each.message) for each in warned)
    assert [text.partition(";")[0] for text in found] == [
        "function 'absent' (outside_functions:no_such_function) is left out: AttributeError: module "
        "'outside_functions' has no attribute 'no_such_function'",
        "function 'broken' (outside_broken:function) is left out: ZeroDivisionError: division by zero",
        "function 'double' (outside_functions:add) is left out: the name is taken by another",
        "function 'number' (outside_functions:NUMBER) is left out: InputError: function 'number' is a int, expected "
        "a function",
        "function 'stopping' (outside_stopping:function) is left out: SystemExit: stopped",
    ]
    assert all(text.endswith("update or uninstall package 'outside'") for text in found)
    assert registry["double"] is double
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(registry) == ["double", "add"], "a warning is given once"


@pytest.mark.usefixtures("installed")
@pytest.mark.filterwarnings("ignore:function .* is left out")
@pytest.mark.parametrize("look", [list, len, lambda registry: "add" in registry])
def test_entry_points_are_loaded_when_all_names_are_listed(look: Callable[[Registry[object]], object]) -> None:
    registry = functions(group="rigl_compress.functions")
    look(registry)
    assert set(registry.loaded) == {"add", "double"}


def test_modules_of_the_package_are_imported_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = functions(modules=("colorsys",))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    registry.register("double", double)
    assert registry["double"] is double
    assert "colorsys" not in sys.modules
    assert list(registry) == ["double"]
    assert "colorsys" in sys.modules
