"""Grids of runs."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny
from tiny import Trainer, snapshot, untouched

from rigl_compress.models.errors import InputError
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.markdown import markdown
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.sweep import Cell, Outcome, cells, columns, grid_values, plan, rows, sweep
from rigl_compress.pipeline.train.stage import train
from rigl_compress.pipeline.workspace import Run


@pytest.fixture
def source(tmp_path: Path) -> str:
    """The tiny recipe as a file, one epoch long."""
    path = tmp_path / "tiny.toml"
    path.write_text(tiny.recipe("train.epochs=1").to_toml(), encoding="utf-8")
    return str(path)


# The grid


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


def test_every_combination_seed_by_seed() -> None:
    found = cells(["a=1,2", "b=x,y"], range(2))
    settings = [("a=1", "b=x"), ("a=1", "b=y"), ("a=2", "b=x"), ("a=2", "b=y")]
    assert found == [Cell(each, seed) for seed in range(2) for each in settings]
    assert len({cell.folder for cell in found}) == 8


def test_no_grid_is_the_recipe_itself() -> None:
    assert cells([], [0]) == [Cell((), 0)]
    assert Cell((), 0).folder == "seed=0"


def test_a_value_named_twice_is_run_once() -> None:
    assert cells(["a=1,1"], [0]) == [Cell(("a=1",), 0)]


@pytest.mark.parametrize("setting", ["learning_rate.drops=[60, 80]", 'sparsity.layers."a/b"=0.5', "start.run=../x"])
def test_a_folder_name_stays_in_its_folder(setting: str) -> None:
    name = Cell((setting,), 0).folder
    assert Path(name).name == name
    assert not set(name) & set(' "/[]*')


def test_a_label_is_short() -> None:
    assert Cell(("sparsity.method=rigl", "train.epochs=5"), 1).label == "method=rigl, epochs=5"


# Runs


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process takes seconds to import torch; where it is not what is tested, a thread will do."""
    monkeypatch.setattr("rigl_compress.pipeline.sweep.ProcessPoolExecutor", lambda jobs, **_: ThreadPoolExecutor(jobs))


def test_two_by_two(source: str, tmp_path: Path, trainer: Trainer) -> None:
    """In two processes; one setting fails in both seeds, and the others are not lost."""
    said: list[str] = []
    here = trainer.here()
    circumstances = type(here)(here.device, here.data_dir, say=said.append)
    every = cells(["sparsity.end=11,10000"], [0, 1])
    out = tmp_path / "sweep"
    outcomes = sweep(source, ["sparsity.method=set"], every, out, 2, circumstances)

    assert [outcome.cell for outcome in outcomes] == every
    good, bad = outcomes[::2], outcomes[1::2]
    for outcome in good:
        assert outcome.result is not None
        assert (outcome.result["method"], outcome.result["seed"]) == ("set", outcome.cell.seed)
        assert outcome.result["environment"]["threads"] == 1
        assert Run.open(out / outcome.cell.folder).model().step == tiny.STEPS_PER_EPOCH
    for outcome in bad:
        assert outcome.result is None
        assert outcome.failure.startswith("InputError: updates end at step 10000, but the run has only 15 steps")
    assert len(said) == 4
    assert all(line.startswith(f"[{number}/4] ") for number, line in enumerate(said, start=1))

    kept = json.loads((out / "sweep.json").read_text())
    assert [run["settings"] for run in kept["runs"]] == [list(cell.settings) for cell in every]
    assert kept["overrides"] == ["sparsity.method=set"]


