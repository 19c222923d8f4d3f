"""A graph of ONNX with an index: who makes a value, who uses it, what is constant, what has which shape."""

from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from rigl_compress.exporters.executed import graphs_of

Array = NDArray[Any]
Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Graph:
    """A look into a graph that is not changed meanwhile."""

    model: onnx.ModelProto

    @cached_property
    def nodes(self) -> tuple[onnx.NodeProto, ...]:
        """All operators, in order."""
        return tuple(self.model.graph.node)

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Values that callers see, and those that inner graphs may use, however deep."""
        inner = (
            name
            for graph in islice(graphs_of(self.model.graph), 1, None)
            for name in (*(each.name for each in graph.output), *(name for each in graph.node for name in each.input))
        )
        return frozenset((*(value.name for value in self.model.graph.output), *inner))

    @cached_property
    def makers(self) -> dict[str, onnx.NodeProto]:
        """The operator that makes each value."""
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def consumers(self) -> dict[str, tuple[onnx.NodeProto, ...]]:
        """The operators that use each value, once for each use."""
        found: dict[str, tuple[onnx.NodeProto, ...]] = {}
        for node in self.nodes:
            for name in node.input:
                found[name] = (*found.get(name, ()), node)
        return found

    @cached_property
    def _initializers(self) -> dict[str, TensorProto]:
        inputs = {value.name for value in self.model.graph.input}
        return {tensor.name: tensor for tensor in self.model.graph.initializer if tensor.name not in inputs}

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
        """Give the array of a constant that no caller can override."""
        tensor = self._initializers.get(name) or self._scalars.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        values = (*self.model.graph.input, *self.model.graph.value_info, *self.model.graph.output)
        return {value.name: shape for value in values if (shape := _shape(value)) is not None}

    def shape(self, name: str) -> Shape | None:
        """Give the shape of a value where it is known; an unknown axis has a name, which may be empty."""
        return self._shapes.get(name)

    def only_consumer(self, name: str) -> onnx.NodeProto | None:
        """Give the operator that alone uses a value, once."""
        users = self.consumers.get(name, ())
        return users[0] if len(users) == 1 and name not in self.outputs else None


def _shape(value: onnx.ValueInfoProto) -> Shape | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in kind.shape.dim)


def same_shape(one: Shape | None, other: Shape | None) -> bool:
    """Tell whether two shapes are known to be the same.

    >>> same_shape(("batch", 3), ("batch", 3)), same_shape(("", 3), ("", 3)), same_shape(None, None)
    (True, False, False)
    """
    return one is not None and one == other and "" not in one


def has(node: onnx.NodeProto, place: int) -> bool:
    """Tell whether an optional input is given."""
    return len(node.input) > place and bool(node.input[place])


def floats(graph: Graph, name: str, *ranks: int) -> Array | None:
    """Give a constant of 32 bits with one of these numbers of axes."""
    array = graph.constant(name)
    fits = array is not None and array.dtype == np.float32 and array.ndim in ranks and array.size > 0
    return array if fits else None


def is_standard(node: onnx.NodeProto, *types: str) -> bool:
    """Tell whether an operator is one of these of the standard."""
    return node.op_type in types and node.domain in ("", "ai.onnx")


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Give the attributes of an operator as plain values."""
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
