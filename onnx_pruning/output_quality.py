"""How near the outputs of a pruned model are to those of the original."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError, one_line
from rigl_compress.exporters.ort_sessions import ModelSource, SessionError, arrays_in, open_session, session_options

Array = NDArray[Any]
_PROBABILITIES = ("Softmax", "LogSoftmax")


@dataclass(frozen=True)
class OutputQuality:
    """Figures over some samples. Agreement: how often the largest output is the same, where outputs are classes."""

    samples: int
    snr: float  # signal to noise, in decibels
    cosine: float | None
    agreement: float | None

    @property
    def error(self) -> float:
        """The squared error relative to the outputs."""
        return float(10.0 ** (-self.snr / 10))


def outputs_of(model: ModelSource, batches: Iterable[dict[str, Array]], threads: int = 1) -> list[list[Array]]:
    """Run a model on batches; raise `InputError` for one that it refuses."""
    session = open_session(model, session_options(threads))
    return [_run(session, batch) for batch in batches]


def _run(session: ort.InferenceSession, batch: dict[str, Array]) -> list[Array]:
    try:
        return arrays_in(session.run(None, batch))
    except Exception as error:  # ONNX Runtime raises a dozen types
        raise SessionError(_refused(batch, error)) from None


def _refused(batch: Mapping[str, Any], error: Exception) -> str:
    """Return what to say about samples that ONNX Runtime rejects."""
    shapes = ", ".join(f"{name} {list(np.shape(each))}" for name, each in batch.items())
    reason = one_line(error)
    return f"ONNX Runtime does not run the model on samples of {shapes} ({reason}): pass calibration data that fit it"


def check_finite(outputs: Sequence[Sequence[Array]]) -> None:
    """Raise `InputError` for outputs that are not numbers: nothing can be compared with them."""
    floats = [each for batch in outputs for each in batch if each.dtype.kind == "f"]
    if not all(np.isfinite(each).any() for each in floats if each.size):
        raise InputError("the model returns no finite numbers on the calibration samples: check how they are prepared")


def compare(
    expected: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]], model: onnx.ModelProto
) -> OutputQuality:
    """Compare the outputs of two models on the same batches."""
    pairs = [(wanted[0], got[0]) for wanted, got in zip(expected, found, strict=True)]
    return OutputQuality(
        sum(len(one) if one.ndim else 1 for one, _ in pairs),
        _decibels(relative_error(expected, found)),
        _cosine(pairs),
        _agree(pairs, model),
    )


def relative_error(expected: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float:
    """Return the squared error over all batches relative to the squared outputs: the mean over the outputs of a model.

    Outputs of different scales count alike, but not batches: where a detector finds nothing, outputs are next to zero.

    >>> round(relative_error([[np.ones(4)], [np.full(4, 1e-9)]], [[np.full(4, 1.1)], [np.zeros(4)]]), 3)
    0.01
    """
    outputs = zip(zip(*expected, strict=True), zip(*found, strict=True), strict=True)
    errors = [each for wanted, got in outputs if (each := _relative(wanted, got)) is not None]
    return sum(errors) / len(errors) if errors else 0.0


def _relative(wanted: Sequence[Array], got: Sequence[Array]) -> float | None:
    """Return the error of one output; None if it is not of floats, or zero."""
    if any(each.dtype.kind != "f" for each in wanted):
        return None
    if any(one.shape != other.shape for one, other in zip(wanted, got, strict=True)):
        return 1.0
    power, lost = 0.0, 0.0
    for one, other in zip(wanted, got, strict=True):
        finite = np.isfinite(one)
        known = one[finite].astype(np.float64)
        power += float(np.square(known).sum())
        lost += float(np.square(known - other[finite].astype(np.float64)).sum())
    if not power:
        return None
    return lost / power if np.isfinite(lost) else 1e30


def _decibels(error: float) -> float:
    """Return a squared relative error as signal to noise in decibels, at most 200.

    >>> _decibels(0.01), _decibels(0)
    (20.0, 200.0)
    """
    return -10 * log10(error) if error > 1e-20 else 200.0


def _cosine(pairs: Sequence[tuple[Array, Array]]) -> float | None:
    """Return the mean cosine of the first output, sample by sample."""
    found = []
    for one, other in pairs:
        if one.dtype.kind != "f" or one.shape != other.shape or one.ndim < 2:
            return None
        a, b = (each.reshape(len(each), -1).astype(np.float64) for each in (one, other))
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        found.extend(np.einsum("ij,ij->i", a, b) / np.maximum(lengths, 1e-300))
    return float(np.mean(found)) if found else None


def _agree(pairs: Sequence[tuple[Array, Array]], model: onnx.ModelProto) -> float | None:
    """Return how often both have the same class, if the first output is one of classes."""
    if not all(_has_classes(one, other, model) for one, other in pairs):
        return None
    same = [one.argmax(-1) == other.argmax(-1) for one, other in pairs]
    return float(np.mean(np.concatenate([each.reshape(-1) for each in same]))) if same else None


def _has_classes(one: Array, other: Array, model: onnx.ModelProto) -> bool:
    if one.dtype.kind != "f" or one.shape != other.shape or one.shape[-1:] < (2,):
        return False
    name = model.graph.output[0].name
    last = next((node.op_type for node in model.graph.node if name in node.output), "")
    return one.ndim == 2 or (one.ndim == 3 and last in _PROBABILITIES)
