"""Recognition of encoded tensors: whether a graph has exactly the parts that an encoding writes.

Only then is the value of a tensor known without running the graph.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import NodeProto, SparseTensorProto, TensorProto, ValueInfoProto

from rigl_compress.exporters.bounded_tensors import array_of
from rigl_compress.exporters.encodings import Encoded
from rigl_compress.exporters.onnx_file import OLDEST_OPSET, opset_of

_STANDARD = ("", "ai.onnx")


@dataclass(frozen=True)
class Definitions:
    """The definitions of the values in the main graph of a model, which is not to be changed meanwhile."""

    model: onnx.ModelProto

    @cached_property
    def initializers(self) -> dict[str, TensorProto]:
        """Plain constants by name."""
        return {each.name: each for each in self.model.graph.initializer}

    @cached_property
    def sparse(self) -> dict[str, SparseTensorProto]:
        """Sparse constants by name."""
        return {each.values.name: each for each in self.model.graph.sparse_initializer}

    @cached_property
    def _nodes(self) -> dict[str, NodeProto]:
        return {name: node for node in self.model.graph.node for name in node.output}

    @cached_property
    def _shapes(self) -> dict[str, ValueInfoProto]:
        return {each.name: each for each in self.model.graph.value_info}

    @cached_property
    def _times(self) -> Counter[str]:
        """How often each name is defined; an input that is an initializer too can be overridden by the caller."""
        graph = self.model.graph
        found = Counter(each.name for each in (*graph.initializer, *graph.input))
        found.update(each.values.name for each in graph.sparse_initializer)
        found.update(name for node in graph.node for name in node.output if name)
        return found

    @cached_property
    def _plain_operators(self) -> bool:
        """Whether the model does not redefine standard operators, and has an opset that encodings are written in."""
        own = any(function.domain in _STANDARD for function in self.model.functions)
        return not own and opset_of(self.model) >= OLDEST_OPSET

    def hold(self, encoded: Encoded) -> bool:
        """Return whether the graph has every part of an encoded tensor exactly, and once."""
        once = all(self._times[name] == 1 for name in names_of(encoded))
        return (
            once
            and self._plain_operators
            and all(_same_node(self._nodes.get(node.output[0]), node) for node in encoded.nodes)
            and all(_same_tensor(self.initializers.get(each.name), each) for each in encoded.initializers)
            and all(_same_sparse(self.sparse.get(each.values.name), each) for each in encoded.sparse)
            and all(_same_shape(self._shapes.get(each.name, each), each) for each in encoded.shapes)
        )


def names_of(encoded: Encoded) -> set[str]:
    """Return the names of all values that an encoded tensor defines, also of shared ones."""
    names = {each.name for each in encoded.initializers} | {each.values.name for each in encoded.sparse}
    return names | {name for node in encoded.nodes for name in node.output}


def _same_node(found: NodeProto | None, wanted: NodeProto) -> bool:
    """Compare operators with all their attributes, without their names and doc strings."""
    if found is None or found.domain not in _STANDARD:
        return False
    bare = NodeProto(op_type=found.op_type, input=found.input, output=found.output, attribute=found.attribute)
    same: bool = bare == wanted
    return same and found.overload == ""


def _same_tensor(found: TensorProto | None, wanted: TensorProto) -> bool:
    if found is None or (found.data_type, list(found.dims)) != (wanted.data_type, list(wanted.dims)):
        return False
    return array_of(found).tobytes() == array_of(wanted).tobytes()


def _same_sparse(found: SparseTensorProto | None, wanted: SparseTensorProto) -> bool:
    if found is None or list(found.dims) != list(wanted.dims):
        return False
    return _same_tensor(found.values, wanted.values) and _same_tensor(found.indices, wanted.indices)


def _same_shape(found: ValueInfoProto, wanted: ValueInfoProto) -> bool:
    same: bool = found.type == wanted.type
    return same
