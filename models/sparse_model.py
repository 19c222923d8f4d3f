"""A sparse network as a value: how to rebuild it, its weights, its topology, and what is known about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.models.artifacts import load_artifact, save_artifact
from rigl_compress.models.errors import InputError
from rigl_compress.models.networks import ModelSpec
from rigl_compress.models.topology import Topology

KIND = "sparse-model"


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
    def load(cls, path: Path | str) -> "SparseModel":
        """Load what `save` wrote."""
        tensors, content = load_artifact(Path(path), KIND)
        weights = {name.removeprefix("weight:"): tensors[name] for name in tensors if name.startswith("weight:")}
        topology = Topology({name: tensors[f"mask:{name}"] for name in content["masks"]})
        return cls(ModelSpec(**content["model"]), weights, topology, content["step"], content["metrics"])


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Load weights into a network; those of another network are an error of one sentence."""
    own = model.state_dict()
    for key in own.keys() | weights.keys():
        found, expected = weights.get(key), own.get(key)
        if found is None or expected is None or found.shape != expected.shape:
            shapes = [None if tensor is None else tuple(tensor.shape) for tensor in (found, expected)]
            raise InputError(
                f"{key!r} has shape {shapes[0]}, {name} needs {shapes[1]}: these are another model's weights"
            )
    model.load_state_dict(dict(weights))
