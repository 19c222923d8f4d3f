"""Weights of sub-graphs (branches and loop bodies): they move to the main graph, where they can be encoded."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping

import onnx
from onnx import GraphProto, NodeProto, TensorProto

from rigl_compress.exporters.bounded_tensors import count_of
from rigl_compress.exporters.onnx_file import delete
from rigl_compress.exporters.protobuf_walk import constant_tensor, parts_of_type

WORTH_MOVING = 64  # elements: encodings do not shrink smaller tensors
OLDEST_FORMAT = 4  # in older versions initializers of the main graph are inputs


def lift_subgraph_weights(model: onnx.ModelProto) -> None:
    """Move the weights of sub-graphs to the main graph, where they are visible; warn about those that cannot move."""
    if model.ir_version >= OLDEST_FORMAT:
        times = _times(model)
        for graph in list(parts_of_type(model.graph, GraphProto))[1:]:
            _lift(model.graph, graph, times)
    left = [tensor for tensor in _elsewhere(model) if count_of(tensor) >= WORTH_MOVING]
    if left:
        size = sum(tensor.ByteSize() for tensor in left)
        warnings.warn(
            f"{len(left)} tensors with {size:,} bytes in sub-graphs or functions of the model are not encoded",
            stacklevel=3,
        )


def _times(model: onnx.ModelProto) -> Counter[str]:
    """Return how often each name is defined in the model."""
    graphs = list(parts_of_type(model, GraphProto))
    found = Counter(part.name for graph in graphs for part in (*graph.initializer, *graph.input))
    found.update(name for node in parts_of_type(model, NodeProto) for name in node.output)
    return found


def _lift(main: GraphProto, graph: GraphProto, times: Counter[str]) -> None:
    fixed = {value.name for value in (*graph.input, *graph.output)}
    moved: dict[str, str] = {}
    for old, tensor in [found for found in _tensors(graph) if found[0] not in fixed]:
        moved[old] = _free(old, times)
        main.initializer.add().CopyFrom(tensor)
        main.initializer[-1].name = moved[old]
        times[moved[old]] += 1
    if moved:  # one pass for all of them: a file can hold thousands
        _rename_inputs(graph, moved)
        delete(graph.initializer, lambda each: each.name in moved)
        delete(graph.node, lambda each: any(name in moved for name in each.output))


def _rename_inputs(graph: GraphProto, names: Mapping[str, str]) -> None:
    for node in parts_of_type(graph, NodeProto):
        for index, name in enumerate(node.input):
            if name in names:
                node.input[index] = names[name]


def _tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield the tensors of a graph that are large enough to move, with the names of their values."""
    yield from ((each.name, each) for each in graph.initializer if count_of(each) >= WORTH_MOVING)
    held = ((node, constant_tensor(node)) for node in graph.node)
    yield from ((node.output[0], each) for node, each in held if each is not None and count_of(each) >= WORTH_MOVING)


def _free(name: str, times: Counter[str]) -> str:
    """Return a name that is unique in the model.

    >>> _free("w", Counter(["w", "w", "w/2"])), _free("v", Counter(["v"]))
    ('w/3', 'v')
    """
    if times[name] <= 1:
        return name
    return next(new for number in range(2, 2 + len(times)) if not times[new := f"{name}/{number}"])


def _elsewhere(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Yield the tensors of sub-graphs and functions."""
    for node in model.graph.node:
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from parts_of_type(graph, TensorProto)
    for function in model.functions:
        yield from parts_of_type(function, TensorProto)
