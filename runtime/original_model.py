"""The model as it is in its file: what ONNX Runtime rejects is rejected, and no file outside its folder is read."""

from pathlib import Path

import onnx
import onnxruntime as ort

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.external_data import ExternalDataError
from rigl_compress.exporters.light_model import as_inputs
from rigl_compress.exporters.onnx_file import check_contained, read_contained
from rigl_compress.exporters.protobuf_scan import is_hollow
from rigl_compress.runtime.session_options import BUILT_IN, CPU, external_folder


def check_opens(source: str | bytes, model: onnx.ModelProto) -> None:
    """Let ONNX Runtime check the whole original model: nodes that are replaced would never be checked.

    Large weights are inputs in this check. Operators that need them as constants fail it; then the source is checked.
    """
    light = any(map(is_hollow, model.graph.initializer))
    if light and _opens(as_inputs(model).SerializeToString()) is None:
        return
    error = _opens(source)
    # Only the caller's options know the operators of other libraries.
    if error is not None and all(each.domain in BUILT_IN for each in model.opset_import):
        raise error


def _opens(source: str | bytes) -> Exception | None:
    """Return why ONNX Runtime does not open a model, without optimizing it."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")  # opens in a fiftieth of the time
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        ort.InferenceSession(source, options, providers=[CPU], enable_fallback=0)
    except Exception as error:
        return error
    return None


def reject_outside_files(source: str | bytes, options: ort.SessionOptions) -> None:
    """Raise an error for a model that reads files outside its folder; ONNX Runtime reports other errors."""
    try:
        if isinstance(source, bytes):
            check_contained(source, external_folder(options))
        else:
            read_contained(Path(source))
    except ExternalDataError:
        raise
    except InputError:
        return
