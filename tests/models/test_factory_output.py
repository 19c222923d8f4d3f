"""What a network's own code prints and warns is shown once, and on stderr."""

import sys
import warnings
from pathlib import Path

import pytest

from rigl_compress.models.factory_output import shown_once
from rigl_compress.models.model_registry import ModelSpec

CODE = """
import sys, warnings
import torch
from torch import nn

def net(size=3):
    print("loading", size)
    print("careful", file=sys.stderr)
    warnings.warn("old format")
    assert torch.empty(1).device.type == "cpu", "built in a special mode"
    layer = nn.Linear(size, 2)
    layer.scale = float(layer.weight.detach().sum())  # fails on the meta device
    return layer
"""


@pytest.fixture
def talkative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"talkative_{tmp_path.name.replace('-', '_')}"  # what is shown is remembered by name
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}:net"


def test_the_same_is_shown_once(talkative: str, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            ModelSpec(talkative).build()
    out, err = capsys.readouterr()
    assert (out, err) == ("", "loading 3\ncareful\n")
    assert [str(each.message) for each in said] == ["old format"]


@pytest.mark.filterwarnings("ignore:old format")
def test_what_is_new_is_shown(talkative: str, capsys: pytest.CaptureFixture[str]) -> None:
    for size in (3, 4, 4):
        ModelSpec(talkative, {"size": size}).build()
    assert capsys.readouterr().err == "loading 3\ncareful\nloading 4\n"


@pytest.mark.filterwarnings("ignore:old format")
def test_a_factory_is_never_run_on_meta(talkative: str) -> None:
    model, _ = ModelSpec(talkative).taking((3,)).outline()
    assert next(model.parameters()).device.type == "cpu"


def test_a_line_that_does_not_end_and_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        with shown_once("of a test"):
            sys.stdout.write("so far")
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert capsys.readouterr().err == "so far"
