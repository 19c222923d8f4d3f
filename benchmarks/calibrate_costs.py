"""Measure layers dense and sparse in ONNX Runtime, and fit the cost model to the times.

    python benchmarks/calibrate_costs.py            (ten minutes; writes runtime/costs.json)

"families" are the costs by which Python chooses between a dense and a sparse operator, "kernels" those by which the
kernels choose the number of threads, compiled in when the package is installed again. Times are of the thread's CPU
clock, dense and sparse in turn, the lower quartile of several rounds.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.core.provenance import environment
from rigl_compress.runtime.cost_model import COSTS, MARGIN, Work, work_of
from rigl_compress.runtime.kernels import Depthwise, Window
from rigl_compress.runtime.layer_matching import find_layers
from rigl_compress.runtime.onnx_graph import Graph
from rigl_compress.runtime.rewrite import MATCHERS, rewrite
from rigl_compress.runtime.session_options import register

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


# The families to which the costs of a kernel are fitted.
KERNELS = {"vector": ("vector",), "batched": ("batched",), "conv": ("pointwise", "spatial")}
DEPTHWISE = "depthwise"


def drawn(shape: tuple[int, ...], density: float) -> Array:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(shape).astype(np.float32)
    weight[rng.random(shape) >= density] = 0
    return weight


def layer(node: onnx.NodeProto, weight: Array, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> onnx.ModelProto:
    """Return a model of the layer and a ReLU."""
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["c"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", FLOAT, inputs)],
        [helper.make_tensor_value_info("y", FLOAT, outputs)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(model: onnx.ModelProto, shape: tuple[int, ...]) -> Callable[[int], float]:
    """Return a function that runs a model a number of times and returns the seconds per run."""
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
    (found,) = find_layers(graph, MATCHERS)
    runs = [session(model, shape), session(rewrite(model, lambda *_: True, 1).model, shape)]
    dense, sparse = quartiles(*runs)
    return work_of(found, graph), dense, sparse


def quartiles(*runs: Callable[[int], float]) -> list[float]:
    """Return the lower quartile of the seconds per run of each function, called in turn."""
    times: list[list[float]] = [[] for _ in runs]
    counts = [max(2, int(0.002 / max(run(2), 1e-6))) for run in runs]
    for _ in range(7):
        for run, count, kept in zip(runs, counts, times, strict=True):
            kept.append(run(count))
    return [float(np.quantile(each, 0.25)) for each in times]


def depthwise_runs() -> Iterator[tuple[dict[str, float], float]]:
    """Yield the work and the seconds of depthwise convolutions, which are called without ONNX Runtime."""
    for channels, side, size, stride in product((32, 128, 512), (7, 14, 28, 56), (3, 5), (1, 2)):
        window = Window((stride, stride), pads=(size // 2,) * 4, groups=channels)
        kernel = Depthwise(drawn((channels, 1, size, size), 1.0), window)
        x = drawn((1, channels, side, side), 1.0)

        def run(times: int, kernel: Depthwise = kernel, x: Array = x) -> float:
            start = time.thread_time()
            for _ in range(times):
                kernel(x)
            return (time.thread_time() - start) / times

        outputs = float(channels * (-(-side // stride)) ** 2)
        yield {"products": outputs * size**2, "outputs": outputs, "call": 1.0}, quartiles(run)[0]


def kernel_work(work: Work, names: Iterable[str]) -> dict[str, float]:
    """Return the work as the kernels count it: per pixel or sample instead of per vector."""
    pixels = work.pixels * max(work.images, 1)
    amounts = {"products": work.nonzeros * pixels, "columns": work.columns * pixels, "rows": work.rows * pixels}
    return {**{name: float(amounts[name]) for name in names}, "call": 1.0}


def without_call(costs: dict[str, float]) -> dict[str, float]:
    return {name: cost for name, cost in costs.items() if name != "call"}


def fit(rows: list[dict[str, float]], seconds: list[float]) -> dict[str, float]:
    """Fit non-negative costs by relative error, with coordinate descent."""
    names = list(rows[0])
    scaled = np.array([[row[name] for name in names] for row in rows]) / np.array(seconds)[:, None]
    costs = np.zeros(len(names))
    for _ in range(20_000):
        for column in range(len(names)):
            rest = 1 - scaled @ costs + scaled[:, column] * costs[column]
            costs[column] = max(0.0, scaled[:, column] @ rest / (scaled[:, column] @ scaled[:, column]))
    return {name: float(f"{cost * 1e9:.4g}") for name, cost in zip(names, costs, strict=True)}


def fit_family(found: list[tuple[Work, float, float]]) -> tuple[dict[str, dict[str, float]], str]:
    """Return the costs of a family, and a sentence on how well they predict which side is faster."""
    works = [each[0] for each in found]
    dense, sparse = np.array([each[1] for each in found]), np.array([each[2] for each in found])
    sides = {"dense": [work.dense() for work in works], "sparse": [work.sparse() for work in works]}
    costs = {side: fit(sides[side], list(seconds)) for side, seconds in (("dense", dense), ("sparse", sparse))}
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


def fit_kernels(found: dict[str, list[tuple[Work, float, float]]], known: dict[str, Any]) -> dict[str, Any]:
    """Return the costs of the kernels whose families were all measured, with the same names as the known ones."""
    fitted = {}
    for kernel, families in KERNELS.items():
        if set(families) <= set(found):
            rows = [each for family in families for each in found[family]]
            amounts = [kernel_work(work, known[kernel]) for work, _, _ in rows]
            fitted[kernel] = without_call(fit(amounts, [sparse for _, _, sparse in rows]))
    return fitted


@click.command()
@click.option(
    "--family",
    "families",
    multiple=True,
    default=(*FAMILIES, DEPTHWISE),
    type=click.Choice([*FAMILIES, DEPTHWISE]),
    help="Families to measure.",
)
def main(families: tuple[str, ...]) -> None:
    """Measure layers, fit the cost model, print how well it predicts, and write runtime/costs.json."""
    written = json.loads(COSTS.read_text(encoding="utf-8"))
    found = {}
    for family in (each for each in families if each != DEPTHWISE):
        found[family] = [measure(model, shape) for model, shape in FAMILIES[family]()]
        written["families"][family], summary = fit_family(found[family])
        click.echo(f"{family}: {summary}")
    written["kernels"] |= fit_kernels(found, written["kernels"])
    if DEPTHWISE in families:
        amounts, seconds = zip(*depthwise_runs(), strict=True)
        written["kernels"][DEPTHWISE] = without_call(fit(list(amounts), list(seconds)))
    written["made_by"] = "python benchmarks/calibrate_costs.py"
    facts = environment()
    written["machine"] = {"date": facts["date"][:10], "cpu": facts.get("cpu", "")}
    COSTS.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
