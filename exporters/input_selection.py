"""Layers that select their inputs: whether a selection or zero weights are faster in ONNX Runtime.

A `Gather` along the last axis copies element by element, each in the time of some 350 multiply-adds. So a layer that
lost a few of its inputs is faster if it reads them all with zero weights for some; in a sparse encoding these zeros
take next to no bytes. A selection is faster only if many inputs are lost, or if those left are contiguous.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from rigl_compress.exporters.torch_to_onnx import check_example
from rigl_compress.models.layer_resizing import Selecting, widen

# Nanoseconds on one core with AVX2, ONNX Runtime 1.31: only their ratios matter. `benchmarks/pruned_latency.py`
# measures their effect, docs/decisions/0016-dead-inputs.md has their origin.
PICKED = 8.0  # a single element
MOVED = 0.3  # an element of contiguous ones: a slice, or a whole channel
CALL = 1500.0  # one more operator
PRODUCT, PRODUCT_ALONE = 0.022, 0.1  # in a batch, and for a single sample, which reads the weights for itself alone
CONV_PRODUCT, FEW_CHANNELS, UNEVEN = (
    0.026,
    1.5,
    1.25,
)  # factors below eight channels, and if their number is no multiple of 4
BLOCK, EVEN = 8, 4  # ONNX Runtime stores images in blocks of 8 channels, if their number is a multiple of 4
LARGE_BATCH = 64
PRUNED_SHAPES = "pruned_shapes"  # metadata key: shapes of tensors in the network that are padded with zeros in the file
# The share of the time that a selection has to save to be chosen, as the cost model is not exact.
MARGIN = 0.1


@dataclass(frozen=True)
class InputSelection:
    """The inputs of a selecting layer: how many there are, which of them it needs, and how often it uses each."""

    total: int
    kept: Tensor
    uses: int  # multiply-adds per input element; in a convolution, per channel of one image
    pixels: int = 0  # of one image; 0 for a matrix
    blocked: bool = False  # an image that ONNX Runtime stores in blocks of channels


def fastest_inputs(reading: InputSelection) -> Tensor:
    """Return the inputs that a layer reads fastest in ONNX Runtime: at least those that it needs, at most all.

    A selection is chosen only if it is predicted to be faster than zeros for a single sample and for a large batch.

    >>> scattered, at_the_start = torch.arange(0, 784, 2), torch.arange(50)
    >>> [len(fastest_inputs(InputSelection(784, kept, uses=100))) for kept in (scattered, at_the_start)]
    [784, 50]
    """
    every = torch.arange(reading.total)
    worth = [read for read in _narrower(reading) if _pays(read, every, reading)]
    return min(worth, key=lambda read: _time(read, reading, LARGE_BATCH), default=every)


def _narrower(reading: InputSelection) -> Iterator[Tensor]:
    """Yield the candidates with fewer than all inputs: those needed, in whole blocks, and as a contiguous range."""
    kept = reading.kept
    needed = torch.isin(torch.arange(reading.total), kept)
    # A stable sort puts unneeded channels behind the needed ones: the first of them fill the last block.
    filled = (~needed).long().argsort(stable=True)[: -(-len(kept) // BLOCK) * BLOCK].sort().values
    run = torch.arange(int(kept[0]), int(kept[-1]) + 1)
    yield from (read for read in (kept, filled, run) if len(read) < reading.total)


def _pays(read: Tensor, every: Tensor, reading: InputSelection) -> bool:
    return all(_time(read, reading, n) <= (1 - MARGIN) * _time(every, reading, n) for n in (1, LARGE_BATCH))


def _time(read: Tensor, reading: InputSelection, batch: int) -> float:
    """Return the predicted nanoseconds of a batch that depend on the selection."""
    count = len(read)
    products = _price(count, reading, batch) * reading.uses * batch
    if count == reading.total:
        return products
    together = reading.pixels or int(read[-1] - read[0]) + 1 == count
    return products + CALL + (MOVED if together else PICKED) * count * max(reading.pixels, 1) * batch


def _price(count: int, reading: InputSelection, batch: int) -> float:
    """Return the nanoseconds of a multiply-add with each of so many inputs."""
    if not reading.pixels:
        return count * (PRODUCT if batch > 1 else PRODUCT_ALONE)
    if not reading.blocked:
        return count * CONV_PRODUCT
    if count < BLOCK:
        return count * CONV_PRODUCT * FEW_CHANNELS
    return CONV_PRODUCT * (count * UNEVEN if count % EVEN else -(-count // BLOCK) * BLOCK)


def choose_selections(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, tuple[int, ...]]:
    """Let selecting layers read the inputs that are fastest in ONNX Runtime. Changes the model.

    Return the earlier shapes of weights that got zeros for unneeded inputs.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Selecting)}
    before = {}
    for name, reading in _readings(model, layers, inputs).items():
        read = fastest_inputs(reading)
        if len(read) > len(reading.kept):
            before[f"{name}.weight" if name else "weight"] = tuple(layers[name].weight.shape)
        widen(layers[name], read, reading.total)
    return before


def _readings(model: nn.Module, layers: dict[str, Selecting], inputs: tuple[Tensor, ...]) -> dict[str, InputSelection]:
    """Run the network once to record the inputs of its layers; a layer that is not called is left out."""
    found: dict[str, InputSelection] = {}
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


def _reading(layer: Selecting, input: Tensor, *, made: Tensor) -> InputSelection:
    kept, outputs = layer.index, layer.weight.shape[0]
    if isinstance(layer, nn.Linear):
        return InputSelection(input.shape[-1], kept, outputs)
    axes = layer.weight.dim() - 2
    uses = layer.weight[:, 0].numel() * prod(made.shape[-axes:])
    return InputSelection(input.shape[-axes - 1], kept, uses, prod(input.shape[-axes:]), blocked=axes == 2)
