"""Why a layer runs on sparse kernels or stays dense: its shape, its density, the expected gain, and the reason."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from rigl_compress.core.wording import percent
from rigl_compress.exporters.light_model import fill, light_model
from rigl_compress.runtime.cost_model import (
    MIN_CONV_SAVING,
    expected_speedup,
    least_sparsity,
    profitable_layers,
    runs_faster,
    thread_count,
    work_of,
)
from rigl_compress.runtime.dense_neighbors import dense_neighbors
from rigl_compress.runtime.dense_reasons import structural_reason, weight_of
from rigl_compress.runtime.layer_matching import DEPTHWISE, Layer
from rigl_compress.runtime.onnx_graph import Graph
from rigl_compress.runtime.rewrite import Rewritten, choose, indexed, sparse_outputs
from rigl_compress.runtime.sparse_layer_table import packed_rows

DENSE = "dense"
# Layers that the session mentions: with so many weights, half of them zeros.
_MENTIONED_WEIGHTS, _MENTIONED_DENSITY = 10_000, 0.5
_MOST_MENTIONED = 3


@dataclass(frozen=True)
class LayerChoice:
    """A layer with weights: how it runs, and why."""

    name: str  # of its weights
    operator: str
    shape: tuple[int, ...]
    density: float
    kernel: str  # an operator of this package, or "dense"
    gain: float | None  # expected, over dense; None if unknown
    reason: str  # why it stays dense; empty if it does not
    output: str = ""  # the value that the layer computes

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return {**asdict(self), "shape": list(self.shape)}


def explain(path_or_bytes: str | Path | bytes, threads: int = 0) -> tuple[LayerChoice, ...]:
    """Return how `InferenceSession` runs each layer with weights, and why; with 0 threads one for each core is used."""
    with light_model(path_or_bytes if isinstance(path_or_bytes, bytes) else str(path_or_bytes)) as light:
        if sparse_outputs(light.model):
            fill(light.model, light.weights)
            return tuple(_written(light.model))
        return tuple(_rows(Explained.of(indexed(light)[1], thread_count(threads))))


def _written(model: onnx.ModelProto) -> Iterator[LayerChoice]:
    """Yield the layers of a file that was written with sparse operators."""
    for _, row in packed_rows(model):
        density = row.nonzeros / max(prod(row.shape), 1)
        yield LayerChoice(row.name, row.encoding, row.shape, density, row.encoding, None, "")


@dataclass(frozen=True)
class Explained:
    """A graph, its layers, and those that are replaced."""

    graph: Graph
    found: tuple[Layer, ...]
    chosen: tuple[Layer, ...]
    threads: int

    @classmethod
    def of(cls, graph: Graph, threads: int) -> "Explained":
        """Choose the layers of a graph as a session with so many threads does."""
        found, chosen = choose(
            graph,
            lambda layer, graph: runs_faster(layer, graph, threads),
            lambda chosen, layers, graph: profitable_layers(chosen, layers, graph, threads),
        )
        return cls(graph, found, (*chosen, *dense_neighbors(found, chosen)), threads)


def _rows(known: Explained) -> Iterator[LayerChoice]:
    layers = {layer.nodes[0].output[0]: layer for layer in known.found if layer.nodes}
    for node in known.graph.nodes:
        layer = layers.get(node.output[0]) if node.output else None
        if layer is None:
            yield from _unmatched(known.graph, node)
        elif layer.nodes[0].op_type != "BatchNormalization":
            yield from _matched(known, layer)


def _unmatched(graph: Graph, node: onnx.NodeProto) -> Iterator[LayerChoice]:
    """Yield a layer that no sparse kernel can replace."""
    weight = weight_of(graph, node)
    if weight is not None:
        density = float(np.count_nonzero(weight.array) / weight.array.size) if weight.array is not None else 1.0
        yield LayerChoice(weight.name, node.op_type, weight.shape, density, DENSE, None, structural_reason(graph, node))


def _matched(known: Explained, layer: Layer) -> Iterator[LayerChoice]:
    """Yield a layer that sparse kernels can replace; of a recurrent layer, also the product of its inputs."""
    chosen = layer in known.chosen
    if layer.projection is not None:
        sparse = chosen and runs_faster(layer.projection, known.graph, known.threads)
        yield _row(known, layer.projection, (layer.nodes[0], 1), "SparseMatMul" if sparse else "")
    yield _row(known, layer, (layer.nodes[0], 1 + (layer.projection is not None)), layer.operator if chosen else "")


def _row(known: Explained, layer: Layer, place: tuple[onnx.NodeProto, int], kernel: str) -> LayerChoice:
    node = place[0]
    name, density = weight_name(known.graph, *place), layer.nonzeros / max(layer.weights, 1)
    if layer.operator == DEPTHWISE:
        reason = "depthwise convolution, dense" + (" in the layout of its sparse neighbors" if kernel else "")
        return LayerChoice(name, node.op_type, _shape(layer), density, kernel or DENSE, None, reason, layer.output)
    gain = expected_speedup(work_of(layer, known.graph), known.threads)
    reason = "" if kernel else _cost_reason(known, layer)
    return LayerChoice(name, node.op_type, _shape(layer), density, kernel or DENSE, gain, reason, layer.output)


def weight_name(graph: Graph, node: onnx.NodeProto, index: int) -> str:
    """Return the name of a node's weights in the file."""
    weight = weight_of(graph, node)
    return str(node.input[index]) if weight is None or index > 1 else weight.name


def _shape(layer: Layer) -> tuple[int, ...]:
    kernel = layer.settings.get("kernel_shape", [])
    rows = len(layer.matrix)
    return (rows, layer.weights // max(rows * prod(kernel), 1), *kernel)


def _cost_reason(known: Explained, layer: Layer) -> str:
    """Return why a layer that could run on sparse kernels does not."""
    needed = least_sparsity(layer, known.graph, known.threads)
    groups = layer.matrix.size // max(layer.weights, 1)
    grouped = f"grouped convolution of {groups} groups, " if layer.operator == "SparseConv" and groups > 1 else ""
    if needed is None:
        return f"{grouped}too small to gain at any sparsity"
    if 1 - layer.nonzeros / max(layer.weights, 1) < needed:
        return f"{grouped}below {percent(needed, 0)} zeros"
    return f"the convolutions of the network would gain less than {percent(MIN_CONV_SAVING, 0)} together"


def left_dense(rewritten: Rewritten) -> str:
    """Return a sentence on large layers with many zeros for which there is no sparse kernel; empty if there is none."""
    matched = {layer.nodes[0].output[0] for layer in rewritten.found if layer.nodes}
    nodes = (node for node in rewritten.graph.nodes if not node.output or node.output[0] not in matched)
    rows = [row for node in nodes for row in _unmatched(rewritten.graph, node) if _is_mentioned(row)]
    if not rows:
        return ""
    named = [f"{row.name} ({row.reason})" for row in rows[:_MOST_MENTIONED]]
    more = [f"{len(rows) - _MOST_MENTIONED} more"] if len(rows) > _MOST_MENTIONED else []
    return f"layers with many zeros stay dense: {', '.join([*named, *more])}; rc.explain lists all layers"


def _is_mentioned(row: LayerChoice) -> bool:
    return prod(row.shape) >= _MENTIONED_WEIGHTS and row.density <= _MENTIONED_DENSITY
