"""Networks of transformers from folders: built, loaded, saved and opened again without the folder."""

import copy
import json
import shutil
import socket
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_huggingface import LENGTH, SIDE, WORDS, write_bert, write_masked_bert, write_vit
from transformers import AutoModelForSequenceClassification, BertForTokenClassification

from rigl_compress.core.errors import InputError
from rigl_compress.core.trust import FromFile, trusting_code
from rigl_compress.data.image_options import NORMALISATIONS
from rigl_compress.models.flop_counter import count_flops
from rigl_compress.models.libraries.huggingface_models import _task
from rigl_compress.models.model_registry import MODELS, ModelSpec
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.train.learned_weights import normalisation_notes
from rigl_compress.sparsity.sparsity_config import SparsityConfig


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return write_bert(tmp_path / "bert")


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])


def test_a_folder_is_loaded_with_its_own_names_and_answers(bert: Path) -> None:
    model = ModelSpec(f"hf:{bert}").build_loaded().eval()
    original = AutoModelForSequenceClassification.from_pretrained(bert).eval()
    assert model.state_dict().keys() == original.state_dict().keys()
    x = ids([2, 4, 5, 3], [2, 9, 3])
    assert torch.equal(model(x), original(input_ids=x, attention_mask=(x != 0).long()).logits)
    assert torch.equal(copy.deepcopy(model)(x), model(x))


def test_a_folder_is_read_without_a_connection(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("a connection was tried")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, connect)
    ModelSpec(f"hf:{bert}").completed().build_loaded()


def test_padding_is_masked(bert: Path) -> None:
    model = ModelSpec(f"hf:{bert}").build_loaded().eval()
    whole, short = ids([2, 4, 5, 3]), torch.tensor([[2, 4, 5, 3]])
    torch.testing.assert_close(model(whole), model(short))


def test_masks_and_segments_beside_the_tokens(bert: Path) -> None:
    model = ModelSpec(f"hf:{bert}").build_loaded().eval()
    original = AutoModelForSequenceClassification.from_pretrained(bert).eval()
    x, mask, segments = torch.randint(4, 9, (2, LENGTH)), torch.ones(2, LENGTH).long(), torch.ones(2, LENGTH).long()
    mask[:, 5:] = 0
    expected = original(input_ids=x, attention_mask=mask, token_type_ids=segments).logits
    assert torch.equal(model(torch.stack([x, mask, segments], dim=1)), expected)
    spec = ModelSpec(f"hf:{bert}").taking((3, LENGTH))
    assert model(spec.example(2)).shape == (2, 2)
    assert spec.example(2)[:, 1:].unique().tolist() == [0, 1]


def test_options_change_the_configuration_and_the_number_of_classes(bert: Path) -> None:
    spec = ModelSpec(f"hf:{bert}", {"hidden_dropout_prob": 0.25}).with_classes(5)
    assert spec.options["num_labels"] == 5
    with pytest.warns(UserWarning, match=r"no classifier.bias, classifier.weight of this shape: random at first"):
        model = spec.build_loaded()
    assert model.config.hidden_dropout_prob == 0.25
    assert model(ids([2, 3])).shape == (1, 5)
    original = AutoModelForSequenceClassification.from_pretrained(bert)
    assert torch.equal(model.bert.pooler.dense.weight, original.bert.pooler.dense.weight)


def test_without_pretrained_weights_the_seed_decides(bert: Path) -> None:
    spec = ModelSpec(f"hf:{bert}", {"pretrained": False})
    assert not spec.is_pretrained
    torch.manual_seed(1)
    one = spec.build_loaded()
    torch.manual_seed(1)
    assert torch.equal(one.classifier.weight, spec.build().classifier.weight)


@pytest.mark.parametrize(
    ("write", "options", "shape", "vocabulary"),
    [
        (write_bert, {}, (2,), len(WORDS)),
        (write_masked_bert, {}, (LENGTH, len(WORDS)), len(WORDS)),
        (write_masked_bert, {"task": "features"}, (LENGTH, 8), len(WORDS)),
        (write_bert, {"task": "masked-lm", "pretrained": False}, (LENGTH, len(WORDS)), len(WORDS)),
        (write_vit, {}, (2,), None),
    ],
)
def test_tasks(tmp_path: Path, write: Any, options: dict[str, Any], shape: Any, vocabulary: int | None) -> None:
    spec = ModelSpec(f"hf:{write(tmp_path / 'net')}", options)
    spec = spec if vocabulary is None else spec.taking((LENGTH,))
    assert spec.network.vocabulary == vocabulary
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # features leave the head away, masked-lm has a new one
        assert spec.build_loaded().eval()(spec.example(3)).shape == (3, *shape)
    assert count_flops(*spec.outline(), {}).dense > 0


