"""Ways to zero inactive weights in place: CPU time of one thread, relative to a product with a mask of floats.

    python benchmarks/masking.py [--rounds 15]

Rounds alternate between the ways; printed are medians of the ratios within a round.
"""

from collections.abc import Callable
from statistics import median
from time import thread_time

import click
import torch
from torch import Tensor

from rigl_compress.core.provenance import command_line, environment
from rigl_compress.models.mask_kernels import multiply_by_masks
from rigl_compress.pipeline.markdown import markdown

SHAPES = ((300, 784), (1024, 1024), (1900, 1900))


def ways(weight: Tensor, mask: Tensor) -> dict[str, Callable[[], object]]:
    floats, inactive, zero = mask.float(), ~mask, torch.zeros(())
    numbers, buffer = mask.view(torch.uint8), torch.empty_like(weight)
    return {
        "floats, 4 bytes": lambda: weight.mul_(floats),
        "booleans": lambda: weight.mul_(mask),
        "masked_fill_": lambda: weight.masked_fill_(inactive, 0),
        "where": lambda: torch.where(mask, weight, zero),
        "8-bit integers": lambda: weight.mul_(numbers),
        "a buffer of floats": lambda: weight.mul_(buffer.copy_(numbers)),
        "compiled kernel": lambda: multiply_by_masks([(weight, mask)]),
    }


def seconds(call: Callable[[], object], count: int) -> float:
    begin = thread_time()
    for _ in range(count):
        call()
    return (thread_time() - begin) / count


def measured(shape: tuple[int, int], rounds: int) -> dict[str, float]:
    """Return the microseconds of the first way, and how many times as long each takes."""
    weight, mask = torch.randn(shape), torch.rand(shape) < 0.1
    count, calls = max(1, 10_000_000 // weight.numel()), ways(weight, mask)
    first = next(iter(calls))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        taken = {name: seconds(call, count) for name, call in calls.items()}
        for name, each in taken.items():
            found[name].append(each / taken[first] if name != first else 1e6 * each)
    return {name: median(each[1:]) for name, each in found.items()}


@click.command(help=__doc__)
@click.option("--rounds", default=15, show_default=True)
def main(rounds: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = [measured(shape, rounds) for shape in SHAPES]
    first, *others = found[0]
    rows = [(first, *(f"{each[first]:.0f} µs" for each in found))]
    rows += [(name, *(f"{each[name]:.2f}" for each in found)) for name in others]
    click.echo(markdown(("mask", *(f"{rows} × {columns}" for rows, columns in SHAPES)), rows))
    here = environment()
    click.echo(f"`{command_line()}`, {here['date']}, {here['cpu']}, {here['cores']} cores, torch {torch.__version__}")


if __name__ == "__main__":
    main()
