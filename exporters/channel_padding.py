"""Padding of channels: after pruning, filters of zeros round the channels of a convolution up where that is faster.

ONNX Runtime stores images in blocks of eight channels for its fast convolutions, but only if the number of channels
that a convolution reads is a multiple of four. With 62 of 64 channels left, the convolution is a quarter slower than
before pruning. The weights that read the added channels are zero, so the outputs do not change.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from rigl_compress.exporters.input_selection import BLOCK, EVEN, UNEVEN
from rigl_compress.exporters.protobuf_walk import graphs_of

Array = NDArray[Any]
_PASSING = frozenset(
    (
        *("Relu", "LeakyRelu", "Clip", "Elu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Identity"),
        *("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    )
)
_TOGETHER = frozenset(("Add", "Sub", "Mul"))
_VIEWS = frozenset(("Flatten", "Reshape"))


def pad_channels(model: onnx.ModelProto, cut: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Pad channels where that is faster, if one of the weights in `cut` computes them. Changes the model.

    Return the earlier shapes of the tensors that changed.
    """
    index, changed = _Index(model), dict[str, tuple[int, ...]]()
    seen: set[str] = set()
    for node in index.uneven():
        stream = _Stream(index)
        if node.input[0] not in seen and stream.takes_all(node.input[0]) and stream.producers & set(cut):
            changed = stream.pad() | changed
        seen |= stream.values
    return changed


