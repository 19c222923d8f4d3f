"""Products of activations with each other that a forward pass calls as functions: in attention, and elsewhere."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rigl_compress.models.flop_rules import attention_products, einsum, inner_length
from rigl_compress.models.layer_flops import LayerUse

KIND = "product"
_WHOLE = "counted as a whole"  # instead of a module's name
Counter = Callable[[tuple[Any, ...], Mapping[str, Any], Tensor], int]  # arguments, and the result → multiply-adds


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, *names: str) -> Any:
    return args[position] if position < len(args) else next(kwargs[name] for name in names if name in kwargs)


def _attention(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor) -> int:
    query, key = (_argument(args, kwargs, index, name) for index, name in enumerate(("query", "key")))
    return attention_products(query.shape, key.shape, result.shape)


def _matrix_product(first: int) -> Counter:
    """Return the counter of a product whose left operand is the argument of this number."""

    def count(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor) -> int:
        left = _argument(args, kwargs, first, "input" if first == 0 else "batch1", "self")
        return inner_length(left.shape, (), result.shape).multiply_adds

    return count


def _einsum(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor) -> int:
    del kwargs
    equation, *rest = args
    operands = rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest
    if len(operands) != 2 or not isinstance(equation, str):  # the cost of three depends on the order of the products
        return 0
    left, right = operands
    return einsum(equation)(left.shape, right.shape, result.shape).multiply_adds


_COUNTERS: dict[Any, Counter] = {
    F.scaled_dot_product_attention: _attention,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm), _matrix_product(0)),
    **dict.fromkeys((torch.mm, Tensor.mm), _matrix_product(0)),
    **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), _matrix_product(1)),
    torch.einsum: _einsum,
}


class _Recorder(TorchFunctionMode):
    """Appends a use for every product of two activations; products with a parameter belong to its module."""

    def __init__(self, inside: list[str], parameters: set[int], uses: list[LayerUse]) -> None:
        super().__init__()
        self._inside, self._parameters, self._uses = inside, parameters, uses

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and record it if it multiplies."""
        del types
        result = func(*args, **(kwargs or {}))
        count = _COUNTERS.get(func)
        operands = [each for each in (*args, *(kwargs or {}).values()) if isinstance(each, Tensor)]
        if count is not None and _WHOLE not in self._inside and not any(self._is_weight(each) for each in operands):
            self._append(count(args, kwargs or {}, result), any(each.requires_grad for each in operands))
        return result

    def _is_weight(self, tensor: Tensor) -> bool:
        return id(tensor) in self._parameters or id(tensor._base) in self._parameters

    def _append(self, products: int, depends: bool) -> None:
        name = self._inside[-1] if self._inside else ""
        self._uses.append(LayerUse(name, KIND, "", 0, 0, 1, input_gradient=depends, products=products))


@contextmanager
def recording_products(model: nn.Module, uses: list[LayerUse]) -> Iterator[None]:
    """Append the products of activations in the calls of a model, each under the name of the module that calls it.

    Those of `nn.MultiheadAttention` are left out: they are counted with its projections.
    """
    inside: list[str] = []
    hooks = []
    for path, module in model.named_modules():
        label = _WHOLE if isinstance(module, nn.MultiheadAttention) else path or type(module).__name__
        hooks.append(module.register_forward_pre_hook(lambda *_, label=label: inside.append(label)))
        hooks.append(module.register_forward_hook(lambda *_: inside.pop() and None, always_call=True))
    try:
        with _Recorder(inside, {id(parameter) for parameter in model.parameters()}, uses):
            yield
    finally:
        for hook in hooks:
            hook.remove()
