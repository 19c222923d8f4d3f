"""What is recorded of every value when a network runs on the example: shape, type, storage, changes in place."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.models.nested_tensors import tensors_in

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, type(None))


def note_facts(node: fx.Node, value: Any, inputs: Sequence[Tensor], versions: Sequence[int]) -> None:
    """Record the facts about a node's value, computed from inputs that had these versions before."""
    tensor = isinstance(value, Tensor)
    node.meta["shape"] = tuple(value.shape) if tensor else None
    node.meta["dtype"] = value.dtype if tensor else None
    node.meta["float"] = tensor and value.is_floating_point()
    node.meta["plain"] = is_plain_value(value)
    node.meta["value"] = value if node.meta["plain"] else None
    node.meta["storages"] = {storage(each) for each in tensors_in(value)}
    node.meta["changes"] = {
        storage(each)
        for each, before, after in zip(inputs, versions, versions_of(inputs), strict=True)
        if before != after
    }


def versions_of(tensors: Sequence[Tensor]) -> list[int]:
    """Return how often each tensor was changed in place."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def storage(tensor: Tensor) -> int:
    """Return what identifies the memory of a tensor."""
    return int(tensor.untyped_storage()._cdata)


def is_plain_value(value: Any) -> bool:
    """Whether a value is made of numbers and the like, not of tensors."""
    return all(map(is_plain_value, value)) if isinstance(value, tuple | list) else isinstance(value, _PLAIN)
