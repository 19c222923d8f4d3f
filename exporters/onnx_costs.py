"""Costs of an ONNX model, from its graph and one run: FLOPs, parameters, non-zeros, bytes.

FLOPs follow the convention `multiply-add` and the rules in `models/flop_rules.py`. Zeros of constant weights are
skipped, zeros of activations are not. Operators without a rule are free, and are listed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from rigl_compress.exporters.bounded_tensors import array_of
from rigl_compress.exporters.execution_trace import Executed, executed_nodes, stored_tensors
from rigl_compress.exporters.onnx_products import OperatorProduct, operator_products
from rigl_compress.exporters.ort_sessions import open_session, run_session
from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.tensor_table import count_nonzeros
from rigl_compress.models.layer_flops import multiply_add
from rigl_compress.models.storage_size import layer_bytes

Array = NDArray[Any]


@dataclass(frozen=True)
class NodeCost:
    """The cost of one operator in a run. `weight` names its constant operand, if it has one."""

    name: str
    operator: str
    weight: str
    weights: int
    nonzeros: int
    dense_flops: float
    sparse_flops: float

    @property
    def sparsity(self) -> float:
        """Share of the weights that are zero."""
        return 1 - self.nonzeros / self.weights if self.weights else 0.0


@dataclass(frozen=True)
class GraphCosts:
    """The cost of a model in a run, and its parameters. `uncounted`: number of operators without a rule, by type."""

    nodes: tuple[NodeCost, ...]
    uncounted: Mapping[str, int]
    parameters: int
    nonzeros: int
    bitmask_bytes: float

    @property
    def dense_flops(self) -> float:
        """FLOPs with every weight counted."""
        return sum(node.dense_flops for node in self.nodes)

    @property
    def sparse_flops(self) -> float:
        """FLOPs of the non-zero weights."""
        return sum(node.sparse_flops for node in self.nodes)

    @property
    def layers(self) -> tuple[NodeCost, ...]:
        """The operators with weights, each weight once, in the order of execution."""
        return tuple({node.weight: node for node in self.nodes if node.weight}.values())

    @property
    def sparsity(self) -> float:
        """Share of zeros among the weights of `layers`."""
        total = sum(layer.weights for layer in self.layers)
        return 1 - sum(layer.nonzeros for layer in self.layers) / total if total else 0.0


def graph_costs(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> GraphCosts:
    """Return the costs of a model on inputs by name; pass a batch of one for the cost per sample.

    >>> nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    >>> ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, s]) for n, s in (("x", 4), ("y", 2))]
    >>> weight = onnx.numpy_helper.from_array(np.eye(2, 4, dtype=np.float32), "w")
    >>> graph = helper.make_graph(nodes, "one layer", ends[:1], ends[1:], [weight])
    >>> model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    >>> costs = graph_costs(model, {"x": np.zeros((1, 4), np.float32)})
    >>> costs.dense_flops, costs.sparse_flops, costs.parameters, costs.nonzeros
    (16.0, 4.0, 8, 2)
    """
    plain = restore(model)
    executed = executed_nodes(plain, inputs)
    stored = dict(stored_arrays(plain))
    used = {name for each in executed for product in operator_products(each) for name in product.names}
    arrays = stored | _computed(plain, used - stored.keys(), inputs)
    rows = tuple(cost for each in executed for cost in node_costs(each, arrays))
    free = Counter(each.node.op_type for each in executed if not operator_products(each))
    return replace(stored_costs(list(stored.values())), nodes=rows, uncounted=dict(sorted(free.items())))


def node_costs(executed: Executed, arrays: Mapping[str, Array]) -> list[NodeCost]:
    """Return the cost of an operator, a row for each of its weights; `arrays` are the constants by name."""
    return [_cost(executed.node, product, arrays) for product in operator_products(executed)]


def stored_arrays(model: onnx.ModelProto) -> Iterator[tuple[str, Array]]:
    """Yield the constants of a plain model and its sub-graphs, by name."""
    return ((name, array_of(tensor)) for name, tensor in stored_tensors(model.graph))


def stored_costs(arrays: Sequence[Array]) -> GraphCosts:
    """Return parameters, non-zeros, and bytes under the paper's convention, where a vector (a bias) needs no mask."""
    numbers = [array for array in arrays if array.dtype.kind == "f" and array.ndim]
    sizes = [layer_bytes(a.size, count_nonzeros(a) if a.ndim > 1 else a.size) for a in numbers]
    return GraphCosts((), {}, sum(array.size for array in numbers), sum(map(count_nonzeros, numbers)), sum(sizes))


def _computed(model: onnx.ModelProto, names: set[str], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return values that depend on constants alone: weights that are sliced, transposed or dequantized first."""
    wanted = sorted(_constant_values(model.graph) & names)
    if not wanted:
        return {}
    part = onnx.ModelProto()
    part.CopyFrom(model)
    del part.graph.output[:]
    part.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted)
    session = open_session(part)
    fed = {each.name: inputs[each.name] for each in session.get_inputs()}
    return dict(zip(wanted, run_session(session, fed), strict=True))


def _constant_values(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the values in the main graph that depend on constants alone."""
    known = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        inner = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        if not inner and {*known, ""}.issuperset(node.input) and not node.op_type.startswith("Random"):
            known.update(node.output)
    return known


def _cost(node: onnx.NodeProto, found: OperatorProduct, arrays: Mapping[str, Array]) -> NodeCost:
    flops = float(multiply_add(found.product.fan, found.product.elements, channels=1))
    name = node.name or (node.output[0] if node.output else node.op_type)
    weight = next((operand for operand in found.operands if arrays.get(operand.name, _NONE).size), None)
    if weight is None:
        return NodeCost(name, node.op_type, "", 0, 0, flops, flops)
    array = arrays[weight.name]
    nonzeros = _nonzeros(array, arrays.get(weight.zero_point))
    return NodeCost(name, node.op_type, weight.name, array.size, nonzeros, flops, flops * nonzeros / array.size)


_NONE: Array = np.empty(0)


def _nonzeros(array: Array, zero: Array | None) -> int:
    """Return the number of non-zero elements; quantized weights have a zero point, which can differ from 0.

    >>> _nonzeros(np.array([[3, 4], [3, 3]], dtype=np.uint8), np.array(3, dtype=np.uint8))
    1
    """
    if zero is None:
        return count_nonzeros(array)
    leading = zero.size > 1 and array.ndim > 2  # of filters there is one for each, of matrices one for each column
    return int(np.count_nonzero(array != (zero.reshape(-1, *[1] * (array.ndim - 1)) if leading else zero)))
