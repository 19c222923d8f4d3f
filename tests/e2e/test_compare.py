"""A whole comparison on tiny data, from the command line."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import tiny
from browser import measure, width_of
from tiny import Cli, Spoken, snapshot, untouched

from rigl_compress.experiments import trial_latency as latency
from rigl_compress.experiments.results import ExperimentResult
from rigl_compress.pipeline.bench.timing import TimingPlan
from rigl_compress.pipeline.run_inspection import pixel_map
from rigl_compress.pipeline.run_pipeline import default_backends
from rigl_compress.pipeline.workspace import Run

ROWS = """
name = "tiny-comparison"
about = "Tiny."
seeds = 2

[[row]]
label = "RigL+"
recipe = "plus.toml"
after = "RigL"
paper = "RigL+"

[[row]]
label = "RigL"
recipe = "tiny.toml"
paper = "RigL"

[[row]]
label = "Dense"
recipe = "tiny.toml"
set = ["sparsity.method=dense"]

[[row]]
label = "Bad"
recipe = "tiny.toml"
set = ["sparsity.end=100000"]

[[row]]
label = "Worse"
recipe = "plus.toml"
after = "Bad"
"""
Compare = Callable[..., Spoken]


@pytest.fixture
def compare(cli: Cli, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, in_threads: None) -> Compare:
    """Call `rigl-compress compare` with a tiny comparison: compare("--seeds", 1)."""
    quick = replace(latency.CONFIG, plan=TimingPlan(openings=2, rounds=3, seconds=1))
    monkeypatch.setattr(latency, "CONFIG", quick)
    start = '\n[start]\nrun = "runs/nowhere"\narchitecture = "pruned"\n'
    for name, text in {"tiny": tiny.RECIPE, "plus": tiny.RECIPE + start, "rows": ROWS}.items():
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")

    def call(*options: object, recipe: str = "rows.toml") -> Spoken:
        # One at a time: tracing a network is not for several threads.
        common = ("--data-dir", data_dir, "-o", tmp_path / "out", "--set", "train.epochs=1", "--jobs", 1)
        return cli("compare", "--recipe", tmp_path / recipe, *common, *options)

    return call


def drawn(path: Path) -> bool:
    """Whether a picture shows anything."""
    picture: Any = matplotlib.image.imread(path)
    return bool(min(picture.shape[:2]) > 200 and np.unique(picture.reshape(-1, picture.shape[2]), axis=0).shape[0] > 20)


def runs_and_pictures(out: Path) -> dict[str, bytes]:
    """All files but those that name the command and the date."""
    reports = ("comparison", "experiment")
    return {name: content for name, content in snapshot(out).items() if not name.startswith(reports)}


def test_from_rows_to_the_table(compare: Compare, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with untouched(tmp_path):
        planned = compare("--dry-run")
    assert planned.code == 0
    assert planned.out.splitlines()[:2] == [f"{out / name / 'seed=0'}: to be trained" for name in ("RigL", "RigL+")]

    first = compare()
    assert first.code == 1, first.err
    for row in ("RigL+, printed", "408-100-69", "Dense", "0 (2 failed)", "1.44 (1.48)"):
        assert row in first.out
    assert "Bad, seed 1: failed, InputError: updates end at step 100000" in first.out
    assert "Worse, seed 1: failed, Bad, seed 1, which it starts from, failed" in first.out
    assert "[10/10] " in first.err

    content = json.loads((out / "experiment.json").read_text(encoding="utf-8"))
    assert (content["format"], content["name"], content["seeds"]) == (1, "tiny-comparison", 2)
    assert content["command"].startswith("rigl-compress compare --recipe")
    assert content["environment"]["cpu"]
    rows = {row["label"]: row for row in content["rows"]}
    assert list(rows) == ["RigL+", "RigL", "Dense", "Bad", "Worse"]
    assert rows["RigL"]["printed"]["bytes"] == 31914
    for label in ("RigL", "RigL+", "Dense"):
        for seed, run in enumerate(rows[label]["runs"]):
            assert run["result"] == Run.open(out / label / f"seed={seed}").result()
            check_figures(Run.open(out / label / f"seed={seed}"), run["figures"])
    assert [run["failure"] != "" for label in ("Bad", "Worse") for run in rows[label]["runs"]] == [True] * 4
    assert set(content["latency"]) == {""}
    labels = [model["label"] for model in content["latency"][""]["models"]]
    assert content["latency"][""]["baseline"] == "dense network"
    assert content["latency"][""]["models"][0]["costs"]["nonzeros"] == (784 * 24 + 24 * 16 + 16 * 10) + 24 + 16 + 10
    assert {each["candidate"]["backend"] for each in content["latency"][""]["timings"]} == {*default_backends()}
    assert labels == ["dense network", "RigL", "RigL+", "Dense"]

    text = (out / "comparison.md").read_text(encoding="utf-8")
    assert "| RigL, printed | 408-100-69 | 0.870 | 482.0 | 12.6 | 31,914 |" in text
    for name in ("pixels.png", "pareto-flops.png", "pareto-bytes.png"):
        assert f"]({name})" in text
        assert drawn(out / name)
    page = (out / "comparison.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count("data:image/png;base64,") == 3

    before = {
        name: content for name, content in snapshot(out).items() if not name.startswith(("comparison", "experiment"))
    }
    again = compare("--json")
    assert again.code == 1
    assert json.loads(again.out)["rows"] == content["rows"]
    assert {
        name: content for name, content in snapshot(out).items() if not name.startswith(("comparison", "experiment"))
    } == before


def test_the_page_in_a_browser(compare: Compare, tmp_path: Path) -> None:
    """A long table scrolls in its frame: nothing sticks out of the window, be it wide or narrow."""
    assert compare("--seeds", 1, "--only", "RigL+").code == 0
    for window in (1280, 420):
        page = tmp_path / "out" / "comparison.html"
        assert width_of(page, window, tmp_path / f"profile-{window}") <= window
    pictures = "[...document.images].map(each=>each.clientWidth/each.naturalWidth)"
    shown = measure(tmp_path / "out" / "comparison.html", 1280, tmp_path / "profile", pictures)
    assert shown
    assert min(shown) > 0.65, "the numbers at the axes can be read"
    assert max(shown) <= 1, "no picture is blurred"
    cut = "[...document.querySelectorAll('.scroll')].map(each=>each.scrollWidth-each.clientWidth)"
    assert measure(page, 1280, tmp_path / "cut", cut) == [0], "pixels of the table that are cut off"


def check_figures(run: Run, figures: dict[str, Any]) -> None:
    """The figures of the paper's table, from the network itself."""
    small = tiny.SparseModel.load(run.pruned_file)
    weights = [int(mask.sum()) for mask in small.topology.values()]
    biases = sum(tensor.numel() for name, tensor in small.weights.items() if name.endswith(".bias"))
    bits = sum(mask.numel() for mask in small.topology.values() if not mask.all())
    assert figures["kflops"] == pytest.approx(2 * sum(weights) / 1000)
    assert figures["bytes"] == pytest.approx(4 * (sum(weights) + biases) + bits / 8)
    samples = tiny.STEPS_PER_EPOCH * tiny.BATCH
    assert figures["found_gflops"] == pytest.approx(samples * 2 * (3 * sum(weights) - weights[0]) / 1e9)
    assert figures["disk"] == min(run.export_file(name).stat().st_size for name in ("dense", "sparse", "compact"))
    widths = [small.topology["fc1.weight"].shape[1], *(mask.shape[0] for mask in small.topology.values())]
    assert figures["architecture"] == "-".join(map(str, widths[:-1]))


