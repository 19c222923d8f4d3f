"""Old processors, broken libraries, old runtimes: the plain session takes over, with one warning and right numbers."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime import kernel_library as library
from rigl_compress.runtime.kernel_library import is_truncated, kernels_library, library_path, unavailable_reason
from rigl_compress.runtime.session import InferenceSession
from rigl_compress.runtime.sparse_runtime_export import export_sparse_runtime

Array = NDArray[Any]
needs_kernels = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
CPU = ["CPUExecutionProvider"]
TOLERANCE = 1e-5
X = {"x": np.linspace(-1, 1, 2000, dtype=np.float32).reshape(2, 1000)}

# Opens a model twice in a process of its own, and tells how many layers were sparse and what was warned about.
LOOK = """
import json, sys, warnings
import numpy as np
from rigl_compress.runtime.session import InferenceSession
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    sessions = [InferenceSession(sys.argv[1]) for _ in range(2)]
    np.save(sys.argv[2], sessions[1].run(None, {"x": np.load(sys.argv[3])})[0])
print(json.dumps([len(sessions[1].sparse_layers), [str(each.message) for each in warned]]))
"""


def expected(model: Path | bytes, inputs: dict[str, Array]) -> list[Array]:
    found: list[Array] = ort.InferenceSession(model, providers=CPU).run(None, inputs)
    return found


def look(layer: Path, before: list[str] | None = None, **environment: str) -> tuple[int, list[str]]:
    """Run the model elsewhere, check its outputs, and return its warnings."""
    outputs, inputs = layer.with_suffix(".npy"), layer.with_name("x.npy")
    np.save(inputs, X["x"])
    command = [*(before or []), sys.executable, "-c", LOOK, layer, outputs, inputs]
    done = subprocess.run(
        [str(word) for word in command], env={**os.environ, **environment}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert largest_difference([np.load(outputs)], expected(layer, X)) < TOLERANCE
    layers, warned = json.loads(done.stdout.splitlines()[-1])
    return layers, warned


# A processor without AVX2.


@needs_kernels
@pytest.mark.parametrize("wish", ["portable", "no-such-kernels"])
def test_kernels_are_chosen_by_a_variable(wish: str, layer: Path) -> None:
    assert look(layer, RIGL_COMPRESS_KERNELS=wish) == (1, [])
    code = "from rigl_compress.runtime.kernels import chosen_set; print(chosen_set())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "RIGL_COMPRESS_KERNELS": wish}, capture_output=True, text=True
    )
    assert (done.stdout == "portable\n") == (wish == "portable" or library_has_only_portable())


def library_has_only_portable() -> bool:
    from rigl_compress.runtime.kernels import kernel_sets

    return kernel_sets() == ["portable"]


@needs_kernels
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="no qemu-x86_64 to be an older processor")
def test_a_processor_without_avx2() -> None:
    code = (
        "import numpy as np\n"
        "from rigl_compress.runtime.kernels import Conv, Gru, MatMul, chosen_set, kernel_sets\n"
        "matrix, x = np.eye(40, 60, dtype=np.float32), np.arange(180, dtype=np.float32).reshape(3, 60)\n"
        "assert (MatMul(matrix)(x) == x[:, :40]).all() and (MatMul(matrix)(x[:1]) == x[:1, :40]).all()\n"
        "image = np.arange(320, dtype=np.float32).reshape(1, 5, 8, 8)\n"
        "assert (Conv(np.eye(5, dtype=np.float32)[:, :, None, None])(image) == image).all()\n"
        "assert Gru(np.zeros((6, 2), np.float32))(np.zeros((3, 1, 6), np.float32))[0].shape == (3, 1, 1, 2)\n"
        "print(chosen_set(), kernel_sets())"
    )
    # One thread: an emulated processor is slow enough.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        ["qemu-x86_64", "-cpu", "Nehalem", sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.stdout == "portable ['portable']\n", done.stderr


# A library that does not load.


def write_text(path: Path) -> None:
    path.write_text("no library")


def write_half(path: Path) -> None:
    path.write_bytes(kernels_library().read_bytes()[: kernels_library().stat().st_size // 2])


def write_almost_all(path: Path) -> None:
    path.write_bytes(kernels_library().read_bytes()[:-64])


def write_another(path: Path) -> None:
    found = next(Path(ort.__file__).parent.glob("capi/libonnxruntime_providers_shared.so"), None)
    if found is None:
        pytest.skip("no other library at hand")
    shutil.copy(found, path)


@needs_kernels
@pytest.mark.parametrize(
    "make", [Path.touch, Path.mkdir, write_text, write_half, write_almost_all, write_another, lambda _: None]
)
def test_a_library_that_does_not_load(make: Callable[[Path], None], layer: Path, tmp_path: Path) -> None:
    bad = tmp_path / "kernels.so"
    make(bad)
    layers, warned = look(layer, RIGL_COMPRESS_LIBRARY=str(bad))
    assert layers == 0
    assert warned == [
        f"sparse kernels unavailable, using onnxruntime: {bad} does not load on this machine: install the package again"
    ]


@needs_kernels
def test_a_library_of_another_version(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "OPERATORS_VERSION", 999)
    library.load_library.cache_clear()
    try:
        with pytest.raises(InputError, match="does not load on this machine: install the package again"):
            kernels_library()
        with pytest.warns(UserWarning, match="install the package again"):
            assert InferenceSession(layer).sparse_layers == ()
    finally:
        library.load_library.cache_clear()


def test_installed_without_a_compiler(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "library_path", lambda: None)
    with pytest.raises(InputError, match="was installed without a C\\+\\+ compiler: install one"):
        kernels_library()
    with pytest.warns(UserWarning, match="was installed without a C") as warned:
        sessions = [InferenceSession(layer) for _ in range(2)]
    assert len(warned) == 1
    assert largest_difference(sessions[1].run(None, X), expected(layer, X)) == 0


@needs_kernels
def test_a_whole_library_is_not_cut_short() -> None:
    path = library_path()
    assert path is not None
    assert not is_truncated(path)


# An ONNX Runtime that is too old.


@needs_kernels
@pytest.mark.parametrize("version", ["1.17.3", "1.9", "0.5.0", "nightly"])
def test_an_old_onnx_runtime(version: str, layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "__version__", version)
    with pytest.warns(UserWarning, match=f"ONNX Runtime {version} is too old: install 1.18 or newer") as warned:
        sessions = [InferenceSession(layer) for _ in range(2)]
    assert len(warned) == 1
    assert sessions[1].sparse_layers == ()
    assert largest_difference(sessions[1].run(None, X), expected(layer, X)) == 0
    with pytest.raises(InputError, match="is too old"):
        export_sparse_runtime(layer, layer.with_name("fast.onnx"))


@needs_kernels
@pytest.mark.parametrize("version", ["1.18.0", "1.20.0.dev20240801001", "1.30.0+cu12", "2.0"])
def test_a_new_onnx_runtime(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "__version__", version)
    assert unavailable_reason() == ""


@needs_kernels
def test_another_host_that_is_too_old_is_told_so() -> None:
    warned: list[bytes] = []
    create_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    create = create_type(lambda _, message: warned.append(message) or 77)  # type: ignore[func-returns-value]
    table = (ctypes.c_void_p * 1)(ctypes.cast(create, ctypes.c_void_p))
    answer = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(
        lambda version: ctypes.addressof(table) if version <= 17 else None
    )
    base = (ctypes.c_void_p * 2)(ctypes.cast(answer, ctypes.c_void_p), None)
    loaded = ctypes.CDLL(str(kernels_library()))
    loaded.RegisterCustomOps.restype = ctypes.c_void_p
    assert loaded.RegisterCustomOps(None, ctypes.byref(base)) == 77
    assert warned == [b"rigl_compress needs ONNX Runtime 1.18 or newer"]


def test_sessions_do_without_torch() -> None:
    script = (
        "import sys, rigl_compress as rc; rc.InferenceSession, rc.kernels_library; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
