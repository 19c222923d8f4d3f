"""Networks of timm and torchvision, by stand-ins of the same interface: neither package fits every torch."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from tiny import Cli
from tiny_huggingface import picture
from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.core.trust import FromFile
from rigl_compress.models.libraries.image_normalisation import normalisation_of
from rigl_compress.models.libraries.library_ends import keep_ends_dense
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.sparse_parameters import dense_by_default
from rigl_compress.models.topology import Topology

TIMM = """
from torch import nn
import torch
calls = []

def list_models(*_, **__):
    return ["tinynet", "tinynet_wide", "tinyvit"]

def is_model(name):
    return name.partition(".")[0] in list_models()

def create_model(model_name, pretrained=False, num_classes=10, in_chans=3, **kwargs):
    calls.append({"pretrained": pretrained, "num_classes": num_classes, **kwargs})
    if set(kwargs) - {"drop_rate"}:
        raise TypeError(f"unexpected keyword argument {sorted(kwargs)[0]!r}")
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(nn.Conv2d(in_chans, 4, 3), nn.ReLU(), *pool, nn.Linear(4, num_classes))
    if model_name == "tinyvit":
        model = nn.ModuleDict({"conv_proj": nn.Conv2d(3, 4, 2), "mlp": nn.Linear(4, 4), "fc": nn.Linear(4, 2)})
    model.pretrained_cfg = {"num_classes": 10, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    if pretrained:
        nn.init.constant_(model[0].weight, 0.5)
    return model
"""

TORCHVISION = """
import sys
from enum import Enum
from types import SimpleNamespace
import torch
from torch import nn

class TinyNet(nn.Module):
    def __init__(self, num_classes=10, aux_logits=True, transform_input=False):
        super().__init__()
        self.aux_logits, self.transform_input = aux_logits, transform_input
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, num_classes)

    def forward(self, x):
        out = self.fc(self.conv(x).mean((2, 3)))
        return (out, out) if self.training and self.aux_logits else out

class Weights(Enum):
    FIRST = 1.0
    SECOND = 2.0
    DEFAULT = 2.0

    def transforms(self):
        return SimpleNamespace(mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])

def list_models(module=None):
    classifiers = ["googlenet", "tinynet", "tinyvit"]
    return classifiers if module is sys.modules[__name__] else [*classifiers, "detector"]

def get_model(name, weights=None, **config):
    config = {"aux_logits": name == "googlenet", **config}
    if name == "tinyvit":
        return nn.ModuleDict({"conv_proj": nn.Conv2d(3, 4, 2), "mlp": nn.Linear(4, 4), "fc": nn.Linear(4, 2)})
    if weights is None:
        return TinyNet(**config)
    if config.get("num_classes", 10) != 10:
        raise ValueError("The parameter 'num_classes' expected value 10")
    model = TinyNet(**config, transform_input=True)
    nn.init.constant_(model.conv.weight, weights.value)
    return model

def get_model_weights(name):
    return Weights
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """timm and torchvision.models on the path."""
    folder = tmp_path / "packages"
    (folder / "torchvision").mkdir(parents=True)
    (folder / "timm.py").write_text(TIMM)
    (folder / "torchvision" / "__init__.py").write_text("")
    (folder / "torchvision" / "models.py").write_text(TORCHVISION)
    names = ("timm", "torchvision", "torchvision.models")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in names:
        sys.modules.pop(name, None)


def build(name: str, **options: Any) -> nn.Module:
    return ModelSpec(name, options).build_loaded()


@pytest.mark.parametrize("name", ["timm:tinynet", "timm:tinynet.some_in1k", "torchvision:tinynet"])
def test_by_name_with_the_classes_of_the_data(packages: Path, name: str) -> None:
    spec = ModelSpec(name).with_classes(7).taking((3, 8, 8)).completed()
    assert spec.options == {"num_classes": 7}
    assert spec.build_loaded()(spec.example(2)).shape == (2, 7)
    assert spec.outline()[0](spec.example()).shape == (1, 7)


def test_patches_and_head_of_transformers_stay_dense_by_default() -> None:
    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch_embed, self.mlp, self.head = nn.Conv2d(3, 4, 2), nn.Linear(4, 4), nn.Linear(4, 2)

    model, convolutional = Vit(), nn.Sequential(nn.Conv2d(3, 4, 2), nn.Linear(4, 2))
    for each in (model, convolutional):
        keep_ends_dense(each)
    assert dense_by_default(model) == ("*patch_embed", "*head")
    assert dense_by_default(convolutional) == (), "its layers are those of the paper"


@pytest.mark.parametrize("name", ["timm:tinyvit", "torchvision:tinyvit"])
def test_transformers_of_the_libraries_have_dense_ends(packages: Path, name: str) -> None:
    assert dense_by_default(build(name)) == ("*conv_proj", "*fc")


