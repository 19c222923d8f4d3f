"""Stock ONNX Runtime, with inputs and outputs bound once, so that only the model is timed."""

from dataclasses import dataclass
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.exporters import ort_sessions
from rigl_compress.pipeline.bench.backends import Backend, Setup, register_backend
from rigl_compress.pipeline.bench.bench_sources import Source

Array = NDArray[Any]


@dataclass(frozen=True)
class OnnxRuntimeRunner:
    """A session with its binding."""

    session: ort.InferenceSession
    binding: Any
    waits: bool = False

    def run(self) -> None:
        """Compute, and wait for an asynchronous device."""
        self.session.run_with_iobinding(self.binding)
        if self.waits:
            self.binding.synchronize_outputs()

    def outputs(self) -> list[Array]:
        """Return the outputs of the last run."""
        found: list[Array] = self.binding.copy_outputs_to_cpu()
        return found


def open_session(source: Source, setup: Setup) -> OnnxRuntimeRunner:
    """Open a file at the default level of optimization."""
    session = ort_sessions.open_session(source.path, options_for(setup.threads), checked_providers(setup.providers))
    device = "cuda" if session.get_providers()[0] == "CUDAExecutionProvider" else "cpu"
    return OnnxRuntimeRunner(session, bind(session, setup, device), waits=device != "cpu")


def options_for(threads: int) -> ort.SessionOptions:
    """Return session options; threads stop spinning after each run, so that the next session has the cores."""
    options = ort_sessions.session_options(threads)
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def checked_providers(providers: tuple[str, ...]) -> tuple[str, ...]:
    """Raise for a provider that this ONNX Runtime lacks: it would use another with only a warning."""
    for name in providers:
        if name not in (known := ort.get_available_providers()):
            raise InputError(f"this ONNX Runtime has no provider {name!r}: {did_you_mean(name, known)}")
    return providers or ort_sessions.CPU


def bind(session: ort.InferenceSession, setup: Setup, device: str) -> Any:
    """Put the inputs where they are needed, and leave the outputs where they are made."""
    binding = session.io_binding()
    for each in session.get_inputs():
        binding.bind_ortvalue_input(each.name, ort.OrtValue.ortvalue_from_numpy(setup.inputs[each.name], device, 0))
    for each in session.get_outputs():
        binding.bind_output(each.name, device)
    return binding


register_backend(Backend("onnxruntime", "ONNX Runtime, as it comes", lambda: "", open_session))
