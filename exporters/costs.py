"""What an ONNX model costs, from its graph and one run of it: FLOPs, parameters, zeros, bytes.

One multiplication and one addition for each use of a weight, padding included, as in all published tables. A zero in a
constant weight saves both; two activations multiplied with each other save nothing. Operators without a rule are free,
and are listed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from rigl_compress.exporters.contents import count_nonzeros
from rigl_compress.exporters.executed import Executed, constants, executed_nodes, graphs_of
from rigl_compress.exporters.products import Product, products
from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.sizes import layer_bytes
from rigl_compress.exporters.tensors import array_of
from rigl_compress.exporters.verify import open_session, run_session

Array = NDArray[Any]


@dataclass(frozen=True)
class NodeCost:
    """What one operator costs in a run. `weight` names its constant operand, if it has one."""

    name: str
    operator: str
    weight: str
    weights: int
    nonzeros: int
    dense_flops: float
    sparse_flops: float

    @property
    def sparsity(self) -> float:
        """The share of zeros among the weights."""
        return 1 - self.nonzeros / self.weights if self.weights else 0.0


@dataclass(frozen=True)
class GraphCosts:
    """What a model costs in a run, and what it holds. `uncounted`: how many operators of each type were free."""

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
        """FLOPs without the zeros."""
        return sum(node.sparse_flops for node in self.nodes)

    @property
    def layers(self) -> tuple[NodeCost, ...]:
        """The operators with weights, each weight once, in the order of their execution."""
        return tuple({node.weight: node for node in self.nodes if node.weight}.values())

    @property
    def sparsity(self) -> float:
        """The share of zeros among the weights that are multiplied with."""
        total = sum(layer.weights for layer in self.layers)
        return 1 - sum(layer.nonzeros for layer in self.layers) / total if total else 0.0


def graph_costs(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> GraphCosts:
    """Count a model on inputs by name; give a batch of one for the cost per sample.

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
    used = {name for each in executed for product in products(each) for name in product.names}
    arrays = stored | _computed(plain, used - stored.keys(), inputs)
    rows = tuple(cost for each in executed for cost in node_costs(each, arrays))
    free = Counter(each.node.op_type for each in executed if not products(each))
    return replace(holdings(list(stored.values())), nodes=rows, uncounted=dict(sorted(free.items())))


def node_costs(executed: Executed, arrays: Mapping[str, Array]) -> list[NodeCost]:
    """Give what an operator costs, a row for each of its weights; `arrays` are the constants by name."""
    return [_cost(executed.node, product, arrays) for product in products(executed)]


def stored_arrays(model: onnx.ModelProto) -> Iterator[tuple[str, Array]]:
    """Give the tensors that stand in a plain model, in all its graphs, by name."""
    for graph in graphs_of(model.graph):
        yield from ((tensor.name, array_of(tensor)) for tensor in graph.initializer)
        for node in graph.node:
            yield from ((name, array_of(tensor)) for name, tensor in constants(node))


def holdings(arrays: Sequence[Array]) -> GraphCosts:
    """Count parameters, non-zeros, and bytes under the paper's convention, where a vector (a bias) needs no mask."""
    numbers = [array for array in arrays if array.dtype.kind == "f" and array.ndim]
    sizes = [layer_bytes(a.size, count_nonzeros(a) if a.ndim > 1 else a.size) for a in numbers]
    return GraphCosts((), {}, sum(array.size for array in numbers), sum(map(count_nonzeros, numbers)), sum(sizes))


def _computed(model: onnx.ModelProto, names: set[str], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Give the values that operators make of constants alone: weights that are cut, turned or widened first."""
    wanted = sorted(_fixed(model.graph) & names)
    if not wanted:
        return {}
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    del asked.graph.output[:]
    asked.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted)
    session = open_session(asked)
    fed = {each.name: inputs[each.name] for each in session.get_inputs()}
    return dict(zip(wanted, run_session(session, fed), strict=True))


def _fixed(graph: onnx.GraphProto) -> set[str]:
    """Give the values of the main graph that depend on constants alone."""
    known = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        inner = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        if not inner and {*known, ""}.issuperset(node.input) and not node.op_type.startswith("Random"):
            known.update(node.output)
    return known


def _cost(node: onnx.NodeProto, product: Product, arrays: Mapping[str, Array]) -> NodeCost:
    flops = 2.0 * product.multiply_adds
    name = node.name or (node.output[0] if node.output else node.op_type)
    weight = next((operand for operand in product.operands if arrays.get(operand.name, _NONE).size), None)
    if weight is None:
        return NodeCost(name, node.op_type, "", 0, 0, flops, flops)
    array = arrays[weight.name]
    alive = _alive(array, arrays.get(weight.zero))
    return NodeCost(name, node.op_type, weight.name, array.size, alive, flops, flops * alive / array.size)


_NONE: Array = np.empty(0)


def _alive(array: Array, zero: Array | None) -> int:
    """Count what is not zero; in quantized weights the zero may be another number.

    >>> _alive(np.array([[3, 4], [3, 3]], dtype=np.uint8), np.array(3, dtype=np.uint8))
    1
    """
    if zero is None:
        return count_nonzeros(array)
    leading = zero.size > 1 and array.ndim > 2  # kernels have a zero for each of their first axis, matrices a column
    return int(np.count_nonzero(array != (zero.reshape(-1, *[1] * (array.ndim - 1)) if leading else zero)))
