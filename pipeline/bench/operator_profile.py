"""A profile by operator: the graph that ONNX Runtime executes after optimization, with FLOPs."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.exporters.execution_trace import operators_by_name, profiled, traced_events
from rigl_compress.exporters.onnx_costs import NodeCost, node_costs, stored_arrays
from rigl_compress.exporters.onnx_file import load_model
from rigl_compress.exporters.restore import restore
from rigl_compress.pipeline.bench.backends.onnxruntime import options_for

Array = NDArray[Any]
RUNS, WARMUP = 20, 3
_CONTAINERS = {"If", "Loop", "Scan"}  # their time is that of the operators within


@dataclass(frozen=True)
class ProfileRow:
    """An operator under its weight's name, if it has one: seconds in a run (median), FLOPs with and without zeros."""

    name: str
    operator: str
    seconds: float
    dense_flops: float = 0.0
    sparse_flops: float = 0.0


def profile(path: Path, inputs: Mapping[str, Array], threads: int) -> tuple[ProfileRow, ...]:
    """Profile a model at the default level of optimization, in the order of execution."""
    plain = restore(load_model(path))
    with TemporaryDirectory() as folder:
        options = options_for(threads)
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        events = profiled(plain, inputs, options, RUNS + WARMUP)
        optimized = onnx.load(options.optimized_model_filepath)
    return _rows(events, optimized, Origins.of(plain), {name: array.shape for name, array in inputs.items()})


def _rows(
    events: Sequence[Mapping[str, Any]],
    optimized: onnx.ModelProto,
    origins: "Origins",
    inputs: Mapping[str, tuple[int, ...]],
) -> tuple[ProfileRow, ...]:
    once = len(events) // (RUNS + WARMUP)  # every run is the same, but for loops and branches
    seconds: dict[str, list[float]] = defaultdict(list)
    operators = {str(event["name"]): str(event["args"].get("op_name", "")) for event in events}
    for event in events[WARMUP * once :]:
        if operators[str(event["name"])] not in _CONTAINERS:
            seconds[str(event["name"])].append(event["dur"] / 1e6)
    arrays = dict(stored_arrays(optimized))
    costs: dict[str, list[NodeCost]] = defaultdict(list)
    for name, executed in traced_events(operators_by_name(optimized.graph), events[:once], optimized, inputs):
        costs[name] += [_unpadded(cost, origins, arrays) for cost in node_costs(executed, arrays)]
    return tuple(
        ProfileRow(
            next((cost.weight for cost in costs[name] if cost.weight), name.removesuffix("_kernel_time")),
            operators[name],
            sum(times) / RUNS if len(times) > RUNS else median(times),
            sum(cost.dense_flops for cost in costs[name]),
            sum(cost.sparse_flops for cost in costs[name]),
        )
        for name, times in seconds.items()
    )


@dataclass(frozen=True)
class Origin:
    """The name of a weight in the file, and its number of elements there."""

    name: str
    size: int


@dataclass(frozen=True)
class Origins:
    """The weights of a file. The runtime stores them in another order, padded, scaled, and under other names."""

    by_values: Mapping[str, Origin]
    by_count: Mapping[tuple[int, ...], set[int]]  # sizes by kernel and number of non-zeros: folding scales the values

    @classmethod
    def of(cls, plain: onnx.ModelProto) -> "Origins":
        """Collect the weights of a model as it is in the file."""
        weights = [(name, array) for name, array in stored_arrays(plain) if array.ndim > 1]
        sizes: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for _, array in weights:
            sizes[_kernel_and_count(array)].add(array.size)
        return cls({_fingerprint(array): Origin(name, array.size) for name, array in weights}, sizes)

    def find(self, name: str, array: Array) -> Origin | None:
        """Return the origin of a stored weight; one that was scaled keeps its new name."""
        sizes = self.by_count.get(_kernel_and_count(array), set())
        return self.by_values.get(_fingerprint(array)) or (Origin(name, *sizes) if len(sizes) == 1 else None)


def _unpadded(cost: NodeCost, origins: Origins, arrays: Mapping[str, Array]) -> NodeCost:
    """Return a cost under the weight's name in the file, without the channels that the runtime pads with zeros."""
    origin = origins.find(cost.weight, arrays[cost.weight]) if cost.weight else None
    if origin is None:
        return cost
    return replace(cost, weight=origin.name, dense_flops=cost.dense_flops * origin.size / cost.weights)


def _kernel_and_count(array: Array) -> tuple[int, ...]:
    """Return the shape of a kernel and the number of non-zeros: padding and scaling change neither."""
    return (*array.shape[2:], int(np.count_nonzero(array)))


def _fingerprint(array: Array) -> str:
    """Return a fingerprint of an array's non-zero numbers, in any order.

    >>> _fingerprint(np.array([[1.0, 0.0], [2.0, 0.0]])) == _fingerprint(np.array([2.0, 1.0]))
    True
    """
    return hashlib.sha256(np.sort(array[array != 0], axis=None).tobytes()).hexdigest()
