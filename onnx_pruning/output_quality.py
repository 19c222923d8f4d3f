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
EXACT = 90.0  # decibels: what sums in another order differ by is less


@dataclass(frozen=True)
class OutputQuality:
    """Figures over some samples; None is not known.

    Agreement: how often the largest output is the same, where outputs are classes; of a model that returns integers
    alone, how many of them are. Values that were not finite in the original count in none of the figures.
    """

    samples: int
    snr: float | None  # signal to noise, in decibels
    cosine: float | None
    agreement: float | None
    not_finite: int = 0
    values: int = 0  # of floats

    @property
    def error(self) -> float | None:
        """The squared error relative to the outputs."""
        return None if self.snr is None else float(10.0 ** (-self.snr / 10))


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
    error = _known_error(expected, found)
    floats = [each for batch in expected for each in batch if each.dtype.kind == "f"]
    return OutputQuality(
        sum(len(one) if one.ndim else 1 for one, _ in pairs),
        None if error is None else _decibels(error),
        _cosine(pairs),
        _agree(pairs, model) if floats else _same_values(pairs),
        sum(int((~np.isfinite(each)).sum()) for each in floats),
        sum(each.size for each in floats),
    )


def unchanged(expected: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> bool:
    """Whether outputs are the same up to the order of sums; integers, where there is nothing else, exactly."""
    error = _known_error(expected, found)
    if error is not None:
        return _decibels(error) >= EXACT
    pairs = [pair for wanted, got in zip(expected, found, strict=True) for pair in zip(wanted, got, strict=True)]
    return all(np.array_equal(one, other, equal_nan=one.dtype.kind == "f") for one, other in pairs)


def relative_error(expected: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float:
    """Return the squared error over all batches relative to the squared outputs: the mean over the outputs of a model.

    Outputs of different scales count alike, but not batches: where a detector finds nothing, outputs are next to zero.

    >>> round(relative_error([[np.ones(4)], [np.full(4, 1e-9)]], [[np.full(4, 1.1)], [np.zeros(4)]]), 3)
    0.01
    """
    return _known_error(expected, found) or 0.0


def _known_error(expected: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float | None:
    """Return the relative error; None if no output has floats other than zero."""
    outputs = zip(zip(*expected, strict=True), zip(*found, strict=True), strict=True)
    errors = [each for wanted, got in outputs if (each := _relative(wanted, got)) is not None]
    return sum(errors) / len(errors) if errors else None


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
    """Return the mean cosine of the first output, sample by sample; samples without a finite value are left out."""
    found: list[float] = []
    for one, other in pairs:
        if one.dtype.kind != "f" or one.shape != other.shape or one.ndim < 2:
            return None
        finite = np.isfinite(one).reshape(len(one), -1)
        a, b = (np.where(finite, each.reshape(len(each), -1).astype(np.float64), 0.0) for each in (one, other))
        found.extend(_cosines(a, b)[finite.any(1)])
    return float(np.mean(found)) if found else None


def _cosines(wanted: Array, got: Array) -> Array:
    """Return the cosine of each row; 0 for one that has become other than finite."""
    got = np.where(np.isfinite(got).all(1, keepdims=True), got, 0.0)
    lengths = np.linalg.norm(wanted, axis=1) * np.linalg.norm(got, axis=1)
    return np.asarray(np.einsum("ij,ij->i", wanted, got) / np.maximum(lengths, 1e-300))


def _agree(pairs: Sequence[tuple[Array, Array]], model: onnx.ModelProto) -> float | None:
    """Return how often both have the same class, if the first output is one of classes; without those of NaN."""
    if not all(_has_classes(one, other, model) for one, other in pairs):
        return None
    same = [np.asarray(one.argmax(-1) == other.argmax(-1))[~np.isnan(one).any(-1)] for one, other in pairs]
    known = np.concatenate(same) if same else np.zeros(0)
    return float(np.mean(known)) if known.size else None


def _same_values(pairs: Sequence[tuple[Array, Array]]) -> float | None:
    """Return how many values of the first output are the same; None if it has other shapes, as lists have."""
    if not pairs or any(one.shape != other.shape for one, other in pairs):
        return None
    return float(np.mean(np.concatenate([np.ravel(one == other) for one, other in pairs])))


def _has_classes(one: Array, other: Array, model: onnx.ModelProto) -> bool:
    if one.dtype.kind != "f" or one.shape != other.shape or one.shape[-1:] < (2,):
        return False
    name = model.graph.output[0].name
    last = next((node.op_type for node in model.graph.node if name in node.output), "")
    return one.ndim == 2 or (one.ndim == 3 and last in _PROBABILITIES)
