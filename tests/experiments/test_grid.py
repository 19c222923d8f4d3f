"""Grids: options, rows, and short keys."""

from pathlib import Path

import pytest

from rigl_compress.core.errors import InputError
from rigl_compress.experiments.grid import full_key, grid_experiment, grid_values, keys_of, load_experiment
from rigl_compress.experiments.spec import Row
from rigl_compress.experiments.trials import trials_of
from rigl_compress.pipeline.recipe import Recipe


@pytest.mark.parametrize(
    ("option", "key", "values"),
    [
        ("train.epochs=1,2", "train.epochs", ["1", "2"]),
        ("sparsity.method=rigl,set", "sparsity.method", ["rigl", "set"]),
        ("learning_rate.drops=[60, 80],[]", "learning_rate.drops", ["[60, 80]", "[]"]),
        ("learning_rate.peak=1e-3,0.2", "learning_rate.peak", ["0.001", "0.2"]),
        ("train.compile=true,false", "train.compile", ["true", "false"]),
        ("sparsity.method=rigl", "sparsity.method", ["rigl"]),
        ("optimizer.name=sgd", "optimizer.name", ["sgd"]),
    ],
)
def test_values(option: str, key: str, values: list[str]) -> None:
    assert grid_values(option) == (key, values)


@pytest.mark.parametrize("option", ["train.epochs", "=1,2", "train.epochs=", ""])
def test_a_wrong_grid(option: str) -> None:
    with pytest.raises(InputError, match=r"is not of the form key=value,value, e\.g\."):
        grid_values(option)


def settings(*grid: str) -> list[tuple[str, ...]]:
    return [row.set for row in grid_experiment("mnist-rigl", grid).row]


def test_every_combination_seed_by_seed() -> None:
    experiment = grid_experiment("mnist-rigl", ["a.b=1,2", "c.d=x,y"])
    every = [("a.b=1", "c.d=x"), ("a.b=1", "c.d=y"), ("a.b=2", "c.d=x"), ("a.b=2", "c.d=y")]
    assert [row.set for row in experiment.row] == every
    found = trials_of(grid_experiment("mnist-rigl", ["epochs=1,2"]).with_seeds(2), Path("out"))
    assert [(trial.recipe.train.epochs, trial.seed) for trial in found] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    assert len({trial.path for trial in found}) == 4


def test_no_grid_is_the_recipe_itself() -> None:
    assert grid_experiment("mnist-rigl", []).row == (Row("mnist-rigl", "mnist-rigl"),)


def test_a_value_named_twice_is_run_once() -> None:
    assert settings("a.b=1,1") == [("a.b=1",)]


def test_values_of_a_grid_apply_after_overrides() -> None:
    found = grid_experiment("mnist-rigl", ["epochs=1,2"], ["model={}", "train.epochs=9"])
    assert [row.set for row in found.row] == [("model={}", "train.epochs=9", f"train.epochs={n}") for n in (1, 2)]


def test_a_comparison_has_its_own_rows() -> None:
    with pytest.raises(InputError, match="--grid is for plain recipes, mnist-structured is a comparison"):
        load_experiment("mnist-structured", ["method=rigl"])
    found = load_experiment("mnist-structured", [], ["train.epochs=1"])
    assert {row.set[-1] for row in found.row} == {"train.epochs=1"}


@pytest.mark.parametrize("setting", ["learning_rate.drops=[60, 80]", 'sparsity.layers."a/b"=0.5', "start.run=../x"])
def test_a_folder_name_stays_in_its_folder(setting: str) -> None:
    name = Row(setting, "mnist-rigl").folder
    assert Path(name).name == name
    assert not set(name) & set(' "/[]*')


def test_a_label_is_short() -> None:
    (row,) = grid_experiment("mnist-rigl", ["sparsity.method=rigl", "train.epochs=5"]).row
    assert (row.label, row.folder) == ("method=rigl, epochs=5", "method=rigl,_epochs=5")


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("method", "sparsity.method"),
        ("sparsity", "sparsity.sparsity"),
        ("epochs", "train.epochs"),
        ("distribution", "sparsity.distribution"),
        ("peak", "learning_rate.peak"),
        ("architecture", "start.architecture"),
        ("model.name", "model.name"),
        ("sparsity.layers.fc1", "sparsity.layers.fc1"),
    ],
)
def test_short_keys(short: str, full: str) -> None:
    assert full_key(short) == full


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("weights", "key 'weights' can mean init.weights or start.weights: write it in full"),
        ("metod", "no key 'metod' in a recipe: did you mean 'method'?"),
        ("seed", "use --seeds for the number of seeds"),
    ],
)
def test_wrong_short_keys(key: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        full_key(key)
    assert said in str(caught.value)


def test_every_key_of_a_recipe_is_found() -> None:
    keys = list(keys_of(Recipe))
    assert len(keys) == len(set(keys)) > 50
    assert {"name", "train.batch", "start.architecture", "sparsity.end", "model.plan"} <= set(keys)


def test_a_grid_is_an_experiment() -> None:
    found = grid_experiment("mnist-methods", ["method=rigl,set", "sparsity=.8,.95"]).with_seeds(2)
    assert [row.label for row in found.row] == [
        *("method=rigl, sparsity=0.8", "method=rigl, sparsity=0.95"),
        *("method=set, sparsity=0.8", "method=set, sparsity=0.95"),
    ]
    sparsities = [trial.recipe.sparsity.sparsity for trial in trials_of(found, Path("out"))]
    assert sparsities == [0.8, 0.95] * 4
    assert [row.label for row in grid_experiment("mnist-methods", []).row] == ["mnist-methods"]
