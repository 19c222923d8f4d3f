"""What the tests of sessions share: warnings that come again, layers that gain, a layer in a file."""

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.runtime import session


@pytest.fixture(autouse=True)
def warn_again() -> Iterator[None]:
    """Each test is told everything, whatever was said before."""
    session._WARNED.clear()
    yield
    session._WARNED.clear()


@pytest.fixture
def every_layer_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers gain nothing; here they are to run all the same."""
    monkeypatch.setattr(session, "runs_faster", lambda *_: True)
    monkeypatch.setattr(session, "profitable_layers", lambda chosen, *_: chosen)


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """A sparse linear layer that gains, as an ONNX file."""
    path = tmp_path / "layer.onnx"
    onnx.save(onnx_layer(sparse_weight(0.95, (700, 1000))), path)
    return path
