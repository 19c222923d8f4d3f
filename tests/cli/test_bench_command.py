"""`rigl-compress bench`: what it prints, writes and refuses."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_graphs import model, node, weight
from tiny import Cli, Trainer, untouched

from rigl_compress.pipeline.bench import bench_report as report

QUICK = ["--openings", "2", "--rounds", "3"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A large model and a small one."""
    paths = tmp_path / "large.onnx", tmp_path / "small.onnx"
    for path, outputs in zip(paths, (64, 4), strict=True):
        constants = {"w": weight(8, outputs, zeros=outputs)}
        onnx.save(model([node("MatMul", "x w", "y")], {"x": ("batch", 8)}, constants), path)
    return paths


def test_tables(cli: Cli, files: tuple[Path, Path]) -> None:
    spoken = cli("bench", *files, *QUICK, "--profile")
    assert spoken.code == 0, spoken.err
    rows = [line.split() for line in spoken.out.splitlines()]
    assert next(row for row in rows if row[:1] == ["small"])[1] == f"{files[1].stat().st_size:,}"
    assert "baseline" in spoken.out
    assert "small, by operator" in spoken.out


def test_json(cli: Cli, files: tuple[Path, Path]) -> None:
    told = json.loads(cli("bench", files[1], "--against", files[0], "--baseline", "large", *QUICK, "--json").out)
    assert (told["format"], told["baseline"]) == (1, "large")
    assert [each["label"] for each in told["models"]] == ["small", "large"]
    assert told["models"][0]["costs"]["nodes"][0]["dense_flops"] == 64
    assert told["timings"][0]["derived"]["ratio"] > 0
    assert len(told["timings"][0]["samples"]) == 2
    assert told["models"][0]["footprint"]["load_seconds"] > 0
    assert told["command"].startswith("rigl-compress bench")


def test_files_are_written(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    page, text, report = tmp_path / "new" / "r.html", tmp_path / "r.md", tmp_path / "r.json"
    spoken = cli("bench", *files, *QUICK, "--html", page, "--markdown", text, "--report", report)
    assert spoken.code == 0, spoken.err
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "| small |" in text.read_text(encoding="utf-8")
    assert json.loads(report.read_text(encoding="utf-8"))["format"] == 1


def test_conditions(cli: Cli, files: tuple[Path, Path]) -> None:
    met = cli("bench", *files, *QUICK, "--assert", "size<1x", "--assert", "flops<=0.1x")
    assert met.code == 0
    assert "met: size<1x, small: " in met.err
    missed = cli("bench", *files, *QUICK, "--assert", "size<0.01x", "--json")
    assert missed.code == 1
    assert "NOT met: size<0.01x, small: " in missed.err
    (verdict,) = json.loads(missed.out)["conditions"]
    assert (verdict["subject"], verdict["holds"]) == ("small", False)


def test_inputs_from_a_file(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.ones((5, 8), dtype=np.float32))
    told = json.loads(cli("bench", files[0], "--inputs", tmp_path / "inputs.npz", *QUICK, "--json").out)
    assert told["timings"][0]["candidate"]["batch"] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--assert", "speed<=1x"], "names no known metric"),
        (["--backend", "onxruntime"], "unknown backend 'onxruntime': did you mean 'onnxruntime'?"),
        (["--backend", "torch"], "pass the run folder instead"),
        (["--baseline", "mall"], "did you mean 'small'"),
        (["--shape", "z=1,8"], "the model has no input 'z'"),
        (["--shape", "x=1,9"], "does not fit"),
        (["--shape", "x"], "not of the form name=1,3,224,224"),
        (["--inputs", "none.npz"], "none.npz does not exist"),
        (["--provider", "CUDAExecutionProvider"], "no provider 'CUDAExecutionProvider'"),
        (["--seconds", "0"], "seconds is 0.0, expected a time above 0"),
        (["--against", "none.onnx"], "none.onnx does not exist"),
    ],
)
def test_bad_input(cli: Cli, files: tuple[Path, Path], tmp_path: Path, options: list[str], message: str) -> None:
    with untouched(tmp_path):
        spoken = cli("bench", files[1], *QUICK, "--html", tmp_path / "r.html", *options)
    assert spoken.code == 2
    assert spoken.out == ""
    assert message in spoken.err
    assert spoken.err.count("\n") == 1


def test_the_same_file_twice(cli: Cli, files: tuple[Path, Path]) -> None:
    assert "is given twice" in cli("bench", files[0], files[0]).err


def test_files_that_are_no_models(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"no model")
    assert "is not an ONNX file" in cli("bench", tmp_path / "no.onnx").err


def test_a_pruned_run_that_is_slower_is_told_on_stderr(
    cli: Cli, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --json, too. Whether it is slower is for the tests of statistics to say."""
    run = trainer("train.epochs=1")
    assert cli("prune", run.path).code == 0
    monkeypatch.setattr(report, "is_slower", lambda ratio: True)
    spoken = cli("bench", run.path, *QUICK, "--json")
    assert "was pruned and is slower than" in spoken.err
    assert json.loads(spoken.out)["timings"][0]["derived"]["slower_than_trained"] is True
