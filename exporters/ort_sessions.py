"""Sessions of ONNX Runtime: the one module that opens and runs them, with errors of one line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError, one_line

Array = NDArray[Any]
Inputs = Mapping[str, Array]
ModelSource = Path | bytes | onnx.ModelProto
CPU = ("CPUExecutionProvider",)
_ONLY_FATAL = 4  # of the levels of ONNX Runtime's log: what it reports is in the exception too


class SessionError(InputError):
    """ONNX Runtime does not open or does not run a model."""


def session_options(threads: int = 0) -> ort.SessionOptions:
    """Return options for a session that logs nothing; with 0 threads ONNX Runtime takes one for each core."""
    options = ort.SessionOptions()
    options.log_severity_level = _ONLY_FATAL
    options.intra_op_num_threads = threads
    return options


def open_session(
    model: ModelSource, options: ort.SessionOptions | None = None, providers: Sequence[Any] = CPU
) -> ort.InferenceSession:
    """Open a model, without options at the default level of optimization; raise `SessionError` if that fails."""
    chosen = session_options() if options is None else options
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    source = content if isinstance(content, bytes) else str(content)
    # A fallback from the CPU to the CPU cannot help, and prints to standard output.
    fallback = int(tuple(providers) != CPU)
    try:
        return ort.InferenceSession(source, chosen, providers=list(providers), enable_fallback=fallback)
    except Exception as error:  # ONNX Runtime raises a dozen types
        raise SessionError(f"ONNX Runtime does not open the model: {one_line(error)}") from None


def run_session(session: ort.InferenceSession, inputs: Inputs) -> list[Array]:
    """Run a model and return the arrays among its outputs, those in sequences and maps too."""
    try:
        outputs = session.run(None, dict(inputs))
    except Exception as error:
        raise SessionError(f"ONNX Runtime does not run the model: {one_line(error)}; pass inputs that fit") from None
    return arrays_in(outputs)


def arrays_in(output: Any) -> list[Array]:
    """Return the arrays in an output: of a map its keys, then its values.

    >>> [array.tolist() for array in arrays_in([{"a": 0.5}, None, np.ones(2)])]
    ['a', 0.5, [1.0, 1.0]]
    """
    if isinstance(output, dict):
        return arrays_in([*output.keys(), *output.values()])
    if isinstance(output, list):
        return [array for each in output for array in arrays_in(each)]
    return [] if output is None else [np.asarray(output)]
