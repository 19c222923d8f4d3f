"""Sessions with sparse kernels give what ONNX Runtime gives, on our files, on foreign ones, and where kernels fail."""

import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import NETS, onnx_layer, plain_model, sparse_net, sparse_weight

import rigl_compress
from rigl_compress.exporters.onnx_export import export_onnx
from rigl_compress.exporters.sparsify import encoding_names
from rigl_compress.exporters.torch_to_onnx import export_graph
from rigl_compress.exporters.verify import largest_difference
from rigl_compress.models.model_registry import MODELS, ModelSpec
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.runtime import session as module
from rigl_compress.runtime import session_options
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.layer_matching import Layer, find_layers
from rigl_compress.runtime.onnx_graph import Graph
from rigl_compress.runtime.rewrite import DOMAIN, MATCHERS, rewrite
from rigl_compress.runtime.session import InferenceSession

needs_kernels = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
TOLERANCE = 1e-5
FLOAT = TensorProto.FLOAT


def dense_session(model: bytes | str) -> ort.InferenceSession:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


def random_inputs(session: Any, batch: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = {}
    for value in session.get_inputs():
        shape = [axis if isinstance(axis, int) else batch for axis in value.shape]
        drawn = rng.standard_normal(shape) if "float" in value.type else rng.integers(0, 9, shape)
        found[value.name] = drawn.astype(np.float32 if "float" in value.type else np.int64)
    return found


def assert_same(model: bytes, *, batch: int = 2, sparse: int | None = None) -> InferenceSession:
    ours, theirs = InferenceSession(model), dense_session(model)
    inputs = random_inputs(theirs, batch)
    assert largest_difference(ours.run(None, inputs), theirs.run(None, inputs)) < TOLERANCE
    assert sparse is None or len(ours.sparse_layers) == sparse
    return ours


def model_of(nodes: list[Any], shapes: dict[str, Any], weights: dict[str, Any], opset: int = 17) -> onnx.ModelProto:
    """A model from x to y."""
    values = {name: helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()}
    initializers = [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()]
    inputs = [value for name, value in values.items() if name != "y"]
    graph = helper.make_graph(nodes, "g", inputs, [values["y"]], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_exported_networks(net: str, batch: int) -> None:
    session = assert_same(plain_model(net).SerializeToString(), batch=batch)
    assert session.sparse_layers


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("encoding", encoding_names())
def test_every_encoding(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    export_onnx(*sparse_net("convolutions"), path, encoding=encoding)
    ours, theirs = InferenceSession(path), dense_session(str(path))
    inputs = random_inputs(theirs, 2)
    assert largest_difference(ours.run(None, inputs), theirs.run(None, inputs)) < TOLERANCE
    assert len(ours.sparse_layers) == 3  # the depthwise one runs dense


@needs_kernels
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 1.0])
def test_large_enough_layers_gain_by_themselves(sparsity: float) -> None:
    model = onnx_layer(sparse_weight(sparsity, (1000, 1000)))
    assert_same(model.SerializeToString(), batch=1, sparse=int(sparsity >= 0.9))


@needs_kernels
def test_it_is_used_as_onnxruntime_is() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    model = onnx_layer(sparse_weight(0.95, (1000, 1000))).SerializeToString()
    for _ in range(2):  # the same options serve twice
        session = rigl_compress.InferenceSession(model, options, ["CPUExecutionProvider"])
        assert session.sparse_layers == ("y",)
        assert session.get_inputs()[0].name == "x"
        assert session.get_providers() == ["CPUExecutionProvider"]
        binding = session.io_binding()
        binding.bind_cpu_input("x", np.ones((5, 1000), dtype=np.float32))
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        (found,) = binding.copy_outputs_to_cpu()
        (expected,) = dense_session(model).run(None, {"x": np.ones((5, 1000), dtype=np.float32)})
        assert largest_difference([found], [expected]) < TOLERANCE


def image_net(tail: list[Any], **extra: Any) -> onnx.ModelProto:
    """A convolution of images and what follows it."""
    rng = np.random.default_rng(0)
    weight = sparse_weight(0.7, (6, 4, 3, 3))
    weights = {"w": weight, "b": rng.standard_normal(6), **extra}
    conv = helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1])
    return model_of([conv, *tail], {"x": ["n", 4, 9, 9], "y": ["n", 6, 9, 9]}, weights)


