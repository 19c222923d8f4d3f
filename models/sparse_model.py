"""A sparse network as a value: how to rebuild it, its weights, its topology and its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.artifacts import load_artifact, save_artifact
from rigl_compress.core.dataclass_io import parse
from rigl_compress.core.errors import InputError
from rigl_compress.core.tensor_blocks import any_outside
from rigl_compress.core.trust import FromFile, trusted_if_trained_here, trusting_code
from rigl_compress.models.layer_resizing import Selecting
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.topology import Topology

KIND = "sparse-model"
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Header:
    """The JSON part of a file."""

    model: ModelSpec
    masks: tuple[str, ...]
    step: int
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class SparseModel:
    """A trained sparse network. A weight is exactly 0 where its connection is inactive."""

    spec: ModelSpec
    weights: Mapping[str, Tensor]
    topology: Topology
    step: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, mask in self.topology.items():
            weight = self.weights.get(name)
            if weight is None or weight.shape != mask.shape:
                raise InputError(f"the topology's {name!r} does not fit the weights: they belong to different models")
            if weight.dtype not in _FLOATS:
                raise InputError(f"the weights {name!r} are {weight.dtype}, expected float32 or another float")
            if any_outside(weight, mask.to(weight.device)):
                raise InputError(f"{name!r} has non-zero weights at inactive connections: apply the topology first")

    @classmethod
    def capture(
        cls, spec: ModelSpec, model: nn.Module, topology: Topology, step: int, metrics: Mapping[str, Any]
    ) -> "SparseModel":
        """Return a copy of the current state of a network."""
        weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        return cls(spec, weights, Topology({name: mask.cpu() for name, mask in topology.items()}), step, metrics)

    def build(self) -> nn.Module:
        """Rebuild the network with its weights, in evaluation mode."""
        self.spec.check_complete()
        if self._is_checked_first():  # find sizes that do not fit before anything is allocated
            check_weights(self._built_without_memory(), self.weights, self.spec.name)
        model = self.spec.build()
        load_weights(model, self.weights, self.spec.name)
        return model.eval()

    def _is_checked_first(self) -> bool:
        """Whether sizes are compared without memory: of our networks, and of a library's that only a file names."""
        return self.spec.network.is_ours or (isinstance(self.spec.name, FromFile) and bool(self.spec.network.library))

    def _built_without_memory(self) -> nn.Module:
        try:
            with torch.device("meta"):
                return self.spec.build()
        except InputError as error:
            if self.spec.network.is_ours:
                raise
            cure = "add --trust-code (in Python trust_code=True) if you trust the file"
            raise InputError(f"{error}; to build it without a check of its sizes, {cure}") from None

    def save(self, path: Path | str) -> None:
        """Save as one safetensors file."""
        tensors = {f"weight:{name}": tensor for name, tensor in self.weights.items()}
        tensors |= {f"mask:{name}": mask for name, mask in self.topology.items()}
        content = {
            "model": self.spec.to_json(),
            "masks": list(self.topology),  # in the network's order, which a safetensors file does not keep
            "step": self.step,
            "metrics": dict(self.metrics),
        }
        save_artifact(Path(path), KIND, tensors, content)

    @classmethod
    def load(cls, path: Path | str, *, trust_code: bool = False) -> "SparseModel":
        """Load a file written by `save`, without running any code.

        With `trust_code`, `build` may import and call the function that the file names for its network.
        """
        with trusting_code(trust_code):
            tensors, content = load_artifact(Path(path), KIND)
        try:
            return cls._read(tensors, parse(_Header, content), Path(path))
        except InputError as error:
            raise InputError(f"{path}: {error}; the file is damaged: create it again") from None

    @classmethod
    def _read(cls, tensors: Mapping[str, Tensor], header: _Header, path: Path) -> "SparseModel":
        masks = {f"mask:{name}": name for name in header.masks}
        weights = {name: name.removeprefix("weight:") for name in tensors if name.startswith("weight:")}
        if len(masks) != len(header.masks) or {*masks, *weights} != {*tensors}:
            held = len(tensors) - len(weights)
            raise InputError(f"it lists {len(header.masks)} masks and holds {held}, expected the same ones, each once")
        spec = replace(header.model, name=trusted_if_trained_here(header.model.name, header.model.options, path))
        topology = Topology({name: tensors[key] for key, name in masks.items()})
        return cls(spec, {name: tensors[key] for key, name in weights.items()}, topology, header.step, header.metrics)


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Load weights into a network; raise `InputError` if they belong to another."""
    check_weights(model, weights, name)
    _check_indices(model, weights, name)
    model.load_state_dict(dict(weights))


def _check_indices(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Raise `InputError` if a layer selects other inputs than the network was built with."""
    for path, layer in model.named_modules():
        if isinstance(layer, Selecting) and not torch.equal(weights[f"{path}.index"].cpu(), layer.index.cpu()):
            raise InputError(f"'{path}.index' selects other inputs than the prune plan of {name}: the file is damaged")


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Raise `InputError` unless the weights have the names and shapes of the network's."""
    own = model.state_dict()
    for key in {**own, **weights}:
        found, expected = weights.get(key), own.get(key)
        if found is None or expected is None or found.shape != expected.shape:
            shapes = [None if tensor is None else tuple(tensor.shape) for tensor in (found, expected)]
            raise InputError(
                f"{key!r} has shape {shapes[0]}, {name} needs {shapes[1]}: these are another model's weights"
            )
        if (found.dtype in _FLOATS) != (expected.dtype in _FLOATS):
            raise InputError(
                f"{key!r} is {found.dtype}, {name} needs {expected.dtype}: these are another model's weights"
            )
