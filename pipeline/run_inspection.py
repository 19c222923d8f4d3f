"""The layers of a run, and how many connections each input pixel has."""

from typing import Any

import torch
from torch import Tensor

from rigl_compress.core.errors import InputError
from rigl_compress.core.import_by_name import is_reference
from rigl_compress.core.wording import percent
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.workspace import Run

SHADES = " ·░▒▓█"


def layer_rows(start: Topology, end: Topology) -> list[tuple[str, ...]]:
    """Return the table of a run's layers; the last column counts connections that were inactive at the start."""
    if any(start[layer.name].shape != layer.shape for layer in end.layers if layer.name in start):
        raise InputError("the topologies at the start and at the end are of different networks: train the run again")
    return [
        (
            layer.name,
            "×".join(map(str, layer.shape)),
            f"{layer.active:,}",
            percent(layer.sparsity),
            f"{int((end[layer.name] & ~start[layer.name]).sum()):,}",
        )
        for layer in end.layers
    ]


def pixel_map(model: SparseModel, topology: Topology) -> Tensor | None:
    """Count the connections of each input pixel: [height, width], or None where inputs are not an image.

    The paper's figure in Appendix B. Pixels that the network does not use have none.
    """
    unknown = model.spec.input_shape is None and is_reference(model.spec.name)  # custom code is not run for a map
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

    >>> side_by_side(("start", "end"), (torch.ones(2, 8), torch.ones(2, 8)))
    ['start       end', '████████    ████████']
    """
    largest = int(max(part.max() for part in maps))
    left, right = (ascii_map(part, largest) for part in maps)
    width = maps[0].shape[1]
    lines = [f"{one:<{width}}    {other}" for one, other in zip(left, right, strict=True)]
    return [f"{titles[0]:<{width}}    {titles[1]}", *lines]


def own_topologies(run: Run) -> tuple[SparseModel, Topology, Topology]:
    """Return the trained network and its topologies at the start and at the end; raise if they are not of one run."""
    model, start, end = run.model(), run.topology("start"), run.topology("end")
    shapes = [{layer.name: layer.shape for layer in each.layers} for each in (model.topology, start, end)]
    if shapes[1] != shapes[2] or shapes[0] != shapes[2]:
        raise InputError(
            f"{run.path} has topologies of different networks: its files are not of one run; train it again"
        )
    if end != model.topology:
        file, own = run.topology_file("end").name, run.model_file.name
        raise InputError(
            f"{run.path}: {file} has other connections than {own}: its files are not of one run; train it again"
        )
    return model, start, end


def inspection(run: Run) -> dict[str, Any]:
    """Return everything that `inspect` shows, as plain data."""
    model, start, end = own_topologies(run)
    maps = {"start": pixel_map(model, start), "end": pixel_map(model, end)}
    return {
        "format": 1,
        "result": run.result(),
        "training": list(run.metrics()),
        "layers": [
            {"name": layer.name, "shape": list(layer.shape), "active": layer.active, "sparsity": layer.sparsity}
            for layer in end.layers
        ],
        "connections_per_pixel": {key: value.tolist() for key, value in maps.items() if value is not None},
    }
