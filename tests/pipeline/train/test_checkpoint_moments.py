"""Checkpoints within epochs: when they are written, and that runs go on from them bit by bit."""

import json

import pytest
import tiny
from safetensors import safe_open
from tiny import StoppedError, Trainer, stop_at

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.train import training_loop as loop
from rigl_compress.pipeline.train.batch_sizes import batch_notes
from rigl_compress.pipeline.train.checkpoint_moments import Moments
from rigl_compress.pipeline.train.process_group import World
from rigl_compress.pipeline.workspace import Run

MIDDLE = 2 * tiny.STEPS_PER_EPOCH + 7  # an iteration in the third of four epochs


def answers(count: int, *settings: str) -> list[str]:
    moments = Moments(tiny.recipe(*settings).train)
    return [moments.after_step() for _ in range(count)]


def test_every_so_many_steps() -> None:
    assert answers(7, "train.checkpoint_steps=3") == ["", "", "save", "", "", "save", ""]


def test_every_so_many_minutes() -> None:
    assert answers(3, "train.checkpoint_minutes=1e-9") == ["save"] * 3
    assert answers(3, "train.checkpoint_minutes=1000") == answers(3) == [""] * 3


def test_a_signal_comes_first() -> None:
    moments = Moments(tiny.recipe("train.checkpoint_steps=1").train)
    moments.stopped = True
    assert moments.after_step() == "stop"


def batches_done(run: Run) -> int:
    with safe_open(run.checkpoint_file, framework="pt") as file:
        header = json.loads(file.metadata()["rigl_compress"])
    return int(header["content"]["progress"]["batches_done"])


@pytest.mark.parametrize(
    ("settings", "done"),
    [
        (("train.checkpoint_steps=3",), 6),
        (("train.checkpoint_minutes=1e-9",), 7),
        (("train.checkpoint_steps=2", "train.accumulate=3"), 6),
        (("train.checkpoint_steps=3", "sparsity.method=snfs", "train.precision=bfloat16"), 6),
        (("train.checkpoint_steps=3", "sparsity.method=dnw", "optimizer.name=adam", "learning_rate.peak=0.003"), 6),
    ],
)
def test_a_run_goes_on_within_an_epoch(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...], done: int
) -> None:
    monkeypatch.setattr(loop, "TICK", 1)  # stops at any iteration
    whole = trainer(*settings, run="whole")
    with pytest.raises(StoppedError):
        trainer(*settings, run="stopped", listener=stop_at(MIDDLE))
    assert batches_done(Run(trainer.root / "stopped")) == done
    resumed = trainer(*settings, run="stopped", resume=True)
    tiny.assert_same_model(whole.model(), resumed.model())
    assert tiny.metrics_of(whole) == tiny.metrics_of(resumed)


# What several processes are told at the start


def test_the_global_batch_is_said() -> None:
    recipe = tiny.recipe("train.accumulate=3")
    said = ["3 processes: global batch 20, 6 or 7 in each process, × 3 batches per step = 60"]
    assert batch_notes(recipe, World(0, 3)) == said
    assert batch_notes(recipe, World()) == []
    with pytest.raises(InputError, match=r"train\.batch is 20, too few samples for 21 processes: start 20 or fewer"):
        batch_notes(recipe, World(0, 21))
