"""Files for other hosts: written with sparse operators, checked, opened by a plain ONNX Runtime and without Python."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from sparse_nets import NETS, onnx_layer, sparse_net, sparse_weight
from tiny import untouched

import rigl_compress
from rigl_compress.core.errors import InputError
from rigl_compress.exporters.onnx_export import export_onnx
from rigl_compress.exporters.ort_sessions import SessionError
from rigl_compress.exporters.random_inputs import random_inputs
from rigl_compress.exporters.sparsify import metadata_of
from rigl_compress.exporters.verify import VerificationError, largest_difference
from rigl_compress.pipeline.bench.bench_sources import Source
from rigl_compress.pipeline.bench.stage import BenchConfig, bench
from rigl_compress.runtime import sparse_runtime_export as module
from rigl_compress.runtime.file_contents import read_contents
from rigl_compress.runtime.kernel_library import OPERATORS_VERSION, unavailable_reason
from rigl_compress.runtime.session import InferenceSession
from rigl_compress.runtime.sparse_runtime_export import export_sparse_runtime

needs_kernels = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
CPU = ["CPUExecutionProvider"]


@pytest.fixture
def every_layer_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers gain nothing; here they are to be rewritten all the same."""
    monkeypatch.setattr(module, "runs_faster", lambda *_: True)
    monkeypatch.setattr(module, "profitable_layers", lambda chosen, *_: chosen)


def plain_host(path: Path) -> ort.InferenceSession:
    """Another host: it knows ONNX Runtime and the library, nothing of this package."""
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(rigl_compress.kernels_library()))
    return ort.InferenceSession(path, options, providers=CPU)


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("encoding", ["dense", "compact"])
@pytest.mark.parametrize("net", NETS)
def test_another_host_gives_the_same(net: str, encoding: str, tmp_path: Path) -> None:
    source = export_onnx(*sparse_net(net), tmp_path / "net.onnx", encoding=encoding).path
    written = export_sparse_runtime(source, tmp_path / "fast.onnx")
    theirs, ours = ort.InferenceSession(source, providers=CPU), plain_host(written.path)
    for batch in (1, 5):
        inputs = random_inputs(theirs, batch)
        assert largest_difference(ours.run(None, inputs), theirs.run(None, inputs)) < 1e-5
    assert written.difference < 1e-5
    assert any(row.encoding.startswith("Sparse") for row in written.tensors)


@needs_kernels
def test_what_is_written_about_it(layer: Path, tmp_path: Path) -> None:
    small = export_onnx(*sparse_net("perceptron"), tmp_path / "small.onnx", encoding="compact", facts={"recipe": "r"})
    with pytest.raises(InputError, match=r"no layer of .*small.onnx would be faster on sparse kernels.*leave out"):
        export_sparse_runtime(small.path, tmp_path / "fast.onnx")
    written = export_sparse_runtime(layer, tmp_path / "fast.onnx", facts={"recipe": "mine"})
    facts = metadata_of(onnx.load(written.path))
    assert (facts["target"], facts["operators"], facts["recipe"]) == (
        "sparse-runtime",
        f"rigl_compress {OPERATORS_VERSION}",
        "mine",
    )
    assert facts["layers"] == {"y/packed": {"weight": "w", "shape": [700, 1000]}}
    assert {"version", "source_sha256", "format"} <= facts.keys()
    assert not {"encoding", "values", "tensors"} & facts.keys()
    assert "layers" not in written.metadata


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
def test_earlier_facts_are_kept(tmp_path: Path) -> None:
    source = export_onnx(*sparse_net("perceptron"), tmp_path / "net.onnx", encoding="compact", facts={"recipe": "r"})
    assert export_sparse_runtime(source.path, tmp_path / "fast.onnx").metadata["recipe"] == "r"


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
def test_contents_have_the_names_and_shapes_of_the_source(tmp_path: Path) -> None:
    source = export_onnx(*sparse_net("convolutions"), tmp_path / "net.onnx", encoding="dense")
    written = export_sparse_runtime(source.path, tmp_path / "fast.onnx")
    assert read_contents(written.path).tensors == written.tensors
    found = {row.name: row for row in written.tensors if row.encoding.startswith("Sparse")}
    expected = {row.name: row for row in source.tensors if row.name in found}
    assert {name: (row.shape, row.nonzeros) for name, row in found.items()} == {
        name: (row.shape, row.nonzeros) for name, row in expected.items()
    }
    assert sorted(row.encoding for row in found.values()) == ["SparseConv"] * 2 + ["SparseMatMul"]


