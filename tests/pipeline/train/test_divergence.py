"""Training that explodes: it stops at the first loss that is no number, and what was good is kept."""

import json
from math import inf, nan
from pathlib import Path

import pytest
import tiny
import torch
from tiny import Trainer
from torch import Tensor, nn

from rigl_compress.core.artifacts import load_artifact, write_json
from rigl_compress.pipeline.train import stage
from rigl_compress.pipeline.train.losses import PATIENCE, DivergedError, Losses, check_finite
from rigl_compress.pipeline.workspace import Run


def losses(*values: float, scaled: bool = False) -> Losses:
    found = Losses(scaled=scaled)
    for step, value in enumerate(values):
        found.add(torch.tensor(value), step, 0.5)
    found.read()
    return found


# Losses


def test_the_mean_is_over_all_that_were_read() -> None:
    found = losses(1.0, 2.0)
    found.add(torch.tensor(6.0), 2, 0.5)
    found.read()
    assert found.mean == 3.0


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_the_first_loss_that_is_no_number_stops(bad: float) -> None:
    with pytest.raises(DivergedError, match=rf"at step 2: the loss is {bad} at learning rate 0.5; lower learning_rate"):
        losses(1.0, 2.0, bad, nan, 3.0)


def test_a_scaler_explains_single_ones_and_the_mean_is_over_the_others() -> None:
    assert losses(1.0, inf, 3.0, nan, scaled=True).mean == 2.0


def test_a_scaler_does_not_explain_a_long_stretch() -> None:
    with pytest.raises(DivergedError, match=f"{PATIENCE} in a row.*bfloat16"):
        losses(1.0, *([nan] * PATIENCE), 1.0, scaled=True)
    stretch = [nan] * (PATIENCE - 1)
    assert losses(1.0, *stretch, 1.0, *stretch, scaled=True).mean == 1.0


def test_an_epoch_without_a_single_number_stops() -> None:
    found = losses(nan, nan, scaled=True)
    with pytest.raises(DivergedError, match="every loss"):
        found.end()


@pytest.mark.parametrize(("kind", "name"), [("parameter", "0.weight"), ("buffer", "1.running_var")])
def test_weights_that_are_no_numbers_are_found(kind: str, name: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    check_finite(model, 7)
    with torch.no_grad():
        dict(model.state_dict())[name].view(-1)[1] = nan
    with pytest.raises(DivergedError, match=f"{name}.*step 7"):
        check_finite(model, 7)


# Runs


def exploding(monkeypatch: pytest.MonkeyPatch, at: int, value: float = nan) -> None:
    """Let the loss of one iteration, counted over all epochs, be no number."""
    real, calls = stage.build_job, iter(range(10**9))

    def build(*args: object, **more: object) -> object:
        job = real(*args, **more)  # type: ignore[arg-type]
        model = job.model

        def forward(x: Tensor) -> Tensor:
            answers: Tensor = model(x)
            return answers * (value if next(calls) == at else 1.0)

        job.forward = forward
        return job

    monkeypatch.setattr(stage, "build_job", build)


@pytest.mark.parametrize("every", [1, 2])
def test_a_run_stops_and_keeps_its_last_good_checkpoint(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    exploding(monkeypatch, at=3 * tiny.STEPS_PER_EPOCH + 3)
    kept = 3 // every * every
    with pytest.raises(DivergedError, match=f"keeps the checkpoint of epoch {kept}"):
        trainer(f"train.checkpoint_every={every}")
    run = Run.open(trainer.root / "run")
    _, content = load_artifact(run.checkpoint_file, "checkpoint")
    assert content["progress"]["epochs_done"] == kept
    assert [row["epoch"] for row in run.metrics()] == [1, 2, 3]
    assert not run.model_file.exists()


def test_a_run_that_explodes_in_its_very_last_step_is_no_result(trainer: Trainer) -> None:
    # No loss shows it: the step after the last loss leaves the weights infinite.
    with pytest.raises(DivergedError, match="weight"):
        trainer(
            "learning_rate.peak=1e38",
            "init.scale=1e3",
            "train.epochs=1",
            f"train.batch={tiny.TRAIN}",
            "sparsity.method=static",
        )
    assert not Run.open(trainer.root / "run").model_file.exists()


def test_the_command_line_says_it_in_one_sentence(cli: tiny.Cli, tmp_path: Path, data_dir: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(tiny.RECIPE)
    words = f"train --recipe {file} -o {tmp_path / 'run'} --data-dir {data_dir} --set learning_rate.peak=1e30"
    said = cli(*words.split())
    assert said.code == 2
    assert "diverged" in said.err
    assert "learning_rate.peak" in said.err
    assert "Traceback" not in said.err


def test_half_precision_in_which_nothing_is_a_number_does_not_succeed(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = stage.build_job

    def build(*args: object, **more: object) -> object:
        job = real(*args, **more)  # type: ignore[arg-type]
        model = job.model
        job.forward = lambda x: model(x) * nan
        return job

    monkeypatch.setattr(stage, "build_job", build)
    with pytest.raises(DivergedError):
        trainer("train.precision=float16")


def test_half_precision_goes_on_after_an_overflow(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    exploding(monkeypatch, at=5, value=inf)
    run = trainer("train.precision=float16")
    rows = [json.loads(line, parse_constant=pytest.fail) for line in run.metrics_file.read_text().splitlines()]
    assert all(isinstance(row["train_loss"], float) for row in rows)


# Files


def test_json_files_hold_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": nan, "y": [inf, {"z": -inf}], "w": (1.5, "nan")})
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"x": None, "y": [None, {"z": None}], "w": [1.5, "nan"]}


def test_metrics_hold_json(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.add_metrics({"epoch": 1, "train_loss": nan})
    run.keep_metrics(1)
    assert run.metrics_file.read_text() == '{"epoch": 1, "train_loss": null}\n'
