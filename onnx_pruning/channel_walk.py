"""How operators of an ONNX graph treat channels: which they produce, read, pass on, or do not let be followed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.onnx_pruning.channel_classes import ChannelClasses
from rigl_compress.runtime.onnx_graph import Graph, attributes, has_input, is_standard, same_shape

Array = NDArray[Any]
POINTWISE = (
    *("Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Selu", "Gelu", "Erf"),
    *("Softplus", "Softsign", "Mish", "Identity", "Neg", "Abs", "Exp", "Sqrt"),
)
POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
BINARY = ("Add", "Sub", "Mul", "Div")


@dataclass(frozen=True)
class Product:
    """An operator with a weight: rows are its output channels, columns the channels that it reads."""

    node: int
    weight: str
    rows: int  # axis of the weight
    columns: int
    bias: int = -1  # place among the inputs; -1: it can have none


@dataclass
class ChannelWalk:
    """A graph with its channels, the operators that hold parameters for them, and those to be rewritten."""

    graph: Graph
    classes: ChannelClasses = field(default_factory=ChannelClasses)
    products: list[Product] = field(default_factory=list)
    parameters: list[tuple[int, int, int]] = field(default_factory=list)  # node, place of the input, axis
    depthwise: list[int] = field(default_factory=list)
    flattened: list[int] = field(default_factory=list)  # Reshape with the batch and one other axis

    def run(self) -> "ChannelWalk":
        """Walk through all nodes."""
        for place, node in enumerate(self.graph.nodes):
            rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if rule is None or not rule(self, place, node):
                self.classes.pin(node.input, node.op_type)
        self.classes.pin(self.graph.outputs, "an output")
        return self

    def own(self, name: str, *ranks: int) -> Array | None:
        """Return an initializer of floats that one operator reads; None for others."""
        array = self.graph.constant(name) if self.graph.is_initializer(name) else None
        alone = len(self.graph.consumers.get(name, ())) == 1 and name not in self.graph.outputs
        fits = array is not None and array.dtype == np.float32 and array.ndim in ranks and not self.graph.is_half(name)
        return array if alone and fits else None

    def followed(self, name: str, axis: int | None = None) -> bool:
        """Whether the channels of a value are known, along an axis."""
        return name in self.classes.axes and axis in (None, self.classes.axes[name])

    def rank(self, name: str) -> int:
        """Return the number of axes of a value; -1: unknown."""
        shape = self.graph.shape(name)
        return -1 if shape is None else len(shape)


def _conv(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    weight, groups = walk.own(node.input[1], 3, 4, 5), attributes(node).get("group", 1)
    if weight is None or (has_input(node, 2) and walk.graph.constant(node.input[2]) is None):
        return False
    if groups > 1:
        return len(weight) == groups and weight.shape[1] == 1 and _depthwise(walk, place, node)
    if not _reads(walk, node.input[0], 1, np.moveaxis(weight, 1, 0)):
        return False
    walk.products.append(Product(place, node.input[1], 0, 1, 2))
    walk.classes.add(node.output[0], 1, len(weight))
    return True


def _reads(walk: ChannelWalk, x: str, axis: int, columns: Array) -> bool:
    """Mark the channels that a product reads; False if they are not along this axis."""
    if x not in walk.classes.axes:
        return True
    if not walk.followed(x, axis) or len(walk.classes.members[x]) != len(columns):
        return False
    walk.classes.need(x, np.any(columns.reshape(len(columns), -1), axis=1))
    return True


def _depthwise(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    if not walk.followed(node.input[0], 1):
        return True  # what it reads is not followed, nor is what it returns
    walk.depthwise.append(place)
    walk.parameters.extend((place, each, 0) for each in (1, 2) if has_input(node, each))
    return _passed(walk, node)


def _passed(walk: ChannelWalk, node: onnx.NodeProto, axis: int | None = None) -> bool:
    x = node.input[0]
    if x in walk.classes.axes:
        walk.classes.share(node.output[0], walk.classes.axes[x] if axis is None else axis, walk.classes.members[x])
    return True


def _gemm(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    weight, settings = walk.own(node.input[1], 2), attributes(node)
    if weight is None or settings.get("transA", 0):
        return False
    rows, columns = (0, 1) if settings.get("transB", 0) else (1, 0)
    bias = walk.graph.constant(node.input[2]) if has_input(node, 2) else None
    if has_input(node, 2) and (bias is None or not settings.get("beta", 1.0)):
        return False
    if bias is not None and (bias.size != weight.shape[rows] or bias.shape[-1:] != (weight.shape[rows],)):
        return False  # it is not one number for each output: [samples, 1] is one for each sample
    if not _reads(walk, node.input[0], 1, np.moveaxis(weight, columns, 0)):
        return False
    walk.products.append(Product(place, node.input[1], rows, columns, 2))
    walk.classes.add(node.output[0], 1, weight.shape[rows])
    return True


def _matmul(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    weight, last = walk.own(node.input[1], 2), walk.rank(node.input[0]) - 1
    if weight is None or last < 1 or not _reads(walk, node.input[0], last, weight):
        return False
    walk.products.append(Product(place, node.input[1], 1, 0))
    walk.classes.add(node.output[0], last, weight.shape[1])
    return True


def _pointwise(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    del place
    return all(walk.graph.constant(name) is not None for name in node.input[1:] if name) and _passed(walk, node)


def _pool(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    del place
    x = node.input[0]
    return len([each for each in node.output if each]) == 1 and walk.classes.axes.get(x, 1) == 1 and _passed(walk, node)


def _reduce(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    del place
    settings, rank = attributes(node), walk.rank(node.input[0])
    axes = settings.get("axes")
    if axes is None and has_input(node, 1):
        axes = walk.graph.constant(node.input[1])
    if axes is None or rank < 0 or any(int(each) % rank < 2 for each in axes):
        return False
    return walk.classes.axes.get(node.input[0], 1) == 1 and _passed(walk, node)


def _norm(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    constants = [walk.graph.constant(name) for name in node.input[1:]]
    plain = len([each for each in node.output if each]) == 1 and not attributes(node).get("training_mode", 0)
    if not plain or any(each is None for each in constants) or walk.classes.axes.get(node.input[0], 1) != 1:
        return False
    if walk.followed(node.input[0]):
        walk.parameters.extend((place, each, 0) for each in range(1, 5))
    return _passed(walk, node)


def _binary(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    one, other = node.input
    for x, second, slot in ((one, other, 1), (other, one, 0)):
        constant = walk.graph.constant(second)
        if constant is not None and walk.followed(x):
            return _with_constant(walk, place, (x, slot), constant)
    if not (walk.followed(one) and walk.followed(other)):
        return not (walk.followed(one) or walk.followed(other))
    alike = walk.classes.axes[one] == walk.classes.axes[other] and 0 < walk.rank(one) == walk.rank(other)
    if not alike or len(walk.classes.members[one]) != len(walk.classes.members[other]):
        return False
    walk.classes.join(one, other)
    return _passed(walk, node)


def _with_constant(walk: ChannelWalk, place: int, read: tuple[str, int], constant: Array) -> bool:
    (x, slot), node = read, walk.graph.nodes[place]
    rank, count = walk.rank(x), len(walk.classes.members[x])
    axis = walk.classes.axes[x] - (rank - constant.ndim)
    if rank < constant.ndim or (axis >= 0 and constant.shape[axis] not in (1, count)):
        return False
    if axis >= 0 and constant.shape[axis] == count > 1:
        walk.parameters.append((place, slot, axis))
    walk.classes.share(node.output[0], walk.classes.axes[x], walk.classes.members[x])
    return True


def _concat(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    del place
    axis, ranks = attributes(node)["axis"], {walk.rank(name) for name in node.input}
    if not all(walk.followed(name) for name in node.input):
        return not any(walk.followed(name) for name in node.input)
    if len(ranks) != 1 or -1 in ranks or {walk.classes.axes[name] for name in node.input} != {axis % ranks.pop()}:
        return False
    channels = np.concatenate([walk.classes.members[name] for name in node.input])
    walk.classes.share(node.output[0], walk.classes.axes[node.input[0]], channels)
    return True


def _flatten(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    x = node.input[0]
    if not walk.followed(x):
        return True
    before, after = walk.graph.shape(x) or (), walk.graph.shape(node.output[0]) or ()
    known = all(isinstance(each, int) and each > 0 for each in before[1:])
    if walk.classes.axes[x] != 1 or not known or len(after) != 2 or not same_shape(before[:1], after[:1]):
        return False
    if after[1] != prod(int(each) for each in before[1:]):
        return False
    if node.op_type == "Reshape":
        walk.flattened.append(place)
    channels = np.repeat(walk.classes.members[x], prod(int(each) for each in before[2:]))
    walk.classes.share(node.output[0], 1, channels)
    return True


def _transpose(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    del place
    order = attributes(node).get("perm")
    if order is None or not walk.followed(node.input[0]):
        return not walk.followed(node.input[0])
    return _passed(walk, node, list(order).index(walk.classes.axes[node.input[0]]))


def _ignored(walk: ChannelWalk, place: int, node: onnx.NodeProto) -> bool:
    del walk, place
    return is_standard(node, "Constant")


Rule = Callable[[ChannelWalk, int, onnx.NodeProto], bool]
RULES: dict[str, Rule] = {
    **{"Conv": _conv, "Gemm": _gemm, "MatMul": _matmul, "BatchNormalization": _norm, "ReduceMean": _reduce},
    **{"Concat": _concat, "Flatten": _flatten, "Reshape": _flatten, "Transpose": _transpose, "Constant": _ignored},
    **dict.fromkeys(POINTWISE, _pointwise),
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(BINARY, _binary),
}