@pytest.mark.parametrize("name", ["timm:tinynet", "torchvision:tinynet"])
def test_the_normalisation_of_the_library_is_known(packages: Path, name: str) -> None:
    found = normalisation_of(build(name, pretrained=True))
    assert found is not None
    assert {key: list(value) for key, value in found.items()} == {"mean": [0.5] * 3, "std": [0.25] * 3}
    assert normalisation_of(build(name)) is None


def test_pretrained_weights_of_timm_are_loaded_once(packages: Path, tmp_path: Path) -> None:
    spec = ModelSpec("timm:tinynet", {"pretrained": True, "drop_rate": 0.1}).with_classes(7).taking((3, 8, 8))
    assert spec.is_pretrained
    with pytest.warns(UserWarning, match="the pretrained network has 10 classes, this one 7: its head is random"):
        model = spec.build_loaded()
    assert (model[0].weight == 0.5).all()  # type: ignore[index, union-attr]
    SparseModel.capture(spec, model, Topology({}), 0, {}).save(tmp_path / "a.safetensors")
    found = SparseModel.load(tmp_path / "a.safetensors")
    assert isinstance(found.spec.name, FromFile)
    torch.testing.assert_close(found.build()(spec.example()), model.eval()(spec.example()))
    calls = sys.modules["timm"].calls  # type: ignore[attr-defined]
    assert [call["pretrained"] for call in calls] == [True, False, False], "without memory first, then for its weights"
    assert all(call["drop_rate"] == 0.1 for call in calls)


@pytest.mark.parametrize(
    ("options", "value"), [({"pretrained": True}, 2.0), ({"weights": "FIRST"}, 1.0), ({"weights": "DEFAULT"}, 2.0)]
)
def test_pretrained_weights_of_torchvision(packages: Path, options: dict[str, Any], value: float) -> None:
    model = build("torchvision:tinynet", **options)
    assert (model.conv.weight == value).all()  # type: ignore[union-attr, operator]
    with pytest.warns(UserWarning, match=r"no fc.bias, fc.weight of this shape: random at first"):
        model = build("torchvision:tinynet", **options, num_classes=3)
    assert (model.conv.weight == value).all()  # type: ignore[union-attr, operator]


def test_networks_with_second_outputs_have_one(packages: Path) -> None:
    plain, loaded = build("torchvision:googlenet"), build("torchvision:googlenet", pretrained=True)
    assert isinstance(plain.train()(torch.rand(2, 3, 8, 8)), torch.Tensor)
    again = ModelSpec("torchvision:googlenet", {"pretrained": True}).build()
    assert (plain.transform_input, loaded.transform_input, again.transform_input) == (False, True, True)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("timm:tinynett", {}, "is not a network of timm: did you mean 'tinynet'"),
        ("timm:hf-hub:org/net", {}, "is not a network of timm: known: tinynet, tinynet_wide, tinyvit"),
        ("timm:tinynet", {"checkpoint_path": "a.pth"}, "takes no checkpoint_path here: load weights .* start.weights"),
        ("timm:tinynet", {"depht": 3}, "cannot be built with depht = 3: unexpected keyword argument"),
        ("torchvision:detector", {}, "is not a classifier of torchvision: known: googlenet, tinynet, tinyvit"),
        ("torchvision:tinynet", {"weights": "THIRD"}, "has no weights 'THIRD'"),
        ("torchvision:tinynet", {"depth": 3}, "cannot be built with depth = 3"),
    ],
)
def test_bad_input(packages: Path, name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        build(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for name in (package, f"{package}.models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InputError, match=rf"needs the package {package}: .*rigl-compress\[{package}\]"):
        build(f"{package}:resnet18")


def test_a_package_for_another_torch_is_one_sentence(packages: Path) -> None:
    (packages / "timm.py").write_text("raise RuntimeError('operator does not exist')")
    with pytest.raises(InputError, match=r"importing timm failed \(RuntimeError: operator does not exist\): install"):
        build("timm:tinynet")


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_trained_and_pruned_from_the_command_line(packages: Path, package: str, cli: Cli, tmp_path: Path) -> None:
    images = tmp_path / "images"
    for part, count in (("train", 6), ("val", 2)):
        for label in range(3):
            (images / part / str(label)).mkdir(parents=True)
            for number in range(count):
                picture(label).save(images / part / str(label) / f"{number}.png")
    (tmp_path / "r.toml").write_text(tiny.RECIPE, encoding="utf-8")
    run, changes = tmp_path / "run", ("data.options.side=8", "train.batch=6", "model.options.pretrained=true")
    named = ("--model", f"{package}:tinynet", "--data", "image-folder", "--data-dir", images)
    settings = [word for change in changes for word in ("--set", change)]
    said = cli("train", "--recipe", tmp_path / "r.toml", *named, *settings, "-o", run)
    assert said.code == 0, said.err
    assert said.err.count("random at first") == 1, "a head for three classes"
    shutil.copytree(run, tmp_path / "elsewhere")  # as if somebody else had trained it
    for folder in (run, tmp_path / "elsewhere"):
        done = cli("prune", folder)
        assert done.code == 0, done.err