NORM = {"s": np.linspace(-1, 2, 6), "h": np.arange(6), "m": np.ones(6), "v": np.linspace(0.5, 2, 6)}
TAILS: dict[str, tuple[list[Any], dict[str, Any], list[str]]] = {
    "nothing": ([helper.make_node("Identity", ["c"], ["y"])], {}, ["Identity"]),
    "relu": ([helper.make_node("Relu", ["c"], ["y"])], {}, []),
    "relu6": ([helper.make_node("Clip", ["c", "lo", "hi"], ["y"])], {"lo": 0.0, "hi": 6.0}, []),
    "from below": ([helper.make_node("Clip", ["c", "lo"], ["y"])], {"lo": -0.5}, []),
    "norm": ([helper.make_node("BatchNormalization", ["c", "s", "h", "m", "v"], ["y"])], NORM, []),
    "residual": (
        [helper.make_node("Sin", ["c0"], ["r"]), helper.make_node("Add", ["r", "c"], ["y"])],
        {},
        ["Sin"],
    ),
    "added to itself": ([helper.make_node("Add", ["c", "c"], ["y"])], {}, ["Add"]),
    "added constant": ([helper.make_node("Add", ["c", "k"], ["y"])], {"k": np.ones((6, 1, 1))}, ["Add"]),
    "used twice": (
        [helper.make_node("Relu", ["c"], ["d"]), helper.make_node("Mul", ["c", "d"], ["y"])],
        {},
        ["Relu", "Mul"],
    ),
    "other activation": ([helper.make_node("Elu", ["c"], ["y"])], {}, ["Elu"]),
}


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("tail", TAILS)
def test_what_follows_a_convolution(tail: str) -> None:
    nodes, extra, left = TAILS[tail]
    model = image_net(nodes, **extra)
    if tail == "residual":  # of the convolution's own shape
        model.graph.node.insert(0, helper.make_node("Conv", ["x", "w2"], ["c0"], pads=[0] * 4))
        model.graph.initializer.append(numpy_helper.from_array(sparse_weight(0.1, (6, 4, 1, 1)), "w2"))
    assert_same(model.SerializeToString())
    rewritten = rewrite(model, lambda *_: True).model
    assert [node.op_type for node in rewritten.graph.node if node.domain != DOMAIN] == left


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
def test_a_residual_of_another_shape_is_not_fused() -> None:
    tail = [helper.make_node("ReduceMean", ["x"], ["r"], axes=[1, 2, 3]), helper.make_node("Add", ["r", "c"], ["y"])]
    assert_same(image_net(tail).SerializeToString(), sparse=1)


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1, alpha=0.5, beta=2.0),
        helper.make_node("Gemm", ["x", "w", "one"], ["y"], transB=1),
        helper.make_node("Gemm", ["x", "w", "row"], ["y"], transB=1),
        helper.make_node("Gemm", ["x", "wt"], ["y"]),
        helper.make_node("MatMul", ["x", "wt"], ["y"]),
    ],
    ids=["scaled", "scalar", "row", "transposed", "matmul"],
)
def test_products(node: onnx.NodeProto) -> None:
    weight = sparse_weight(0.8, (12, 30))
    weights = {"w": weight, "wt": weight.T, "b": np.arange(12), "one": [3.0], "row": np.ones((1, 12))}
    used = {name: weights[name] for name in node.input if name in weights}
    assert_same(model_of([node], {"x": ["n", 30], "y": ["n", 12]}, used).SerializeToString(), sparse=1)


LEFT_ALONE: dict[str, Callable[[], onnx.ModelProto]] = {
    "a bias for each sample": lambda: model_of(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)],
        {"x": [3, 30], "y": [3, 12]},
        {"w": sparse_weight(0.8, (12, 30)), "b": np.ones((3, 12))},
    ),
    "weights that are an input": lambda: model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [3, 30], "w": [30, 12], "y": [3, 12]}, {}
    ),
    "weights that callers may override": lambda: model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [3, 30], "w": [30, 12], "y": [3, 12]},
        {"w": sparse_weight(0.8, (30, 12))},
    ),
    "a volume": lambda: model_of(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        {"x": [1, 4, 5, 5, 5], "y": [1, 6, 3, 3, 3]},
        {"w": sparse_weight(0.7, (6, 4, 3, 3, 3))},
    ),
}


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("case", LEFT_ALONE)
def test_what_is_left_alone(case: str) -> None:
    model = LEFT_ALONE[case]()
    if case == "weights that callers may override":
        ours = InferenceSession(model.SerializeToString())
        assert ours.sparse_layers == ()
        x = np.ones((3, 30), dtype=np.float32)
        assert ours.run(None, {"x": x, "w": np.ones((30, 12), dtype=np.float32)})[0].min() == 30
    else:
        assert_same(model.SerializeToString(), batch=3, sparse=0)


