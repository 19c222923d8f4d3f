"""An indexed ONNX graph: producers and consumers of values, constants, shapes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from rigl_compress.exporters.onnx_file import opset_of
from rigl_compress.exporters.protobuf_scan import is_hollow
from rigl_compress.exporters.protobuf_walk import graphs_of
from rigl_compress.runtime.computed_constants import computed, is_computed

Array = NDArray[Any]
Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Graph:
    """A read-only view of a graph, which must not change while the view is used."""

    model: onnx.ModelProto
    weights: Mapping[str, Array] = field(default_factory=dict)  # of initializers without values

    @cached_property
    def nodes(self) -> tuple[onnx.NodeProto, ...]:
        """All nodes, in order."""
        return tuple(self.model.graph.node)

    @cached_property
    def outputs(self) -> frozenset[str]:
        """The outputs of the graph, and the values that subgraphs at any depth may use."""
        return outputs_of(self.model.graph)

    @cached_property
    def producers(self) -> dict[str, onnx.NodeProto]:
        """The node that produces each value."""
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def consumers(self) -> dict[str, tuple[onnx.NodeProto, ...]]:
        """The nodes that consume each value, once per use."""
        found: dict[str, tuple[onnx.NodeProto, ...]] = {}
        for node in self.nodes:
            for name in node.input:
                found[name] = (*found.get(name, ()), node)
        return found

    @cached_property
    def _initializers(self) -> dict[str, TensorProto]:
        inputs = {value.name for value in self.model.graph.input}
        return {tensor.name: tensor for tensor in self.model.graph.initializer if tensor.name not in inputs}

    def is_initializer(self, name: str) -> bool:
        """Check for an initializer, which callers may be able to override."""
        return any(tensor.name == name for tensor in self.model.graph.initializer)

    def reads_quantized(self, name: str) -> bool:
        """Check for a value that is dequantized: ONNX Runtime computes what reads it in integers."""
        producer = self.producers.get(name)
        return producer is not None and is_standard(producer, "DequantizeLinear")

    @cached_property
    def _scalars(self) -> dict[str, TensorProto]:
        constants = (node for node in self.nodes if is_standard(node, "Constant"))
        return {
            node.output[0]: attribute.t
            for node in constants
            for attribute in node.attribute
            if attribute.name == "value"
        }

    def constant(self, name: str) -> Array | None:
        """Return the array of a constant that callers cannot override, also of one that operators compute.

        Constants of float16 are widened to float32.
        """
        found = self._stored(name)
        if found is None and (producer := self._constant_producers.get(name)) is not None:
            found = computed(producer, self.constant)
        return found.astype(np.float32) if found is not None and found.dtype == np.float16 else found

    def _stored(self, name: str) -> Array | None:
        tensor = self._initializers.get(name) or self._scalars.get(name)
        if tensor is not None and is_hollow(tensor):
            return self.weights[name]
        return None if tensor is None else numpy_helper.to_array(tensor)

    @cached_property
    def _constant_producers(self) -> dict[str, onnx.NodeProto]:
        """The nodes that compute constants; nodes are in the order of execution."""
        stored = {*self._initializers, *self._scalars, ""}
        found: dict[str, onnx.NodeProto] = {}
        for node in self.nodes:
            if is_computed(node) and all(name in stored or name in found for name in node.input):
                found[node.output[0]] = node
        return found

    def scale_of(self, name: str) -> Array | None:
        """Return the scale of a constant that is dequantized, and perhaps transposed or reshaped after it."""
        producer = self._constant_producers.get(name)
        if producer is None:
            return None
        is_scaled = is_standard(producer, "DequantizeLinear")
        return self.constant(producer.input[1]) if is_scaled else self.scale_of(producer.input[0])

    @cached_property
    def opset(self) -> int:
        """The version of the standard operators."""
        return opset_of(self.model)

    def is_half(self, name: str) -> bool:
        """Check for a value of 16-bit floats."""
        return self._types.get(name) == TensorProto.FLOAT16

    @cached_property
    def _types(self) -> dict[str, int]:
        values = (*self.model.graph.input, *self.model.graph.value_info, *self.model.graph.output)
        stored = {tensor.name: int(tensor.data_type) for tensor in self.model.graph.initializer}
        return stored | {value.name: value.type.tensor_type.elem_type for value in values}

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        values = (*self.model.graph.input, *self.model.graph.value_info, *self.model.graph.output)
        return {value.name: shape for value in values if (shape := _shape(value)) is not None}

    def shape(self, name: str) -> Shape | None:
        """Return the shape of a value if known; an unknown axis has a name, which may be empty."""
        return self._shapes.get(name)

    def only_consumer(self, name: str) -> onnx.NodeProto | None:
        """Return the node that is the only consumer of a value."""
        users = self.consumers.get(name, ())
        return users[0] if len(users) == 1 and name not in self.outputs else None


def outputs_of(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the outputs of a graph, and the values that its subgraphs at any depth may use."""
    inner = (
        name
        for each in islice(graphs_of(graph), 1, None)
        for name in (*(value.name for value in each.output), *(name for node in each.node for name in node.input))
    )
    return frozenset((*(value.name for value in graph.output), *inner))


def _shape(value: onnx.ValueInfoProto) -> Shape | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in kind.shape.dim)


def same_shape(one: Shape | None, other: Shape | None) -> bool:
    """Check whether two shapes are known to be equal.

    >>> same_shape(("batch", 3), ("batch", 3)), same_shape(("", 3), ("", 3)), same_shape(None, None)
    (True, False, False)
    """
    return one is not None and one == other and "" not in one


def has_input(node: onnx.NodeProto, index: int) -> bool:
    """Check whether an optional input is present."""
    return len(node.input) > index and bool(node.input[index])


def float_constant(graph: Graph, name: str, *ranks: int) -> Array | None:
    """Return a non-empty float32 constant with one of these ranks."""
    array = graph.constant(name)
    fits = array is not None and array.dtype == np.float32 and array.ndim in ranks and array.size > 0
    return array if fits else None


def is_standard(node: onnx.NodeProto, *types: str) -> bool:
    """Check whether a node is a standard ONNX operator of one of these types."""
    return node.op_type in types and node.domain in ("", "ai.onnx")


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node as plain values."""
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
