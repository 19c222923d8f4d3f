"""Dead channels of ONNX graphs: what is removed changes no output, what is not followed is kept and said."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx_layers import model_of, saved

import rigl_compress as rc
from rigl_compress.exporters.restore import restore
from rigl_compress.onnx_pruning.channel_removal import ChannelRemoval, remove_dead_channels
from rigl_compress.onnx_pruning.sparsify_report import summary_table


class Builder:
    """A graph that grows, with weights some of whose rows and columns are zero."""

    def __init__(self, seed: int, dead: float = 0.4) -> None:
        self.draw, self.dead = np.random.default_rng(seed), dead
        self.nodes: list[onnx.NodeProto] = []
        self.stored: dict[str, np.ndarray] = {}
        self.channels = {"x": 3}

    def constant(self, array: Any) -> str:
        name = f"c{len(self.stored)}"
        self.stored[name] = np.asarray(array, dtype=np.float32)
        return name

    def weight(self, rows: int, columns: int, *taps: int) -> np.ndarray:
        found = self.draw.normal(size=(rows, columns, *taps))
        found[self.draw.random(rows) < self.dead] = 0
        found[:, self.draw.random(columns) < self.dead] = 0
        return found

    def add(self, operator: str, inputs: list[str], channels: int, **settings: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **settings))
        self.channels[name] = channels
        return name

    def conv(self, x: str, rows: int, taps: int = 1, pad: int = 0, bias: bool = True) -> str:
        inputs = [x, self.constant(self.weight(rows, self.channels[x], taps, taps))]
        inputs += [self.constant(self.draw.normal(size=rows))] if bias else []
        return self.add("Conv", inputs, rows, pads=[pad] * 4)

    def depthwise(self, x: str, pad: int = 1) -> str:
        count = self.channels[x]
        inputs = [x, self.constant(self.weight(count, 1, 3, 3)), self.constant(self.draw.normal(size=count))]
        return self.add("Conv", inputs, count, pads=[pad] * 4, group=count)

    def norm(self, x: str) -> str:
        parts = [self.constant(self.draw.random(self.channels[x]) + 0.5) for _ in range(4)]
        return self.add("BatchNormalization", [x, *parts], self.channels[x])

    def scaled(self, x: str, operator: str = "Mul") -> str:
        factor = self.constant(self.draw.normal(size=(self.channels[x], 1, 1)))
        return self.add(operator, [x, factor], self.channels[x])

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in outputs]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
        stored = [numpy_helper.from_array(each, name) for name, each in self.stored.items()]
        graph = helper.make_graph(self.nodes, "g", [x], values, stored)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        found = onnx.shape_inference.infer_shapes(made)
        del found.graph.value_info[:]
        return found


def outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(2, 3, 8, 8)).astype(np.float32)
    return [np.asarray(each) for each in session.run(None, {"x": x})]


def check_exact(model: onnx.ModelProto) -> ChannelRemoval:
    """Remove, and compare; the source stays as it is."""
    before = model.SerializeToString()
    found = remove_dead_channels(model)
    assert model.SerializeToString() == before
    for one, other in zip(outputs(model), outputs(found.model), strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max() <= 1e-5 * max(1e-6, np.abs(one).max())
    return found


def size(model: onnx.ModelProto) -> int:
    return sum(int(np.prod(each.dims)) for each in model.graph.initializer)


STEPS = ("conv1", "conv3", "padded", "depthwise", "norm", "relu", "sigmoid", "add", "mul", "concat", "pool", "average",
         "scale", "shift", "softmax", "shared")  # fmt: skip


def grown(build: Builder, steps: list[str]) -> list[str]:
    """Add operators to a graph at random places; return the values that nothing reads."""
    values = [build.conv("x", 6, 3, 1)]
    for step in steps:
        x = values[int(build.draw.integers(len(values)))]
        alike = [each for each in values if build.channels[each] == build.channels[x]]
        other = alike[int(build.draw.integers(len(alike)))]
        rows = int(build.draw.integers(2, 8))
        made = {
            "conv1": lambda x=x, n=rows: build.conv(x, n),
            "conv3": lambda x=x, n=rows: build.conv(build.add("Relu", [x], build.channels[x]), n, 3, 1, bias=False),
            "padded": lambda x=x, n=rows: build.conv(x, n, 3, 1),
            "depthwise": lambda x=x: build.depthwise(x),
            "norm": lambda x=x: build.norm(x),
            "relu": lambda x=x: build.add("Relu", [x], build.channels[x]),
            "sigmoid": lambda x=x: build.add("Sigmoid", [x], build.channels[x]),
            "add": lambda x=x, y=other: build.add("Add", [x, y], build.channels[x]),
            "mul": lambda x=x, y=other: build.add("Mul", [x, y], build.channels[x]),
            "concat": lambda x=x, y=other: build.add("Concat", [x, y], 2 * build.channels[x], axis=1),
            "pool": lambda x=x: build.add("MaxPool", [x], build.channels[x], kernel_shape=[3, 3], pads=[1] * 4),
            "average": lambda x=x, n=rows: build.add(
                "AveragePool", [x], build.channels[x], kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=n % 2
            ),
            "scale": lambda x=x: build.scaled(x),
            "shift": lambda x=x: build.scaled(x, "Sub"),
            "softmax": lambda x=x: build.add("Softmax", [x], build.channels[x], axis=1),
            "shared": lambda x=x: build.add("Conv", [x, build.nodes[0].input[1]], 6, pads=[1] * 4)
            if build.channels[x] == 3 else build.add("Identity", [x], build.channels[x]),
        }  # fmt: skip
        values.append(made[step]())
    read = {name for node in build.nodes for name in node.input}
    return [each for each in values if each not in read]


@given(seed=st.integers(0, 10**6), steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=12), ended=st.booleans())
@settings(max_examples=60, deadline=None)
def test_random_graphs_keep_their_outputs(seed: int, steps: list[str], ended: bool) -> None:
    build = Builder(seed)
    ends = grown(build, steps)
    if ended:  # a head over all that is left: nothing is an output of its own
        ends = [head(build, each) for each in ends]
    found = check_exact(build.model(ends))
    assert size(found.model) <= size(build.model(ends)) + 64  # biases that were not there


def head(build: Builder, x: str) -> str:
    pooled = build.add("GlobalAveragePool", [x], build.channels[x])
    flat = build.add("Flatten", [pooled], build.channels[x], axis=1)
    inputs = [flat, build.constant(build.weight(5, build.channels[x])), build.constant(build.draw.normal(size=5))]
    return build.add("Gemm", inputs, 5, transB=1)


def test_a_channel_of_zeros_and_one_that_nothing_reads_are_removed() -> None:
    build = Builder(0, dead=0)
    first = build.conv("x", 8, 3, 1)
    relu = build.add("Relu", [build.norm(first)], 8)
    second = build.conv(relu, 5)
    names = [build.nodes[0].input[1], build.nodes[3].input[1]]
    build.stored[names[0]][[1, 4]] = 0  # constant: what is left is the bias
    build.stored[names[1]][:, 6] = 0  # not read
    found = check_exact(build.model([second]))
    weights = {each.name: tuple(each.dims) for each in found.model.graph.initializer}
    assert (weights[names[0]], weights[names[1]]) == ((5, 3, 3, 3), (5, 5, 1, 1))
    assert found.removed == {names[0]: 3}
    assert found.lines == ["3 dead channels of 1 layers were removed"]


def test_what_dies_with_a_channel_is_removed_too() -> None:
    build = Builder(0, dead=0)
    first, second = build.conv("x", 8), ""
    second = build.conv(build.add("Relu", [first], 8), 6)
    third = build.conv(second, 4)
    weights = [build.nodes[each].input[1] for each in (0, 2, 3)]
    build.stored[weights[2]][:, 2] = 0
    build.stored[weights[1]][:, 5] = 0
    build.stored[weights[1]][2, 5] = 1.0  # channel 5 is read by channel 2 alone, which nothing reads
    found = check_exact(build.model([third]))
    assert found.removed == {weights[0]: 1, weights[1]: 1}


def test_a_constant_that_padding_would_change_is_kept() -> None:
    build = Builder(0, dead=0)
    first = build.conv("x", 8)
    second = build.conv(first, 4, 3, 1)
    build.stored[build.nodes[0].input[1]][3] = 0
    assert not check_exact(build.model([second])).removed
    build.stored[build.nodes[0].input[2]][3] = 0  # zeros are padded with zeros
    assert sum(check_exact(build.model([second])).removed.values()) == 1


def test_sums_lose_a_channel_only_together() -> None:
    build = Builder(0, dead=0)
    one, other = build.conv("x", 8), build.conv("x", 8)
    last = build.conv(build.add("Add", [one, other], 8), 4)
    build.stored[build.nodes[0].input[1]][3] = 0
    assert not check_exact(build.model([last])).removed
    build.stored[build.nodes[1].input[1]][3] = 0
    assert sum(check_exact(build.model([last])).removed.values()) == 2


def test_operators_that_are_not_followed_keep_their_channels_and_are_named() -> None:
    build = Builder(0, dead=0)
    soft = build.add("Softmax", [build.conv("x", 8)], 8, axis=1)
    last = build.conv(soft, 4)
    build.stored[build.nodes[0].input[1]][3] = 0
    found = check_exact(build.model([last]))
    assert not found.removed
    assert found.lines == ["dead channels were kept, as these read them: Softmax (1)"]


def test_layers_behind_reshape_lose_the_pixels_of_a_channel() -> None:
    build = Builder(0, dead=0)
    first = build.conv("x", 6)
    build.stored["shape"] = np.array([0, -1])
    flat = build.add("Reshape", [first, "shape"], 6 * 64)
    gemm = build.add("Gemm", [flat, build.constant(build.weight(5, 384))], 5, transB=1, alpha=0.5)
    build.stored[build.nodes[0].input[1]][2] = 0
    model = build.model([gemm])
    shape = next(each for each in model.graph.initializer if each.name == "shape")
    shape.CopyFrom(numpy_helper.from_array(np.array([0, -1], dtype=np.int64), "shape"))
    found = check_exact(model)
    assert sum(found.removed.values()) == 1
    assert {tuple(each.dims) for each in found.model.graph.initializer} >= {(5, 320), (5,)}


def test_a_network_whose_channels_are_all_dead_keeps_one() -> None:
    build = Builder(0, dead=0)
    last = build.conv(build.conv("x", 8), 4)
    build.stored[build.nodes[0].input[1]][:] = 0
    found = check_exact(build.model([last]))
    assert sum(found.removed.values()) == 7


@pytest.mark.parametrize("keep", [False, True])
def test_pruned_files_lose_their_dead_channels_unless_told_otherwise(keep: bool, tmp_path: Path) -> None:
    build = Builder(0, dead=0)
    last = head(build, build.add("Relu", [build.conv("x", 12, 3, 1)], 12))
    build.stored[build.nodes[0].input[1]][:8] *= 1e-3  # the smallest weights
    saved(build.model([last]), tmp_path / "net.onnx")
    chosen: dict[str, Any] = {"sparsity": 0.7, "allocation": "uniform", "timing": None, "keep_dead_channels": keep}
    found = rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "small.onnx", **chosen)
    shown = dict(summary_table(found).rows)
    assert (shown.get("dead channels removed") is None) == keep
    weights = {each.name: tuple(each.dims) for each in restore(onnx.load(tmp_path / "small.onnx")).graph.initializer}
    assert (weights[build.nodes[0].input[1]][0] < 12) != keep
    small, plain = (outputs(each) for each in (restore(onnx.load(tmp_path / "small.onnx")), _removed(tmp_path)))
    assert np.allclose(small[0], plain[0], rtol=1e-5, atol=1e-6)


def _removed(folder: Path) -> onnx.ModelProto:
    """The same file with its dead channels."""
    chosen: dict[str, Any] = {"sparsity": 0.7, "allocation": "uniform", "timing": None, "keep_dead_channels": True}
    rc.sparsify_onnx(folder / "net.onnx", folder / "plain.onnx", **chosen)
    return restore(onnx.load(folder / "plain.onnx"))


@pytest.mark.parametrize("shape", [(8, 1), (1, 8), (8,)])
def test_a_bias_of_samples_is_not_one_of_channels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    weight, second = draw.normal(size=(6, 8)).astype(np.float32), draw.normal(size=(8, 4)).astype(np.float32)
    weight[:, ::2] = 0
    stored = {"w": weight, "b": draw.normal(size=shape).astype(np.float32), "v": second}
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("Gemm", ["r", "v"], ["y"])]  # fmt: skip
    model = model_of(nodes, [[8, 6]], stored)
    found = remove_dead_channels(model)
    x = {"x": draw.normal(size=(8, 6)).astype(np.float32)}
    wanted, got = (ort.InferenceSession(each.SerializeToString()).run(None, x)[0] for each in (model, found.model))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert bool(found.removed) == (shape != (8, 1))


def test_channels_of_half_precision_are_kept_which_is_said_once(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    stored = {"w": draw.normal(size=(16, 32)), "v": draw.normal(size=(32, 20))}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("MatMul", ["r", "v"], ["y"])]  # fmt: skip
    for kind, said in ((np.float16, 1), (np.float32, 0)):
        model = model_of(nodes, [["n", 16]], {name: each.astype(kind) for name, each in stored.items()})
        for value in (model.graph.input[0], model.graph.output[0]):
            value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        saved(model, tmp_path / "net.onnx")
        found = rc.sparsify_onnx(
            tmp_path / "net.onnx", tmp_path / "small.onnx", sparsity=0.97, overwrite=True, timing=None
        )
        assert sum("only weights of float32 are followed" in each for each in found.notes) == said
        assert ("dead_channels" in found.facts) == (not said)