def test_the_pixels_of_rigl_plus_are_those_that_rigl_left(compare: Compare, tmp_path: Path) -> None:
    assert compare("--only", "RigL+", "--seeds", 1, "--set", "sparsity.sparsity=0.97").code == 0
    first, plus = (Run.open(tmp_path / "out" / label / "seed=0") for label in ("RigL", "RigL+"))
    left = pixel_map(first.model(), first.topology("end"))
    seen = pixel_map(plus.model(), plus.topology("start"))
    assert left is not None
    assert seen is not None
    assert seen.shape == (28, 28)
    assert 0 < (left == 0).sum() < 784
    assert not seen[left == 0].any()
    assert seen.sum() == plus.topology("start")["fc1.weight"].sum()


def test_a_grid_of_short_keys(compare: Compare, tmp_path: Path) -> None:
    grid = ("--grid", "method=set,static", "--grid", "sparsity=.8,.9", "--seeds", 1, "--train-only")
    done = compare(*grid, "--markdown", tmp_path / "here.md", recipe="tiny.toml")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "method=set,_sparsity=0.8" / "seed=0" / "result.json").exists()
    assert not (tmp_path / "out" / "method=set,_sparsity=0.8" / "seed=0" / "pruned.safetensors").exists()
    text = (tmp_path / "here.md").read_text(encoding="utf-8")
    assert text.count("\n| method=") == 4
    assert "latency" not in text
    assert "printed" not in text


def test_sweep_and_compare_share_runs_and_results(compare: Compare, cli: Cli, tmp_path: Path, data_dir: Path) -> None:
    out, grid = tmp_path / "out", ("--grid", "method=set,static", "--set", "train.epochs=1", "--jobs", 1)
    swept = cli("sweep", "--recipe", tmp_path / "tiny.toml", *grid, "--data-dir", data_dir, "-o", out)
    assert swept.code == 0, swept.err
    assert (out / "method=set" / "seed=0" / "result.json").exists()
    first, before = ExperimentResult.load(out), runs_and_pictures(out)
    done = compare(*grid, "--train-only", recipe="tiny.toml")
    assert done.code == 0, done.err
    second, after = ExperimentResult.load(out), runs_and_pictures(out)
    assert second.rows[0].results == first.rows[0].results
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--grid", "method=rigl"], "--grid is for plain recipes"),
        (["--only", "Rigl"], "no row 'Rigl': did you mean 'RigL'?"),
        (["--set", "train.epoch=1"], "row 'RigL': "),
        (["--seeds", "0"], "x>=1"),
    ],
)
def test_bad_options(compare: Compare, options: list[str], said: str, tmp_path: Path) -> None:
    with untouched(tmp_path):
        done = compare(*options)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_an_ambiguous_key(compare: Compare) -> None:
    done = compare("--grid", "weights=fresh,final", recipe="tiny.toml")
    assert (done.code, done.err) == (
        2,
        "error: key 'weights' can mean init.weights or start.weights: write it in full\n",
    )


def test_train_says_what_a_comparison_is_for(cli: Cli) -> None:
    done = cli("train", "--recipe", "mnist-structured")
    assert done.code == 2
    assert "use `rigl-compress compare --recipe mnist-structured`" in done.err
