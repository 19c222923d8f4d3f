"""Train sparse, deploy sparse: RigL, dead-neuron removal, sparse ONNX, honest benchmarks.

Names are loaded on first use, so that importing the package (and `rigl-compress --help`) does not import torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

__version__ = version("rigl-compress")

_HOME = {
    "DataSet": "rigl_compress.pipeline.train.data.dataset",
    "InferenceSession": "rigl_compress.runtime.session",
    "InputError": "rigl_compress.models.errors",
    "Method": "rigl_compress.pipeline.train.methods",
    "SparseModel": "rigl_compress.models.sparse_model",
    "Sparsifier": "rigl_compress.pipeline.train.sparsifier",
    "SparsityConfig": "rigl_compress.pipeline.train.config",
    "Split": "rigl_compress.pipeline.train.data.samples",
    "Topology": "rigl_compress.models.topology",
    "count_flops": "rigl_compress.models.flops",
    "export_onnx": "rigl_compress.exporters.export",
    "export_sparse_runtime": "rigl_compress.runtime.export",
    "kernels_library": "rigl_compress.runtime.library",
    "prune_dead_neurons": "rigl_compress.pipeline.prune.surgery",
}

__all__ = [
    "DataSet",
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
    "export_onnx",
    "export_sparse_runtime",
    "kernels_library",
    "prune_dead_neurons",
]

if TYPE_CHECKING:
    from rigl_compress.exporters.export import export_onnx as export_onnx
    from rigl_compress.models.errors import InputError as InputError
    from rigl_compress.models.flops import count_flops as count_flops
    from rigl_compress.models.sparse_model import SparseModel as SparseModel
    from rigl_compress.models.topology import Topology as Topology
    from rigl_compress.pipeline.prune.surgery import prune_dead_neurons as prune_dead_neurons
    from rigl_compress.pipeline.train.config import SparsityConfig as SparsityConfig
    from rigl_compress.pipeline.train.data.dataset import DataSet as DataSet
    from rigl_compress.pipeline.train.data.samples import Split as Split
    from rigl_compress.pipeline.train.methods import Method as Method
    from rigl_compress.pipeline.train.sparsifier import Sparsifier as Sparsifier
    from rigl_compress.runtime.export import export_sparse_runtime as export_sparse_runtime
    from rigl_compress.runtime.library import kernels_library as kernels_library
    from rigl_compress.runtime.session import InferenceSession as InferenceSession


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'rigl_compress' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Show the lazily loaded names to completion."""
    return sorted(__all__)
