"""The measurements of `calibrate_costs.py`: layers in ONNX Runtime, on one and two threads, and kernels alone."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_double
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from inference_networks import CASES, masked
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.exporters.torch_to_onnx import export_graph
from rigl_compress.runtime.calibration import (
    FAMILIES,
    FULL,
    Array,
    Sample,
    drawn,
    gathered_samples,
    measure,
    one_thread,
    quartiles,
    sample_work,
    samples,
    sparse_version,
    timer,
)
from rigl_compress.runtime.kernel_library import load_library
from rigl_compress.runtime.kernels import Depthwise, Window
from rigl_compress.runtime.norm_kernel import LayerNorm
from rigl_compress.runtime.session import InferenceSession

Row = dict[str, Any]  # the amounts of work, and the seconds
# Layers of chains that are measured with two threads: channels and side of the image, and features; in a chain each
# core reads what the other has computed.
IMAGES = ((16, 32), (32, 16), (64, 14), (64, 28), (64, 56), (128, 14), (128, 28), (256, 7), (256, 14), (512, 7))
FEATURES, BATCHES, DENSITIES = (100, 300, 512, 1024, 2048), (1, 8, 32, 128), (0.05, 0.2)
LENGTH = 4
# Networks whose layers are about as long as starting a thread takes, and the works per thread to try.
SMALL = (
    "mobilenet-v2, batch 1, uniform",
    "mobilenet-v1, batch 1, uniform",
    "wrn-22-2, batch 1, uniform",
    "bert 6 × 384, 128 tokens, batch 1, uniform",
    "lenet-300-100, batch 128, uniform",
    "gru-512, 32 steps, batch 1, uniform",
)
NETWORK_WORKS, NETWORK_ROUNDS = (2_000.0, 4_000.0, 6_000.0, 8_000.0, 10_000.0, 20_000.0, 30_000.0), 9
# The threads of a session look for work for a while after it has run, and would take a core from the next one.
REST, ROUNDS = 0.1, 5
AFFINITIES = "session.intra_op_thread_affinities"


def families(family: str) -> Iterator[Row]:
    """Yield the work of layers, and their seconds dense and sparse on one thread."""
    for sample in samples(family, FULL):
        work, dense, sparse = measure(sample)
        yield {"work": asdict(work), "dense": dense, "sparse": sparse}


def gathered() -> Iterator[Row]:
    """Yield the same for products of inputs that a Gather selects."""
    for sample in (sample for family in FAMILIES for sample in gathered_samples(family, FULL)):
        work, dense, sparse = measure(sample)
        yield {"work": asdict(work), "dense": dense, "sparse": sparse}


def threads() -> Iterator[Row]:
    """Yield the work of layers, and their seconds dense and sparse on one thread and split between two.

    Each thread has a core of its own: the scheduler of a busy machine may keep both on one.
    """
    os.sched_setaffinity(0, {1})
    for density in DENSITIES:
        for (channels, side), size in product(IMAGES, (1, 3)):
            yield _split_times(convolutions(channels, side, size, density))
        for features, batch in product(FEATURES, BATCHES):
            yield _split_times(products(features, batch, density))


def networks() -> Iterator[Row]:
    """Yield the seconds of networks of small layers at 90 % on two threads, with several works per thread in turn."""
    os.sched_setaffinity(0, {1})
    for case in (case for case in CASES if case.label in SMALL):
        model, example = masked(case, 0.9, 0)
        session = InferenceSession(export_graph(model, example).SerializeToString(), options(2), cache=False)
        shape = (case.batch, *example.shape[1:])
        inputs = {session.get_inputs()[0].name: np.random.default_rng(0).random(shape, dtype=np.float32)}
        times: dict[float, list[float]] = {work: [] for work in NETWORK_WORKS}
        for _, work in product(range(NETWORK_ROUNDS), NETWORK_WORKS):
            with work_per_thread(work):
                times[work].append(_burst(lambda: session.run(None, inputs)))  # noqa: B023
        for work, found in times.items():
            yield {"network": case.label, "work_per_thread": work, "seconds": float(np.median(found))}


def _burst(call: Callable[[], object]) -> float:
    """Return the wall-clock seconds of a call, the mean over a tenth of a second."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < 0.1:
        call()
        count += 1
    return (time.perf_counter() - start) / count


