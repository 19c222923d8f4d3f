"""People's own networks by reference, and what they are told when it does not work."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.core.import_by_name import load_reference
from rigl_compress.models.model_registry import MODELS, ModelSpec
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.topology import Topology

CODE = '''
import torch
from torch import nn
from rigl_compress.models.model_registry import register_model

NUMBER = 3

def net(classes, width=1.0):
    """A network of one's own."""
    return nn.Linear(5, classes)

class Net(nn.Module):
    def __init__(self, hidden=4):
        super().__init__()
        self.fc = nn.Linear(5, hidden)

    def forward(self, x):
        return self.fc(x)

@register_model("own-tokens", input_shape=(7,), classes=9, vocabulary=9)
def tokens(classes=9):
    return nn.Sequential(nn.Embedding(classes, 4), nn.Linear(4, classes))

def table():
    return {"fc": nn.Linear(5, 2)}

def broken():
    raise RuntimeError("no luck today\\nand more")
'''


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_nets.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "own_broken.py").write_text("1 / 0", encoding="utf-8")
    (tmp_path / "own_needy.py").write_text("import surely_not_installed", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(MODELS, "_items", dict(MODELS))
    yield
    for name in ("own_nets", "own_broken", "own_needy"):
        sys.modules.pop(name, None)


def test_a_function_of_the_working_folder() -> None:
    spec = ModelSpec("own_nets:net", {"classes": 2}).taking((5,))
    assert spec.build()(spec.example(3)).shape == (3, 2)
    assert spec.network.options == ("classes", "width")
    assert spec.network.summary == "A network of one's own."


def test_a_class_will_do() -> None:
    assert ModelSpec("own_nets:Net", {"hidden": 3}, input_shape=(5,)).build()(torch.zeros(1, 5)).shape == (1, 3)


def test_what_is_installed_goes_before_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "rigl_compress.py").write_text("raise SystemExit", encoding="utf-8")
    (tmp_path / "colorsys.py").write_text("raise SystemExit", encoding="utf-8")
    assert callable(load_reference("colorsys:rgb_to_hsv", "model"))


def test_a_registered_function_brings_what_it_was_registered_with() -> None:
    spec = ModelSpec("own_nets:tokens")
    assert spec.example(2).shape == (2, 7)
    assert spec.example(2).dtype == torch.int64
    assert spec.network.name == "own_nets:tokens"


def test_what_a_module_prints_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own_loud.py").write_text("print('hello')\ndef net(): pass", encoding="utf-8")
    load_reference("own_loud:net", "model")
    assert capsys.readouterr() == ("", "hello\n")


def test_it_is_saved_by_its_reference(tmp_path: Path) -> None:
    spec = ModelSpec("own_nets:net", {"classes": 2}).taking((5,))
    model = spec.build()
    SparseModel.capture(spec, model, Topology({}), 0, {}).save(tmp_path / "model")
    again = SparseModel.load(tmp_path / "model", trust_code=True)
    assert again.spec == spec
    assert torch.equal(again.build()(spec.example()), model(spec.example()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_nets:nett", "model 'own_nets:nett': own_nets has no 'nett': did you mean 'net'?"),
        ("own_netz:net", "no module 'own_netz': install it, or run the command in the folder that holds it"),
        ("own_nets.sub:net", "model 'own_nets.sub:net': no module 'own_nets.sub': install it"),
        ("own_broken:net", "importing own_broken failed: ZeroDivisionError: division by zero"),
        ("own_needy:net", "importing own_needy failed: No module named 'surely_not_installed'"),
        ("own_nets:NUMBER", "model 'own_nets:NUMBER' is a int, expected a function that returns a torch.nn.Module"),
        ("own_nets:table", "model 'own_nets:table' returns a dict, expected a torch.nn.Module"),
        ("own_nets:broken", "model 'own_nets:broken' cannot be built with no options: no luck today and more"),
        ("own_nets:net", "missing 1 required positional argument: 'classes'; set model.options.classes"),
        (":net", "model ':net' is not of the form package.module:NAME"),
        ("own_nets:", "model 'own_nets:' is not of the form package.module:NAME"),
        ("C:/nets.py", "model 'C:/nets.py' is not of the form package.module:NAME"),
        ("nets/own.py:net", "/nets and name own:net"),
        ("own_nets.py:net", "is a file, expected package.module:NAME: run the command in the folder"),
        ("own_nets:net:net", "is not of the form package.module:NAME"),
    ],
)
def test_what_does_not_work_is_said_in_one_sentence(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        ModelSpec(name).build()
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_options_it_does_not_have() -> None:
    with pytest.raises(InputError, match="has no option 'clases': did you mean 'classes'"):
        ModelSpec("own_nets:net", {"clases": 3}).build()
    with pytest.raises(InputError, match="model 'own_nets:table' has no option 'classes': it has none"):
        ModelSpec("own_nets:table", {"classes": 3}).build()


def test_a_shape_that_nobody_knows() -> None:
    with pytest.raises(InputError, match=r"the input shape of model 'own_nets:net' is unknown: set model\.in"):
        ModelSpec("own_nets:net", {"classes": 2}).example()


def test_a_network_that_is_not_a_function_of_the_package() -> None:
    assert isinstance(ModelSpec("torch.nn:Linear", {"in_features": 2, "out_features": 3}).build(), nn.Linear)