def depthwise_net(neighbour: str, **settings: Any) -> onnx.ModelProto:
    """A pointwise convolution before or after a depthwise one with a norm and an activation, or none at all."""
    before, after = "before" in neighbour, "after" in neighbour
    settings = {"group": 8, "strides": [2, 2], "pads": [1, 1, 1, 1], **settings}
    nodes = [
        helper.make_node(*(("Conv", ["x", "w"]) if before else ("Sin", ["x"])), ["a"]),
        helper.make_node("Conv", ["a", "d"], ["b"], **settings),
        helper.make_node("BatchNormalization", ["b", "s", "h", "m", "v"], ["n"]),
        helper.make_node("Clip", ["n", "lo", "hi"], ["c"]),
        helper.make_node(*(("Conv", ["c", "w2"]) if after else ("Sin", ["c"])), ["y"]),
    ]
    filters = np.random.default_rng(0).standard_normal((8, 1, 3, 3))
    norm = {"s": np.linspace(-1, 2, 8), "h": np.arange(8), "m": np.ones(8), "v": np.linspace(0.5, 2, 8)}
    pointwise = {"w": sparse_weight(0.5, (8, 8, 1, 1))} if before else {}
    pointwise |= {"w2": sparse_weight(0.5, (8, 8, 1, 1))} if after else {}
    weights = {"d": filters, **norm, "lo": 0.0, "hi": 6.0, **pointwise}
    return model_of(nodes, {"x": ["n", 8, 12, 11], "y": ["n", 8, "h", "w_"]}, weights)


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize(("neighbour", "sparse"), [("before", 1), ("after", 1), ("before and after", 2), ("none", 0)])
def test_depthwise_next_to_sparse_layers_keeps_their_layout(neighbour: str, sparse: int) -> None:
    model = depthwise_net(neighbour)
    assert_same(model.SerializeToString(), sparse=sparse)
    operators = [node.op_type for node in rewrite(model, lambda *_: True).model.graph.node]
    assert ("DepthwiseConv" in operators) == (neighbour == "after")
    assert ("SparseDepthwise" in operators) == ("before" in neighbour)
    assert ("BatchNormalization" in operators) == (not sparse)


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
def test_normalisation_before_a_convolution() -> None:
    """As in wide residual networks: a sum is normalised for the next convolution, and added as it is after it."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("BatchNormalization", ["a", "s", "h", "m", "v"], ["n"], epsilon=0.1),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    weights = {"w": sparse_weight(0.5, (6, 4, 1, 1)), "w2": sparse_weight(0.5, (6, 6, 1, 1), 1), **NORM}
    model = model_of(nodes, {"x": ["n", 4, 5, 7], "y": ["n", 6, 5, 7]}, weights)
    assert_same(model.SerializeToString(), sparse=2)
    found = [node.op_type for node in rewrite(model, lambda *_: True).model.graph.node]
    assert found == ["SparseConv", "DepthwiseConv", "SparseConv"]


@needs_kernels
@pytest.mark.parametrize(("dense_ones", "sparse"), [(0, 1), (15, 0)])
def test_one_sparse_convolution_among_many_dense_ones_is_left_alone(dense_ones: int, sparse: int) -> None:
    weights = {f"w{n}": np.full((256, 256, 1, 1), 1e-3) for n in range(dense_ones)}
    weights["w"] = sparse_weight(0.95, (256, 256, 1, 1))
    names = ["x", *(f"v{n}" for n in range(dense_ones)), "y"]
    nodes = [helper.make_node("Conv", [a, w], [b]) for (a, b), w in zip(pairwise(names), weights, strict=True)]
    model = model_of(nodes, {"x": [1, 256, 14, 14], "y": [1, 256, 14, 14]}, weights)
    assert_same(model.SerializeToString(), batch=1, sparse=sparse)


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
def test_depthwise_padded_farther_than_it_reaches() -> None:
    model = depthwise_net("before", pads=[3, 1, 1, 1])
    assert_same(model.SerializeToString(), sparse=2)
    assert "DepthwiseConv" not in [node.op_type for node in rewrite(model, lambda *_: True).model.graph.node]


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
def test_one_axis_only() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2], pads=[1, 2])
    weights = {"w": sparse_weight(0.6, (6, 4, 3))}
    assert_same(model_of([node], {"x": [2, 4, 16], "y": [2, 6, 9]}, weights).SerializeToString(), sparse=1)


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
def test_images_whose_size_is_not_known() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    weights = {"w": sparse_weight(0.6, (6, 4, 3, 3))}
    model = model_of([node], {"x": ["n", 4, "h", "w_"], "y": ["n", 6, "h", "w_"]}, weights).SerializeToString()
    ours, theirs = InferenceSession(model), dense_session(model)
    assert ours.sparse_layers
    for size in (3, 8, 5, 30):
        x = {"x": np.random.default_rng(0).random((2, 4, size, 2 * size), dtype=np.float32)}
        assert largest_difference(ours.run(None, x), theirs.run(None, x)) < TOLERANCE


@needs_kernels
@pytest.mark.usefixtures("every_layer_sparse")
def test_between_products_values_are_in_tiles() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("MatMul", ["q", "b"], ["r"]),
        helper.make_node("Sin", ["r"], ["s"]),
        helper.make_node("MatMul", ["s", "c"], ["y"]),
    ]
    weights = {"a": sparse_weight(0.5, (20, 30)), "b": sparse_weight(0.5, (30, 25)), "c": sparse_weight(0.5, (25, 9))}
    model = model_of(nodes, {"x": ["n", 7, 20], "y": ["n", 7, 9]}, weights)
    for batch in (1, 8, 11, 40):
        assert_same(model.SerializeToString(), batch=batch, sparse=3)
    layouts = [
        [each.name for each in node.attribute if each.name.endswith("by_column")]
        for node in rewrite(model, lambda *_: True).model.graph.node
        if node.domain == DOMAIN
    ]
    assert layouts == [["y_by_column"], ["x_by_column"], []]


@needs_kernels
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), threads=st.integers(1, 2), batch=st.sampled_from([1, 2, 8, 70]))
def test_random_perceptrons(seed: int, threads: int, batch: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 200, rng.integers(2, 5))
    nodes, weights, value = [], {}, "x"
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights[f"w{number}"] = sparse_weight(float(rng.choice([0.5, 0.9, 1.0])), (outputs, inputs), seed)
        weights[f"b{number}"] = rng.standard_normal(outputs)
        nodes += [
            helper.make_node("Gemm", [value, f"w{number}", f"b{number}"], [f"g{number}"], transB=1),
            helper.make_node("Relu", [f"g{number}"], [f"r{number}"]),
        ]
        value = f"r{number}"
    nodes[-1].output[0] = "y"
    model = model_of(nodes, {"x": ["n", int(sizes[0])], "y": ["n", int(sizes[-1])]}, weights)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    module.register(options)
    rewritten = rewrite(model, lambda *_: True, threads).model.SerializeToString()
    ours = ort.InferenceSession(rewritten, options, providers=["CPUExecutionProvider"])
    theirs = dense_session(model.SerializeToString())
    inputs = random_inputs(theirs, batch)
    assert largest_difference(ours.run(None, inputs), theirs.run(None, inputs)) < TOLERANCE


def large_layers() -> dict[str, onnx.ModelProto]:
    """One of each kind, with enough work for several threads: small ones are left to one."""
    rng = np.random.default_rng(0)
    image = {"x": ["n", 32, 28, 28], "y": ["n", 64, 28, 28]}
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    apart = helper.make_node("Conv", ["x", "v"], ["d"], pads=[1, 1, 1, 1], group=32)
    pointwise = helper.make_node("Conv", ["d", "p"], ["y"])
    filters = {"v": rng.standard_normal((32, 1, 3, 3)), "p": sparse_weight(0.5, (64, 32, 1, 1))}
    # Small weights, or steps blow the last bits up.
    gates = {"w": rng.standard_normal((1, 900, 20)), "r": 0.05 * sparse_weight(0.7, (900, 300))[None]}
    gru = helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=300)
    return {
        "product": onnx_layer(sparse_weight(0.7, (600, 900))),
        "convolution": model_of([conv], image, {"w": sparse_weight(0.7, (64, 32, 3, 3))}),
        "depthwise": model_of([apart, pointwise], image, filters),
        "gru": model_of([gru], {"x": [7, "n", 20], "y": [7, 1, "n", 300]}, gates),
    }


@needs_kernels
@pytest.mark.parametrize("name", large_layers())
@pytest.mark.parametrize("batch", [1, 5, 130])
def test_large_layers_share_the_threads(every_layer_sparse: None, name: str, batch: int) -> None:
    model = large_layers()[name].SerializeToString()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 3
    ours, theirs = InferenceSession(model, options), dense_session(model)
    inputs = random_inputs(theirs, batch)
    (expected,) = theirs.run(None, inputs)
    assert ours.sparse_layers
    for _ in range(5):  # a race is not lost every time
        assert largest_difference(ours.run(None, inputs), [expected]) < TOLERANCE


def test_without_kernels_it_warns_once_and_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "unavailable_reason", lambda: "no compiler: install one")
    model = onnx_layer(sparse_weight(0.95, (1000, 1000))).SerializeToString()
    with pytest.warns(UserWarning, match="sparse kernels unavailable, using onnxruntime: no compiler: install one"):
        session = InferenceSession(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert InferenceSession(model).sparse_layers == ()
    assert session.run(None, {"x": np.ones((1, 1000), dtype=np.float32)})[0].shape == (1, 1000)


@needs_kernels
def test_what_fails_on_the_way_leaves_the_plain_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_options, "library_path", lambda: Path("/nowhere.so"))
    model = onnx_layer(sparse_weight(0.95, (1000, 1000))).SerializeToString()
    with pytest.warns(UserWarning, match="nowhere"):
        session = InferenceSession(model)
    assert session.sparse_layers == ()
    assert session.run(None, {"x": np.ones((1, 1000), dtype=np.float32)})[0].shape == (1, 1000)


def test_other_providers_are_left_to_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(module.ort, "InferenceSession", lambda *given, **_: seen.append(given))
    InferenceSession(b"model", providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert seen[0][0] == b"model"


def broken(change: Callable[[onnx.ModelProto], None]) -> bytes:
    model = rewrite(onnx_layer(sparse_weight()), lambda *_: True).model
    change(model)
    return model.SerializeToString()


def cut_weights(model: onnx.ModelProto) -> None:
    packed = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("/packed"))
    packed.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(packed)[:-1], packed.name))


def dynamic_weights(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.domain == DOMAIN)
    size = next(len(numpy_helper.to_array(t)) for t in model.graph.initializer if t.name == node.input[1])
    model.graph.input.append(helper.make_tensor_value_info("bytes", TensorProto.UINT8, [size]))
    node.input[1] = "bytes"


@needs_kernels
@pytest.mark.parametrize(
    ("change", "message"), [(cut_weights, "packed weights: wrong length"), (dynamic_weights, "must be an initializer")]
)
def test_bad_files_are_refused_in_a_sentence(change: Any, message: str) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    module.register(options)
    with pytest.raises(Exception, match=f"SparseMatMul: .*{message}"):
        ort.InferenceSession(broken(change), options, providers=["CPUExecutionProvider"])


@needs_kernels
def test_inputs_that_do_not_fit_are_refused_in_a_sentence() -> None:
    model = rewrite(onnx_layer(sparse_weight()), lambda *_: True).model
    model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    module.register(options)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match="does not have the columns of the packed weights"):
        session.run(None, {"x": np.ones((1, 61), dtype=np.float32)})


def test_layers_know_what_they_stand_for() -> None:
    graph = Graph(onnx.shape_inference.infer_shapes(plain_model("convolutions")))
    layers: list[Layer] = find_layers(graph, MATCHERS)
    assert [layer.operator for layer in layers] == ["SparseConv", "DepthwiseConv", "SparseConv", "SparseMatMul"]
    assert [layer.limits for layer in layers] == [(0, np.inf), (0, np.inf), (-np.inf, np.inf), (-np.inf, np.inf)]
    assert [layer.weights for layer in layers] == [864, 288, 1536, 480]


@needs_kernels
@pytest.mark.slow
@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("name", MODELS)
def test_every_registered_network(name: str) -> None:
    torch.manual_seed(0)
    narrow = name.startswith(("resnet", "mobilenet"))
    spec = ModelSpec(name, {"width": 0.25} if narrow else {})
    model = spec.build().eval()
    for parameter in sparse_parameters(model).values():
        if parameter.dim() != 4 or parameter.shape[1] > 1:  # depthwise filters with zeros let nothing through
            parameter.data.masked_fill_(torch.rand_like(parameter) < 0.85, 0).mul_(2.5)
    example = spec.example(2)
    plain = export_graph(model, example[:, :20] if name == "char-gru" else example).SerializeToString()
    ours, theirs = InferenceSession(plain), dense_session(plain)
    inputs = {ours.get_inputs()[0].name: example.numpy()}
    expected = theirs.run(None, inputs)
    assert np.ptp(expected[0]) > 1e-3
    assert largest_difference(ours.run(None, inputs), expected) < TOLERANCE
    assert len(ours.sparse_layers) >= 2
