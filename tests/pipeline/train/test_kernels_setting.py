"""Recipes that train on sparse kernels: the same files, resumed bit by bit, with masks or without."""

from pathlib import Path

import pytest
import tiny
import torch
from tiny import Cli, StoppedError, Trainer, stop_at

from rigl_compress.models.training_kernels import training_library
from rigl_compress.pipeline.train import training_loop as loop
from rigl_compress.pipeline.workspace import Run

pytestmark = pytest.mark.skipif(training_library() is None, reason="installed without a C++ compiler")
SPARSE = "sparsity.kernels=sparse"
MIDDLE = 2 * tiny.STEPS_PER_EPOCH + 7


def assert_close(one: Run, other: Run) -> None:
    assert one.topology("start") == other.topology("start")
    assert one.topology("end") == other.topology("end")
    for name, weight in one.model().weights.items():
        torch.testing.assert_close(weight, other.model().weights[name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_on_sparse_kernels_ends_as_one_with_masks_and_resumes_in_either_form(
    trainer: Trainer, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "TICK", 1)
    rate = {"sgd": 0.1, "adam": 0.003}[optimizer]
    settings = [f"optimizer.name={optimizer}", f"learning_rate.peak={rate}", "train.clip_gradient=1.0"]
    whole, masked = trainer(SPARSE, *settings, run="whole"), trainer(*settings, run="masked")
    with pytest.raises(StoppedError):
        trainer(SPARSE, *settings, run="stopped", listener=stop_at(MIDDLE))
    resumed = trainer(SPARSE, *settings, run="stopped", resume=True)
    tiny.assert_same_model(resumed.model(), whole.model())
    assert_close(whole, masked)
    with pytest.raises(StoppedError):
        trainer(*settings, run="other", listener=stop_at(MIDDLE))
    assert_close(trainer(SPARSE, *settings, run="other", resume=True), masked)


def test_the_command_says_which_layers_train_on_which_kernels(cli: Cli, tmp_path: Path, data_dir: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(tiny.RECIPE, encoding="utf-8")
    common = (
        "train",
        "--recipe",
        recipe,
        "--data-dir",
        data_dir,
        "--set",
        "train.epochs=1",
        "--set",
        "sparsity.layers.fc2=0.5",
    )
    done = cli(*common, "--kernels", "auto", "-o", tmp_path / "run")
    assert done.code == 0, done.err
    said = " ".join(done.err.split())
    assert "sparse kernels train fc1.weight; fc2.weight stays masked: a density of 0.5 is faster" in said
    assert "did you mean 'sparse'" in cli(*common, "--kernels", "spares", "-o", tmp_path / "other").err
