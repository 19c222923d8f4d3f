"""Networks and data of Hugging Face through the command line: train, resume, export, bench."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from datasets import Dataset, DatasetDict, Image, disable_progress_bars
from safetensors.torch import load_file, save_file
from tiny import Cli
from tiny_huggingface import LENGTH, SIDE, picture, reviews, write_bert, write_masked_bert, write_tokenizer, write_vit

from rigl_compress.pipeline.workspace import Run

RECIPE = """
name = "by-name"

[data]
name = "{data}"
options = {options}

[model]
name = "hf:{folder}"

[optimizer]
name = "adamw"

[learning_rate]
peak = 0.01

[train]
epochs = {epochs}
batch = 12

[sparsity]
method = "rigl"
sparsity = 0.5
interval = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disable_progress_bars()
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A BERT with its tokenizer in one folder, reviews in another, and the recipe."""
    write_tokenizer(write_bert(tmp_path / "bert"))
    splits = {"train": Dataset.from_list(reviews(60)), "test": Dataset.from_list(reviews(12))}
    DatasetDict(splits).save_to_disk(tmp_path / "reviews")
    options = f'{{ tokenizer = "bert", length = {LENGTH} }}'
    recipe = RECIPE.format(data="hf-texts", options=options, folder="bert", epochs=12)
    (tmp_path / "texts.toml").write_text(recipe, encoding="utf-8")
    return tmp_path / "texts.toml"


def train(cli: Cli, recipe: Path, data: str, *more: object) -> None:
    said = cli("train", "--recipe", recipe, "--data-dir", data, "-o", "run", *more)
    assert said.code == 0, said.err


def test_a_bert_is_trained_from_its_folder_and_opened_without_it(texts: Path, cli: Cli) -> None:
    train(cli, texts, "reviews")
    shutil.rmtree("bert")
    run = Run.open(Path("run"))
    model = run.model()
    assert run.result()["final_error"] <= 25, "a word decides"
    assert {name for name, mask in model.topology.items() if mask.all()} == {"classifier.weight"}
    assert model.topology.sparsity == pytest.approx(0.5 * (1 - 16 / model.topology.total), abs=0.001)
    assert {name.partition(".")[0] for name in model.weights} == {"bert", "classifier"}
    assert model.build()(model.spec.example(3)).shape == (3, 2)
    assert run.result()["preprocessing"] == {"tokenizer": "bert", "length": LENGTH, "padding": 0}
    shutil.copytree("run", "elsewhere")  # not trained here
    assert cli("inspect", "elsewhere").code == 0
    assert Run.open(Path("elsewhere")).model().build()(model.spec.example(3)).shape == (3, 2)


def test_it_starts_at_the_weights_of_the_folder(texts: Path, cli: Cli) -> None:
    train(cli, texts, "reviews", "--set", "init.weights=he-normal")
    from rigl_compress.models.sparse_model import SparseModel

    initial = SparseModel.load("run/initial.safetensors")
    from safetensors.torch import load_file

    for name, weight in load_file("bert/model.safetensors").items():
        assert torch.equal(initial.weights[name], weight), name


def test_weights_and_init_are_said(texts: Path, cli: Cli) -> None:
    said = cli("train", "--recipe", texts, "--data-dir", "reviews", "-o", "run", "--set", "init.weights=he-normal")
    assert said.err.count("[init] is not used: the weights are not drawn") == 1


@pytest.mark.slow
def test_train_export_and_bench_of_texts(texts: Path, cli: Cli) -> None:
    train(cli, texts, "reviews")
    assert cli("export", "run", "-o", "bert.onnx").code == 0
    assert cli("bench", "bert.onnx", "--json", "bench.json", "--samples", "5").code in (0, 2)
    session, model = ort.InferenceSession("bert.onnx"), Run.open(Path("run")).model()
    x = model.spec.example(3)
    x[1, 4:] = 0  # padding
    answers = session.run(None, {"input": x.numpy()})[0]
    np.testing.assert_allclose(answers, model.build()(x).detach().numpy(), atol=1e-5)
    facts = session.get_modelmeta().custom_metadata_map
    assert "tokenizer" in json.dumps(facts)


def test_a_vit_on_images_of_a_table(tmp_path: Path, cli: Cli) -> None:
    write_vit(tmp_path / "vit")
    rows = {"image": [picture(n) for n in range(36)], "label": [n % 3 for n in range(36)]}
    Dataset.from_dict(rows).cast_column("image", Image()).save_to_disk(tmp_path / "pictures")
    options = f'{{ side = {SIDE}, normalize = "half" }}'
    recipe = RECIPE.format(data="hf-images", options=options, folder="vit", epochs=2)
    (tmp_path / "vit.toml").write_text(recipe, encoding="utf-8")
    ends = ("--set", "sparsity.dense=['first', 'last']")
    said = cli("train", "--recipe", "vit.toml", "--data-dir", "pictures", "-o", "run", *ends)
    assert said.code == 0, said.err
    assert said.err.count("random at first") == 1, "the head is new, and that is said once"
    for end in ("first", "last"):
        assert said.err.count(f"cannot be traced: '{end}' is taken for") == 1, "at the start, and not at the end again"
    assert Run.open(Path("run")).result()["preprocessing"]["mean"] == [0.5] * 3


def test_a_folder_of_other_names_is_read_by_the_library(tmp_path: Path, texts: Path, cli: Cli) -> None:
    weights = load_file("bert/model.safetensors")
    save_file(
        {name.replace("attention.self.", "attention."): each for name, each in weights.items()},
        "bert/model.safetensors",
    )
    said = cli("train", "--recipe", texts, "--data-dir", "reviews", "-o", "run", "--set", "start.weights=bert")
    assert said.code == 2
    assert said.err.endswith("or let transformers read the folder: --model hf:bert\n")
    assert not Path("run").exists()


def test_flops_of_a_network_by_name(texts: Path, cli: Cli) -> None:
    said = cli("flops", "--recipe", texts, "--json")
    assert said.code == 0, said.err
    assert sum(layer["dense_flops"] for layer in json.loads(said.out)["layers"]) > 0


def test_a_network_of_another_task_is_one_sentence(texts: Path, cli: Cli) -> None:
    write_masked_bert(Path("masked"))
    said = cli("train", "--recipe", texts, "--data-dir", "reviews", "--model", "hf:masked", "-o", "run")
    assert said.code == 2
    assert "model 'hf:masked' returns outputs of shape (1, 8, 15) for hf-texts, expected (1, 2): " in said.err
    assert said.err.endswith("or set model.options.task\n")
    assert not Path("run").exists()


def test_a_tokenizer_that_pads_with_another_token_is_one_sentence(texts: Path, cli: Cli) -> None:
    said = cli(
        "train", "--recipe", texts, "--data-dir", "reviews", "-o", "run", "--set", "model.options.pad_token_id=1"
    )
    assert said.code == 2
    assert "takes token 1 for padding, the tokenizer of hf-texts pads with 0" in said.err
    assert not Path("run").exists()
