"""Run a grid of eight on a Ray cluster of two local nodes, kill one node half-way, and see the grid complete.

    python benchmarks/ray_sweep.py

Needs the extra `ray`. Exits with 1 where a run is missing.
"""

import sys
import tempfile
from pathlib import Path
from time import perf_counter

import click

from rigl_compress.core.optional_packages import optional_package
from rigl_compress.core.provenance import command_line, environment
from rigl_compress.experiments.grid import load_experiment
from rigl_compress.experiments.run_experiment import run_experiment
from rigl_compress.experiments.scheduler import Listeners
from rigl_compress.experiments.trial_source import Outcome
from rigl_compress.experiments.trial_task import Task
from rigl_compress.experiments.trials import trials_of

RECIPE = """
name = "ray"
[data]
name = "mnist-5k"
[train]
epochs = 1
"""


@click.command(help=__doc__)
def main() -> None:
    ray, utils = (optional_package(name, "ray") for name in ("ray", "ray.cluster_utils"))
    begin, finished = perf_counter(), list[str]()
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()

    def ended(outcome: Outcome) -> None:
        finished.append(str(outcome))
        click.echo(f"{perf_counter() - begin:.0f} s: {outcome}", err=True)
        if len(finished) == 4:
            cluster.remove_node(second, allow_graceful=False)
            click.echo(f"{perf_counter() - begin:.0f} s: one of two nodes killed", err=True)

    try:
        with tempfile.TemporaryDirectory() as folder:
            grid = ("sparsity.method=rigl,set", "sparsity.sparsity=0.8,0.9,0.95,0.98")
            (Path(folder) / "ray.toml").write_text(RECIPE, encoding="utf-8")
            experiment = load_experiment(str(Path(folder) / "ray.toml"), grid, [])
            trials = trials_of(experiment, Path(folder) / "sweep")
            task = Task("cpu", None, train_only=True, engine=f"ray:{cluster.address}")
            result = run_experiment(experiment, trials, task, len(trials), Listeners(finished=ended))
    finally:
        cluster.shutdown()
    here = environment()
    failed = sum(bool(run.failure) for row in result.rows for run in row.runs)
    click.echo(f"{len(finished)} runs, {failed} failed, one of two nodes killed after 4; Ray {ray.__version__}")
    click.echo(
        f"`{command_line()}`, {here['date']}, {here['cpu']}, {here['cores']} cores, {perf_counter() - begin:.0f} s"
    )
    sys.exit(1 if failed or len(finished) != 8 else 0)


if __name__ == "__main__":
    main()
