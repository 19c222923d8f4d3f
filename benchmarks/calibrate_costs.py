"""Measure layers dense and sparse in ONNX Runtime, and fit the cost model that comes with the package to the times.

    python benchmarks/calibrate_costs.py            (ten minutes; writes runtime/costs.json)

"families" are the costs by which Python chooses between a dense and a sparse operator, "kernels" those by which the
kernels choose the number of threads, compiled in when the package is installed again. `rigl-compress calibrate`
measures the families for the user's own machine, in a minute.
"""

import json
import time
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import click

from rigl_compress.core.provenance import environment
from rigl_compress.runtime.calibration import (
    FAMILIES,
    FULL,
    Array,
    Measured,
    drawn,
    fit,
    fit_family,
    measure,
    quartiles,
    samples,
)
from rigl_compress.runtime.cost_model import COSTS, Work
from rigl_compress.runtime.kernels import Depthwise, Window

# The families to which the costs of a kernel are fitted.
KERNELS = {"vector": ("vector",), "batched": ("batched",), "conv": ("pointwise", "spatial")}
DEPTHWISE = "depthwise"


def depthwise_runs() -> Iterator[tuple[dict[str, float], float]]:
    """Yield the work and the seconds of depthwise convolutions, which are called without ONNX Runtime."""
    for channels, side, size, stride in product((32, 128, 512), (7, 14, 28, 56), (3, 5), (1, 2)):
        window = Window((stride, stride), pads=(size // 2,) * 4, groups=channels)
        kernel = Depthwise(drawn((channels, 1, size, size), 1.0), window)
        x = drawn((1, channels, side, side), 1.0)

        def run(times: int, kernel: Depthwise = kernel, x: Array = x) -> float:
            start = time.thread_time()
            for _ in range(times):
                kernel(x)
            return (time.thread_time() - start) / times

        outputs = float(channels * (-(-side // stride)) ** 2)
        yield {"products": outputs * size**2, "outputs": outputs, "call": 1.0}, quartiles(run)[0]


def kernel_work(work: Work, names: Iterable[str]) -> dict[str, float]:
    """Return the work as the kernels count it: per pixel or sample instead of per vector."""
    pixels = work.pixels * max(work.images, 1)
    amounts = {"products": work.nonzeros * pixels, "columns": work.columns * pixels, "rows": work.rows * pixels}
    return {**{name: float(amounts[name]) for name in names}, "call": 1.0}


def without_call(costs: dict[str, float]) -> dict[str, float]:
    return {name: cost for name, cost in costs.items() if name != "call"}


def fit_kernels(found: dict[str, list[Measured]], known: dict[str, Any]) -> dict[str, Any]:
    """Return the costs of the kernels whose families were all measured, with the same names as the known ones."""
    fitted = {}
    for kernel, families in KERNELS.items():
        if set(families) <= set(found):
            rows = [each for family in families for each in found[family]]
            amounts = [kernel_work(work, known[kernel]) for work, _, _ in rows]
            fitted[kernel] = without_call(fit(amounts, [sparse for _, _, sparse in rows]))
    return fitted


@click.command()
@click.option(
    "--family",
    "families",
    multiple=True,
    default=(*FAMILIES, DEPTHWISE),
    type=click.Choice([*FAMILIES, DEPTHWISE]),
    help="Families to measure.",
)
def main(families: tuple[str, ...]) -> None:
    """Measure layers, fit the cost model, print how well it predicts, and write runtime/costs.json."""
    written = json.loads(COSTS.read_text(encoding="utf-8"))
    found = {}
    for family in (each for each in families if each != DEPTHWISE):
        found[family] = [measure(sample) for sample in samples(family, FULL)]
        written["families"][family], summary = fit_family(found[family])
        click.echo(f"{family}: {summary}")
    written["kernels"] |= fit_kernels(found, written["kernels"])
    if DEPTHWISE in families:
        amounts, seconds = zip(*depthwise_runs(), strict=True)
        written["kernels"][DEPTHWISE] = without_call(fit(list(amounts), list(seconds)))
    written["made_by"] = "python benchmarks/calibrate_costs.py"
    facts = environment()
    written["machine"] = {"date": facts["date"][:10], "cpu": facts.get("cpu", "")}
    COSTS.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
