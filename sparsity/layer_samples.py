"""Samples of what layers see and return, taken where torch multiplies their weights, whatever module does it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from rigl_compress.core.random_generators import generator
from rigl_compress.sparsity.batch_norm_statistics import forward_batch

SAMPLES = 16_384  # of a layer: some ten for every column, which is enough for a Gram matrix
MEMORY = 2**31  # bytes: of the outputs of all layers, which are kept while the layers are pruned

Weights = Mapping[str, Tensor]  # by name
Pair = tuple[int, int]
Hear = Callable[[Tensor, Tensor], None]


class _Reached(Exception):  # noqa: N818 - no error: it ends a forward pass
    """The layer that is waited for has run: the rest of the network need not."""


@dataclass(frozen=True)
class Product:
    """A call of a linear layer or a 2-D convolution: y = W x + b at every position."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    @property
    def is_linear(self) -> bool:
        """Whether features are the last dimension."""
        return self.weight.dim() == 2

    def columns(self, y: Tensor, kept: Tensor) -> Tensor:
        """Return inputs as [groups, columns, samples], at the kept positions of the outputs.

        >>> product = Product(torch.arange(6.0).view(2, 3), torch.ones(1, 3), None)
        >>> product.columns(torch.ones(2, 1), torch.tensor([1])).tolist()
        [[[3.0], [4.0], [5.0]]]
        """
        found = self.x.reshape(-1, self.x.shape[-1])[kept] if self.is_linear else self._windows(y, kept)
        return found.T.reshape(self.groups, -1, len(kept))

    def _windows(self, y: Tensor, kept: Tensor) -> Tensor:
        """Return what a convolution reads for some pixels of its outputs, [samples, channels × height × width]."""
        width, pixels = y.shape[3], y.shape[2] * y.shape[3]
        image, pixel = kept // pixels, kept % pixels
        tops, lefts = (pixel // width) * self.stride[0], (pixel % width) * self.stride[1]
        rows, columns = (
            start[:, None] + step * torch.arange(size)
            for start, step, size in zip((tops, lefts), self.dilation, self.weight.shape[2:], strict=True)
        )
        padded = F.pad(self.x, (self.padding[1], self.padding[1], self.padding[0], self.padding[0]))
        found = padded[image[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # channels come last
        return found.permute(0, 3, 1, 2).flatten(1)

    def rows(self, y: Tensor, kept: Tensor) -> Tensor:
        """Return outputs without the bias as [groups, rows, samples]."""
        flat = y.reshape(-1, y.shape[-1]).T if self.is_linear else y.flatten(2).transpose(0, 1).flatten(1)
        own = flat[:, kept] if self.bias is None else flat[:, kept] - self.bias[:, None]
        return own.view(self.groups, -1, len(kept))

    def positions(self, y: Tensor) -> int:
        """Return for how many columns of inputs there are outputs."""
        return y.numel() // self.weight.shape[0]


def _pair(value: int | Sequence[int]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _convolution(  # the parameters of torch.conv2d
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Product | None:
    if isinstance(padding, str) or input.dim() != 4:
        return None
    return Product(input, weight, bias, _pair(stride), _pair(padding), _pair(dilation), groups)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Product:
    return Product(input, weight, bias)


_PRODUCTS: dict[Any, Callable[..., Product | None]] = {F.linear: _linear, torch.conv2d: _convolution}


class _Listener(TorchFunctionMode):
    """Calls a function with the name, the product and the outputs, wherever one of the weights is multiplied."""

    def __init__(self, weights: Weights, hear: Callable[[str, Product, Tensor], None]) -> None:
        super().__init__()
        self._names, self._hear = {id(weight): name for name, weight in weights.items()}, hear

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            product = _PRODUCTS[func](*args, **(kwargs or {}))
            if product is not None and (name := self._names.get(id(product.weight))) is not None:
                self._hear(name, product, y)
        return y


class _Sampler:
    """Chooses positions in a layer's outputs: the same ones in each network that sees the same batches."""

    def __init__(self, most: int) -> None:
        self._most, self._calls = most, dict[str, int]()

    def __call__(self, name: str, count: int) -> Tensor:
        """Return the positions for the next call of a layer."""
        self._calls[name] = self._calls.get(name, -1) + 1
        return torch.randperm(count, generator=generator(0, self._calls[name], name))[: self._most]


@torch.no_grad()
def sampled_outputs(model: nn.Module, weights: Weights, batches: Sequence[Any]) -> dict[str, list[Tensor]]:
    """Return samples of the outputs of layers without their biases, in the order in which the network computes them."""
    found: dict[str, list[Tensor]] = {}
    sampler = _Sampler(per_batch(weights, len(batches)))

    def keep(name: str, product: Product, y: Tensor) -> None:
        found.setdefault(name, []).append(product.rows(y, sampler(name, product.positions(y))))

    with _Listener(weights, keep):
        for batch in batches:
            forward_batch(model, batch)
    return found


def per_batch(weights: Weights, batches: int) -> int:
    """Return how many samples of each layer a batch gives, so that the outputs of all layers fit into the memory.

    >>> per_batch({"a": torch.empty(4, 2), "b": torch.empty(4, 4)}, 100)
    164
    """
    every = min(SAMPLES, MEMORY // (4 * max(1, sum(len(weight) for weight in weights.values()))))
    return max(1, -(-every // max(1, batches)))


@torch.no_grad()
def stream_inputs(model: nn.Module, name: str, batches: Sequence[Any], outputs: Sequence[Tensor], hear: Hear) -> None:
    """Call a function with samples of the inputs of a layer and the outputs for them, one call of the layer at a time.

    If the layer runs once in a batch, what follows it in the network is skipped.
    """
    wanted, once = iter(outputs), len(outputs) == len(batches)
    sampler = _Sampler(max(each.shape[-1] for each in outputs))

    def keep(name: str, product: Product, y: Tensor) -> None:
        hear(product.columns(y, sampler(name, product.positions(y))), next(wanted))
        if once:
            raise _Reached

    with _Listener({name: model.get_parameter(name)}, keep):
        for batch in batches:
            with suppress(_Reached):
                forward_batch(model, batch)


@torch.no_grad()
def norms_after(model: nn.Module, weights: Weights, batch: Any) -> dict[str, _BatchNorm]:
    """Return the batch norm that reads the outputs of a layer, by the layer's name: its mean can take up a bias."""
    written: list[tuple[str, ReferenceType[Tensor]]] = []  # outputs need not be kept: a norm reads them at once
    found: dict[str, _BatchNorm] = {}

    def read(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if isinstance(norm, _BatchNorm):
            found.update({name: norm for name, y in written if y() is inputs[0]})

    with _before_norms(model, read), _Listener(weights, lambda name, _, y: written.append((name, ref(y)))):
        forward_batch(model, batch)
    return found


@contextmanager
def _before_norms(model: nn.Module, hook: Callable[[nn.Module, tuple[Tensor, ...]], None]) -> Iterator[None]:
    with ExitStack() as handles:
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                handles.callback(module.register_forward_pre_hook(hook).remove)
        yield
