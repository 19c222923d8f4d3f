"""Layers that pick their inputs: whether a selection is worth its time in ONNX Runtime, or zeros are cheaper.

ONNX Runtime copies what a `Gather` along the last axis picks number by number, and such a copy takes as long as some
350 products. So a layer that lost a few of its inputs is faster if it reads them all and multiplies some with zero; in
a sparse encoding these zeros take next to no bytes. Only where it lost many, or where what is left is one run, a
selection pays.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from rigl_compress.exporters.graph import check_example
from rigl_compress.models.resize import Selecting, widen

# Nanoseconds on one core with AVX2, ONNX Runtime 1.31: only their quotients matter. `benchmarks/pruned_latency.py`
# shows what becomes of them, docs/decisions/0016-dead-inputs.md how they were found.
PICKED = 8.0  # a number by itself
MOVED = 0.3  # a number of a run: a slice, or a whole channel
CALL = 1500.0  # one operator more
PRODUCT, PRODUCT_ALONE = 0.022, 0.1  # of a batch, and of a single sample, whose weights are read for it alone
CONV_PRODUCT, FEW_CHANNELS, UNEVEN = (
    0.026,
    1.5,
    1.25,
)  # below eight channels, and behind a number that 4 does not divide
BLOCK, EVEN = 8, 4  # ONNX Runtime keeps images in blocks of so many channels, if their number is even enough
LARGE_BATCH = 64
PRUNED_SHAPES = "pruned_shapes"  # the key of the shapes that tensors have in the network, where a file has zeros more
# A selection must be expected to save so much of the time of what it changes: the model is not exact.
MARGIN = 0.1


@dataclass(frozen=True)
class Reading:
    """A layer that picks its inputs: how many there are, which of them it needs, and how often it uses them."""

    total: int
    kept: Tensor
    uses: int  # products with each number of the input; for a convolution, with each channel of one image
    pixels: int = 0  # of one image; 0 for a matrix
    blocked: bool = False  # an image that ONNX Runtime keeps in blocks of channels


def best_read(reading: Reading) -> Tensor:
    """Choose which inputs a layer should read in ONNX Runtime: at least those that it needs, at most all.

    A selection is chosen only if it is expected to be faster than zeros for a single sample and for a large batch.

    >>> scattered, at_the_start = torch.arange(0, 784, 2), torch.arange(50)
    >>> [len(best_read(Reading(784, kept, uses=100))) for kept in (scattered, at_the_start)]
    [784, 50]
    """
    every = torch.arange(reading.total)
    worth = [read for read in _narrower(reading) if _pays(read, every, reading)]
    return min(worth, key=lambda read: _time(read, reading, LARGE_BATCH), default=every)


def _narrower(reading: Reading) -> Iterator[Tensor]:
    """Give the selections that come into question, fewer than all: what is needed, in whole blocks, as one run."""
    kept = reading.kept
    needed = torch.isin(torch.arange(reading.total), kept)
    # A stable sort puts unneeded channels behind the needed ones: the first of them fill the last block.
    filled = (~needed).long().argsort(stable=True)[: -(-len(kept) // BLOCK) * BLOCK].sort().values
    run = torch.arange(int(kept[0]), int(kept[-1]) + 1)
    yield from (read for read in (kept, filled, run) if len(read) < reading.total)


def _pays(read: Tensor, every: Tensor, reading: Reading) -> bool:
    return all(_time(read, reading, n) <= (1 - MARGIN) * _time(every, reading, n) for n in (1, LARGE_BATCH))


def _time(read: Tensor, reading: Reading, batch: int) -> float:
    """Give the nanoseconds that a batch takes with a selection, as far as they depend on it."""
    count = len(read)
    products = _price(count, reading, batch) * reading.uses * batch
    if count == reading.total:
        return products
    together = reading.pixels or int(read[-1] - read[0]) + 1 == count
    return products + CALL + (MOVED if together else PICKED) * count * max(reading.pixels, 1) * batch


def _price(count: int, reading: Reading, batch: int) -> float:
    """Give the nanoseconds of a product with so many inputs, for all of them."""
    if not reading.pixels:
        return count * (PRODUCT if batch > 1 else PRODUCT_ALONE)
    if not reading.blocked:
        return count * CONV_PRODUCT
    if count < BLOCK:
        return count * CONV_PRODUCT * FEW_CHANNELS
    return CONV_PRODUCT * (count * UNEVEN if count % EVEN else -(-count // BLOCK) * BLOCK)


def read_cheaply(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, tuple[int, ...]]:
    """Let layers that pick their inputs read those that are cheapest in ONNX Runtime. Changes the model.

    Gives the shapes that weights had before zeros were added for inputs that nothing needs.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Selecting)}
    before = {}
    for name, reading in _readings(model, layers, inputs).items():
        read = best_read(reading)
        if len(read) > len(reading.kept):
            before[f"{name}.weight" if name else "weight"] = tuple(layers[name].weight.shape)
        widen(layers[name], read, reading.total)
    return before


def _readings(model: nn.Module, layers: dict[str, Selecting], inputs: tuple[Tensor, ...]) -> dict[str, Reading]:
    """Run the network once to see what its layers are given; a layer that is not used tells nothing."""
    found: dict[str, Reading] = {}
    hooks = [
        layer.register_forward_hook(
            lambda layer, given, named, made, name=name: found.update(
                {name: _reading(layer, *given, **named, made=made)}
            ),
            with_kwargs=True,
        )
        for name, layer in layers.items()
        if layer.span is None
    ]
    try:
        if hooks:
            check_example(model, tuple(each.detach().cpu() for each in inputs))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _reading(layer: Selecting, input: Tensor, *, made: Tensor) -> Reading:
    kept, outputs = layer.index, layer.weight.shape[0]
    if isinstance(layer, nn.Linear):
        return Reading(input.shape[-1], kept, outputs)
    axes = layer.weight.dim() - 2
    uses = layer.weight[:, 0].numel() * prod(made.shape[-axes:])
    return Reading(input.shape[-axes - 1], kept, uses, prod(input.shape[-axes:]), blocked=axes == 2)
