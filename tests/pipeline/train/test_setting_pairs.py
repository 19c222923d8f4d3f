"""Precision, accumulation, compiling, memory layout and fused optimizers, two at a time."""

from itertools import combinations
from math import isclose

import pytest
import tiny
from tiny import Trainer

SETTINGS = {
    "bfloat16": ("train.precision=bfloat16",),
    "float16": ("train.precision=float16",),
    "accumulate": ("train.accumulate=3",),
    "channels_last": ("train.channels_last=true",),
    "fused": ("optimizer.fused=true",),
    "compile": ("train.compile=true",),
}
PLAIN = ("model.name=lenet-5", "model.options={}", "train.epochs=2", "sparsity.interval=3", "learning_rate.peak=0.05")
PAIRS = [pair for pair in combinations(SETTINGS, 2) if pair != ("bfloat16", "float16")]


def losses(trainer: Trainer, *settings: str, run: str) -> list[float]:
    return [row["train_loss"] for row in tiny.metrics_of(trainer(*PLAIN, *settings, run=run))]


def marks(pair: tuple[str, str]) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if "compile" in pair else []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what the compiler says is its own to mend
@pytest.mark.parametrize("pair", [pytest.param(pair, id=" ".join(pair), marks=marks(pair)) for pair in PAIRS])
def test_losses_stay_within_the_noise_of_the_plain_run(trainer: Trainer, pair: tuple[str, str]) -> None:
    steps = SETTINGS["accumulate"] if "accumulate" in pair else ()
    plain = losses(trainer, *steps, run="plain")
    found = losses(trainer, *SETTINGS[pair[0]], *SETTINGS[pair[1]], run="pair")
    assert len(found) == len(plain) == 2
    assert all(isclose(one, other, rel_tol=0.05) for one, other in zip(found, plain, strict=True)), (found, plain)
    assert trainer.root.joinpath("pair", "model.safetensors").exists()
