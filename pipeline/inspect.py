"""Looking into a run: its layers, and where its connections begin."""

from typing import Any

import torch
from torch import Tensor

from rigl_compress.models.errors import InputError
from rigl_compress.models.references import is_reference
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.topology import Topology
from rigl_compress.models.wording import percent
from rigl_compress.pipeline.workspace import Run

SHADES = " ·░▒▓█"


def layer_rows(begin: Topology, end: Topology) -> list[tuple[str, ...]]:
    """Give the table of a run's layers; the last column counts connections that did not stand there at the begin."""
    return [
        (
            layer.name,
            "×".join(map(str, layer.shape)),
            f"{layer.active:,}",
            percent(layer.sparsity),
            f"{int((end[layer.name] & ~begin[layer.name]).sum()):,}",
        )
        for layer in end.layers
    ]


def pixel_map(model: SparseModel, topology: Topology) -> Tensor | None:
    """Count the connections that begin at each pixel: [height, width], or None where inputs are not an image.

    The paper's figure in Appendix B. Pixels that the network does not look at have none.
    """
    unknown = model.spec.input_shape is None and is_reference(model.spec.name)  # looking does not run people's code
    if unknown or not topology or len(model.spec.shape) < 2:
        return None
    *channels, height, width = (1, *model.spec.shape)[-3:]
    first = next(iter(topology.values()))
    pixels = model.weights.get(f"{next(iter(topology)).removesuffix('.weight')}.index", torch.arange(height * width))
    if first.dim() != 2 or channels != [1] or pixels.shape != first.shape[1:] or not len(pixels):
        return None
    if pixels.dtype != torch.int64 or not 0 <= int(pixels.min()) <= int(pixels.max()) < height * width:
        raise InputError(
            f"the first layer picks pixels that an image of {height} × {width} does not have: it is damaged"
        )
    counts = torch.zeros(height * width, dtype=torch.int64)
    counts[pixels] = first.sum(dim=0)
    return counts.reshape(height, width)


def ascii_map(counts: Tensor, largest: int) -> list[str]:
    """Draw a map in characters, two rows of pixels to a line since characters are twice as high as wide.

    >>> ascii_map(torch.tensor([[0, 1, 4], [0, 1, 4]]), largest=4)
    [' ░█']
    """
    rows = counts.shape[0] // 2 * 2
    means = (counts[:rows:2] + counts[1:rows:2]) / 2
    levels = (means / max(1, largest) * (len(SHADES) - 1)).ceil().long().clamp(max=len(SHADES) - 1)
    return ["".join(SHADES[level] for level in line) for line in levels.tolist()]


def side_by_side(titles: tuple[str, str], maps: tuple[Tensor, Tensor]) -> list[str]:
    """Draw two maps beside each other in the same shades.

    >>> side_by_side(("begin", "end"), (torch.ones(2, 8), torch.ones(2, 8)))
    ['begin       end', '████████    ████████']
    """
    largest = int(max(part.max() for part in maps))
    left, right = (ascii_map(part, largest) for part in maps)
    width = maps[0].shape[1]
    lines = [f"{one:<{width}}    {other}" for one, other in zip(left, right, strict=True)]
    return [f"{titles[0]:<{width}}    {titles[1]}", *lines]


def _check_alike(run: Run, trained: Topology, begin: Topology, end: Topology) -> None:
    shapes = [{layer.name: layer.shape for layer in each.layers} for each in (trained, begin, end)]
    if shapes[1] != shapes[2] or shapes[0] != shapes[2]:
        raise InputError(
            f"{run.path} has topologies of different networks: its files are not of one run; train it again"
        )


def inspection(run: Run) -> dict[str, Any]:
    """Give everything `inspect` shows, as plain data."""
    model, begin, end = run.model(), run.topology("begin"), run.topology("end")
    _check_alike(run, model.topology, begin, end)
    maps = {"begin": pixel_map(model, begin), "end": pixel_map(model, end)}
    return {
        "format": 1,
        "result": run.result(),
        "layers": [
            {"name": layer.name, "shape": list(layer.shape), "active": layer.active, "sparsity": layer.sparsity}
            for layer in end.layers
        ],
        "connections_per_pixel": {key: value.tolist() for key, value in maps.items() if value is not None},
    }