@needs_kernels
@pytest.mark.parametrize("about", [None, [], {"y/packed": 3}, {"y/packed": {"weight": 1, "shape": []}}])
def test_contents_without_what_was_written(about: Any, layer: Path, tmp_path: Path) -> None:
    path = export_sparse_runtime(layer, tmp_path / "fast.onnx").path
    model = onnx.load(path)
    helper.set_model_props(model, {"rigl_compress": json.dumps({"layers": about})})
    onnx.save(model, path)
    row = read_contents(path).tensors[0]
    assert (row.name, row.shape, row.encoding) == ("y/packed", (700, 1000), "SparseMatMul")


@needs_kernels
def test_our_session_opens_it_too(layer: Path, tmp_path: Path) -> None:
    path = export_sparse_runtime(layer, tmp_path / "fast.onnx").path
    for source in (path, path.read_bytes()):
        session = InferenceSession(source)
        assert session.sparse_layers == ("y",)
        x = {"x": np.ones((2, 1000), dtype=np.float32)}
        expected = ort.InferenceSession(layer, providers=CPU).run(None, x)
        assert largest_difference(session.run(None, x), expected) < 1e-5


@needs_kernels
def test_there_is_no_way_back(layer: Path, tmp_path: Path) -> None:
    path = export_sparse_runtime(layer, tmp_path / "fast.onnx").path
    with untouched(tmp_path), pytest.raises(InputError, match="cannot be exported again: export what it was made from"):
        export_sparse_runtime(path, tmp_path / "faster.onnx")


@needs_kernels
def test_it_cannot_be_benchmarked(layer: Path, tmp_path: Path) -> None:
    path = export_sparse_runtime(layer, tmp_path / "fast.onnx").path
    with pytest.raises(InputError, match="bench its source with --backend sparse"):
        bench([Source("fast", path)], BenchConfig(backends=("sparse",)))


def spoil(model: onnx.ModelProto) -> None:
    """Double one of the weights."""
    packed = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("/packed"))
    array = numpy_helper.to_array(packed).copy()
    rows = int(array[8:12].view(np.uint32)[0])
    array[32 + 4 * rows : 36 + 4 * rows].view(np.float32)[0] = 1000
    packed.CopyFrom(numpy_helper.from_array(array, packed.name))


def cut(model: onnx.ModelProto) -> None:
    packed = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("/packed"))
    packed.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(packed)[:-1], packed.name))


@needs_kernels
@pytest.mark.parametrize(("change", "message"), [(spoil, "the outputs differ by"), (cut, "does not open the model")])
def test_a_file_that_fails_gets_no_name(
    change: Callable[[onnx.ModelProto], None],
    message: str,
    layer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "fast.onnx").write_bytes(b"precious")

    def rewrite(*given: Any, **options: Any) -> Any:
        found = rewritten(*given, **options)
        change(found.model)
        return found

    rewritten = module.rewrite
    monkeypatch.setattr(module, "rewrite", rewrite)
    with untouched(tmp_path), pytest.raises((VerificationError, SessionError), match=message):
        export_sparse_runtime(layer, tmp_path / "fast.onnx", overwrite=True)


def test_without_the_library(layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "unavailable_reason", lambda: "no compiler: install one")
    with untouched(tmp_path), pytest.raises(InputError, match="needs the sparse kernels; no compiler: install one"):
        export_sparse_runtime(layer, tmp_path / "fast.onnx")


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host, compiled."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is installed")
    program = tmp_path_factory.mktemp("host") / "host"
    command = [compiler, "-std=c++17", "-Wall", "-o", program, Path(__file__).with_name("host.cpp"), "-ldl"]
    subprocess.run([str(word) for word in command], check=True, timeout=120)
    return program


@needs_kernels
def test_a_host_without_python(host: Path, layer: Path, tmp_path: Path) -> None:
    runtime = next(Path(ort.__file__).parent.glob("capi/libonnxruntime.so*"), None)
    if runtime is None:
        pytest.skip("this ONNX Runtime has no library of its own to open")
    written = export_sparse_runtime(layer, tmp_path / "fast.onnx").path
    x = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    command = [host, runtime, rigl_compress.kernels_library(), written, 3, 1000]
    done = subprocess.run([str(word) for word in command], input=x.tobytes(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (expected,) = ort.InferenceSession(layer, providers=CPU).run(None, {"x": x})
    found = np.frombuffer(done.stdout, dtype=np.float32).reshape(expected.shape)
    assert largest_difference([found], [expected]) < 1e-5


@needs_kernels
def test_a_model_whose_types_contradict_each_other(tmp_path: Path) -> None:
    model = onnx_layer(sparse_weight(0.95, (700, 1000)))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(InputError, match="ONNX Runtime does not open the model") as caught:
        export_sparse_runtime(tmp_path / "m.onnx", tmp_path / "fast.onnx")
    assert "\n" not in str(caught.value)
