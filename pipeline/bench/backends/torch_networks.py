"""PyTorch on the CPU, step by step and compiled: for runs, whose network is at hand. An ONNX file has none."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.nested_tensors import tensors_in
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.bench.backends import Backend, Setup, register_backend
from rigl_compress.pipeline.bench.bench_sources import Source

Array = NDArray[Any]


@dataclass
class TorchRunner:
    """A network with its inputs."""

    network: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    latest: Any = None

    def run(self) -> None:
        """Compute without gradients."""
        with torch.inference_mode():
            self.latest = self.network(*self.inputs)

    def outputs(self) -> list[Array]:
        """Return the outputs of the last run."""
        return [each.numpy() for each in tensors_in(self.latest)]


def open_network(source: Source, setup: Setup) -> TorchRunner:
    """Build the network of a run."""
    return TorchRunner(_network(source, setup), tuple(torch.from_numpy(each) for each in setup.inputs.values()))


def open_compiled(source: Source, setup: Setup) -> TorchRunner:
    """Build the network of a run and compile it; the first run of the warm-up compiles."""
    network = torch.compile(_network(source, setup))
    return TorchRunner(network, tuple(torch.from_numpy(each) for each in setup.inputs.values()))


def _network(source: Source, setup: Setup) -> nn.Module:
    if source.network is None:
        raise InputError(f"{source.label} is an ONNX file, and torch runs networks: pass the run folder instead")
    torch.set_num_threads(setup.threads)  # of the whole process, like everything in torch
    return SparseModel.load(source.network).build().eval()


def _no_compiler() -> str:
    found = any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl"))
    return "" if found else "torch.compile needs a C++ compiler: install g++ or clang"


register_backend(Backend("torch", "PyTorch, operator by operator (run folders)", lambda: "", open_network))
register_backend(Backend("torch-compile", "PyTorch, compiled (run folders)", _no_compiler, open_compiled))
