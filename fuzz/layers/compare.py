"""Run a described graph in our session and in stock ONNX Runtime, and tell where they differ."""

import json
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnxruntime as ort
from disguises import disguised
from graphs import Spec, build, feeds
from numpy.typing import NDArray
from onnx import ModelProto

from rigl_compress.exporters.ort_sessions import open_session, session_options
from rigl_compress.runtime import session as sparse

Array = NDArray[Any]
TOLERANCE = 2e-5  # of the largest output, or of one


@dataclass(frozen=True)
class Found:
    """What came of one graph: runs compared, runs more that both refused, layers on our kernels, what was wrong."""

    runs: int
    refused: int
    layers: int
    wrong: str = ""


def take_every_layer() -> None:
    """Let small layers run on the sparse kernels, which would gain nothing from them."""
    sparse.runs_faster = lambda *_: True
    sparse.profitable_layers = lambda chosen, *_: chosen


def _run(session: Any, inputs: dict[str, Array]) -> Array | None:
    """The output, or none where the inputs are refused."""
    try:
        found: Array = session.run(None, inputs)[0]
    except Exception:
        return None
    return found


@lru_cache
def _callers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(3)


def _outputs(session: Any, spec: Spec, inputs: list[dict[str, Array]]) -> Iterator[Array | None]:
    """Run one after the other, or from several threads at once."""
    if spec["callers"] == 1:
        return (_run(session, each) for each in inputs)
    return _callers().map(lambda each: _run(session, each), inputs)


def _difference(ours: Array | None, theirs: Array | None) -> str:
    if ours is None or theirs is None:
        return "" if ours is theirs else f"{'ours' if ours is None else 'ONNX Runtime'} alone refuses"
    if ours.shape != theirs.shape:
        return f"shape {ours.shape} instead of {theirs.shape}"
    if not theirs.size:
        return ""
    error = float(np.abs(ours.astype(np.float64) - theirs).max())
    return "" if error <= TOLERANCE * max(1.0, float(np.abs(theirs).max())) else f"differs by {error:.3g}"


def _unfused(model: bytes) -> ort.InferenceSession:
    options = session_options(1)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return open_session(model, options)


def _model(spec: Spec) -> ModelProto:
    """Return the graph, every second one in another form."""
    model = build(spec)
    return disguised(model, spec["seed"]) if spec["seed"] % 2 else model


def compare(spec: Spec) -> Found:
    """Compare all runs of a graph, up to the first that is wrong."""
    model = _model(spec).SerializeToString()
    theirs = open_session(model, session_options(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a session that falls back would compare ONNX Runtime with itself
        try:
            ours = sparse.InferenceSession(model, session_options(spec["threads"]))
        except Warning as warning:
            return Found(0, 0, 0, str(warning))
    inputs = [feeds(spec, number) for number in range(len(spec["runs"]))]
    refused = 0
    for number, output in enumerate(_outputs(ours, spec, inputs)):
        expected = _run(theirs, inputs[number])
        if expected is None and output is not None:  # an empty batch is refused by what it fuses, not by its operators
            expected = _run(_unfused(model), inputs[number])
        wrong = _difference(output, expected)
        if wrong:
            where = f"run {number} {spec['runs'][number]}: {wrong}"
            return Found(number + 1 - refused, refused, len(ours.sparse_layers), where)
        refused += expected is None
    fallen = "" if ours.sparse_layers else "no layer runs on the sparse kernels"
    return Found(len(inputs) - refused, refused, len(ours.sparse_layers), fallen)


def simplified(spec: Spec, wrong: str) -> Spec:
    """Return the simplest description found that is wrong in the same way: fewer runs, smaller numbers."""
    while simpler := next((each for each in _simpler(spec) if _kind(_wrong(each)) == _kind(wrong)), None):
        spec = simpler
    return spec


def _wrong(spec: Spec) -> str:
    try:
        return compare(spec).wrong
    except Exception:  # no graph any more
        return ""


def _kind(wrong: str) -> str:
    """Return the first word of what is wrong, without the run."""
    return wrong.rpartition(": ")[2].partition(" ")[0]


def _simpler(spec: Spec) -> Iterator[Spec]:
    runs = spec["runs"]
    if len(runs) > 1:
        yield from ({**spec, "runs": part} for part in (runs[: len(runs) // 2], runs[len(runs) // 2 :], runs[1:]))
    for key, value in spec.items():
        if key in ("kind", "seed", "density"):
            continue
        least = 0 if key in ("pads", "runs") else 1
        yield from ({**spec, key: other} for other in _smaller(value, least))


def _smaller(value: Any, least: int) -> Iterator[Any]:
    if isinstance(value, bool):
        yield from ([False] if value else [])
    elif isinstance(value, int):
        yield from sorted({0, 1, value // 2, value - 1} & set(range(least, value)))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from ([*value[:place], other, *value[place + 1 :]] for other in _smaller(each, least))
    elif value and isinstance(value, str):
        yield ""


def described(spec: Spec) -> str:
    """Return a description in one line, to be passed to `run.py --graph`."""
    return json.dumps(spec, separators=(",", ":"))
