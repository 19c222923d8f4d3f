"""OpenVINO on the CPU, an optional extra."""

from dataclasses import dataclass
from io import BytesIO
from typing import Any

from numpy.typing import NDArray

from rigl_compress.exporters.onnx_file import load_model
from rigl_compress.exporters.restore import restore
from rigl_compress.pipeline.bench.backends import Backend, Setup, needs, register_backend
from rigl_compress.pipeline.bench.bench_sources import Source

Array = NDArray[Any]


@dataclass(frozen=True)
class OpenVinoRunner:
    """An inference request whose inputs are in place."""

    request: Any
    names: tuple[str, ...]

    def run(self) -> None:
        """Compute."""
        self.request.infer()

    def outputs(self) -> list[Array]:
        """Return the outputs of the last run."""
        return [self.request.get_tensor(name).data.copy() for name in self.names]


def open_model(source: Source, setup: Setup) -> OpenVinoRunner:
    """Open the plain form of a file: OpenVINO reads no sparse initializers."""
    import openvino

    model = restore(load_model(source.path))
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": setup.threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",  # processors with bfloat16 would round to it
    }
    core = openvino.Core()
    request = core.compile_model(
        core.read_model(BytesIO(model.SerializeToString())), "CPU", options
    ).create_infer_request()
    for name, array in setup.inputs.items():
        request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
    return OpenVinoRunner(request, tuple(each.name for each in model.graph.output))


register_backend(
    Backend("openvino", "OpenVINO", needs("openvino", "pip install 'rigl-compress[openvino]'"), open_model)
)
