"""Texts of files are marked, and stay marked on their way through values and processes."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from rigl_compress.core.errors import InputError
from rigl_compress.core.import_by_name import as_factory, load_reference
from rigl_compress.core.trust import (
    FromFile,
    code_is_trusted,
    from_file,
    record_trained_code,
    trusted_if_trained_here,
    trusting_code,
)
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.pipeline.recipe import parse_recipe

OWN = FromFile("collections:Counter", "a.toml")


@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, lambda text: pickle.loads(pickle.dumps(text))])
def test_the_mark_goes_along(way: object) -> None:
    again = way(OWN)  # type: ignore[operator]
    assert (again, again.file) == (OWN, "a.toml")


def test_a_marked_text_is_a_text() -> None:
    assert OWN == "collections:Counter"
    assert hash(OWN) == hash("collections:Counter")
    assert tomli_w.dumps({"a": OWN}) == 'a = "collections:Counter"\n'


def test_a_recipe_is_marked_and_what_the_user_sets_is_not() -> None:
    text = 'name = "a"\n[model]\nname = "x:y"\n[data]\nname = "x:z"'
    recipe = parse_recipe(text, "a.toml", ["model.name=u:v"])
    assert not isinstance(recipe.model.name, FromFile)
    assert isinstance(recipe.data.name, FromFile)
    assert isinstance(replace(recipe, seed=3).data.name, FromFile)
    assert parse_recipe(recipe.to_toml(), "b.toml").data.name.file == "b.toml"  # type: ignore[attr-defined]


def test_the_word_holds_as_long_as_its_block() -> None:
    with pytest.raises(InputError, match=r"model 'collections:Counter' of a\.toml is code that would be imported"):
        load_reference(OWN, "model")
    with trusting_code():
        assert callable(load_reference(OWN, "model"))
        with trusting_code(False):
            assert code_is_trusted(), "an inner block takes nothing away"
        assert not isinstance(from_file("x:y", "a.toml"), FromFile)
    assert not code_is_trusted()
    assert isinstance(ModelSpec("torch.nn:Identity").build(), object), "what Python code names is the user's word"


def test_tables_without_an_end() -> None:
    nested: object = "x"
    for _ in range(100):
        nested = [nested]
    with pytest.raises(InputError, match=r"a\.json has tables in tables, 64 deep and more"):
        from_file(nested, "a.json")


def text() -> str:
    return ""


def counted() -> "dict[str, int]":
    return {}


class Sub(dict[str, int]):
    """A kind of dict."""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("os:system", "is a builtin_function_or_method, expected a function that returns a dict"),
        ("subprocess:Popen", "does not return a dict: name a function that returns one"),
        ("test_trust_factories:text", "does not return a dict: name a function that returns one"),
        ("math:pi", "is a float, expected a function that returns a dict"),
    ],
)
def test_what_cannot_give_it_is_not_called(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "test_trust_factories", __import__("sys").modules[__name__])
    with pytest.raises(InputError, match=message):
        as_factory(load_reference(name, "model"), name, dict, "dict")
    for good in ("counted", "Sub"):
        found = load_reference(f"test_trust_factories:{good}", "model")
        assert callable(as_factory(found, good, dict, "dict"))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "calls": 3}', '{"format": 2}'])
def test_a_damaged_memory_vouches_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setenv("RIGL_COMPRESS_STATE", str(tmp_path / "state"))
    record_trained_code(tmp_path / "run", [(OWN, {"a": 1})])
    file = tmp_path / "run" / "model.safetensors"
    assert not isinstance(trusted_if_trained_here(OWN, {"a": 1}, file), FromFile)
    assert isinstance(trusted_if_trained_here(OWN, {"a": 2}, file), FromFile)
    next((tmp_path / "state").rglob("*.json")).write_text(content, encoding="utf-8")
    assert isinstance(trusted_if_trained_here(OWN, {"a": 1}, file), FromFile)
