"""Our own runtime: ONNX Runtime, with sparse kernels for the layers that gain."""

from rigl_compress.pipeline.bench.backends import Backend, Setup, register_backend
from rigl_compress.pipeline.bench.backends.onnxruntime import OnnxRuntimeRunner, bind, options_for
from rigl_compress.pipeline.bench.bench_sources import Source
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.session import InferenceSession


def open_sparse(source: Source, setup: Setup) -> OnnxRuntimeRunner:
    """Open a file with sparse kernels; layers that gain nothing stay with ONNX Runtime."""
    session = InferenceSession(source.path, options_for(setup.threads)).session
    return OnnxRuntimeRunner(session, bind(session, setup, "cpu"))


register_backend(Backend("sparse", "ONNX Runtime with sparse kernels", unavailable_reason, open_sparse))
