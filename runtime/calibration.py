"""Measure layers dense and sparse in ONNX Runtime on this machine, and fit the costs of the cost model to the times.

Times are of the thread's CPU clock, dense and sparse in turn, the lower quartile of several rounds.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.runtime.cost_model import MARGIN, Work, work_of
from rigl_compress.runtime.cost_tables import LANES, instruction_set
from rigl_compress.runtime.folded_selection import fold_selection
from rigl_compress.runtime.layer_matching import find_layers
from rigl_compress.runtime.onnx_graph import Graph
from rigl_compress.runtime.rewrite import MATCHERS, rewrite
from rigl_compress.runtime.session_options import register

Array = NDArray[Any]
Sample = tuple[onnx.ModelProto, tuple[int, ...]]  # a layer, and the shape of its input
Measured = tuple[Work, float, float]  # seconds dense and sparse
Progress = Callable[[str, int, int], None]
FLOAT = TensorProto.FLOAT
_CONVOLUTIONS = (
    *((16, 16, 32), (32, 64, 16), (64, 64, 28), (64, 64, 56), (128, 128, 14), (128, 128, 28)),
    *((256, 256, 7), (256, 256, 14), (512, 128, 7), (64, 256, 28), (256, 64, 28), (512, 512, 7)),
)
_PRODUCTS = (
    *((784, 300), (300, 100), (100, 10), (512, 512), (512, 1536), (1024, 1024)),
    *((2048, 1000), (4096, 2048), (1024, 4096)),
)
# Of larger weights a Gather takes too small a part of the time.
_MOST_GATHERED = 2**20


@dataclass(frozen=True)
class Extent:
    """How much to measure: densities, every how many of the shapes, strides of convolutions, batches of products."""

    densities: tuple[float, ...]
    every: int
    strides: tuple[int, ...]
    batches: tuple[int, ...]


FULL = Extent((0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6), 1, (1, 2), (2, 8, 32, 64, 128))
QUICK = Extent((0.05, 0.2, 0.5), 2, (1, 2), (8, 64))


def samples(family: str, extent: Extent) -> list[Sample]:
    """Return the layers of a family: `pointwise`, `spatial`, `vector` or `batched`."""
    makers: Mapping[str, Callable[[], Iterator[Sample]]] = {
        "pointwise": lambda: _convolutions(1, extent),
        "spatial": lambda: _convolutions(3, extent),
        "vector": lambda: _products((1,), extent),
        "batched": lambda: _products(extent.batches, extent),
    }
    return list(makers[family]())


FAMILIES = ("pointwise", "spatial", "vector", "batched")


def gathered_samples(family: str, extent: Extent) -> list[Sample]:
    """Return products of inputs that a Gather selects; sparse ones read them without it. Empty for convolutions."""
    batches = {"vector": (1,), "batched": extent.batches}.get(family, ())
    return [_gathered(*each) for each in product(_PRODUCTS[:: extent.every], batches) if prod(each[0]) < _MOST_GATHERED]


def _convolutions(size: int, extent: Extent) -> Iterator[Sample]:
    chosen = _CONVOLUTIONS[:: extent.every]
    for (inputs, outputs, side), stride, density in product(chosen, extent.strides, extent.densities):
        weight, pads = drawn((outputs, inputs, size, size), density), [size // 2] * 4
        node = helper.make_node("Conv", ["x", "w"], ["c"], strides=[stride] * 2, pads=pads, kernel_shape=[size] * 2)
        shape, out = (1, inputs, side, side), -(-side // stride)
        yield _layer([node], weight, shape, (1, outputs, out, out)), shape


def _products(batches: Sequence[int], extent: Extent) -> Iterator[Sample]:
    for (inputs, outputs), batch, density in product(_PRODUCTS[:: extent.every], batches, extent.densities):
        node = helper.make_node("Gemm", ["x", "w"], ["c"], transB=1)
        weight = drawn((outputs, inputs), density)
        yield _layer([node], weight, (batch, inputs), (batch, outputs)), (batch, inputs)


def _gathered(sizes: tuple[int, int], batch: int) -> Sample:
    (inputs, outputs), wide = sizes, sizes[0] * 5 // 4
    nodes = [
        helper.make_node("Gather", ["x", "selected"], ["g"], axis=1),
        helper.make_node("Gemm", ["g", "w"], ["c"], transB=1),
    ]
    model = _layer(nodes, drawn((outputs, inputs), 0.2), (batch, wide), (batch, outputs))
    selected = np.random.default_rng(0).permutation(wide)[:inputs]
    model.graph.initializer.append(numpy_helper.from_array(selected, "selected"))
    return model, (batch, wide)


def drawn(shape: tuple[int, ...], density: float) -> Array:
    """Return random weights of which a share is not zero."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(shape).astype(np.float32)
    weight[rng.random(shape) >= density] = 0
    return weight


