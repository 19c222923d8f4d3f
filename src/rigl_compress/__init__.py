"""Train sparse, deploy sparse: RigL, dead-neuron removal, sparse ONNX, honest benchmarks.

Names are loaded on first use, so that importing the package (and `rigl-compress --help`) does not import torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

__version__ = version("rigl-compress")

_HOME = {
    "Backend": "rigl_compress.pipeline.bench.backends",
    "DataSet": "rigl_compress.data.dataset",
    "Distillation": "rigl_compress.sparsity.distillation",
    "Distribution": "rigl_compress.sparsity.distributions",
    "Encoding": "rigl_compress.exporters.encodings",
    "InferenceSession": "rigl_compress.runtime.session",
    "InputError": "rigl_compress.core.errors",
    "Method": "rigl_compress.sparsity.methods",
    "SparseModel": "rigl_compress.models.sparse_model",
    "Sparsifier": "rigl_compress.sparsity.sparsifier",
    "SparsityConfig": "rigl_compress.sparsity.sparsity_config",
    "Split": "rigl_compress.data.samples",
    "Topology": "rigl_compress.models.topology",
    "count_flops": "rigl_compress.models.flop_counter",
    "explain": "rigl_compress.runtime.explain",
    "export_onnx": "rigl_compress.exporters.onnx_export",
    "export_sparse_runtime": "rigl_compress.runtime.sparse_runtime_export",
    "global_magnitude_topology": "rigl_compress.sparsity.magnitude_topology",
    "kernels_library": "rigl_compress.runtime.kernel_library",
    "magnitude_topology": "rigl_compress.sparsity.magnitude_topology",
    "obs_topology": "rigl_compress.sparsity.obs_topology",
    "prune_dead_neurons": "rigl_compress.pruning.dead_neurons",
    "recalibrate_batch_norm": "rigl_compress.sparsity.batch_norm_statistics",
    "register_backend": "rigl_compress.pipeline.bench.backends",
    "register_dataset": "rigl_compress.data.dataset_registry",
    "register_distribution": "rigl_compress.sparsity.distributions",
    "register_encoding": "rigl_compress.exporters.encodings",
    "register_method": "rigl_compress.sparsity.methods",
    "register_model": "rigl_compress.models.model_registry",
    "register_schedule": "rigl_compress.sparsity.schedules",
    "sparsify_onnx": "rigl_compress.onnx_pruning.sparsify_onnx",
}

__all__ = [
    "Backend",
    "DataSet",
    "Distillation",
    "Distribution",
    "Encoding",
    "InferenceSession",
    "InputError",
    "Method",
    "SparseModel",
    "Sparsifier",
    "SparsityConfig",
    "Split",
    "Topology",
    "__version__",
    "count_flops",
    "explain",
    "export_onnx",
    "export_sparse_runtime",
    "global_magnitude_topology",
    "kernels_library",
    "magnitude_topology",
    "obs_topology",
    "prune_dead_neurons",
    "recalibrate_batch_norm",
    "register_backend",
    "register_dataset",
    "register_distribution",
    "register_encoding",
    "register_method",
    "register_model",
    "register_schedule",
    "sparsify_onnx",
]

if TYPE_CHECKING:
    from rigl_compress.core.errors import InputError as InputError
    from rigl_compress.data.dataset import DataSet as DataSet
    from rigl_compress.data.dataset_registry import register_dataset as register_dataset
    from rigl_compress.data.samples import Split as Split
    from rigl_compress.exporters.encodings import Encoding as Encoding
    from rigl_compress.exporters.encodings import register_encoding as register_encoding
    from rigl_compress.exporters.onnx_export import export_onnx as export_onnx
    from rigl_compress.models.flop_counter import count_flops as count_flops
    from rigl_compress.models.model_registry import register_model as register_model
    from rigl_compress.models.sparse_model import SparseModel as SparseModel
    from rigl_compress.models.topology import Topology as Topology
    from rigl_compress.onnx_pruning.sparsify_onnx import sparsify_onnx as sparsify_onnx
    from rigl_compress.pipeline.bench.backends import Backend as Backend
    from rigl_compress.pipeline.bench.backends import register_backend as register_backend
    from rigl_compress.pruning.dead_neurons import prune_dead_neurons as prune_dead_neurons
    from rigl_compress.runtime.explain import explain as explain
    from rigl_compress.runtime.kernel_library import kernels_library as kernels_library
    from rigl_compress.runtime.session import InferenceSession as InferenceSession
    from rigl_compress.runtime.sparse_runtime_export import export_sparse_runtime as export_sparse_runtime
    from rigl_compress.sparsity.batch_norm_statistics import recalibrate_batch_norm as recalibrate_batch_norm
    from rigl_compress.sparsity.distillation import Distillation as Distillation
    from rigl_compress.sparsity.distributions import Distribution as Distribution
    from rigl_compress.sparsity.distributions import register_distribution as register_distribution
    from rigl_compress.sparsity.magnitude_topology import global_magnitude_topology as global_magnitude_topology
    from rigl_compress.sparsity.magnitude_topology import magnitude_topology as magnitude_topology
    from rigl_compress.sparsity.methods import Method as Method
    from rigl_compress.sparsity.methods import register_method as register_method
    from rigl_compress.sparsity.obs_topology import obs_topology as obs_topology
    from rigl_compress.sparsity.schedules import register_schedule as register_schedule
    from rigl_compress.sparsity.sparsifier import Sparsifier as Sparsifier
    from rigl_compress.sparsity.sparsity_config import SparsityConfig as SparsityConfig


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'rigl_compress' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Show the lazily loaded names to completion."""
    return sorted(__all__)
