"""rigl-compress run"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._option_groups import (
    RecipeOptions,
    TrainingOptions,
    grouped,
    recipe_options,
    training_options,
)
from rigl_compress.cli._option_types import OneOf

if TYPE_CHECKING:
    from rigl_compress.pipeline.recipe import Recipe

STATES = {True: "up to date", False: "pending"}
_STAGE = OneOf("stage", options.STAGES)


def _earlier_recipe(chosen: RecipeOptions) -> "Recipe | None":
    """Return the recipe of the run folder, where the options name nothing else."""
    from rigl_compress.pipeline.workspace import Run

    if chosen.recipe is not None or chosen.changes or chosen.output is None:
        return None
    return Run(chosen.output).recipe() if Run(chosen.output).recipe_file.exists() else None


@click.command()
@recipe_options
@options.option("--from", "first", type=_STAGE, help="Re-run from this stage.")
@options.option("--until", "last", type=_STAGE, help="Stop after this stage.")
@options.values
@options.backends
@options.batches
@options.profile
@training_options(threads="all cores to train, 1 to bench")
@grouped(chosen=RecipeOptions, training=TrainingOptions)
def command(
    chosen: RecipeOptions,
    training: TrainingOptions,
    first: str | None,
    last: str | None,
    values: str,
    backends: tuple[str, ...],
    batches: tuple[int, ...],
    profile: bool,
) -> None:
    """Run the whole pipeline: train, prune, export, bench, report. Stages that are up to date are skipped.

    \b
    Example:
      rigl-compress run --recipe mnist-demo -o runs/demo
      rigl-compress run -o runs/demo --from bench --backend onnxruntime --backend torch
    """
    from rigl_compress.cli import _render
    from rigl_compress.pipeline.bench.stage import BenchConfig
    from rigl_compress.pipeline.run_pipeline import RunConfig, bench_report, default_backends, plan, run
    from rigl_compress.pipeline.train.recipe_check import check_recipe
    from rigl_compress.pipeline.train.stage import RunEnvironment
    from rigl_compress.pipeline.workspace import Run

    loaded = _earlier_recipe(chosen) or chosen.load()
    training.set_threads()
    folder = chosen.output or Path("runs") / loaded.name
    loggers, as_json = training.loggers(folder), training.as_json
    measured = BenchConfig(backends or default_backends(), batches, (training.threads or 1,), profile=profile)
    with _render.running(f"{loaded.name}, seed {loaded.seed}") as (listener, bench_listener):
        run_environment = RunEnvironment(training.device, training.data_dir, listener, _render.note, loggers=loggers)
        config = RunConfig(loaded, folder, values, measured, run_environment, bench_listener)
        if training.dry_run:
            check_recipe(loaded, run_environment)
            found = plan(config, first or "", last or "")
            _render.stages(folder, {name: STATES[current] for name, current in found.items()}, as_json=as_json)
            return
        run(config, first or "", last or "")
    done = Run(folder)
    if last and last not in ("bench", "report"):
        _render.result(folder, done.result(), as_json=as_json)
        return
    report = bench_report(done)
    _render.json_result(report.to_json()) if as_json else _render.benched(report)
    _render.bench_warnings(report)
    if not as_json and not last:
        _render.text("", f"report: {done.page_file}", f"smallest model: {done.export_file('compact')}")
