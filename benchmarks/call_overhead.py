"""What does a call of `rc.InferenceSession.run` cost beyond ONNX Runtime's, and a sparse operator beyond a dense one?

    python benchmarks/call_overhead.py [--rounds 30]

LeNet-300-100 at 90 % and batch 1: the network dense, our session, and ONNX Runtime's own session inside ours, all in
turn. Then chains of products of 8 × 8 with one weight each, whose arithmetic takes no time: the time for each operator.
CPU time of one thread in microseconds, the minimum and the median of the rounds.
"""

import time
from collections.abc import Callable

import click
import numpy as np
import onnx
import torch
from inference_networks import Case, masked, registered
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.exporters.ort_sessions import open_session, session_options
from rigl_compress.exporters.torch_to_onnx import export_graph
from rigl_compress.runtime.kernels import Array
from rigl_compress.runtime.rewrite import rewrite
from rigl_compress.runtime.session import InferenceSession

CHAIN, TINY, CALLS = 40, 8, 400
Call = Callable[[], object]


def microseconds(calls: dict[str, Call], rounds: int) -> dict[str, tuple[float, float]]:
    """Return the minimum and the median time of each call, in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.thread_time_ns()
            for _ in range(CALLS):
                call()
            times[name].append((time.thread_time_ns() - start) / CALLS / 1e3)
    return {name: (min(each), float(np.median(each))) for name, each in times.items()}


def calls_of(model: bytes, inputs: dict[str, Array]) -> dict[str, Call]:
    """Return calls of a network dense, in our session, and in the session inside it."""
    dense, ours = open_session(model, session_options(1)), InferenceSession(model, session_options(1), cache=False)
    inner = ours.session
    assert inner is not None
    return {
        "dense": lambda: dense.run(None, inputs),
        "rc.InferenceSession": lambda: ours.run(None, inputs),
        "the session inside it": lambda: inner.run(None, inputs),
    }


def chain(kind: str) -> bytes:
    """Return a chain of tiny products, dense or sparse."""
    weight = np.zeros((TINY, TINY), np.float32)
    weight[0, 0] = 1
    names = ["input", *(f"v{step}" for step in range(1, CHAIN)), "output"]
    nodes = [helper.make_node("Gemm", [names[step], "w", "b"], [names[step + 1]]) for step in range(CHAIN)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, TINY]) for name in ("input", "output")]
    tensors = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(weight[0], "b")]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return (rewrite(model, lambda *_: True, 1).model if kind == "sparse" else model).SerializeToString()


@click.command()
@click.option("--rounds", default=30, show_default=True)
def main(rounds: int) -> None:
    """Print the times."""
    torch.set_num_threads(1)
    model, example = masked(Case("lenet-300-100", registered("lenet-300-100"), 1), 0.9, 0)
    shape = (1, *example.shape[1:])
    lenet = export_graph(model, example).SerializeToString()
    inputs = {"input": np.random.default_rng(0).random(shape, dtype=np.float32)}
    for name, (least, median) in microseconds(calls_of(lenet, inputs), rounds).items():
        click.echo(f"{name:24s} {least:7.2f} {median:7.2f} us")
    tiny = {"input": np.ones((1, TINY), np.float32)}
    # Our session opens files with sparse operators and plain ones alike.
    chains = {f"an operator, {kind}": InferenceSession(chain(kind), session_options(1)) for kind in ("dense", "sparse")}
    found = microseconds({name: (lambda each=each: each.run(None, tiny)) for name, each in chains.items()}, rounds)
    for name, (least, median) in found.items():
        click.echo(f"{name:24s} {least / CHAIN:7.3f} {median / CHAIN:7.3f} us")


if __name__ == "__main__":
    main()
