"""Sparse inference sessions: `onnxruntime.InferenceSession` with sparse kernels where they are faster."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import onnx
import onnxruntime as ort

from rigl_compress.core.errors import InputError, one_line
from rigl_compress.core.native_library import library_path
from rigl_compress.exporters.external_data import ExternalDataError
from rigl_compress.exporters.onnx_file import LARGEST_FILE, check_contained, load_bytes, load_model, read_contained
from rigl_compress.runtime.cost_model import profitable_layers, runs_faster
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.rewrite import rewrite, sparse_outputs

Open = Callable[[str | bytes], ort.InferenceSession]
CPU = "CPUExecutionProvider"
_BUILT_IN = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_FOLDER = "session.model_external_initializers_file_folder_path"
# A library can be registered only once with the same options.
_REGISTERED: WeakSet[ort.SessionOptions] = WeakSet()
_WARNED: set[str] = set()


class InferenceSession:
    """A drop-in for `onnxruntime.InferenceSession` that runs sparse layers on sparse kernels.

    It opens any ONNX file: exported by this package in any encoding, or by another tool with zeros in its weights.
    Layers that would not be faster stay with ONNX Runtime. If the kernels are unavailable, the whole model does, with a
    warning.

    >>> import numpy as np
    >>> from onnx import helper, numpy_helper
    >>> weight = numpy_helper.from_array(np.eye(512, dtype=np.float32), "w")
    >>> values = [helper.make_tensor_value_info(name, 1, [64, 512]) for name in "xy"]
    >>> node = helper.make_node("MatMul", ["x", "w"], ["y"])
    >>> graph = helper.make_graph([node], "g", values[:1], values[1:], [weight])
    >>> model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    >>> session = InferenceSession(model.SerializeToString())
    >>> float(session.run(None, {"x": np.ones((64, 512), dtype=np.float32)})[0].sum())
    32768.0
    """

    def __init__(
        self,
        path_or_bytes: str | Path | bytes,
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        **others: Any,
    ) -> None:
        source = path_or_bytes if isinstance(path_or_bytes, bytes) else str(path_or_bytes)
        options = ort.SessionOptions() if sess_options is None else sess_options
        chosen = list(providers or [CPU])
        self.sparse_layers: tuple[str, ...] = ()
        self.session: ort.InferenceSession | None = None
        self._open: Open = lambda model: ort.InferenceSession(model, options, chosen, provider_options, **others)
        self._source: str | bytes | None = source
        self._plain: ort.InferenceSession | None = None
        reason = self._open_sparse(source, options) if _only_cpu(chosen) else ""
        if self.session is None:
            reject_outside_files(source, options)
            self.session = self._open(source)
        if reason:  # after ONNX Runtime opened the file: one that it rejects is not slow
            _warn(reason, depth=3)

    def _open_sparse(self, source: str | bytes, options: ort.SessionOptions) -> str:
        """Try to open the model with sparse kernels; return why that failed, or an empty string."""
        reason = unavailable_reason()
        if reason:
            return reason
        try:
            model = _load(source)
            written = sparse_outputs(model)
            if not written:
                check_opens(source, model)
            found, layers = (source, written) if written else sparse_model(model, options.intra_op_num_threads)
            if layers:
                register(options)
                self.session, self.sparse_layers = self._open(found), layers
                self._source = None if written else source  # a rewritten file has no plain form
        except ExternalDataError:
            raise
        except Exception as error:
            return one_line(error)
        return ""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
        """Run the model as `onnxruntime.InferenceSession.run` does.

        If the sparse operators reject inputs that the plain ones accept, of shapes other than the file declares, the
        plain session is used from then on, with a warning.
        """
        return self._run(lambda session: session.run(output_names, input_feed, run_options))

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> Any:
        """Run the model on `OrtValue`s, as `onnxruntime.InferenceSession.run_with_ort_values` does."""
        return self._run(lambda session: session.run_with_ort_values(output_names, input_dict_ort_values, run_options))

    def _run(self, call: Callable[[ort.InferenceSession], Any]) -> Any:
        assert self.session is not None
        try:
            return call(self.session)
        except Exception as error:
            if not self.sparse_layers or self._source is None:
                raise
            reason = one_line(error)
        if self._plain is None:  # kept, as inputs invalid for both may be passed repeatedly
            self._plain = self._open(self._source)
        outputs = call(self._plain)  # ONNX Runtime reports inputs invalid for both
        self.session, self.sparse_layers = self._plain, ()
        _warn(reason, depth=4)
        return outputs

    def __getattr__(self, name: str) -> Any:
        if name == "session":
            raise AttributeError(name)
        return getattr(self.session, name)


def sparse_model(source: str | Path | bytes | onnx.ModelProto, threads: int = 0) -> tuple[bytes, tuple[str, ...]]:
    """Rewrite a model to sparse operators; return its bytes and the outputs of its sparse layers, or nothing."""
    model = source if isinstance(source, onnx.ModelProto) else _load(source)
    found = rewrite(model, runs_faster, threads, profitable_layers)
    if found.layers and (names := _sparse_tensor_outputs(model)):
        raise InputError(
            f"the sparse initializer {names[0]!r} is an output, which ONNX Runtime returns as a sparse tensor"
        )
    if found.layers and found.model.ByteSize() > LARGEST_FILE:
        raise InputError("the rewritten model is larger than 2 GiB, the limit for a model in memory")
    layers = tuple(layer.output for layer in found.layers)
    return found.model.SerializeToString() if layers else b"", layers


def _sparse_tensor_outputs(model: onnx.ModelProto) -> list[str]:
    weights = {each.values.name for each in model.graph.sparse_initializer}
    return [each.name for each in model.graph.output if each.name in weights]


def register(options: ort.SessionOptions) -> None:
    """Register the sparse operators with session options."""
    if options not in _REGISTERED:
        options.register_custom_ops_library(str(library_path()))
        _REGISTERED.add(options)


def _load(source: str | Path | bytes) -> onnx.ModelProto:
    return load_bytes(source) if isinstance(source, bytes) else load_model(Path(source))


def check_opens(source: str | bytes, model: onnx.ModelProto) -> None:
    """Let ONNX Runtime check the whole original model: nodes that are replaced would never be checked."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")  # opens in a fiftieth of the time
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        ort.InferenceSession(source, options, providers=[CPU], enable_fallback=0)
    except Exception:
        # Only the caller's options know the operators of other libraries.
        if all(each.domain in _BUILT_IN for each in model.opset_import):
            raise


def reject_outside_files(source: str | bytes, options: ort.SessionOptions) -> None:
    """Raise an error for a model that reads files outside its folder; ONNX Runtime reports other errors."""
    try:
        if isinstance(source, bytes):
            check_contained(source, _external_folder(options))
        else:
            read_contained(Path(source))
    except ExternalDataError:
        raise
    except InputError:
        return


def _external_folder(options: ort.SessionOptions) -> Path:
    """Return the folder in which ONNX Runtime looks for the external data of a model in memory."""
    try:
        return Path(options.get_session_config_entry(_FOLDER))
    except RuntimeError:  # not set
        return Path()


def _only_cpu(providers: Sequence[Any]) -> bool:
    names = [each if isinstance(each, str) else each[0] for each in providers]
    return names == [CPU]


def _warn(reason: str, depth: int) -> None:
    if reason not in _WARNED:
        _WARNED.add(reason)
        warnings.warn(f"sparse kernels unavailable, using onnxruntime: {reason}", stacklevel=depth)
