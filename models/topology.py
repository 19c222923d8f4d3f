"""Topologies: the masks of the active connections of a network, by parameter name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rigl_compress.core.artifacts import load_artifact, save_artifact
from rigl_compress.core.dataclass_io import convert
from rigl_compress.core.errors import InputError
from rigl_compress.core.tensor_blocks import any_outside, count_true

KIND = "topology"


def connections(density: float, size: int) -> int:
    """Return the number of active connections in a tensor of `size`: all but floor(sparsity · size).

    The tolerance keeps products whole that floating point rounds, such as .99 · 235200.

    >>> connections(1 - 0.99, 784 * 300), connections(1 - 0.891, 300 * 100), connections(1.0, 1000)
    (2352, 3270, 1000)
    """
    return ceil(density * size - 1e-6)


@dataclass(frozen=True)
class LayerStatistics:
    """The counts of one layer of a topology."""

    name: str
    shape: tuple[int, ...]
    active: int

    @property
    def total(self) -> int:
        """Number of connections, active and inactive."""
        return prod(self.shape)

    @property
    def sparsity(self) -> float:
        """Share of the connections that are inactive."""
        return 1 - self.active / self.total if self.total else 0.0


class Topology(Mapping[str, Tensor]):
    """The masks of a network as an immutable value: parameter name → boolean tensor, True for active connections.

    >>> topology = Topology.from_masks({"fc.weight": torch.tensor([[True, False], [False, False]])})
    >>> topology.active, topology.total, topology.sparsity
    (1, 4, 0.75)
    """

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        for name, mask in masks.items():
            if mask.dtype != torch.bool:
                raise InputError(f"mask {name!r} has dtype {mask.dtype}, expected torch.bool: pass `mask != 0`")
        self._masks = MappingProxyType({name: mask.detach() for name, mask in masks.items()})
        self.layers = tuple(
            LayerStatistics(name, tuple(mask.shape), count_true(mask)) for name, mask in self._masks.items()
        )

    @classmethod
    def from_masks(cls, masks: Mapping[str, Tensor]) -> "Topology":
        """Build a topology from copies of boolean masks by parameter name."""
        return cls({name: mask.clone() for name, mask in masks.items()})

    @classmethod
    def full(cls, shapes: Mapping[str, tuple[int, ...]]) -> "Topology":
        """Build a topology with every connection active."""
        return cls({name: torch.ones(shape, dtype=torch.bool) for name, shape in shapes.items()})

    def __getitem__(self, name: str) -> Tensor:
        return self._masks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        same_names = list(self) == list(other)
        return same_names and all(torch.equal(self[name].cpu(), other[name].cpu()) for name in self)

    __hash__ = None  # type: ignore[assignment]  # a value of tensors: compared, not hashed

    def __repr__(self) -> str:
        return f"Topology({len(self)} layers, {self.active:,} of {self.total:,} connections)"

    @property
    def active(self) -> int:
        """Number of active connections."""
        return sum(layer.active for layer in self.layers)

    @property
    def total(self) -> int:
        """Number of connections, active and inactive."""
        return sum(layer.total for layer in self.layers)

    @property
    def sparsity(self) -> float:
        """Share of the connections of all layers that are inactive."""
        return 1 - self.active / self.total if self.total else 0.0

    def changed(self, other: "Topology") -> int:
        """Return the number of connections that are active here and not in `other`."""
        return sum(count_true(self[name] & ~other[name].to(self[name].device)) for name in self)

    def check_fits(self, model: nn.Module) -> None:
        """Raise `InputError` unless every mask has the shape of the parameter of its name."""
        parameters = dict(model.named_parameters())
        for layer in self.layers:
            found = parameters.get(layer.name)
            if found is None:
                raise InputError(f"the topology has {layer.name!r}, the model does not: it belongs to another model")
            if tuple(found.shape) != layer.shape:
                raise InputError(
                    f"the topology's {layer.name!r} has shape {layer.shape}, the model's {tuple(found.shape)}: "
                    "it belongs to another model"
                )

    def apply_to(self, model: nn.Module) -> None:
        """Set the weights of inactive connections to exactly zero."""
        self.check_fits(model)
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, mask in self.items():
                parameters[name].masked_fill_(~mask.to(parameters[name].device), 0)

    def check_applied(self, model: nn.Module) -> None:
        """Raise `InputError` unless the weights of inactive connections are exactly zero."""
        self.check_fits(model)
        parameters = dict(model.named_parameters())
        for name, mask in self.items():
            weight = parameters[name].detach()
            if not weight.is_meta and any_outside(weight, mask.to(weight.device)):
                raise InputError(
                    f"{name!r} has non-zero weights at inactive connections: apply the topology first "
                    "(topology.apply_to(model)), or pass the topology of this network"
                )

    def save(self, path: Path | str) -> None:
        """Save as safetensors, one bit per connection."""
        packed = {name: _pack(mask) for name, mask in self.items()}
        save_artifact(Path(path), KIND, packed, {"shapes": {layer.name: list(layer.shape) for layer in self.layers}})

    @classmethod
    def load(cls, path: Path | str) -> "Topology":
        """Load a file written by `save`."""
        tensors, content = load_artifact(Path(path), KIND)
        try:
            return cls(_masks(tensors, content.get("shapes")))
        except InputError as error:
            raise InputError(f"{path}: {error}; the file is damaged: create it again") from None


def _masks(tensors: Mapping[str, Tensor], content: Any) -> dict[str, Tensor]:
    """Unpack the masks of a file; all sizes are checked before memory is allocated."""
    shapes: dict[str, tuple[int, ...]] = convert(Mapping[str, tuple[int, ...]], content, "shapes")
    if shapes.keys() != tensors.keys():
        raise InputError(
            f"it has shapes of {len(shapes)} layers and {len(tensors)} masks, expected one shape for each mask"
        )
    for name, shape in shapes.items():
        bits = tensors[name]
        if min(shape, default=0) < 0 or bits.dtype != torch.uint8 or bits.shape != (ceil(prod(shape) / 8),):
            found = f"{bits.dtype} of shape {tuple(bits.shape)}"
            raise InputError(f"the mask of {name!r} is {found}, expected one bit for each element of {list(shape)}")
    return {name: _unpack(tensors[name], shape) for name, shape in shapes.items()}


def _pack(mask: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(mask.cpu().numpy().reshape(-1)))


def _unpack(bits: Tensor, shape: tuple[int, ...]) -> Tensor:
    flat = np.unpackbits(bits.numpy(), count=prod(shape))
    return torch.from_numpy(flat.astype(bool)).reshape(shape)
