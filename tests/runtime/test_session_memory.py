"""A session holds what its kernels read: not the bytes it was opened from, nor the matrices it was planned from."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime import session as sessions
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.session import InferenceSession

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
CPU = ["CPUExecutionProvider"]
X = {"x": np.linspace(-1, 1, 2000, dtype=np.float32).reshape(2, 1000)}


@pytest.fixture
def model() -> bytes:
    return bytes(onnx_layer(sparse_weight(0.95, (1000, 1000))).SerializeToString())


def test_the_bytes_of_the_rewritten_model_are_not_kept(model: bytes) -> None:
    session = InferenceSession(model)
    assert session.sparse_layers
    assert not session.session._model_bytes  # type: ignore[union-attr]


def test_a_plain_session_keeps_what_it_was_opened_from() -> None:
    dense = bytes(onnx_layer(np.ones((4, 4), np.float32)).SerializeToString())
    session = InferenceSession(dense)
    assert not session.sparse_layers
    assert session.session._model_bytes == dense  # type: ignore[union-attr]


def test_providers_can_be_set_again(model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    session, expected = InferenceSession(model), ort.InferenceSession(model, providers=CPU).run(None, X)
    session.set_providers(CPU)
    assert session.sparse_layers, "the CPU was the provider before"
    monkeypatch.setattr(sessions, "_only_cpu", lambda _: False)  # as if there were another one
    session.set_providers(CPU)
    assert not session.sparse_layers
    assert largest_difference(session.run(None, X), expected) < 1e-5


def test_options_of_large_models_are_not_changed(model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LARGE_MODEL", 0)
    options = ort.SessionOptions()
    session = InferenceSession(model, options)
    assert session.sparse_layers
    assert options.enable_mem_pattern
    assert not session.session.get_session_options().enable_mem_pattern  # type: ignore[union-attr]


PROGRAM = """
import numpy as np, onnxruntime, sys
import rigl_compress as rc
def resident():
    lines = open("/proc/self/status", encoding="utf-8").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
rc.InferenceSession
before = resident()
session = rc.InferenceSession(sys.argv[1], cache=False)
for _ in range(3):
    session.run(None, {"x": np.zeros((1, 4000), np.float32)})
assert session.sparse_layers
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc tells the memory")
def test_weights_are_held_twice_at_most(tmp_path: Path) -> None:
    """Once in ONNX Runtime, and once as the kernels read them: 2 million non-zeros of 6 to 8 bytes."""
    path = tmp_path / "wide.onnx"
    path.write_bytes(onnx_layer(sparse_weight(0.875, (4000, 4000)).astype(np.float32) / 3).SerializeToString())
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 48
