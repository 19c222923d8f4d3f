"""A run that was stopped at any moment and resumed is the run that was never stopped, bit by bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from tiny import Cli, StoppedError, Trainer, stop_at, untouched

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.train import training_loop as loop
from rigl_compress.pipeline.workspace import Run

MIDDLE = 2 * tiny.STEPS_PER_EPOCH + 7  # an iteration in the third of four epochs


@pytest.fixture(autouse=True)
def every_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners are called at every iteration, so that they can stop a run anywhere."""
    monkeypatch.setattr(loop, "TICK", 1)


def assert_same_run(one: Run, other: Run) -> None:
    tiny.assert_same_model(one.model(), other.model())
    assert one.topology("start") == other.topology("start")
    assert one.topology("end") == other.topology("end")
    assert tiny.metrics_of(one) == tiny.metrics_of(other)
    different = {"seconds", "command", "environment"}
    results = [{key: value for key, value in run.result().items() if key not in different} for run in (one, other)]
    assert results[0] == results[1]


def stopped_and_resumed(trainer: Trainer, *overrides: str, at: int = MIDDLE) -> Run:
    with pytest.raises(StoppedError):
        trainer(*overrides, run="stopped", listener=stop_at(at))
    return trainer(*overrides, run="stopped", resume=True)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("method", ["rigl", "set", "snfs", "dnw", "pruning", "deepr"])
def test_every_kind_of_method_and_optimizer(trainer: Trainer, method: str, optimizer: str) -> None:
    rate = {"sgd": 0.1, "adam": 0.003}[optimizer]
    settings = [f"sparsity.method={method}", f"optimizer.name={optimizer}", f"learning_rate.peak={rate}"]
    whole = trainer(*settings, run="whole")
    assert_same_run(stopped_and_resumed(trainer, *settings), whole)
    assert whole.model().topology.sparsity > 0.7


@pytest.mark.parametrize(
    "setting",
    [
        "train.checkpoint_every=2",
        "train.checkpoint_every=3",
        "train.evaluate_every=3",
        "train.accumulate=4",  # 15 batches: three are left over at the end of an epoch
        "train.multiplier=1.5",
        "optimizer.name=adamw",
        "data.holdout=60",
    ],
)
def test_every_kind_of_training(trainer: Trainer, setting: str) -> None:
    whole = trainer(setting, run="whole")
    assert_same_run(stopped_and_resumed(trainer, setting), whole)


@pytest.mark.parametrize("method", ["rigl", "static", "set"])
def test_the_scale_of_half_precision(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """It is doubled after every third step, so that gradients soon overflow and steps are left out."""
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, growth_interval=3))
    settings = ["train.precision=float16", f"sparsity.method={method}", "sparsity.interval=7"]
    whole = trainer(*settings, run="whole")
    for epoch in range(1, tiny.EPOCHS):
        stopped = stopped_and_resumed(trainer, *settings, at=epoch * tiny.STEPS_PER_EPOCH + 1)
        assert_same_run(stopped, whole)
        shutil.rmtree(stopped.path)


@pytest.mark.parametrize("at", [1, tiny.STEPS_PER_EPOCH, 2 * tiny.STEPS_PER_EPOCH, 4 * tiny.STEPS_PER_EPOCH])
def test_at_the_first_iteration_and_at_the_ends_of_epochs(trainer: Trainer, at: int) -> None:
    assert_same_run(stopped_and_resumed(trainer, at=at), trainer(run="whole"))


def test_again_and_again(trainer: Trainer) -> None:
    whole = trainer(run="whole")
    with pytest.raises(StoppedError):
        trainer(run="stopped", listener=stop_at(20))
    for at in (22, 40, 59):
        with pytest.raises(StoppedError):
            trainer(run="stopped", resume=True, listener=stop_at(at))
    assert_same_run(trainer(run="stopped", resume=True), whole)


def test_a_finished_run_stays_what_it_is(trainer: Trainer) -> None:
    whole, again = trainer(run="whole"), trainer(run="again")
    assert_same_run(trainer(run="again", resume=True), whole)
    assert again.path.exists()


