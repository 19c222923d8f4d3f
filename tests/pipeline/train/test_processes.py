"""Several real processes that train one network: what one process trains, or one clear error."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.train.process_group import Launched, connect
from rigl_compress.pipeline.workspace import Run

ROOT = Path(__file__).parents[3]
TESTS = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (sys.platform == "linux" and torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs Linux and a torch with gloo",
)


def ran(script: Path, *words: object) -> str:
    alone = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment = {**alone, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, script, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_two_processes_train_what_one_trains() -> None:
    methods = [word for method in ("rigl", "l0") for word in ("--method", method)]
    found = ran(ROOT / "benchmarks" / "distributed.py", "--steps", 30, "--processes", 2, *methods)
    assert found.count("| same |") == 8


@pytest.mark.slow
def test_every_method_in_two_and_three_processes() -> None:
    found = ran(ROOT / "benchmarks" / "distributed.py", "--steps", 60)
    assert found.count("| same |") >= 76
    assert "differ" not in found


def test_killed_runs_go_on() -> None:
    assert "| all | 2 | 2 | 0 | 0 | 0 | 0 |" in ran(ROOT / "benchmarks" / "kill_ranks.py", "--kills", 2)


# What goes wrong


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(root: Path) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(ran(TESTS / "rank_scenarios.py", root).splitlines()[-1])
    return answers


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("recipes", "rank 1 has another recipe than rank 0: start all processes with the same"),
        ("code", "rank 1 has another code of rigl-compress than rank 0: start all processes with the same"),
        ("data", "rank 1 has another number of samples than rank 0 (310 and 100, rank 0 has 300 and 100)"),
        ("damaged", "rank 1: "),
        ("batch", "train.batch is 1, too few samples for 2 processes"),
        ("occupied", "exists: choose another folder, resume with --resume RUN, or replace it with --force"),
        ("port", "is in use: choose another (MASTER_PORT, or torchrun --master-port)"),
        ("other_command", "`list` runs in one process: start it without torchrun"),
    ],
)
def test_rank_0_alone_says_what_is_wrong(found: dict[str, Any], scenario: str, words: str) -> None:
    said, *others = found[scenario]["said"]
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert words in errors[0]
    assert others in ([], [""])
    assert all(found[scenario]["codes"])
    assert found[scenario]["codes"][0] == 2


def test_nothing_is_written_before_the_processes_agree(found: dict[str, Any], root: Path) -> None:
    assert not any((root / name).exists() for name in ("recipes", "data-run", "damaged-run", "batch", "port"))


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("killed", "rank 1 "),
        ("hanging", "rank 1 ended without an error, or no longer answers"),
        ("disk", "File too large"),
    ],
)
def test_a_run_that_broke_says_why_and_goes_on(found: dict[str, Any], root: Path, scenario: str, words: str) -> None:
    answer = found[scenario]
    errors = [line for line in answer["said"][0].splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert words in errors[0]
    assert answer["codes"] == [2, 0]
    assert (answer["left"], answer["files"], answer["done"]) == (0, [], False)
    whole, broken = (Run.open(root / name) for name in ("whole", scenario))
    tiny.assert_same_model(whole.model(), broken.model())
    assert tiny.metrics_of(whole) == tiny.metrics_of(broken)


def test_a_backend_that_is_not_there() -> None:
    if torch.distributed.is_nccl_available():
        pytest.skip("this torch has nccl")
    with pytest.raises(InputError, match="this PyTorch has no nccl, which several processes on this device need"):
        connect(Launched(0, 2, 0, 2, "localhost:1"), "cuda:0")


def test_sigterm_writes_a_checkpoint_and_the_run_goes_on_bit_by_bit(found: dict[str, Any], root: Path) -> None:
    assert found["stopped"]["codes"] == [143, 0]
    assert not found["stopped"]["done"]
    last = found["stopped"]["said"][0].splitlines()[-1]
    assert last.startswith("stopped by SIGTERM")
    assert "resume with --resume RUN" in last
    whole, stopped = (Run.open(root / name) for name in ("whole", "stopped"))
    tiny.assert_same_model(whole.model(), stopped.model())
    assert tiny.metrics_of(whole) == tiny.metrics_of(stopped)
    assert whole.result()["environment"]["processes"] == 2