def convolutions(channels: int, side: int, size: int, density: float) -> Sample:
    """Return a chain of convolutions."""
    weight, shape = drawn((channels, channels, size, size), density), (1, channels, side, side)
    return _chain("Conv", weight, shape, pads=[size // 2] * 4, kernel_shape=[size] * 2), shape


def products(features: int, batch: int, density: float) -> Sample:
    """Return a chain of matrix products."""
    return _chain("Gemm", drawn((features, features), density), (batch, features), transB=1), (batch, features)


def _chain(operator: str, weight: Array, shape: tuple[int, ...], **attributes: Any) -> onnx.ModelProto:
    nodes = []
    for index in range(LENGTH):
        source, target = f"{index}" if index else "x", f"{index + 1}" if index + 1 < LENGTH else "y"
        nodes.append(helper.make_node(operator, [source, f"w{index}"], [f"sum{index}"], **attributes))
        nodes.append(helper.make_node("Relu", [f"sum{index}"], [target]))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    weights = [numpy_helper.from_array(weight, f"w{index}") for index in range(LENGTH)]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _split_times(sample: Sample) -> Row:
    """Return the work of a layer of a chain, and its seconds on one and two threads."""
    model, shape = sample
    with work_per_thread(0.0):
        runs = {
            f"{side}_{count}": timer(each, shape, options(count))
            for count in (1, 2)
            for side, each in (("dense", model), ("sparse", sparse_version(model, count)))
        }
        times = {name: _best(run, rest=name.endswith("2")) / LENGTH for name, run in runs.items()}
    return {"work": asdict(sample_work(sample)), **times}


def options(threads: int) -> ort.SessionOptions:
    """Return the options of a session; a second thread gets the first core."""
    found = one_thread()
    found.intra_op_num_threads = threads
    if threads > 1:
        found.add_session_config_entry(AFFINITIES, "1")
    return found


def _best(run: Callable[[int], float], *, rest: bool) -> float:
    """Return the seconds of a run, the least of some rounds; other sessions rest before and after it."""
    count = max(3, int(0.005 / max(run(2), 1e-6)))
    found = min(run(count) for _ in range(ROUNDS))
    time.sleep(REST * rest)
    return found


@contextmanager
def work_per_thread(nanoseconds: float) -> Iterator[None]:
    """Let the kernels use a thread for every so many nanoseconds of work; with 0, all threads for every call."""
    library = load_library()
    assert library is not None
    library.rigl_set_work_per_thread.argtypes = [c_double]
    library.rigl_set_work_per_thread(nanoseconds)
    try:
        yield
    finally:
        library.rigl_set_work_per_thread(-1.0)


def _seconds(call: Callable[[], object]) -> float:
    """Return the CPU time of a call."""

    def run(times: int) -> float:
        start = time.thread_time()
        for _ in range(times):
            call()
        return (time.thread_time() - start) / times

    return quartiles(run)[0]


def _depthwise(shape: tuple[int, ...], window: Window, x: Array) -> tuple[float, float]:
    """Return the outputs of a depthwise convolution, and the seconds of the kernel."""
    kernel = Depthwise(drawn(shape, 1.0), replace(window, groups=shape[0]))
    return float(kernel(x).size), _seconds(lambda: kernel(x))


def depthwise() -> Iterator[Row]:
    """Yield the work and the seconds of depthwise convolutions."""
    for channels, side, size, stride in product((32, 128, 512), (7, 14, 28, 56), (3, 5), (1, 2)):
        window = Window((stride, stride), pads=(size // 2,) * 4)
        outputs, seconds = _depthwise((channels, 1, size, size), window, drawn((1, channels, side, side), 1.0))
        yield {"products": outputs * size**2, "outputs": outputs, "call": 1.0, "seconds": seconds}


def depthwise_direct() -> Iterator[Row]:
    """Yield the work and the seconds of depthwise convolutions that reach far beyond the image."""
    far = (Window((4096, 4096)), Window(dilations=(1024, 1024), pads=(2048,) * 4))
    for channels, size, window in product((32, 128, 512), (5, 11), far):
        pads = tuple(pad * (size // 2) // 2 for pad in window.pads)
        image = drawn((1, channels, 14, 14), 1.0)
        outputs, seconds = _depthwise((channels, 1, size, size), replace(window, pads=pads), image)
        yield {"products": outputs * size**2, "call": 1.0, "seconds": seconds}


def layer_norm() -> Iterator[Row]:
    """Yield the work and the seconds of layer normalization with a residual."""
    for rows, size in product((8, 32, 64, 128), (64, 256, 384, 512, 768)):
        kernel, x = LayerNorm(np.ones(size, np.float32)), drawn((rows, size), 1.0)
        yield {"elements": float(rows * size), "call": 1.0, "seconds": _seconds(lambda k=kernel, x=x: k(x, x))}


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    **{family: lambda family=family: families(family) for family in FAMILIES},
    "gathered": gathered,
    **{"depthwise": depthwise, "depthwise_direct": depthwise_direct, "layer_norm": layer_norm, "threads": threads},
    "networks": networks,
}
