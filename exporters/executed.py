"""What a model really computes: one run, watched by ONNX Runtime's profiler, gives every operator and its shapes.

Nothing is guessed: axes of any length, shapes that depend on the data, branches and loops are those of the run.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import inliner

from rigl_compress.exporters.verify import ModelSource, run_session, session_of

Array = NDArray[Any]
Shape = tuple[int, ...]
_EVENT = "_kernel_time"  # what the profiler adds to an operator's name


@dataclass(frozen=True)
class Executed:
    """An operator as it was executed: its own name, and the shapes of what went in and came out by value name."""

    node: onnx.NodeProto
    shapes: Mapping[str, Shape]


def executed_nodes(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Executed]:
    """Run a model once, without optimizations, and give its operators in the order of their execution.

    An operator in the body of a loop is there once for each time round, one in a branch not taken is not.
    """
    numbered = inliner.inline_local_functions(model)
    nodes = _number(numbered.graph)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    events = profiled(numbered, inputs, options)
    shapes = {name: array.shape for name, array in inputs.items()}
    return [executed for _, executed in traced_events(nodes, events, numbered, shapes)]


def traced_events(
    nodes: Mapping[str, onnx.NodeProto],
    events: Sequence[Mapping[str, Any]],
    model: onnx.ModelProto,
    inputs: Mapping[str, Shape],
) -> Iterator[tuple[str, Executed]]:
    """Follow the shapes of all values through the events of a run; what the runtime put in itself is passed over."""
    stored = _stored_shapes(model)
    shapes = {**inputs, **stored}
    for event in events:
        node = nodes.get(str(event["name"]).removesuffix(_EVENT))
        if node is None:
            continue
        read, made = (_event_shapes(event, f"{side}_type_shape") for side in ("input", "output"))
        shapes |= _paired(node.input, read, set()) or _paired(node.input, read, stored.keys())
        shapes |= _paired(node.output, made, set())
        seen = {value: shapes[value] for value in (*node.input, *node.output) if value in shapes}
        yield str(event["name"]), Executed(node, seen)


def _event_shapes(event: Mapping[str, Any], key: str) -> list[Shape]:
    return [tuple(next(iter(each.values()))) for each in event["args"].get(key, [])]


def _paired(names: Sequence[str], shapes: Sequence[Shape], hidden: Collection[str]) -> dict[str, Shape]:
    """Give shapes by name, if there are as many; the runtime hides weights that it keeps in a form of its own.

    >>> _paired(["x", "w", "", "y"], [(1, 2), (2,)], {"w"})
    {'x': (1, 2), 'y': (2,)}
    """
    seen = [name for name in names if name and name not in hidden]
    return dict(zip(seen, shapes, strict=True)) if len(seen) == len(shapes) else {}


def _stored_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    graphs = list(graphs_of(model.graph))
    shapes = {tensor.name: tuple(tensor.dims) for graph in graphs for tensor in graph.initializer}
    held = (constant for graph in graphs for node in graph.node for constant in constants(node))
    return shapes | {name: tuple(tensor.dims) for name, tensor in held}


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Give a graph and all graphs within its operators."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from graphs_of(inner)


def constants(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Give the tensor that a Constant operator holds, with its name."""
    if node.op_type == "Constant":
        yield from ((node.output[0], each.t) for each in node.attribute if each.name == "value")


def operators_by_name(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Give the operators that have a name, those of inner graphs too."""
    return {node.name: node for inner in graphs_of(graph) for node in inner.node if node.name}


def _number(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Give every operator a name that no other has, and the operators by these names as they were."""
    nodes: dict[str, onnx.NodeProto] = {}
    for inner in graphs_of(graph):
        for node in inner.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            node.name = f"rigl{len(nodes)}"
            nodes[node.name] = copy
    return nodes


def profiled(
    model: ModelSource, inputs: Mapping[str, Array], options: ort.SessionOptions, runs: int = 1
) -> Sequence[dict[str, Any]]:
    """Give the profiler's events for the operators in so many runs of a model."""
    with TemporaryDirectory() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = session_of(model, options)
        for _ in range(runs):
            run_session(session, inputs)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return [event for event in events if event["cat"] == "Node" and str(event["name"]).endswith(_EVENT)]
