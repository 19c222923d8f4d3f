"""The whole line, from a recipe to a report."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import onnxruntime as ort
import pytest
import torch
from tiny import RECIPE, Cli, Spoken

from rigl_compress.pipeline.run_pipeline import EXPORTS, bench_report, default_backends
from rigl_compress.pipeline.workspace import Run
from rigl_compress.pruning import dead_neurons


@pytest.fixture
def line(cli: Cli, tmp_path: Path, data_dir: Path) -> "Line":
    return Line(cli, tmp_path, data_dir)


class Line:
    def __init__(self, cli: Cli, root: Path, data_dir: Path) -> None:
        self.cli, self.recipe, self.run, self.data_dir = cli, root / "tiny.toml", Run(root / "run"), data_dir
        self.recipe.write_text(RECIPE, encoding="utf-8")

    def __call__(self, *options: object, recipe: bool = True) -> Spoken:
        given = ["--recipe", self.recipe, "--set", "train.epochs=1"] if recipe else []
        return self.cli("run", *given, "-o", self.run.path, "--data-dir", self.data_dir, "--threads", 1, *options)


def stages(spoken: Spoken) -> dict[str, str]:
    lines = [
        line.split(": ")
        for line in spoken.err.splitlines()
        if line.split(":")[0] in ("train", "prune", "export", "bench", "report")
    ]
    return {name: "up to date" if what == "up to date" else "done" for name, what in lines}


def test_from_a_recipe_to_a_report(line: Line) -> None:
    first = line()
    assert first.code == 0, first.err
    assert stages(first) == dict.fromkeys(("train", "prune", "export", "bench", "report"), "done")
    run = line.run
    assert f"report: {run.page_file}" in first.out
    assert run.page_file.read_text(encoding="utf-8").startswith("<!doctype html>")
    text = run.markdown_file.read_text(encoding="utf-8")
    assert "| compact |" in text
    assert "| dense network | onnxruntime |" in text
    assert "| fc1.weight | 18,816 | 80.97% | 80.97% |  |" in text
    assert "dense network: the same network with all of its weights" in text
    found = bench_report(run)
    assert (found.baseline, found.recipe["name"]) == ("dense network", "tiny")
    whole, dense, sparse, compact = (found.model(each.label) for each in EXPORTS.values())
    assert whole.costs.nonzeros == whole.costs.parameters == dense.costs.parameters > dense.costs.nonzeros
    assert whole.accuracy is None  # its weights are those before training
    assert {timing.candidate.backend for timing in found.timings} == {*default_backends()}
    assert all(found.ratio(timing) for timing in found.timings)
    assert compact.bytes < sparse.bytes < dense.bytes
    assert compact.costs == sparse.costs
    # The file of the pruned network costs what pruning said it would.
    after = json.loads(run.prune_file.read_text(encoding="utf-8"))["report"]["after"]
    assert compact.costs.sparse_flops == after["flops"]
    assert compact.costs.bitmask_bytes == after["bitmask_bytes"]
    assert ort.InferenceSession(run.export_file("compact"), providers=["CPUExecutionProvider"])

    again = line(recipe=False)
    assert stages(again) == dict.fromkeys(("train", "prune", "export", "bench", "report"), "up to date")
    assert again.out == first.out

    told = line("--from", "export", "--until", "export", "--values", "fp16", "--json", recipe=False)
    assert stages(told) == {"train": "up to date", "prune": "up to date", "export": "done"}
    assert json.loads(told.out)["recipe"] == "tiny"
    planned = line("--values", "fp16", "--dry-run", recipe=False)
    assert planned.out.splitlines() == [
        *("train: up to date", "prune: up to date", "export: up to date", "bench: pending", "report: pending"),
    ]

    other = line("--set", "sparsity.method=static", "--until", "prune")
    assert stages(other) == {"train": "done", "prune": "done"}
    assert run.result()["method"] == "static"
    assert not run.bench_file.exists()  # of the earlier run


def test_dead_neurons_are_analysed_once_and_each_network_is_exported_once(
    cli: Cli, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysed = spy(monkeypatch, dead_neurons, "analyse")
    exported = spy(monkeypatch, torch.onnx, "export")
    words = ["--recipe", "mnist-demo", "--set", "train.epochs=1", "-o", tmp_path / "run", "--data-dir", data_dir]
    done = cli("run", *words, "--threads", 1)
    assert done.code == 0, done.err
    assert stages(done) == dict.fromkeys(("train", "prune", "export", "bench", "report"), "done")
    assert (len(analysed), len(exported)) == (1, 3)  # exported: the dense network, as trained, and pruned


def spy(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[str]:
    """Count the calls of a function that stands in a module."""
    calls, function = [], getattr(module, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, counted)
    return calls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from", "trian"], "unknown stage 'trian': did you mean 'train'?"),
        (["--until", "benhc"], "unknown stage 'benhc': did you mean 'bench'?"),
        (["--backend", "torhc"], "unknown backend 'torhc'"),
        (["--values", "fp8"], "unknown value type 'fp8'"),
    ],
)
def test_bad_input_is_said_before_training(line: Line, options: list[str], message: str) -> None:
    spoken = line(*options)
    assert spoken.code == 2
    assert message in spoken.err
    assert not line.run.path.exists()


def test_no_recipe(cli: Cli, tmp_path: Path) -> None:
    assert "no recipe" in cli("run", "-o", tmp_path / "none").err
