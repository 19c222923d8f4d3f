"""Our session beside that of ONNX Runtime: both refuse a model, or both give the same."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import onnxruntime as ort

from fuzzing.outcomes import MismatchError
from rigl_compress.exporters.ort_sessions import session_options
from rigl_compress.exporters.random_inputs import DTYPES, random_array

Inputs = Mapping[str, np.ndarray[Any, Any]]
LARGEST_INPUT = 1 << 16  # numbers
TOLERANCE = 1e-3  # of the largest output


def quiet_options() -> ort.SessionOptions:
    """One thread, and no lines on stderr."""
    return session_options(threads=1)


def drawn_inputs(session: Any, batch: int = 2) -> Inputs | None:
    """Draw inputs for a session; None where it wants something else than tensors of numbers, or too many of them."""
    rng, found = np.random.default_rng(0), {}
    for each in session.get_inputs():
        shape = [axis if isinstance(axis, int) and axis >= 0 else batch for axis in each.shape]
        if each.type not in DTYPES or prod(shape) > LARGEST_INPUT:
            return None
        found[each.name] = random_array(np.dtype(DTYPES[each.type]), shape, rng)
    return found


def outcome(opening: Callable[[], Any], inputs: Inputs | None = None) -> tuple[Any, Inputs | None]:
    """Open and run a session: its outputs (None where it is refused), and the inputs it was run on."""
    try:
        session = opening()
        fed = drawn_inputs(session) if inputs is None else inputs
        return (None if fed is None else session.run(None, dict(fed))), fed
    except Exception:  # ONNX Runtime has a dozen kinds, all of which its callers know
        return None, inputs


def stock(data: bytes) -> tuple[Any, Inputs | None]:
    """Run a model with ONNX Runtime alone; a model that draws random numbers gives nothing to compare with."""
    found, inputs = outcome(lambda: ort.InferenceSession(data, quiet_options(), ["CPUExecutionProvider"]))
    again, _ = outcome(lambda: ort.InferenceSession(data, quiet_options(), ["CPUExecutionProvider"]), inputs or {})
    if found is not None and (again is None or not same(found, again)):
        return None, None
    return found, inputs


def same(one: Any, other: Any) -> bool:
    """Return whether outputs agree as far as they can be compared: where the expected ones are finite numbers."""
    return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))


def _same(found: Any, expected: Any) -> bool:
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "fiub":
        return isinstance(found, type(expected))
    if not isinstance(found, np.ndarray) or found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    one, other = found.astype(np.float64), expected.astype(np.float64)
    largest = np.abs(other).max(initial=0.0)
    if not np.isfinite(largest) or largest > 1e30:
        return True
    return bool(np.abs(one - other).max(initial=0.0) <= TOLERANCE * max(largest, 1e-30))


def compare(data: bytes, opening: Callable[[], Any], what: str) -> None:
    """Confirm that a session refuses what ONNX Runtime refuses, and gives what it gives."""
    expected, inputs = stock(data)
    if inputs is None:
        outcome(opening)  # must not crash
        return
    found, _ = outcome(opening, inputs)
    if (found is None) != (expected is None):
        raise MismatchError(f"{what} {'refuses' if found is None else 'takes'} what ONNX Runtime does not")
    if found is not None and not same(found, expected):
        raise MismatchError(f"{what} gives other outputs than ONNX Runtime")