@pytest.mark.parametrize(
    ("write", "dense"),
    [
        (write_bert, {"classifier.weight"}),
        (write_masked_bert, {"cls.predictions.transform.dense.weight"}),  # the decoder is the embedding
        (write_vit, {"classifier.weight", "vit.embeddings.patch_embeddings.projection.weight"}),
    ],
)
def test_embeddings_and_head_stay_dense_by_default(tmp_path: Path, write: Any, dense: set[str]) -> None:
    model = ModelSpec(f"hf:{write(tmp_path / 'net')}").build_loaded()
    config = SparsityConfig(distribution="er")
    assert config.fixed_densities(model) == dict.fromkeys(dense, 1.0)
    assert config.fixed_densities(torch.nn.Sequential(model)) == {f"0.{name}": 1.0 for name in dense}
    assert replace(config, dense=()).fixed_densities(model) == {}


@pytest.mark.parametrize("name", ["RoFormerModel", "MaskFormerModel", "BertModel"])
def test_networks_without_a_head_return_features(name: str) -> None:
    assert _task(None, SimpleNamespace(architectures=[name]), "model 'hf:net'") == "features"


def test_a_head_of_another_task_is_not_dropped_silently(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "bert", BertForTokenClassification)
    with pytest.raises(InputError, match=r"was saved as BertForTokenClassification, .*: set model.options.task"):
        ModelSpec(f"hf:{folder}").build_loaded()
    ModelSpec(f"hf:{folder}", {"task": "features"}).build()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "were normalised is unknown (no preprocessor_config.json says it); the data are normalised with"),
        ("[", "were normalised is unknown"),
        ("{}", "were normalised is unknown"),
        ('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}', 'set data.options.normalize = "half"'),
        (
            '{"image_mean": [0.4, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}',
            "set data.options.mean = [0.4, 0.5, 0.5] and",
        ),
        ('{"do_normalize": false, "image_mean": [0.5], "image_std": [0.5]}', 'set data.options.normalize = "none"'),
        ('{"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}', ""),
    ],
)
def test_another_normalisation_than_the_trained_one_is_logged(tmp_path: Path, content: str | None, words: str) -> None:
    folder = write_vit(tmp_path / "vit")
    if content is not None:
        (folder / "preprocessor_config.json").write_text(content)
    spec = ModelSpec(f"hf:{folder}")
    found = [*normalisation_notes(spec.build_loaded(), {**NORMALISATIONS["imagenet"].facts, "center": 1.0}, spec.name)]
    assert len(found) == bool(words)
    assert all(words in line for line in found)
    assert [*normalisation_notes(spec.build(), NORMALISATIONS["imagenet"].facts, spec.name)] == [], "random weights"


def test_images_know_their_shape(tmp_path: Path) -> None:
    assert ModelSpec(f"hf:{write_vit(tmp_path / 'vit')}").shape == (3, SIDE, SIDE)


def saved(spec: ModelSpec, file: Path) -> tuple[SparseModel, torch.nn.Module]:
    model = spec.build_loaded().eval()
    captured = SparseModel.capture(spec, model, Topology({}), 0, {})
    captured.save(file)
    return captured, model


def test_a_saved_network_needs_neither_its_folder_nor_trust(bert: Path, tmp_path: Path) -> None:
    spec = ModelSpec(f"hf:{bert}").taking((LENGTH,)).completed()
    assert json.loads(json.dumps(spec.to_json())) == spec.to_json()
    _, model = saved(spec, tmp_path / "model.safetensors")
    shutil.rmtree(bert)
    found = SparseModel.load(tmp_path / "model.safetensors")
    assert isinstance(found.spec.name, FromFile), "not trained here"
    assert torch.equal(found.build()(spec.example(2)), model(spec.example(2)))


def test_a_saved_network_without_its_configuration_is_not_looked_for_elsewhere(bert: Path, tmp_path: Path) -> None:
    saved(ModelSpec(f"hf:{bert}").taking((LENGTH,)), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="is saved without its config and task: train it again"):
        SparseModel.load(tmp_path / "model.safetensors").build()


