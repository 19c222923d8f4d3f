"""Transformers through the whole line: train, resume, prune, export and bench, from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import Cli, StoppedError, stop_at

from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.recipe import load_recipe
from rigl_compress.pipeline.train import training_loop as loop
from rigl_compress.pipeline.train.stage import RunEnvironment, train
from rigl_compress.pipeline.workspace import Run

VIT = ("cifar10-vit-short", "model.options={ image = 32, patch = 8, width = 0.125, depth = 1 }", "train.batch=10")
BERT = (
    "masked-text-bert",
    "model.options={ width = 0.0625, depth = 1, heads = 2, positions = 16 }",
    "data.options={ length = 16, validation = 0.2 }",
    "train.batch=20",
)
SHORT = ("train.epochs=2", "sparsity.interval=2", "sparsity.sparsity=0.8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10 with 10 pictures in each file, and a text."""
    root = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    (root / "cifar10").mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        content = draw.integers(0, 256, (10, 3073), dtype=np.uint8)
        content[:, 0] = np.arange(10)
        (root / "cifar10" / f"{name}.bin").write_bytes(content.tobytes())
    (root / "masked-text").mkdir()
    (root / "masked-text" / "a.txt").write_bytes("".join(draw.choice(["aA", "bB", "cC"], 1600)).encode())
    return root


def overrides(settings: tuple[str, ...]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [VIT, BERT], ids=["vit", "bert"])
def test_the_whole_line(recipe: tuple[str, ...], tmp_path: Path, folder: Path, cli: Cli) -> None:
    name, *settings = recipe
    run = tmp_path / "run"
    options = [*overrides((*settings, *SHORT)), "--data-dir", folder]
    done = cli("train", "--recipe", name, *options, "-o", run)
    assert done.code == 0, done.err
    result = Run.open(run).result()
    assert result["not_counted"] == {}
    assert set(result["left_dense"]) <= {f"{part}.weight" for part in EMBEDDINGS}
    assert 0 < result["inference_flops"]["sparse"] < result["inference_flops"]["dense"]
    model = SparseModel.load(run / "model.safetensors")
    assert cli("inspect", run).code == 0
    assert cli("prune", run).code == 0
    for encoding in ("dense", "compact"):
        assert cli("export", run, "--encoding", encoding, "--output", tmp_path / f"{encoding}.onnx").code == 0
    files = [tmp_path / "dense.onnx", tmp_path / "compact.onnx"]
    report = tmp_path / "bench.json"
    quick = ["--openings", "1", "--rounds", "2", "--threads", "1", "--report", report]
    measured = cli("bench", *files, *quick)
    assert measured.code == 0, measured.err
    counted = [row["costs"]["nodes"] for row in json.loads(report.read_text())["models"]]
    flops = [sum(node["sparse_flops"] for node in nodes) for nodes in counted]
    assert all(0 < each <= 1.001 * result["inference_flops"]["sparse"] for each in flops)
    assert model.topology.sparsity > 0.4  # the patches and the head of the small one weigh as much as its block


EMBEDDINGS = ("class_token", "positions", "encoder.embedding", "encoder.positions")


@pytest.mark.filterwarnings("ignore:sparse training does not reach")
def test_a_masked_language_model_resumes_bit_by_bit(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "TICK", 1)
    name, *settings = BERT
    recipe = load_recipe(name, (*settings, *SHORT))
    whole = train(recipe, tmp_path / "whole", RunEnvironment("cpu", folder))
    assert (whole.metrics["metric"], whole.metrics["final_masked_bits"] < 8) == ("masked_bits", True)
    with pytest.raises(StoppedError):
        train(recipe, tmp_path / "cut", RunEnvironment("cpu", folder, stop_at(whole.step - 1)))
    again = train(recipe, tmp_path / "cut", RunEnvironment("cpu", folder), resume=True)
    assert all(torch.equal(again.weights[key], weight) for key, weight in whole.weights.items())
    assert again.metrics["final_masked_bits"] == whole.metrics["final_masked_bits"]
