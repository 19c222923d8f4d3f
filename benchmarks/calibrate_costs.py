"""Measure layers dense and sparse in ONNX Runtime, and fit the cost model that comes with the package to the times.

    python benchmarks/calibrate_costs.py                                              (AVX-512, if the machine has it)
    python benchmarks/limit_instructions.py avx2 python benchmarks/calibrate_costs.py
    python benchmarks/limit_instructions.py portable python benchmarks/calibrate_costs.py

Some minutes each; writes the costs of one instruction set into runtime/costs.json. "families" and "threads" are the
costs by which Python chooses between a dense and a sparse operator, "kernels" those by which the kernels choose the
number of threads, compiled in when the package is installed again. Measurements are kept in build/costs: with --part
some are made again, the fits use all. Those of two threads are added to earlier ones, and serve all instruction sets:
the cores of a virtual machine change places, and with them what a second thread costs. `rigl-compress calibrate`
measures the families for the user's own machine, in a minute.
"""

import json
import os
from pathlib import Path
from typing import Any

import click
from cost_fits import VECTOR_SHARE, Chain, Rows, best_work, family_costs, kernel_costs, thread_costs
from cost_measurements import PARTS
from limit_instructions import LIMITED

from rigl_compress.core.provenance import environment
from rigl_compress.runtime.calibration import FAMILIES
from rigl_compress.runtime.cost_model import Work
from rigl_compress.runtime.cost_tables import COSTS, LANES
from rigl_compress.runtime.kernels import chosen_set, kernel_sets

THREADS, NETWORKS = "threads", "networks"
MEASURED = Path(__file__).parents[1] / "build" / "costs"


def measured(kernels: str) -> dict[str, Rows]:
    """Return the measurements that were kept."""
    files = {part: MEASURED / f"{kernels}-{part}.json" for part in PARTS}
    return {part: json.loads(file.read_text(encoding="utf-8")) for part, file in files.items() if file.is_file()}


def measure_part(part: str, kernels: str) -> None:
    """Measure a part and keep what was measured."""
    MEASURED.mkdir(parents=True, exist_ok=True)
    rows = [dict(row) for row in PARTS[part]()]
    if part in (THREADS, NETWORKS):
        rows = [*measured(kernels).get(part, []), *rows]
    (MEASURED / f"{kernels}-{part}.json").write_text(json.dumps(rows), encoding="utf-8")
    click.echo(f"{kernels}, {part}: {len(rows)} measured")


def fitted(known: dict[str, Any], found: dict[str, Rows], kernels: str) -> dict[str, Any]:
    """Return the costs of an instruction set: fitted where there are measurements, else the known ones."""
    costs = {
        **known,
        "families": {**known["families"]},
        "kernels": {**known["kernels"], **kernel_costs(found, kernels)},
    }
    for family in (family for family in FAMILIES if family in found):
        behind = [row for row in found.get("gathered", ()) if Work(**row["work"]).family == family]
        costs["families"][family], summary = family_costs([*found[family], *behind])
        click.echo(f"{kernels}, {family}: {summary}")
    facts = environment()
    return {**costs, "machine": {"date": facts["date"][:10], "cpu": facts.get("cpu", "")}}


def fit_threads(sets: dict[str, Any]) -> None:
    """Fit the costs of threads to the chains of all instruction sets, and write them into each."""
    chains = [
        Chain(Work(**row["work"]), LANES[name], costs, row)
        for name, costs in sets.items()
        for row in measured(name).get(THREADS, ())
    ]
    networks = [row for name in sets for row in measured(name).get(NETWORKS, ())]
    works = next(iter(sets.values()))["kernels"][THREADS]
    if networks:
        works = {"work": best_work(networks), "vector_work": VECTOR_SHARE * best_work(networks)}
    splits = thread_costs(chains, **works) if chains else next(iter(sets.values()))[THREADS]
    click.echo(f"threads: {splits}, {works}")
    for costs in sets.values():
        costs[THREADS], costs["kernels"][THREADS] = splits, works


def check_dense_side(kernels: str) -> None:
    """Raise an error if ONNX Runtime uses newer instructions than the kernels."""
    if kernels != kernel_sets()[-1] and os.environ.get(LIMITED, "") != kernels:
        command = f"python benchmarks/limit_instructions.py {kernels} python benchmarks/calibrate_costs.py"
        raise click.ClickException(f"dense operators would not use the instructions of {kernels}: run {command}")


@click.command()
@click.option(
    "--part", "parts", multiple=True, type=click.Choice(list(PARTS)), default=tuple(PARTS), help="Parts to measure."
)
@click.option("--fit-only", is_flag=True, help="Measure nothing: fit to what was measured.")
def main(parts: tuple[str, ...], fit_only: bool) -> None:
    """Measure layers, fit the cost model, print how well it predicts, and write runtime/costs.json."""
    kernels = chosen_set()
    check_dense_side(kernels)
    for part in () if fit_only else parts:
        measure_part(part, kernels)
    written = json.loads(COSTS.read_text(encoding="utf-8"))
    sets = written["instruction_sets"]
    sets[kernels] = fitted(sets[kernels], measured(kernels), kernels)
    fit_threads(sets)
    written["made_by"] = "python benchmarks/calibrate_costs.py"
    COSTS.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
