"""Inputs and outputs of networks: tensors, alone or in tuples, lists and dictionaries."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value, depth first, also of dictionaries and dataclasses; of a packed sequence its data.

    >>> import torch
    >>> [len(tensor) for tensor in tensors_in((torch.zeros(1), {"a": [torch.zeros(2), None], "b": torch.zeros(3)}))]
    [1, 2, 3]
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif is_dataclass(value):
        yield from tensors_in([getattr(value, field.name) for field in fields(value)])


def as_inputs(example_input: Any) -> tuple[Any, ...]:
    """Return the positional arguments of a forward pass on an example input: a tuple is one argument each.

    >>> as_inputs("image"), as_inputs(("image", "mask"))
    (('image',), ('image', 'mask'))
    """
    return example_input if isinstance(example_input, tuple) else (example_input,)


def as_call(example_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a forward pass by position and by name: those of a dictionary have names.

    >>> as_call(("image", "mask")), as_call({"input_ids": "tokens"})
    ((('image', 'mask'), {}), ((), {'input_ids': 'tokens'}))
    """
    return ((), dict(example_input)) if isinstance(example_input, Mapping) else (as_inputs(example_input), {})
