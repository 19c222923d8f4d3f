"""A sparse network as a value: how to rebuild it, its weights, its topology, and what is known about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.models.artifacts import load_artifact, save_artifact
from rigl_compress.models.errors import InputError
from rigl_compress.models.networks import ModelSpec
from rigl_compress.models.settings import parse
from rigl_compress.models.topology import Topology
from rigl_compress.models.trust import trusting_code, vouched

KIND = "sparse-model"
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Header:
    """What stands beside the tensors in a file."""

    model: ModelSpec
    masks: tuple[str, ...]
    step: int
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class SparseModel:
    """A trained sparse network. A weight is exactly 0 wherever the topology says dead."""

    spec: ModelSpec
    weights: Mapping[str, Tensor]
    topology: Topology
    step: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, mask in self.topology.items():
            weight = self.weights.get(name)
            if weight is None or weight.shape != mask.shape:
                raise InputError(f"the topology's {name!r} does not fit the weights: they are of different models")
            if weight.dtype not in _FLOATS:
                raise InputError(f"the weights {name!r} are {weight.dtype}, expected float32 or another float")
            if torch.any(weight[~mask.to(weight.device)] != 0):
                raise InputError(f"{name!r} has weights where the topology is dead: apply the topology first")

    @classmethod
    def capture(
        cls, spec: ModelSpec, model: nn.Module, topology: Topology, step: int, metrics: Mapping[str, Any]
    ) -> "SparseModel":
        """Take a copy of a network as it is now."""
        weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        return cls(spec, weights, Topology({name: mask.cpu() for name, mask in topology.items()}), step, metrics)

    def build(self) -> nn.Module:
        """Rebuild the network with its weights, in evaluation mode."""
        if self.spec.network.is_ours:  # sizes that do not fit the weights are found before they are allocated
            with torch.device("meta"):
                check_weights(self.spec.build(), self.weights, self.spec.name)
        model = self.spec.build()
        load_weights(model, self.weights, self.spec.name)
        return model.eval()

    def save(self, path: Path | str) -> None:
        """Save as one safetensors file."""
        tensors = {f"weight:{name}": tensor for name, tensor in self.weights.items()}
        tensors |= {f"mask:{name}": mask for name, mask in self.topology.items()}
        content = {
            "model": self.spec.to_json(),
            "masks": list(self.topology),  # in the order of the network, which a safetensors file does not keep
            "step": self.step,
            "metrics": dict(self.metrics),
        }
        save_artifact(Path(path), KIND, tensors, content)

    @classmethod
    def load(cls, path: Path | str, *, trust_code: bool = False) -> "SparseModel":
        """Load what `save` wrote; nothing of it is run.

        `trust_code`: the function that the file names for its network may be imported and called, by `build`.
        """
        with trusting_code(trust_code):
            tensors, content = load_artifact(Path(path), KIND)
        try:
            return cls._read(tensors, parse(_Header, content), Path(path))
        except InputError as error:
            raise InputError(f"{path}: {error}; the file is damaged: make it again") from None

    @classmethod
    def _read(cls, tensors: Mapping[str, Tensor], header: _Header, path: Path) -> "SparseModel":
        masks = {f"mask:{name}": name for name in header.masks}
        weights = {name: name.removeprefix("weight:") for name in tensors if name.startswith("weight:")}
        if len(masks) != len(header.masks) or {*masks, *weights} != {*tensors}:
            held = len(tensors) - len(weights)
            raise InputError(f"it lists {len(header.masks)} masks and holds {held}: expected the same ones, once")
        spec = replace(header.model, name=vouched(header.model.name, header.model.options, path))
        topology = Topology({name: tensors[key] for key, name in masks.items()})
        return cls(spec, {name: tensors[key] for key, name in weights.items()}, topology, header.step, header.metrics)


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Load weights into a network; those of another network are an error of one sentence."""
    check_weights(model, weights, name)
    model.load_state_dict(dict(weights))


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Raise unless the weights are those of such a network."""
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
