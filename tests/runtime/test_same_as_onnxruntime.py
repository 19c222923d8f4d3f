"""What ONNX Runtime refuses, our session refuses; what it takes, ours takes, with the same numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.session import InferenceSession

Array = NDArray[Any]
pytestmark = [
    pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason()),
    pytest.mark.usefixtures("every_layer_sparse"),
    pytest.mark.filterwarnings("ignore:without sparse kernels"),
]
CPU = ["CPUExecutionProvider"]


def quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def model_of(nodes: list[Any], shapes: dict[str, Any], weights: dict[str, Any]) -> bytes:
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    tensors = [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()]
    inputs = [value for name, value in values.items() if name != "y"]
    graph = helper.make_graph(nodes, "g", inputs, [values["y"]], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = made.SerializeToString()
    return content


def outcome(
    open_session: Callable[[], Any], feeds: dict[str, Any], names: list[str] | None = None
) -> list[Array] | str:
    """The outputs, or that there are none."""
    try:
        found: list[Array] = open_session().run(names, feeds)
    except Exception:
        return "refused"
    return found


def assert_same(model: bytes, feeds: dict[str, Any], names: list[str] | None = None) -> None:
    ours = outcome(lambda: InferenceSession(model, quiet()), feeds, names)
    theirs = outcome(lambda: ort.InferenceSession(model, quiet(), providers=CPU), feeds, names)
    assert isinstance(ours, str) == isinstance(theirs, str), (ours, theirs)
    if not isinstance(ours, str) and not isinstance(theirs, str):
        assert [each.shape for each in ours] == [each.shape for each in theirs]
        assert largest_difference(ours, theirs) < 1e-5


IMAGE = {"x": ["n", 4, "h", "w_"], "y": ["n", "c", "p", "q"]}
FILTERS = sparse_weight(0.5, (6, 4, 2, 2))


def conv(weights: dict[str, Any] | None = None, **settings: Any) -> bytes:
    found = {"w": FILTERS, **(weights or {})}
    return model_of([helper.make_node("Conv", ["x", *found], ["y"], **settings)], IMAGE, found)


CONVOLUTIONS = {
    "a kernel of another shape": conv(kernel_shape=[3, 3]),
    "groups that do not divide": conv(group=4),
    "two groups of another number of channels": conv(group=2),
    "a bias of one number": conv({"b": [1.0]}),
    "a bias that is too long": conv({"b": np.ones(7)}),
    "an empty bias": conv({"b": np.ones(0)}),
    "pads below zero": conv(pads=[-1, 0, 0, 0]),
    "too few pads": conv(pads=[1, 1]),
    "too many strides": conv(strides=[1, 1, 1]),
    "a stride of nothing": conv(strides=[0, 1]),
    "a dilation of nothing": conv(dilations=[0, 1]),
    "padding by name": conv(auto_pad="SAME_UPPER"),
    "padding by name, below": conv(auto_pad="SAME_LOWER", strides=[2, 3]),
    "no padding by name": conv(auto_pad="VALID"),
    "padding by name and by number": conv(auto_pad="VALID", pads=[1, 1, 1, 1]),
    "an unknown name of padding": conv(auto_pad="SOMEHOW"),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("size", [(5, 5), (1, 1), (2, 0)])
def test_odd_convolutions(case: str, size: tuple[int, int]) -> None:
    assert_same(CONVOLUTIONS[case], {"x": np.random.default_rng(0).random((2, 4, *size), np.float32)})


def test_very_many_groups_are_left_to_onnxruntime() -> None:
    """Over the inputs of all groups, 240 kB of weights would become 14 GB."""
    weight = sparse_weight(0.5, (60000, 1, 1))
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=60000)
    model = model_of([node], {"x": ["n", 60000, "l"], "y": None}, {"w": weight})
    with pytest.warns(UserWarning, match="stay dense: w .grouped convolution of 60000 groups"):
        session = InferenceSession(model)
    assert session.sparse_layers == ()
    found = session.run(None, {"x": np.ones((1, 60000, 1), np.float32)})[0]
    np.testing.assert_allclose(found.reshape(-1), weight.reshape(-1))


def gemm(bias: Array | None = None, x: Any = ("n", 5), **settings: Any) -> bytes:
    weights = {"w": sparse_weight(0.3, (4, 5)), **({} if bias is None else {"b": bias})}
    node = helper.make_node("Gemm", ["x", *weights], ["y"], transB=1, **settings)
    return model_of([node], {"x": x, "y": None}, weights)


@pytest.mark.parametrize("shape", [(4,), (1,), (), (1, 4), (4, 1), (1, 1), (1, 1, 4), (4, 4), (1, 1, 1), (4, 1, 1)])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_biases_of_products(shape: tuple[int, ...], batch: int) -> None:
    bias = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    feeds = {"x": np.random.default_rng(0).random((batch, 5), np.float32)}
    assert_same(gemm(bias), feeds)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["b", "m"], ["y"])]
    weights = {"w": sparse_weight(0.3, (5, 4)), "b": bias}
    assert_same(model_of(nodes, {"x": ["n", 5], "y": None}, weights), feeds)
    assert_same(model_of(nodes, {"x": None, "y": None}, weights), feeds)


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 5), (2, 6), (0, 5), (1, 1, 1, 5), ()])
def test_products_of_any_rank(shape: tuple[int, ...]) -> None:
    feeds = {"x": np.ones(shape, np.float32)}
    assert_same(gemm(x=None), feeds)
    weights = {"w": sparse_weight(0.3, (5, 4))}
    assert_same(model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": None, "y": None}, weights), feeds)


@pytest.mark.parametrize("length", [1, 5, 6, 7])
def test_normalisation_of_another_number_of_channels(length: int) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "s", "s", "s"], ["y"]),
    ]
    # Nothing is known about the shape of the image: the model's shapes do not tell that the lengths differ.
    model = model_of(nodes, {"x": None, "y": None}, {"w": FILTERS, "s": np.arange(1, length + 1)})
    assert_same(model, {"x": np.ones((1, 4, 5, 5), np.float32)})


@pytest.mark.parametrize("hidden", [3, 4, None])
def test_recurrent_layers_of_another_size(hidden: int | None) -> None:
    settings = {} if hidden is None else {"hidden_size": hidden}
    weights = {"w": sparse_weight(0.3, (12, 5))[None], "r": sparse_weight(0.3, (12, 4))[None]}
    node = helper.make_node("GRU", ["x", "w", "r"], ["y"], **settings)
    model = model_of([node], {"x": ["t", "n", 5], "y": None}, weights)
    assert_same(model, {"x": np.ones((3, 2, 5), np.float32)})


LAYER = onnx_layer(sparse_weight(0.8, (40, 60)))
X = np.random.default_rng(0).random((8, 60), np.float32)


@pytest.mark.parametrize(
    "feeds",
    [
        {"x": X.astype(np.float64)},
        {"x": X.astype(np.float16)},
        {"x": X.astype(np.int64)},
        {"x": X.tolist()},
        {"x": X[:, :59]},
        {"x": X[0]},
        {"x": X[None]},
        {"x": None},
        {},
        {"z": X},
        {"x": X, "z": X},
        {"x": np.asfortranarray(X)},
        {"x": X[::-2]},
        {"x": np.repeat(X, 2, axis=1)[:, ::2]},
        {"x": np.broadcast_to(X[:1], (3, 60))},
    ],
    ids=lambda feeds: ",".join(feeds),
)
@pytest.mark.parametrize("names", [None, ["y"], ["y", "y"], ["nothing"], []])
def test_feeds_and_names(feeds: dict[str, Any], names: list[str] | None) -> None:
    assert_same(LAYER.SerializeToString(), feeds, names)


def test_some_of_the_outputs() -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    model = onnx.load_from_string(
        model_of(nodes, {"x": ["n", 60], "y": ["n", 40]}, {"w": sparse_weight(0.8, (40, 60))})
    )
    model.graph.output.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", 40]))
    for names in (None, ["a"], ["y"], ["a", "y"]):
        assert_same(model.SerializeToString(), {"x": X}, names)


def residual_net() -> bytes:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Add", ["c", "r"], ["y"])]
    return model_of(nodes, {"x": ["n", 4, 9, 9], "r": ["n", 6, 8, 8], "y": ["n", 6, 8, 8]}, {"w": FILTERS})


def test_bound_inputs_that_the_operators_refuse() -> None:
    """A binding belongs to one session: what was bound is bound again for the plain one that takes over."""
    rng, session = np.random.default_rng(0), InferenceSession(residual_net(), quiet())
    binding = session.io_binding()
    binding.bind_cpu_input("x", rng.random((2, 4, 9, 9), np.float32))
    binding.bind_cpu_input("r", rng.random((1, 6, 8, 8), np.float32))
    binding.bind_output("y")
    with pytest.warns(UserWarning, match="the residual does not have the shape of the output"):
        session.run_with_iobinding(binding)
    assert session.sparse_layers == ()
    assert binding.copy_outputs_to_cpu()[0].shape == (2, 6, 8, 8)


@pytest.mark.filterwarnings("default:without sparse kernels")
def test_values_that_the_operators_refuse() -> None:
    rng, model = np.random.default_rng(0), residual_net()
    feeds = {"x": rng.random((2, 4, 9, 9), np.float32), "r": rng.random((1, 6, 8, 8), np.float32)}
    expected = ort.InferenceSession(model, providers=CPU).run(None, feeds)
    session = InferenceSession(model)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    with pytest.warns(UserWarning, match="the residual"):
        found = session.run_with_ort_values(["y"], values)
    assert largest_difference([each.numpy() for each in found], expected) < 1e-5


def test_weights_that_only_an_inner_graph_of_an_inner_graph_uses() -> None:
    def branch(nodes: list[Any], name: str) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)])

    inner_if = helper.make_node(
        "If",
        ["yes"],
        ["outer_y"],
        then_branch=branch([helper.make_node("Add", ["a", "k"], ["inner_y"])], "inner"),
        else_branch=branch([helper.make_node("Identity", ["a"], ["other_y"])], "other"),
    )
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node(
            "If",
            ["yes"],
            ["c"],
            then_branch=branch([inner_if], "outer"),
            else_branch=branch([helper.make_node("Identity", ["b"], ["plain_y"])], "plain"),
        ),
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    model = onnx.load_from_string(
        model_of(nodes, {"x": ["n", 60], "y": ["n", 40]}, {"w": sparse_weight(0.8, (40, 60)), "k": np.ones(40)})
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    session = InferenceSession(model.SerializeToString())
    assert session.sparse_layers == ("a",)
    expected = ort.InferenceSession(model.SerializeToString(), providers=CPU).run(None, {"x": X})
    assert largest_difference(session.run(None, {"x": X}), expected) < 1e-5


def test_a_sparse_initializer_that_is_an_output() -> None:
    """ONNX Runtime returns a sparse tensor, ours decodes weights: such a model is left to ONNX Runtime."""
    weight = sparse_weight().T.copy()
    model = onnx.load_from_string(
        model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, len(weight)], "y": [2, None]}, {})
    )
    places = np.flatnonzero(weight)
    values = numpy_helper.from_array(weight.reshape(-1)[places].astype(np.float32), "w")
    indices = numpy_helper.from_array(places.astype(np.int64), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, list(weight.shape)))
    feeds = {"x": np.ones((2, len(weight)), np.float32)}
    assert InferenceSession(model.SerializeToString(), quiet()).sparse_layers
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, weight.shape))
    with pytest.warns(UserWarning, match="the sparse initializer 'w' is an output"):
        ours = InferenceSession(model.SerializeToString(), quiet())
    assert not ours.sparse_layers
    theirs = ort.InferenceSession(model.SerializeToString(), quiet(), providers=CPU)
    found, expected = ours.run(None, feeds), theirs.run(None, feeds)
    assert np.array_equal(found[0], expected[0])
    assert type(found[1]) is type(expected[1])