def test_sizes_that_only_a_file_claims_are_not_allocated(bert: Path, tmp_path: Path) -> None:
    spec = ModelSpec(f"hf:{bert}").taking((LENGTH,)).completed()
    captured, _ = saved(spec, tmp_path / "model.safetensors")
    huge = {**spec.options, "config": {**spec.options["config"], "vocab_size": 2**40}}
    forged = SparseModel(ModelSpec(spec.name, huge), captured.weights, Topology({}))
    forged.save(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"word_embeddings\.weight' has shape"):
        SparseModel.load(tmp_path / "model.safetensors").build()


CODE = """
from pathlib import Path
from transformers import BertConfig, BertForSequenceClassification
Path({canary!r}).touch()
class MyConfig(BertConfig):
    model_type = "mine"
class MyModel(BertForSequenceClassification):
    config_class = MyConfig
"""


@pytest.fixture
def with_code(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose configuration names code in it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    config = json.loads((bert / "config.json").read_text())
    places = {"AutoConfig": "code.MyConfig", "AutoModelForSequenceClassification": "code.MyModel"}
    (bert / "config.json").write_text(json.dumps({**config, "model_type": "mine", "auto_map": places}))
    (bert / "code.py").write_text(CODE.format(canary=str(tmp_path / "canary")))
    return bert


def test_code_in_a_folder_is_not_run(with_code: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="add --trust-code if you trust its code"):
        ModelSpec(f"hf:{with_code}").build_loaded()
    assert not (tmp_path / "canary").exists()


def test_a_file_that_names_a_folder_with_code_does_not_run_it(with_code: Path, tmp_path: Path) -> None:
    config = json.loads((with_code / "config.json").read_text())
    spec = ModelSpec(f"hf:{with_code}", {"config": {**config, "model_type": "bert"}, "task": "text-classification"})
    saved_weights = AutoModelForSequenceClassification.from_config(spec.build().config).state_dict()
    SparseModel(spec, saved_weights, Topology({})).save(tmp_path / "model.safetensors")
    SparseModel.load(tmp_path / "model.safetensors").build()  # transformers' own BERT
    assert not (tmp_path / "canary").exists()


def test_code_in_a_folder_is_run_if_it_is_trusted(with_code: Path, tmp_path: Path) -> None:
    with trusting_code():
        model = ModelSpec(f"hf:{with_code}").build_loaded()
    assert (tmp_path / "canary").exists()
    assert "MyModel" in type(model).__name__


def test_pickle_is_refused(bert: Path) -> None:
    weights = AutoModelForSequenceClassification.from_pretrained(bert).state_dict()
    (bert / "model.safetensors").unlink()
    torch.save(weights, bert / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"model\.safetensors") as caught:
        ModelSpec(f"hf:{bert}").build_loaded()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "image-clasification"}, "has no task 'image-clasification': did you mean 'image-classification'"),
        ({"hidden_dropout": 0.1}, "has no option 'hidden_dropout': did you mean 'hidden_dropout_prob'"),
        ({"attn_implementation": "someone/kernel"}, "has no option 'attn_implementation'"),
        ({"config": {"model_type": "no-such"}}, "transformers does not take its config of type 'no-such'"),
        ({"config": 3}, "its config is not a table with a model_type"),
        ({"config": {"model_type": "detr", "backbone": "resnet50"}}, r"another one inside \(backbone\)"),
    ],
)
def test_options_that_are_wrong(bert: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        ModelSpec(f"hf:{bert}", options).build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./nowhere", "nowhere is not a folder: name what `save_pretrained` has written"),
        ("", "model 'hf:' has no name: write hf:NAME"),
        ("/", "the folder / has no config.json"),
    ],
)
def test_folders_that_are_not_it(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ModelSpec(f"hf:{name}").build()


def test_a_name_without_a_network_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="has no configuration that can be read") as caught:
        ModelSpec("hf:no-such-org/no-such-model").build()
    assert "\n" not in str(caught.value)


def test_a_kernel_that_a_configuration_names_is_left_out(bert: Path) -> None:
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, "attn_implementation": "someone/kernel"}))
    assert ModelSpec(f"hf:{bert}").build_loaded().config._attn_implementation in ("sdpa", "eager")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install rigl-compress\[huggingface\]"):
        ModelSpec("hf:bert").build()


def test_names_are_not_imported_by_a_check() -> None:
    MODELS.check("hf:anything/at-all")