def _layer(
    nodes: Sequence[onnx.NodeProto], weight: Array, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> onnx.ModelProto:
    """Return a model of the layer and a ReLU."""
    graph = helper.make_graph(
        [*nodes, helper.make_node("Relu", ["c"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", FLOAT, inputs)],
        [helper.make_tensor_value_info("y", FLOAT, outputs)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def one_thread() -> ort.SessionOptions:
    """Return the options of a session with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return options


def timer(model: onnx.ModelProto, shape: tuple[int, ...], options: ort.SessionOptions) -> Callable[[int], float]:
    """Return a function that runs a model a number of times and returns the seconds per run.

    With one thread, seconds of its CPU time.
    """
    clock = time.thread_time if options.intra_op_num_threads == 1 else time.perf_counter
    register(options)
    opened = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = opened.io_binding()
    binding.bind_cpu_input("x", np.random.default_rng(1).random(shape, dtype=np.float32))
    binding.bind_output("y")

    def run(times: int) -> float:
        start = clock()
        for _ in range(times):
            opened.run_with_iobinding(binding)
        return (clock() - start) / times

    return run


def measure(sample: Sample) -> Measured:
    """Return the work of a layer, and its seconds dense and sparse."""
    model, shape = sample
    dense, sparse = quartiles(*(timer(each, shape, one_thread()) for each in (model, sparse_version(model, 1))))
    return sample_work(sample), dense, sparse


def sample_work(sample: Sample) -> Work:
    """Return the work of a layer, the first of a model."""
    graph = Graph(onnx.shape_inference.infer_shapes(sample[0]))
    return work_of(fold_selection(graph, find_layers(graph, MATCHERS)[0]), graph)


def sparse_version(model: onnx.ModelProto, threads: int) -> onnx.ModelProto:
    """Return the model with its layer on sparse kernels."""
    return rewrite(model, lambda *_: True, threads).model


def quartiles(*runs: Callable[[int], float]) -> list[float]:
    """Return the lower quartile of the seconds per run of each function, called in turn."""
    times: list[list[float]] = [[] for _ in runs]
    counts = [max(2, int(0.002 / max(run(2), 1e-6))) for run in runs]
    for _ in range(7):
        for run, count, kept in zip(runs, counts, times, strict=True):
            kept.append(run(count))
    return [float(np.quantile(each, 0.25)) for each in times]


def fit(rows: list[dict[str, float]], seconds: list[float], weights: Array | None = None) -> dict[str, float]:
    """Fit non-negative costs by the squares of weighted relative errors, with coordinate descent."""
    names = list(rows[0])
    weights = np.ones(len(rows)) if weights is None else weights
    amounts = np.array([[row[name] for name in names] for row in rows])
    scaled = amounts * (weights / np.array(seconds))[:, None]
    squares, target, costs = scaled.T @ scaled, scaled.T @ weights, np.zeros(len(names))
    for _ in range(20_000):
        before = costs.copy()
        for column in range(len(names)):
            rest = target[column] - squares[column] @ costs + squares[column, column] * costs[column]
            costs[column] = max(0.0, rest / (squares[column, column] or 1.0))
        if np.allclose(costs, before, rtol=1e-10, atol=0):
            break
    return {name: float(f"{cost * 1e9:.4g}") for name, cost in zip(names, costs, strict=True)}


def fit_family(found: Sequence[Measured]) -> tuple[dict[str, dict[str, float]], str]:
    """Return the costs of a family, and a sentence on how well they predict which side is faster."""
    works = [each[0] for each in found]
    dense, sparse = np.array([each[1] for each in found]), np.array([each[2] for each in found])
    lanes = LANES[instruction_set()]
    sides = {"dense": [work.dense() for work in works], "sparse": [work.sparse(lanes) for work in works]}
    weights = 1 / np.hypot(1, np.log(dense / sparse))  # the choice depends on layers about as fast dense as sparse
    costs = {side: fit(sides[side], list(seconds), weights) for side, seconds in (("dense", dense), ("sparse", sparse))}
    predicted = {
        side: np.array([sum(costs[side][name] * amount for name, amount in row.items()) for row in rows])
        for side, rows in sides.items()
    }
    expected, real = predicted["dense"] / predicted["sparse"], dense / sparse
    error = np.median(np.abs(np.log(expected / real)))
    chosen = expected > 1 / (1 - MARGIN)
    return costs, (
        f"{len(found)} layers, median error of the speedup {np.expm1(error):.0%}, "
        f"{np.sum(chosen & (real < 1 / 1.02))} chosen that are slower, {np.sum(~chosen & (real > 1.2))} missed"
    )


def calibrated(extent: Extent, progress: Progress = lambda *_: None) -> tuple[dict[str, Any], dict[str, str]]:
    """Measure all families; return their costs, and a sentence on each."""
    layers = {family: samples(family, extent) + gathered_samples(family, extent) for family in FAMILIES}
    total, done = sum(map(len, layers.values())), 0
    costs: dict[str, Any] = {}
    summaries: dict[str, str] = {}
    for family, each in layers.items():
        found = []
        for sample in each:
            progress(family, done, total)
            found.append(measure(sample))
            done += 1
        costs[family], summaries[family] = fit_family(found)
    return costs, summaries
