"""The course of a training as tables, and the account of its weights in the result."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import EPOCHS, Trainer
from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.bench.training_course import (
    TrainingCourse,
    course_lines,
    course_markdown,
    course_of,
    epochs_table,
    weights_table,
)
from rigl_compress.pipeline.sparsity_account import sparsity_account, target_sparsity
from rigl_compress.pipeline.workspace import Run
from rigl_compress.sparsity.sparsifier import Sparsifier


def account(model: nn.Module, **settings: Any) -> dict[str, tuple[float | None, float, str]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = Sparsifier(model, optimizer, total_steps=10, **settings)
    return {row.name: (row.target, row.sparsity, row.dense_because) for row in sparsity_account(model, sparse, None)}


@pytest.mark.filterwarnings("ignore:sparse training does not reach")
def test_every_weight_has_an_account() -> None:
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 16), nn.Linear(16, 4))
    found = account(model, sparsity=0.75, distribution="uniform", dense=("2",))
    assert found == {
        "1.weight": (0.75, 0.75, ""),
        "2.weight": (0.0, 0.0, "named in sparsity.dense"),
        "0.weight": (None, 0.0, "embedding"),
    }


def test_gates_of_recurrent_weights_are_counted_one_by_one() -> None:
    found = account(nn.GRU(8, 8), sparsity=0.5, distribution="uniform", dense=())
    assert found["weight_ih_l0.reset"] == (0.5, 0.5, "")
    assert len(found) == 6


def test_structured_methods_have_targets_for_units() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    sparse = Sparsifier(model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps=10, method="l0")
    assert target_sparsity(sparse, None) is None
    assert {row.target for row in sparsity_account(model, sparse, None)} == {None}


def test_a_run_records_target_and_actual_sparsity(trainer: Trainer) -> None:
    run = trainer("sparsity.layers={fc3 = 0.0}")
    result, end = run.result(), run.topology("end")
    assert result["target_sparsity"] == 0.8
    rows = {row["name"]: row for row in result["sparsity_by_weight"]}
    assert {name: row["sparsity"] for name, row in rows.items()} == {each.name: each.sparsity for each in end.layers}
    assert rows["fc3.weight"]["dense_because"] == "sparsity 0 in sparsity.layers"
    assert rows["fc1.weight"]["target"] == pytest.approx(rows["fc1.weight"]["sparsity"], abs=1e-3)


def test_the_changes_of_all_epochs_lead_from_the_first_topology_to_the_last(trainer: Trainer) -> None:
    run = trainer("sparsity.method=pruning")
    rows = list(run.metrics())
    assert (
        sum(row["dropped"] - row["grown"] for row in rows) == run.topology("start").active - run.topology("end").active
    )
    assert rows[0]["dropped"] > 0
    assert all(row["grown"] == 0 for row in rows)


def test_a_run_that_starts_from_a_topology_has_its_sparsity_as_target(trainer: Trainer) -> None:
    first = trainer("train.epochs=1", run="first")
    start = ('start.weights="initial"', 'start.topology="end"', "sparsity.method=lottery", "sparsity.sparsity=0.5")
    found = trainer("train.epochs=1", f'start.run="{first.path}"', *start).result()
    assert found["target_sparsity"] == first.topology("end").sparsity == found["sparsity"]


@pytest.mark.filterwarnings("ignore:too few samples")
@pytest.mark.parametrize("word", ["magnitude", "magnitude-global", "obs"])
def test_a_run_that_starts_at_chosen_weights_has_the_target_of_its_recipe(trainer: Trainer, word: str) -> None:
    settings = ("train.epochs=1", "sparsity.method=static", "sparsity.layers={fc3 = 0.0}")
    found = trainer(*settings, "start.weights=model", f"start.topology={word}").result()
    assert found["target_sparsity"] == 0.8
    rows = {row["name"]: row for row in found["sparsity_by_weight"]}
    assert rows["fc3.weight"]["dense_because"] == "sparsity 0 in sparsity.layers"
    assert all(row["target"] == pytest.approx(row["sparsity"], abs=1e-2) for row in rows.values())


def test_a_layer_that_a_global_choice_keeps_whole_says_so() -> None:
    model = nn.Sequential(nn.Linear(20, 20, bias=False), nn.Linear(20, 4, bias=False))
    model[1].weight.data.fill_(9.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"method": "static", "sparsity": 0.5, "total_steps": 10}
    sparse = Sparsifier(model, optimizer, topology="magnitude-global", **settings)
    rows = {row.name: row for row in sparsity_account(model, sparse, None, sparse.topology)}
    assert (rows["1.weight"].target, rows["1.weight"].sparsity) == (0.0, 0.0)
    assert rows["1.weight"].dense_because == "all of it is among the largest of the network"
    assert rows["0.weight"].dense_because == ""


def course(epochs: int = 30, **result: Any) -> TrainingCourse:
    facts = {"method": "rigl", "seed": 0, "seconds": 61.5, "sparsity": 0.9, "final_error": 2.0, "best_error": 1.5}
    rows = [
        {"epoch": each + 1, "train_loss": 0.5, "error": 2.0, "dropped": 1200, "grown": 1200} for each in range(epochs)
    ]
    return TrainingCourse({**facts, **result}, tuple(rows))


def test_sentences() -> None:
    weights = [
        {"name": "fc", "size": 90, "target": 0.9, "sparsity": 0.9, "dense_because": ""},
        {"name": "table", "size": 10, "target": None, "sparsity": 0.0, "dense_because": "embedding"},
    ]
    found = course_lines(course(1, target_sparsity=0.9, sparsity_by_weight=weights, left_dense={"table": 10}))
    assert found == [
        "rigl, seed 0: 1 epoch in 61.5 s; error 2.00 % at the end, 1.50 % at best.",
        "Sparsity: target 90.00%; it is 90.00%, 81.00% of all weights.",
    ]
    assert course_lines(course())[1] == "Sparsity: no target; it is 90.00%."


def test_long_trainings_are_shortened_and_say_so() -> None:
    found = epochs_table(course(200))
    assert found.title == "training, 12 of 200 epochs"
    assert [found.rows[0][0], found.rows[-1][0], len(found.rows)] == ["1", "200", 12]
    assert found.columns[2] == "error %"
    assert found.rows[0][3:5] == ("1,200", "1,200")
    assert len(epochs_table(course(200), most=200).rows) == 200


def test_markdown_of_a_run(trainer: Trainer) -> None:
    text = course_markdown(course_of(trainer()))
    assert text.count("\n| ") == 1 + EPOCHS + 1 + 3
    assert "| weight | size | target sparsity | sparsity | left dense because |" in text


def test_runs_of_earlier_versions_have_no_account(trainer: Trainer) -> None:
    run = trainer("train.epochs=1")
    old = {key: value for key, value in run.result().items() if key not in ("target_sparsity", "sparsity_by_weight")}
    run.result_file.write_text(json.dumps(old), encoding="utf-8")
    assert weights_table(course_of(run)).rows == ()


@pytest.mark.parametrize(
    "wrong", ["x", [3], [{"name": "fc1.weight"}], [{"name": 1, "size": 2, "target": 0, "sparsity": 0}]]
)
def test_a_damaged_account_is_said_with_its_file(wrong: Any, trainer: Trainer) -> None:
    run = trainer("train.epochs=1")
    run.result_file.write_text(json.dumps({**run.result(), "sparsity_by_weight": wrong}), encoding="utf-8")
    with pytest.raises(InputError, match=r"result.json: .*sparsity_by_weight"):
        course_of(Run(Path(run.path)))
