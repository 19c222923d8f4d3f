"""The layers of a model as the sparse runtime runs them: kernel, expected gain, reason, and measured time."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import onnx
from numpy.typing import NDArray

from rigl_compress.exporters.execution_trace import operators_by_name, profiled
from rigl_compress.exporters.light_model import light_model
from rigl_compress.pipeline.bench.backends.onnxruntime import options_for
from rigl_compress.pipeline.bench.operator_profile import RUNS, WARMUP
from rigl_compress.runtime.depthwise_fusion import OPERATOR as SPARSE_DEPTHWISE
from rigl_compress.runtime.explain import LayerChoice, explain
from rigl_compress.runtime.layer_matching import DEPTHWISE
from rigl_compress.runtime.session import sparse_model
from rigl_compress.runtime.session_options import register


@dataclass(frozen=True)
class LayerTime:
    """A layer with weights: how it runs, why, and its seconds in a run; 0 where the runtime merged it into another."""

    name: str
    operator: str
    shape: tuple[int, ...]
    density: float
    kernel: str
    gain: float
    reason: str
    seconds: float


def layer_times(path: Path, inputs: Mapping[str, NDArray[Any]], threads: int) -> tuple[LayerTime, ...]:
    """Profile a model in the sparse runtime, and return its layers with weights in the order of the graph."""
    rows = explain(path, threads)
    with light_model(str(path)) as light:
        entry = sparse_model(light, threads)
    with TemporaryDirectory() as folder:
        options = options_for(threads)
        register(options)
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        events = profiled(entry.model if entry.layers else path, inputs, options, RUNS + WARMUP)
        optimized = onnx.load(options.optimized_model_filepath, load_external_data=False)
    return tuple(_timed(rows, dict(_seconds(events)), optimized))


def _seconds(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for event in events[WARMUP * (len(events) // (RUNS + WARMUP)) :]:
        found[str(event["name"]).removesuffix("_kernel_time")].append(event["dur"] / 1e6)
    for name, times in found.items():
        yield name, sum(times) / RUNS if len(times) > RUNS else median(times)


def _timed(
    rows: Sequence[LayerChoice], seconds: Mapping[str, float], optimized: onnx.ModelProto
) -> Iterator[LayerTime]:
    nodes = operators_by_name(optimized.graph)
    by_value = {value: name for name, node in nodes.items() for value in (*node.input[1:2], *node.output)}
    for row in rows:
        # Of a dense layer the operator with the weight counts: the output may be that of a sum or activation after it.
        sparse = (row.output, f"{row.output}/packed", row.name)
        order = (row.name, row.output) if row.kernel == "dense" else sparse
        name = next((by_value[each] for each in order if each in by_value), "")
        # The filters in the operator of the layer before them: its time is that layer's.
        shared = row.kernel == DEPTHWISE and name in nodes and nodes[name].op_type == SPARSE_DEPTHWISE
        taken = 0.0 if shared else seconds.get(name, 0.0)
        facts = (row.name, row.operator, row.shape, row.density, row.kernel)
        yield LayerTime(*facts, row.gain or 0.0, row.reason, taken)
