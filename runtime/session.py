"""Sessions that skip zeros: `onnxruntime.InferenceSession`, with sparse kernels where they are faster."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import onnx
import onnxruntime as ort

from rigl_compress.exporters.external import ExternalDataError
from rigl_compress.exporters.onnx_file import LARGEST_FILE, check_contained, load_bytes, load_model, read_contained
from rigl_compress.models.errors import InputError
from rigl_compress.runtime.costs import gains, saving_together
from rigl_compress.runtime.library import library_path, why_not
from rigl_compress.runtime.rewrite import rewrite, sparse_outputs

Open = Callable[[str | bytes], ort.InferenceSession]
CPU = "CPUExecutionProvider"
_BUILT_IN = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_FOLDER = "session.model_external_initializers_file_folder_path"
# A library may be registered only once with the same options.
_REGISTERED: WeakSet[ort.SessionOptions] = WeakSet()
_WARNED: set[str] = set()


class InferenceSession:
    """A drop-in for `onnxruntime.InferenceSession` that runs sparse layers on sparse kernels.

    It opens any ONNX file: ours in every encoding, or one from elsewhere whose weights have zeros. Layers that gain
    nothing stay with ONNX Runtime, and so does the whole model where the kernels cannot be used; then it warns, once.

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
            refuse_escapes(source, options)
            self.session = self._open(source)
        if reason:  # after ONNX Runtime had its say: a file that it refuses is not slow
            _warn(reason, depth=3)

    def _open_sparse(self, source: str | bytes, options: ort.SessionOptions) -> str:
        """Try sparse kernels; whatever goes wrong, the plain session is as good as ever. Give what went wrong."""
        reason = why_not()
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
                self._source = None if written else source  # of a model that was rewritten there is no plain form
        except ExternalDataError:
            raise
        except Exception as error:
            return _sentence(error)
        return ""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
        """Run the model as `onnxruntime.InferenceSession.run` does.

        Where the sparse operators refuse inputs that the plain ones take, of shapes that the file did not announce, the
        plain session takes over for good, with one warning.
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
            refused = _sentence(error)
        if self._plain is None:  # kept, as inputs that are wrong for both may come again and again
            self._plain = self._open(self._source)
        outputs = call(self._plain)  # what is wrong for both is told by ONNX Runtime
        self.session, self.sparse_layers = self._plain, ()
        _warn(refused, depth=4)
        return outputs

    def __getattr__(self, name: str) -> Any:
        if name == "session":
            raise AttributeError(name)
        return getattr(self.session, name)


def sparse_model(source: str | Path | bytes | onnx.ModelProto, threads: int = 0) -> tuple[bytes, tuple[str, ...]]:
    """Rewrite a model for the sparse operators; give its bytes, and the outputs of the layers that gain, if any."""
    found = rewrite(source if isinstance(source, onnx.ModelProto) else _load(source), gains, threads, saving_together)
    if found.layers and found.model.ByteSize() > LARGEST_FILE:
        raise InputError("the model is larger than 2 GiB, more than can be handed over in memory")
    layers = tuple(layer.output for layer in found.layers)
    return found.model.SerializeToString() if layers else b"", layers


def register(options: ort.SessionOptions) -> None:
    """Make the sparse operators known to sessions with these options."""
    if options not in _REGISTERED:
        options.register_custom_ops_library(str(library_path()))
        _REGISTERED.add(options)


def _load(source: str | Path | bytes) -> onnx.ModelProto:
    return load_bytes(source) if isinstance(source, bytes) else load_model(Path(source))


def check_opens(source: str | bytes, model: onnx.ModelProto) -> None:
    """Let ONNX Runtime look at the whole model first: operators that are replaced would never be checked by anyone."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")  # a fiftieth of the time that a session takes
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        ort.InferenceSession(source, options, providers=[CPU], enable_fallback=0)
    except Exception:
        # Operators of other libraries are known to the caller's options alone.
        if all(each.domain in _BUILT_IN for each in model.opset_import):
            raise


def refuse_escapes(source: str | bytes, options: ort.SessionOptions) -> None:
    """Refuse a model that reads files outside of its folder; anything else that is wrong, ONNX Runtime will tell."""
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
    """Give the folder in which ONNX Runtime looks for the external data of a model from memory."""
    try:
        return Path(options.get_session_config_entry(_FOLDER))
    except RuntimeError:  # it is not set
        return Path()


def _only_cpu(providers: Sequence[Any]) -> bool:
    names = [each if isinstance(each, str) else each[0] for each in providers]
    return names == [CPU]


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _warn(reason: str, depth: int) -> None:
    if reason not in _WARNED:
        _WARNED.add(reason)
        warnings.warn(f"without sparse kernels, no faster than ONNX Runtime: {reason}", stacklevel=depth)
