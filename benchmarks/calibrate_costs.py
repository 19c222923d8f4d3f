"""Measure layers dense and sparse in ONNX Runtime, and fit the cost model that chooses between them.

    python benchmarks/calibrate_costs.py            (ten minutes; writes runtime/costs.json)

Times are of the thread's CPU clock, dense and sparse in turn, the lower quartile of several rounds.
"""

import json
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.pipeline.environment import environment
from rigl_compress.runtime.costs import COSTS, MARGIN, Work, work_of
from rigl_compress.runtime.graph import Graph
from rigl_compress.runtime.layers import find_layers
from rigl_compress.runtime.rewrite import RECOGNIZED, rewrite
from rigl_compress.runtime.session import register

Array = NDArray[Any]
DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.4)
FLOAT = TensorProto.FLOAT


def convolutions(size: int) -> Iterator[tuple[onnx.ModelProto, tuple[int, ...]]]:
    shapes = [(16, 16, 32), (32, 64, 16), (64, 64, 28), (64, 64, 56), (128, 128, 14), (128, 128, 28)]
    shapes += [(256, 256, 7), (256, 256, 14), (512, 128, 7), (64, 256, 28), (256, 64, 28), (512, 512, 7)]
    for (inputs, outputs, side), stride, density in product(shapes, (1, 2), DENSITIES):
        weight = drawn((outputs, inputs, size, size), density)
        pads = [size // 2] * 4
        node = helper.make_node("Conv", ["x", "w"], ["c"], strides=[stride] * 2, pads=pads, kernel_shape=[size] * 2)
        shape = (1, inputs, side, side)
        yield layer(node, weight, shape, (1, outputs, -(-side // stride), -(-side // stride))), shape


def products(batches: tuple[int, ...]) -> Iterator[tuple[onnx.ModelProto, tuple[int, ...]]]:
    sizes = [(784, 300), (300, 100), (100, 10), (512, 512), (512, 1536), (1024, 1024), (2048, 1000), (1024, 4096)]
    for (inputs, outputs), batch, density in product(sizes, batches, DENSITIES):
        node = helper.make_node("Gemm", ["x", "w"], ["c"], transB=1)
        weight = drawn((outputs, inputs), density)
        yield layer(node, weight, (batch, inputs), (batch, outputs)), (batch, inputs)


FAMILIES: dict[str, Callable[[], Iterator[tuple[onnx.ModelProto, tuple[int, ...]]]]] = {
    "pointwise": lambda: convolutions(1),
    "spatial": lambda: convolutions(3),
    "vector": lambda: products((1,)),
    "batched": lambda: products((2, 8, 32, 64, 128)),
}


def drawn(shape: tuple[int, ...], density: float) -> Array:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(shape).astype(np.float32)
    weight[rng.random(shape) >= density] = 0
    return weight


def layer(node: onnx.NodeProto, weight: Array, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> onnx.ModelProto:
    """A layer and a ReLU, as most stand in networks."""
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["c"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", FLOAT, inputs)],
        [helper.make_tensor_value_info("y", FLOAT, outputs)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(model: onnx.ModelProto, shape: tuple[int, ...]) -> Callable[[int], float]:
    """Give a function that runs a model so many times and tells the seconds of one run."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    register(options)
    opened = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = opened.io_binding()
    binding.bind_cpu_input("x", np.random.default_rng(1).random(shape, dtype=np.float32))
    binding.bind_output("y")

    def run(times: int) -> float:
        start = time.thread_time()
        for _ in range(times):
            opened.run_with_iobinding(binding)
        return (time.thread_time() - start) / times

    return run


def measure(model: onnx.ModelProto, shape: tuple[int, ...]) -> tuple[Work, float, float]:
    graph = Graph(onnx.shape_inference.infer_shapes(model))
    (found,) = find_layers(graph, RECOGNIZED)
    runs = [session(model, shape), session(rewrite(model, lambda *_: True, 1).model, shape)]
    times: list[list[float]] = [[], []]
    counts = [max(2, int(0.002 / max(run(2), 1e-6))) for run in runs]
    for _ in range(7):
        for run, count, kept in zip(runs, counts, times, strict=True):
            kept.append(run(count))
    dense, sparse = (float(np.quantile(each, 0.25)) for each in times)
    return work_of(found, graph), dense, sparse


def fit(rows: list[dict[str, float]], seconds: list[float]) -> dict[str, float]:
    """Fit prices that are not negative, by relative error: coordinate descent, which needs no more than NumPy."""
    names = list(rows[0])
    scaled = np.array([[row[name] for name in names] for row in rows]) / np.array(seconds)[:, None]
    prices = np.zeros(len(names))
    for _ in range(20_000):
        for column in range(len(names)):
            rest = 1 - scaled @ prices + scaled[:, column] * prices[column]
            prices[column] = max(0.0, scaled[:, column] @ rest / (scaled[:, column] @ scaled[:, column]))
    return {name: float(f"{price * 1e9:.4g}") for name, price in zip(names, prices, strict=True)}


@click.command()
@click.option("--family", "wanted", multiple=True, default=tuple(FAMILIES), type=click.Choice(list(FAMILIES)))
def main(wanted: tuple[str, ...]) -> None:
    """Measure, fit, say how well the model tells which side is faster, and write it down."""
    written = json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {"families": {}}
    for family in wanted:
        found = [measure(model, shape) for model, shape in FAMILIES[family]()]
        works = [each[0] for each in found]
        dense, sparse = np.array([each[1] for each in found]), np.array([each[2] for each in found])
        prices = {
            "dense": fit([work.dense() for work in works], list(dense)),
            "sparse": fit([work.sparse() for work in works], list(sparse)),
        }
        sides = {side: [getattr(work, side)() for work in works] for side in prices}
        told = {
            side: np.array([sum(prices[side][name] * amount for name, amount in row.items()) for row in rows])
            for side, rows in sides.items()
        }
        expected, real = told["dense"] / told["sparse"], dense / sparse
        off = np.median(np.abs(np.log(expected / real)))
        chosen = expected > 1 / (1 - MARGIN)
        wrong = np.sum(chosen & (real < 1 / 1.02))
        click.echo(
            f"{family}: {len(found)} layers, ratio off by {np.expm1(off):.0%} (median), "
            f"{wrong} chosen that lose, {np.sum(~chosen & (real > 1.2))} left that would gain"
        )
        written["families"][family] = prices
    written["made_by"] = "python benchmarks/calibrate_costs.py"
    facts = environment()
    written["machine"] = {"date": facts["date"][:10], "cpu": facts.get("cpu", "")}
    COSTS.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
