"""Methods, distributions and decays by reference: in Python, on the command line, and in files, which need trust."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from small_training import Loop
from tiny import Cli

from rigl_compress.core.errors import InputError
from rigl_compress.core.trust import FromFile
from rigl_compress.pipeline.recipe import load_recipe, parse_recipe
from rigl_compress.pipeline.train.stage import RunEnvironment, train
from rigl_compress.pipeline.workspace import Run
from rigl_compress.sparsity.methods import METHODS, register_method

CODE = """
from dataclasses import replace
from rigl_compress.sparsity.methods import METHODS

OWN = replace(METHODS["set"], name="own")

def alike(shapes, density):
    return dict.fromkeys(shapes, density)

def linear(passed, power):
    return 1 - passed
"""
REFERENCES = {
    "sparsity.method": "own_rules:OWN",
    "sparsity.distribution": "own_rules:alike",
    "sparsity.decay": "own_rules:linear",
}


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_rules.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_rules", None)


def test_in_python() -> None:
    loop = Loop(method="own_rules:OWN", distribution="own_rules:alike", decay="own_rules:linear", sparsity=0.7).train(
        20
    )
    assert loop.sparse.method.name == "own"
    assert {round(layer.active / layer.total, 1) for layer in loop.sparse.topology.layers} == {0.3}
    assert loop.sparse.schedule.at(0) == 0.3
    assert loop.sparse.schedule.at(loop.sparse.schedule.end) == 0
    assert loop.sparse.updates > 0


@pytest.mark.parametrize("key", REFERENCES)
def test_a_file_that_names_code_imports_nothing_until_it_is_trusted(
    key: str, cli: Cli, tmp_path: Path, data_dir: Path
) -> None:
    name = key.rpartition(".")[2]
    kept = "\n".join(line for line in tiny.RECIPE.splitlines() if not line.startswith(name))
    (tmp_path / "theirs.toml").write_text(f'{kept}\n{name} = "{REFERENCES[key]}"\n', encoding="utf-8")
    words = ["train", "--recipe", "theirs.toml", "--data-dir", data_dir, "--set", "train.epochs=1", "-o", "run"]
    assert isinstance(getattr(load_recipe("theirs.toml").sparsity, name), FromFile)
    refused = cli(*words)
    assert refused.code == 2
    assert f"{name} '{REFERENCES[key]}' of theirs.toml is code that would be imported and run" in refused.err
    assert "own_rules" not in sys.modules
    assert not (tmp_path / "run").exists()
    trusted = cli(*words, "--trust-code")
    assert trusted.code == 0, trusted.err
    assert getattr(load_recipe("run/recipe.toml").sparsity, name) == REFERENCES[key]


def test_the_user_s_word_is_remembered_for_a_run(cli: Cli, tmp_path: Path, data_dir: Path) -> None:
    (tmp_path / "tiny.toml").write_text(tiny.RECIPE, encoding="utf-8")
    changes = [word for key, value in REFERENCES.items() for word in ("--set", f"{key}={value}")]
    done = cli(
        "train", "--recipe", "tiny.toml", "--data-dir", data_dir, "--set", "train.epochs=1", "-o", "run", *changes
    )
    assert done.code == 0, done.err
    assert Run.open(tmp_path / "run").result()["method"] == "own_rules:OWN"
    again = cli("train", "--resume", "run", "--data-dir", data_dir)
    assert again.code == 0, again.err
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    moved = cli("train", "--resume", "elsewhere", "--data-dir", data_dir)
    assert moved.code == 2
    assert "add --trust-code" in moved.err


def test_looking_at_a_recipe_imports_nothing() -> None:
    recipe = parse_recipe('name = "a"\n[sparsity]\nmethod = "own_rules:OWN"\ndecay = "own_rules:linear"', "a.toml")
    recipe.sparsity.check_method()
    assert recipe.sparsity.method_name == "own_rules:OWN"
    assert "own_rules" not in sys.modules


def test_a_recipe_has_no_values_that_are_no_text() -> None:
    recipe = tiny.recipe()
    with pytest.raises(InputError, match=r"sparsity\.method is a Method, expected its name: register it"):
        replace(recipe, sparsity=replace(recipe.sparsity, method=METHODS["rigl"]))


def test_a_registered_method_is_trained_by_its_name(registries: None, tmp_path: Path, data_dir: Path) -> None:
    register_method(replace(METHODS["rigl"], name="mine"))
    train(tiny.recipe("sparsity.method=mine", "train.epochs=1"), tmp_path / "run", RunEnvironment("cpu", data_dir))
    assert Run.open(tmp_path / "run").result()["method"] == "mine"
