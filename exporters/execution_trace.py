"""The operators that a run of a model executes, with their shapes, from the profiler of ONNX Runtime.

Dynamic axes, shapes that depend on data, branches and loops are those of the run.
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

from rigl_compress.exporters.ort_sessions import ModelSource, open_session, run_session, session_options
from rigl_compress.exporters.protobuf_walk import constant_tensor, graphs_of

Array = NDArray[Any]
Shape = tuple[int, ...]
_EVENT = "_kernel_time"  # the profiler's suffix for the name of an operator


@dataclass(frozen=True)
class Executed:
    """An operator of a run, and the shapes of its inputs and outputs by name."""

    node: onnx.NodeProto
    shapes: Mapping[str, Shape]


def executed_nodes(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Executed]:
    """Run a model once, without optimizations, and return its operators in the order of execution.

    An operator in the body of a loop is listed once per iteration, one in a branch that is not taken is not.
    """
    numbered = inliner.inline_local_functions(model)
    nodes = _number(numbered.graph)
    options = session_options()
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
    """Yield the operators of a run's events with their shapes; operators that the runtime inserted are skipped."""
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
    """Return shapes by name if their numbers match; `hidden` values are prepacked weights, which have no shape.

    >>> _paired(["x", "w", "", "y"], [(1, 2), (2,)], {"w"})
    {'x': (1, 2), 'y': (2,)}
    """
    seen = [name for name in names if name and name not in hidden]
    return dict(zip(seen, shapes, strict=True)) if len(seen) == len(shapes) else {}


def _stored_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    return {name: tuple(tensor.dims) for name, tensor in stored_tensors(model.graph)}


def stored_tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield the dense initializers and constants of a graph and its sub-graphs, by name."""
    for each in graphs_of(graph):
        yield from ((tensor.name, tensor) for tensor in each.initializer)
        held = ((node, constant_tensor(node)) for node in each.node)
        yield from ((node.output[0], tensor) for node, tensor in held if tensor is not None)


def operators_by_name(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the operators that have a name, those of sub-graphs too."""
    return {node.name: node for inner in graphs_of(graph) for node in inner.node if node.name}


def _number(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Rename every operator to a unique name; return the operators as they were, by new name."""
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
    """Return the profiler's events for the operators in so many runs of a model."""
    with TemporaryDirectory() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = open_session(model, options)
        for _ in range(runs):
            run_session(session, inputs)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return [event for event in events if event["cat"] == "Node" and str(event["name"]).endswith(_EVENT)]