@dataclass(frozen=True)
class _Index:
    """A graph with its tensors, producers, users and shapes by name."""

    model: onnx.ModelProto

    @cached_property
    def tensors(self) -> dict[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @cached_property
    def producers(self) -> dict[str, onnx.NodeProto]:
        return {name: node for node in self.model.graph.node for name in node.output if name}

    @cached_property
    def users(self) -> dict[str, list[onnx.NodeProto]]:
        found: dict[str, list[onnx.NodeProto]] = {}
        for node in self.model.graph.node:
            for name in dict.fromkeys(node.input):
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def fixed(self) -> Counter[str]:
        """How often values are used outside the main graph: by callers and by sub-graphs."""
        _, *inner = graphs_of(self.model.graph)
        names = [name for graph in inner for node in graph.node for name in node.input]
        return Counter([*names, *(value.name for value in (*self.model.graph.input, *self.model.graph.output))])

    @cached_property
    def shapes(self) -> dict[str, list[int]]:
        inferred = onnx.shape_inference.infer_shapes(self.model).graph
        values = (*inferred.input, *inferred.value_info, *inferred.output)
        return {each.name: [axis.dim_value for axis in each.type.tensor_type.shape.dim] for each in values}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a constant with exactly one user; empty for others."""
        alone = name in self.tensors and len(self.users.get(name, ())) == 1 and not self.fixed[name]
        return tuple(self.tensors[name].dims) if alone else ()

    def uneven(self) -> list[onnx.NodeProto]:
        """Return the convolutions of images that would be faster with a few channels more."""
        found = [node for node in self.model.graph.node if node.op_type == "Conv" and _group(node) == 1]
        return [node for node in found if len(shape := self.shape(node.input[1])) == 4 and _faster_padded(shape[1])]


def _faster_padded(channels: int) -> bool:
    """Return whether so many channels are read faster when padded.

    >>> [number for number in (6, 9, 12, 30, 57, 62, 64) if _faster_padded(number)]
    [30, 57, 62]
    """
    if channels < BLOCK or channels % EVEN == 0:
        return False
    return -(-channels // BLOCK) * BLOCK <= UNEVEN * channels


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def _group(node: onnx.NodeProto) -> int:
    return int(_attributes(node).get("group", 1))


@dataclass
class _Stream:
    """All values that share their channels, and the tensors and operators that depend on the number of channels."""

    index: _Index
    values: set[str] = field(default_factory=set)
    producers: set[str] = field(default_factory=set)  # weights whose filters compute the channels
    axes: dict[str, dict[int, int]] = field(default_factory=dict)  # of tensors: elements per channel
    depthwise: list[onnx.NodeProto] = field(default_factory=list)
    views: list[onnx.NodeProto] = field(default_factory=list)
    variances: set[str] = field(default_factory=set)

    def takes_all(self, value: str) -> bool:
        """Follow a value in both directions; return whether all operators on its channels are supported."""
        waiting = [value]
        while waiting:
            name = waiting.pop()
            if name in self.values:
                continue
            self.values.add(name)
            producer = self.index.producers.get(name)
            if producer is None or self.index.fixed[name]:
                return False
            found = [self._made(producer), *(self._used(node, name) for node in self.index.users.get(name, ()))]
            waiting += [each for names in found for each in names or ()]
            if None in found:
                return False
        return len(set(self._channels())) == 1

    def _channels(self) -> list[float]:
        """Return the number of channels by each tensor that depends on it; 0 for one that cannot be changed."""
        shapes = {name: self.index.shape(name) for name in self.axes}
        return [
            shapes[name][axis] / factor if axis < len(shapes[name]) else 0
            for name, axes in self.axes.items()
            for axis, factor in axes.items()
        ]

    def _depends(self, name: str, axis: int, factor: int = 1) -> None:
        if name:
            self.axes.setdefault(name, {})[axis] = factor

    def _made(self, node: onnx.NodeProto) -> list[str] | None:
        """Record what computes the channels; return its inputs that share them, None for an unsupported operator."""
        if node.op_type == "Conv":
            for name in node.input[1:]:
                self._depends(name, 0)
            self.producers.add(node.input[1])
            if _group(node) == 1:
                return []
            self.depthwise.append(node)
            return [node.input[0]] if self.index.shape(node.input[1])[:2] == (_group(node), 1) else None
        if node.op_type == "BatchNormalization" and len(node.output) == 1:
            for name in node.input[1:]:
                self._depends(name, 0)
            self.variances.add(node.input[4])
            return [node.input[0]]
        if node.op_type in _TOGETHER:
            return list(node.input)
        return [node.input[0]] if self._passes(node) else None

    def _used(self, node: onnx.NodeProto, name: str) -> list[str] | None:
        """Record what reads the channels; return its outputs that share them, None for an unsupported operator."""
        if node.op_type in _TOGETHER:
            return [node.output[0]]
        if list(node.input).index(name) or name in node.input[1:]:
            return None
        if node.op_type == "Conv" and _group(node) == 1:
            self._depends(node.input[1], 1)
            return []
        if node.op_type in ("Conv", "BatchNormalization") or self._passes(node):
            return [node.output[0]]
        return self._multiplied(node)

    def _passes(self, node: onnx.NodeProto) -> bool:
        return node.op_type in _PASSING or (self._averages(node) and _attributes(node).get("keepdims", 1) == 1)

    def _averages(self, node: onnx.NodeProto) -> bool:
        """Return whether an operator is the mean of each channel of an image."""
        if node.op_type != "ReduceMean" or len(self.index.shapes.get(node.input[0], ())) != 4:
            return False
        axes = _attributes(node).get("axes")
        if axes is None and len(node.input) > 1 and node.input[1] in self.index.tensors:
            axes = numpy_helper.to_array(self.index.tensors[node.input[1]]).tolist()
        return axes is not None and sorted(axis % 4 for axis in axes) == [2, 3]

    def _multiplied(self, node: onnx.NodeProto) -> list[str] | None:
        """Follow flattened channels into the matrix products that read them."""
        row, shape = node.output[0], self.index.shapes.get(node.input[0], [])
        if not (node.op_type in _VIEWS or self._averages(node)) or len(shape) != 4 or self.index.fixed[row]:
            return None
        pixels = prod(shape[2:]) if node.op_type in _VIEWS else 1
        if pixels < 1 or self.index.shapes.get(row, [])[1:] != [shape[1] * pixels]:
            return None
        for user in self.index.users.get(row, ()):
            if user.op_type not in ("Gemm", "MatMul") or user.input[0] != row or _attributes(user).get("transA", 0):
                return None
            self._depends(user.input[1], 1 if _attributes(user).get("transB", 0) else 0, pixels)
        if node.op_type == "Reshape":
            self.views.append(node)
        return []

    def pad(self) -> dict[str, tuple[int, ...]]:
        """Pad the channels with zeros; return the earlier shapes of the tensors."""
        channels = int(self._channels()[0])
        more = -channels % EVEN
        before = {name: self.index.shape(name) for name in self.axes}
        for name, axes in self.axes.items():
            tensor = self.index.tensors[name]
            array = numpy_helper.to_array(tensor)
            widths = [(0, more * axes.get(axis, 0)) for axis in range(array.ndim)]
            padded = np.pad(array, widths, constant_values=name in self.variances)  # variances are divided by
            tensor.CopyFrom(numpy_helper.from_array(padded, name))
        for node in self.depthwise:
            _set(node, group=channels + more)
        for node in self.views:  # its sizes are literal
            node.op_type = "Flatten"
            del node.input[1:], node.attribute[:]
            _set(node, axis=1)
        return before


def _set(node: onnx.NodeProto, **values: Any) -> None:
    kept = [each for each in node.attribute if each.name not in values]
    made: Mapping[str, Any] = values
    attributes = [*kept, *(helper.make_attribute(name, value) for name, value in made.items())]
    del node.attribute[:]
    node.attribute.extend(attributes)