def crash_at_write(monkeypatch: pytest.MonkeyPatch, number: int, *, before: bool) -> None:
    """Stop before or after a file takes its name for the n-th time."""
    real, count = Path.replace, 0

    def replace(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == number and before:
            raise StoppedError
        done = real(path, target)
        if count == number:
            raise StoppedError
        return done

    monkeypatch.setattr(Path, "replace", replace)


# recipe, initial, topology-start, metrics, checkpoint, checkpoint, topology-end, model, removals, result
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("number", range(2, 11))
def test_between_any_two_writes(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, number: int, before: bool) -> None:
    whole = trainer("train.epochs=2", run="whole")
    with monkeypatch.context() as patch:
        crash_at_write(patch, number, before=before)
        with pytest.raises(StoppedError):
            trainer("train.epochs=2", run="stopped")
    assert_same_run(trainer("train.epochs=2", run="stopped", resume=True), whole)


def test_before_the_very_first_write_the_run_can_be_begun_again(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        crash_at_write(patch, 1, before=True)
        with pytest.raises(StoppedError):
            trainer(run="stopped")
    assert_same_run(trainer(run="stopped"), trainer(run="whole"))


@pytest.mark.parametrize("rest", ['{"epoch": 3, "st', "{", '{"epoch": 3}\n{"ep'])
def test_a_line_of_metrics_cut_short(trainer: Trainer, rest: str) -> None:
    with pytest.raises(StoppedError):
        trainer(run="stopped", listener=stop_at(MIDDLE))
    with Run(trainer.root / "stopped").metrics_file.open("a") as file:
        file.write(rest)
    assert_same_run(trainer(run="stopped", resume=True), trainer(run="whole"))


# Refused, with nothing overwritten


def damaged(run: Run) -> None:
    run.checkpoint_file.write_bytes(run.checkpoint_file.read_bytes()[:-100])


def foreign(run: Run) -> None:
    run.topology("start").save(run.checkpoint_file)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(damaged, "the file is missing or damaged: create it again"), (foreign, "holds a 'topology', not a 'checkpoint'")],
)
def test_a_spoilt_checkpoint(trainer: Trainer, spoil: Callable[[Run], None], message: str) -> None:
    run = trainer("train.epochs=1")
    spoil(run)
    with untouched(run.path), pytest.raises(InputError, match=message) as caught:
        trainer("train.epochs=1", resume=True)
    assert str(run.checkpoint_file) in str(caught.value)


@pytest.mark.parametrize("other", ["model.options.hidden=[24, 17]", "model.options.hidden=[24]"])
def test_a_checkpoint_of_another_model(trainer: Trainer, other: str) -> None:
    run, another = trainer("train.epochs=1"), trainer("train.epochs=1", other, run="another")
    run.checkpoint_file.write_bytes(another.checkpoint_file.read_bytes())
    with untouched(run.path), pytest.raises(InputError, match="another model's weights") as caught:
        trainer("train.epochs=1", resume=True)
    assert "restore the run's checkpoint, or train again with overwrite=True" in str(caught.value)


def test_nothing_to_resume(trainer: Trainer) -> None:
    with untouched(trainer.root), pytest.raises(InputError, match="is not a run folder"):
        trainer(resume=True)


# A real kill


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[Any]") -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode} before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_killed_process(trainer: Trainer, tmp_path: Path, cli: Cli) -> None:
    """SIGKILL at a random moment, then `rigl-compress train --resume …`."""
    epochs = 40
    path = tmp_path / "tiny.toml"
    path.write_text(tiny.recipe(f"train.epochs={epochs}").to_toml())
    run = Run(tmp_path / "killed")
    arguments = ["train", "--recipe", path, "-o", run.path, "--data-dir", trainer.data_dir, "--device", "cpu"]
    script = "from rigl_compress.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments), "--threads", "1"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        some = random.randrange(1, epochs * 3 // 4)
        wait_for(lambda: lines(run.metrics_file) >= some, process)
        time.sleep(random.uniform(0, 0.05))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not run.result_file.exists()
    done = cli("train", "--resume", run.path, "--data-dir", trainer.data_dir, "--device", "cpu", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == run.result()
    assert_same_run(run, trainer(f"train.epochs={epochs}", run="whole"))
