"""Session options: the sparse operators are registered with a copy, so that the caller's own options stay as they are.

ONNX Runtime cannot copy options, and does not tell all that is in them. Settings are read, configuration entries are
read by their names, and overridden lengths of free axes show in a small model that is opened with them. If a model has
operators of other libraries, or the options have providers, these cannot be copied: the options themselves are used.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from weakref import WeakSet

import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from rigl_compress.core.native_library import library_path
from rigl_compress.exporters.protobuf_walk import parts_of_type

CPU = "CPUExecutionProvider"
BUILT_IN = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
FOLDER = "session.model_external_initializers_file_folder_path"
# A library can be registered only once with the same options.
_REGISTERED: WeakSet[ort.SessionOptions] = WeakSet()
# The names under which ONNX Runtime keeps other settings that concern the processor; it lists only their values.
ENTRIES = (
    *(f"session.{pool}.{each}" for pool in ("intra_op", "inter_op") for each in ("allow_spinning", "spin_duration_us")),
    *(f"session.{pool}.spin_backoff_max" for pool in ("intra_op", "inter_op")),
    *("session.intra_op_thread_affinities", "session.force_spinning_stop", "session.dynamic_block_base"),
    *("session.disable_prepacking", "session.prepack.enable_parallel", "session.set_denormal_as_zero"),
    *("session.use_env_allocators", "session.use_device_allocator_for_initializers"),
    *("session.disable_quant_qdq", "session.disable_double_qdq_remover", "session.enable_quant_qdq_cleanup"),
    *("session.qdqisint8allowed", "session.x64quantprecision", "session.disable_qdq_constant_folding"),
    *("session.qdq_matmulnbits_accuracy_level", "session.qdq_matmulnbits_block_size"),
    *("session.enable_dq_matmulnbits_fusion", "session.disable_aot_function_inlining"),
    *("session.strict_shape_type_inference", "session.allow_released_opsets_only", "session.disable_cpu_ep_fallback"),
    *("session.graph_optimizations_loop_level", "session.debug_layout_transformation"),
    *("session.load_model_format", "session.save_model_format", "session.record_ep_graph_assignment_info"),
    *("session.optimized_model_external_initializers_file_name", FOLDER),
    "session.optimized_model_external_initializers_min_size_in_bytes",
    *("session.save_external_prepacked_constant_initializers", "session.collect_node_memory_stats_to_file"),
    *("session.use_ort_model_bytes_directly", "session.use_ort_model_bytes_for_initializers"),
    *("optimization.enable_gelu_approximation", "optimization.enable_cast_chain_elimination"),
    *("optimization.disable_specified_optimizers", "optimization.minimal_build_optimizations"),
    "optimization.constant_folding_max_output_size_in_bytes",
    *(
        "mlas.disable_kleidiai",
        "mlas.enable_gemm_fastmath_arm64_bfloat16",
        "mlas.use_lut_gemm",
        "mlas.qnbit.force_fp32",
    ),
)


def register(options: ort.SessionOptions) -> None:
    """Register the sparse operators with session options."""
    if options not in _REGISTERED:
        options.register_custom_ops_library(str(library_path()))
        _REGISTERED.add(options)


def own_options(options: ort.SessionOptions, model: onnx.ModelProto | None) -> ort.SessionOptions:
    """Return a copy of options; the options themselves if a model needs what cannot be copied."""
    if not _copyable(options, model):
        return options
    copy = ort.SessionOptions()
    for name in _settings():
        if (value := getattr(options, name)) != getattr(copy, name):
            setattr(copy, name, value)
    for key, value in entries_of(options):
        copy.add_session_config_entry(key, value)
    for axis, length in _overridden(options, model):
        copy.add_free_dimension_override_by_name(axis, length)
    return copy


def _copyable(options: ort.SessionOptions, model: onnx.ModelProto | None) -> bool:
    foreign = model is not None and any(each.domain not in (*BUILT_IN, "rigl_compress") for each in model.opset_import)
    return not foreign and not (hasattr(options, "has_providers") and options.has_providers())


def _settings() -> Iterator[str]:
    return (name for name in dir(ort.SessionOptions) if isinstance(getattr(ort.SessionOptions, name), property))


def entries_of(options: ort.SessionOptions) -> Iterator[tuple[str, str]]:
    """Yield the known configuration entries of options."""
    for key in ENTRIES:
        try:
            yield key, options.get_session_config_entry(key)
        except RuntimeError:  # not set
            continue


def external_folder(options: ort.SessionOptions) -> Path:
    """Return the folder in which ONNX Runtime looks for the external data of a model in memory."""
    return Path(dict(entries_of(options)).get(FOLDER, ""))


def _overridden(options: ort.SessionOptions, model: onnx.ModelProto | None) -> Iterable[tuple[str, int]]:
    """Return the lengths that options give to the free axes of a model."""
    if model is None or options.enable_profiling or options.optimized_model_filepath:  # a probe would write files
        return []
    axes = sorted({axis.dim_param for axis in parts_of_type(model, onnx.TensorShapeProto.Dimension) if axis.dim_param})
    if not axes:
        return []
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, axes) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "probe", values[:1], values[1:])
    probe = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    try:
        opened = ort.InferenceSession(probe.SerializeToString(), options, providers=[CPU])
        return [(axis, found) for axis, found in zip(axes, opened.get_inputs()[0].shape, strict=True) if axis != found]
    except Exception:  # only opening the model itself tells what is wrong
        return []
