"""Our own runtime: ONNX Runtime, with sparse kernels for the layers that gain."""

from rigl_compress.pipeline.bench.backends import Backend, Setup, register_backend
from rigl_compress.pipeline.bench.backends.onnxruntime import OnnxRuntimeRunner, bind, options_for
from rigl_compress.pipeline.bench.sources import Source
from rigl_compress.runtime.library import why_not
from rigl_compress.runtime.session import InferenceSession


def open_sparse(source: Source, setup: Setup) -> OnnxRuntimeRunner:
    """Open a file with sparse kernels; layers that gain nothing stay with ONNX Runtime."""
    session = InferenceSession(source.path, options_for(setup.threads)).session
    return OnnxRuntimeRunner(session, bind(session, setup, "cpu"))


register_backend(Backend("rigl", "ONNX Runtime with sparse kernels", why_not, open_sparse))
