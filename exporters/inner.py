"""Weights within the branches and bodies of operators: they move to the main graph, where they can be encoded."""

import warnings
from collections import Counter
from collections.abc import Iterator

import onnx
from onnx import GraphProto, NodeProto, TensorProto

from rigl_compress.exporters.messages import parts_of_type
from rigl_compress.exporters.onnx_file import delete
from rigl_compress.exporters.tensors import count_of

WORTH_MOVING = 64  # numbers: nothing smaller gets smaller
OLDEST_FORMAT = 4  # before, initializers of the main graph were inputs


def lift_inner(model: onnx.ModelProto) -> None:
    """Move the weights of sub-graphs to the main graph, which they see; say it where some cannot be moved."""
    if model.ir_version >= OLDEST_FORMAT:
        times = _times(model)
        for graph in list(parts_of_type(model.graph, GraphProto))[1:]:
            _lift(model.graph, graph, times)
    left = [tensor for tensor in _elsewhere(model) if count_of(tensor) >= WORTH_MOVING]
    if left:
        size = sum(tensor.ByteSize() for tensor in left)
        warnings.warn(
            f"{len(left)} tensors with {size:,} bytes in sub-graphs or functions of the model are left as they are",
            stacklevel=3,
        )


def _times(model: onnx.ModelProto) -> Counter[str]:
    """Count how often a name is defined, anywhere."""
    graphs = list(parts_of_type(model, GraphProto))
    found = Counter(part.name for graph in graphs for part in (*graph.initializer, *graph.input))
    found.update(name for node in parts_of_type(model, NodeProto) for name in node.output)
    return found


def _lift(main: GraphProto, graph: GraphProto, times: Counter[str]) -> None:
    fixed = {value.name for value in (*graph.input, *graph.output)}
    for old, tensor in [found for found in _tensors(graph) if found[0] not in fixed]:
        new = _free(old, times)
        main.initializer.add().CopyFrom(tensor)
        main.initializer[-1].name = new
        times[new] += 1
        for node in parts_of_type(graph, NodeProto):
            for place, name in enumerate(node.input):
                node.input[place] = new if name == old else name
        delete(graph.initializer, lambda each, old=old: each.name == old)  # type: ignore[misc]
        delete(graph.node, lambda each, old=old: old in each.output)  # type: ignore[misc]


def _tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Give the tensors of a graph that are worth to be moved, with the names of their values."""
    yield from ((each.name, each) for each in graph.initializer if count_of(each) >= WORTH_MOVING)
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            found = (each.t for each in node.attribute if each.name == "value")
            yield from ((node.output[0], each) for each in found if count_of(each) >= WORTH_MOVING)


def _free(name: str, times: Counter[str]) -> str:
    """Give a name that nothing else in the model has.

    >>> _free("w", Counter(["w", "w", "w/2"])), _free("v", Counter(["v"]))
    ('w/3', 'v')
    """
    if times[name] <= 1:
        return name
    return next(new for number in range(2, 2 + len(times)) if not times[new := f"{name}/{number}"])


def _elsewhere(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Give the tensors of sub-graphs and functions."""
    for node in model.graph.node:
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from parts_of_type(graph, TensorProto)
    for function in model.functions:
        yield from parts_of_type(function, TensorProto)
