"""From a recipe to a picture, through the command line."""

import json
import os
from pathlib import Path

import pytest
import tiny
from tiny import Cli

ROOT = Path(__file__).parents[2]


def assert_picture(path: Path) -> None:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(content[start : start + 4]) for start in (16, 20))
    assert (width, height) > (800, 300)


def test_train_then_inspect(cli: Cli, data_dir: Path, tmp_path: Path) -> None:
    recipe, run, picture = tmp_path / "tiny.toml", tmp_path / "run", tmp_path / "connections.png"
    recipe.write_text(tiny.recipe("train.epochs=12", "learning_rate.shape=linear").to_toml())

    trained = cli("train", "--recipe", recipe, "-o", run, "--data-dir", data_dir, "--device", "cpu", "--json")
    assert trained.code == 0
    assert len(trained.err.splitlines()) == 12, "a line for each epoch"
    result = json.loads(trained.out)
    assert result["final_error"] < 10, "chance is 90"
    assert result["sparsity"] == pytest.approx(0.8, abs=0.001)
    assert result["updates"] > 10
    assert result["inference_flops"]["sparse"] == pytest.approx(0.2 * result["inference_flops"]["dense"], rel=0.01)
    inputs, first, second = map(int, result["pruned"]["architecture"].split("-"))
    assert inputs <= 784
    assert first <= 24
    assert second <= 16

    shown = cli("inspect", run, "--png", picture, "--json")
    assert (shown.code, shown.err) == (0, "")
    found = json.loads(shown.out)
    assert found.keys() == {"format", "result", "training", "layers", "connections_per_pixel"}
    assert found["result"] == result
    assert {key for layer in found["layers"] for key in layer} == {"name", "shape", "active", "sparsity"}
    assert_picture(picture)


def test_connections_move_to_the_pixels_that_matter(cli: Cli, data_dir: Path, tmp_path: Path) -> None:
    """The paper's figure: blocks lie in rows 4-9 and 16-21; the rest is noise."""
    recipe = tmp_path / "tiny.toml"
    changes = ("train.epochs=20", "sparsity.sparsity=0.95", "sparsity.interval=3", "optimizer.weight_decay=0.001")
    recipe.write_text(tiny.recipe(*changes, "learning_rate.shape=linear").to_toml())
    assert cli("train", "--recipe", recipe, "-o", tmp_path / "run", "--data-dir", data_dir).code == 0
    maps = json.loads(cli("inspect", tmp_path / "run", "--json").out)["connections_per_pixel"]

    def share(rows: list[list[int]]) -> float:
        inside = sum(sum(row[2:27]) for number, row in enumerate(rows) if number in {*range(4, 10), *range(16, 22)})
        return inside / sum(map(sum, rows))

    assert share(maps["start"]) == pytest.approx(12 * 25 / 784, abs=0.06)
    assert share(maps["end"]) > share(maps["start"]) + 0.1


def real_mnist() -> Path | None:
    """The folder of the published files, where this machine has them."""
    places = [ROOT.parent / "shared" / "data", *map(Path, filter(None, [os.environ.get("RIGL_COMPRESS_DATA")]))]
    found = (folder for place in places for folder in (place / "mnist", place))
    return next((folder for folder in found if list(folder.glob("train-images-idx3-ubyte*"))), None)


@pytest.mark.skipif(real_mnist() is None, reason="no MNIST in ../shared/data or $RIGL_COMPRESS_DATA")
def test_one_epoch_of_the_real_digits(cli: Cli, tmp_path: Path) -> None:
    run, picture = tmp_path / "run", tmp_path / "connections.png"
    words = ["--recipe", "mnist-demo", "--set", "train.epochs=1", "--data-dir", real_mnist(), "--device", "cpu"]
    result = json.loads(cli("train", *words, "-o", run, "--json").out)
    assert result["final_error"] < 10
    assert str(real_mnist()) in result["data"]
    assert result["steps"] + result["updates"] == 600
    assert cli("inspect", run, "--png", picture).code == 0
    assert_picture(picture)