@pytest.mark.usefixtures("in_this_process")
def test_finished_runs_are_not_repeated(
    source: str, tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []

    def counting(recipe: Recipe, *arguments: Any, **options: Any) -> SparseModel:
        trained.append(recipe.seed)
        return train(recipe, *arguments, **options)

    def go(count: int) -> list[Outcome]:
        return sweep(source, [], cells([], range(count)), tmp_path / "out", 1, trainer.here())

    monkeypatch.setattr("rigl_compress.pipeline.sweep.train", counting)
    first = go(2)
    before = snapshot(tmp_path / "out")
    again = go(3)
    assert again[:2] == first
    assert trained == [0, 1, 2]
    after = snapshot(tmp_path / "out")
    assert all(after[name] == content for name, content in before.items() if name != "sweep.json")
    assert len(json.loads(after["sweep.json"])["runs"]) == 3


@pytest.mark.usefixtures("in_this_process")
def test_an_unfinished_run_goes_on(source: str, tmp_path: Path, trainer: Trainer) -> None:
    ((cell,), whole) = cells([], [0]), tmp_path / "whole"
    recipe = plan(source, ["train.epochs=3"], [cell], tmp_path)[0]
    train(recipe, whole, trainer.here())
    with pytest.raises(tiny.StoppedError):
        train(recipe, tmp_path / "out" / cell.folder, trainer.here(tiny.stop_at(3 * tiny.STEPS_PER_EPOCH)))
    assert len(list(Run.open(tmp_path / "out" / cell.folder).metrics())) == 2
    (outcome,) = sweep(source, ["train.epochs=3"], [cell], tmp_path / "out", 1, trainer.here())
    assert outcome.failure == ""
    tiny.assert_same_model(Run.open(tmp_path / "out" / cell.folder).model(), Run.open(whole).model())


def test_a_wrong_recipe_is_an_error_before_the_first_run(source: str, tmp_path: Path, trainer: Trainer) -> None:
    every = cells(["sparsity.sparsity=0.5,1.5"], [0])
    with untouched(tmp_path), pytest.raises(InputError, match=r"sparsity is 1\.5"):
        sweep(source, [], every, tmp_path / "out", 1, trainer.here())


def test_a_run_of_another_recipe_is_not_overwritten(source: str, tmp_path: Path, trainer: Trainer) -> None:
    (cell,) = cells([], [0])
    Run.create(tmp_path / "out" / cell.folder, tiny.recipe("train.epochs=9"))
    with untouched(tmp_path), pytest.raises(InputError, match="holds a run of another recipe: choose another folder"):
        sweep(source, [], [cell], tmp_path / "out", 1, trainer.here())


@pytest.mark.usefixtures("in_this_process")
def test_after_an_interrupt_no_run_is_begun(source: str, tmp_path: Path, trainer: Trainer) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    here = trainer.here()
    every = cells([], range(12))
    with pytest.raises(KeyboardInterrupt):
        sweep(source, [], every, tmp_path / "out", 1, type(here)(here.device, here.data_dir, say=interrupt))
    assert 1 <= len(list((tmp_path / "out").iterdir())) < 12


# The table


def outcome(setting: str, seed: int, error: float | None) -> Outcome:
    cell = Cell((setting,), seed)
    if error is None:
        return Outcome(cell, failure="InputError: no")
    alive = {"architecture": f"{error}-2-3", "kflops": error, "bitmask_bytes": 1000 * error}
    gflops = {"exact-schedule": 2 * error, "appendix-h": 3 * error}
    return Outcome(
        cell,
        {"final_error": error, "best_error": error - 0.5, "sparsity": 0.9, "alive": alive, "training_gflops": gflops},
    )


def test_mean_and_deviation_over_the_seeds() -> None:
    lines = list(rows([outcome("m=a", 0, 1.0), outcome("m=b", 0, 4.0), outcome("m=a", 1, 3.0)]))
    assert lines[0][:4] == ("m=a", "2", "2.00 ± 1.41", "1.50 ± 1.41")
    assert lines[0][6:] == ("2.0 ± 1.4", "2,000 ± 1,414", "4.0 ± 2.8")
    assert lines[1][:4] == ("m=b", "1", "4.00", "3.50")
    assert next(rows([outcome("m=b", 0, 4.0)], "appendix-h"))[-1] == "12.0"


def test_failures_are_in_the_table() -> None:
    outcomes = [outcome("m=a", 0, 1.0), outcome("m=a", 1, None), outcome("m=b", 0, None)]
    lines = list(rows(outcomes))
    assert lines[0][:3] == ("m=a", "1 (1 failed)", "1.00")
    assert lines[1][:3] == ("m=b", "failed", "InputError: no")
    assert all(len(line) == len(columns(outcomes)) for line in lines)


def test_markdown() -> None:
    outcomes = [outcome("m=a", 0, 1.0), outcome("m=b", 0, None)]
    table = markdown(columns(outcomes), rows(outcomes)).splitlines()
    assert len(table) == 4
    assert table[0].startswith("| settings | seeds | error %, final | error %, best |")
    assert {line.count("|") for line in table} == {len(columns(outcomes)) + 1}


def test_the_metric_of_the_task_is_in_the_table() -> None:
    facts = {"metric": "bpc", "sparsity": 0.9, "training_gflops": {"exact-schedule": 1.0}}
    texts = [Outcome(Cell(("m=a",), seed), {**facts, "final_bpc": 2 + seed, "best_bpc": 1.5 + seed}) for seed in (0, 1)]
    assert columns(texts)[2:4] == ("bits per character, final", "bits per character, best")
    assert next(rows(texts))[2:4] == ("2.500 ± 0.707", "2.000 ± 0.707")
    both = columns([*texts, outcome("m=a", 2, 1.0), outcome("m=a", 3, None)])
    assert both[2] == "bits per character or error %, final"
