"""Training on texts and on colour pictures, stopped and resumed, and how their metrics are shown."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from PIL import Image
from tiny import Cli, StoppedError, stop_at

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.recipe import Recipe, parse_recipe
from rigl_compress.pipeline.train import training_loop as loop
from rigl_compress.pipeline.train.stage import RunEnvironment, train
from rigl_compress.pipeline.workspace import Run

TEXT = """
name = "letters"

[data]
name = "text"
options = { length = 16, validation = 0.1 }

[model]
name = "char-gru"
options = { width = 0.1 }

[optimizer]
name = "adam"

[learning_rate]
peak = 0.01

[train]
epochs = 4
batch = 8

[sparsity]
method = "rigl"
sparsity = 0.5
distribution = "uniform"
dense = []
interval = 10
"""

PICTURES = """
name = "pictures"

[data]
name = "cifar10"

[model]
name = "wide-resnet"
options = { depth = 10, factor = 1, width = 0.25 }

[train]
epochs = 3
batch = 10

[sparsity]
interval = 3
"""


PHOTOGRAPHS = """
name = "photographs"

[data]
name = "image-folder"
options = { side = 32 }

[model]
name = "wide-resnet"
options = { depth = 10, factor = 1, width = 0.25 }

[train]
epochs = 3
batch = 4

[sparsity]
interval = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of random letters, each before its capital, CIFAR-10 with 10 pictures in each file, and photographs."""
    root = tmp_path_factory.mktemp("data")
    (root / "text").mkdir()
    draw = np.random.default_rng(0)
    letters = draw.choice(["aA", "bB", "cC", "dD"], 1600)
    (root / "text" / "letters.txt").write_bytes("".join(letters).encode())
    (root / "cifar10").mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        content = draw.integers(0, 256, (10, 3073), dtype=np.uint8)
        content[:, 0] = np.arange(10)
        (root / "cifar10" / f"{name}.bin").write_bytes(content.tobytes())
    for place in (f"{split}/{name}" for split in ("train", "val") for name in ("cat", "dog")):
        (root / "image-folder" / place).mkdir(parents=True)
        for number in range(8):
            pixels = draw.integers(0, 256, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "image-folder" / place / f"{number}.png")
    return root


def made(text: str, *overrides: str) -> Recipe:
    return parse_recipe(text, "tiny.toml", overrides)


def run_of(recipe: Recipe, path: Path, data: Path, **options: object) -> Run:
    train(recipe, path, RunEnvironment("cpu", data), **options)  # type: ignore[arg-type]
    return Run.open(path)


def test_letters_are_learnt_and_measured_in_bits(tmp_path: Path, folder: Path, cli: Cli) -> None:
    run = run_of(made(TEXT), tmp_path / "run", folder)
    result, rows = run.result(), list(run.metrics())
    assert result["metric"] == "bpc"
    assert (result["final_bpc"], result["best_bpc"]) == (rows[-1]["bpc"], min(row["bpc"] for row in rows))
    assert "final_error" not in result
    assert 0.9 < result["final_bpc"] < 1.2, "a letter of four is 2 bits, its capital none: 1 in the mean"
    assert result["sparsity"] == pytest.approx(0.5, abs=0.01)
    assert result["left_dense"] == {"embedding.weight": 256 * 12}
    shown = cli("inspect", run.path)
    assert "left dense" in shown.out
    assert f"bits per character, final (best)  {result['final_bpc']:.3f} ({result['best_bpc']:.3f})" in shown.out


def test_a_sweep_and_its_table_name_the_metric(tmp_path: Path, folder: Path, cli: Cli) -> None:
    (tmp_path / "letters.toml").write_text(TEXT)
    table = tmp_path / "table.md"
    options = ["--set", "train.epochs=1", "--data-dir", folder, "-o", tmp_path / "out", "--markdown", table]
    done = cli("sweep", "--recipe", tmp_path / "letters.toml", *options)
    result = json.loads((tmp_path / "out" / "letters" / "seed=0" / "result.json").read_text())
    assert done.code == 0
    assert f"letters, seed 0: bits per character {result['final_bpc']:.3f}, best {result['best_bpc']:.3f}" in done.err
    assert table.read_text().startswith("| settings | seeds | bits per character, final | bits per character, best |")


def test_flops_of_a_text_of_unknown_length(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "letters.toml").write_text(TEXT)
    done = cli("flops", "--recipe", tmp_path / "letters.toml")
    assert (done.code, done.err) == (0, "")
    assert "inference FLOPs" in done.out
    assert "training FLOPs are not counted: the number of samples is unknown" in done.out


@pytest.mark.parametrize("text", [TEXT, PICTURES, PHOTOGRAPHS], ids=["text", "pictures", "photographs"])
def test_stopped_and_resumed_it_is_the_same_run(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Augmentation is drawn from the epoch's own generator: nothing of it is lost with a stop."""
    monkeypatch.setattr(loop, "TICK", 1)
    recipe = made(text, "train.epochs=3")
    whole = run_of(recipe, tmp_path / "whole", folder)
    with pytest.raises(StoppedError):
        train(recipe, tmp_path / "stopped", RunEnvironment("cpu", folder, stop_at(8)))
    stopped = run_of(recipe, tmp_path / "stopped", folder, resume=True)
    tiny.assert_same_model(stopped.model(), whole.model())
    assert tiny.metrics_of(stopped) == tiny.metrics_of(whole)


def test_augmentation_changes_what_is_learnt(tmp_path: Path, folder: Path) -> None:
    runs = [
        run_of(made(PICTURES, f"data.options.augment={value}", "train.epochs=1"), tmp_path / value, folder)
        for value in ("true", "false")
    ]
    losses = [next(run.metrics())["train_loss"] for run in runs]
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        (TEXT, ["data.options.length=400"], "has no text for testing longer than 320 bytes, a sequence needs 401"),
        (
            TEXT,
            ["model.options.classes=100"],
            "model 'char-gru' does not take inputs of shape .16,.: index out of range",
        ),
        (TEXT, ["model.options.classes=300"], "model 'char-gru' has 300 outputs, text has 256 classes"),
        (TEXT, ["model.name=mlp", "model.options={inputs=16}"], "model 'mlp' does not take inputs of shape .16,."),
        (PICTURES, ["model.options.classes=7"], "model 'wide-resnet' has 7 outputs, cifar10 has 10 classes"),
        (PICTURES, ["model={name='lenet-300-100'}"], "model 'lenet-300-100' does not take inputs of shape .3, 32, 32."),
        (PICTURES, ["model={name='char-gru'}"], "model 'char-gru' does not take inputs of shape .3, 32, 32."),
        (PICTURES, ["data.options.size=3"], "data set 'cifar10' has no option 'size'"),
        (PICTURES, ["train.batch=51"], "only 50 training samples"),
    ],
)
def test_what_does_not_fit_is_said_before_the_first_step(
    tmp_path: Path, folder: Path, text: str, overrides: list[str], words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        run_of(made(text, *overrides), tmp_path / "run", folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
