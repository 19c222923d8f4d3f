"""rigl-compress run"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._option_types import OneOf

STATES = {True: "up to date", False: "pending"}
_STAGE = OneOf("stage", options.STAGES)


@click.command()
@options.recipe
@options.output(metavar="DIR", show_default="runs/RECIPE")
@options.model
@options.data
@options.overrides
@options.seed
@options.option("--from", "first", type=_STAGE, help="Re-run from this stage.")
@options.option("--until", "last", type=_STAGE, help="Stop after this stage.")
@options.values
@options.backends
@options.batches
@options.profile
@options.data_dir
@options.device
@options.threads(show_default="all cores to train, 1 to bench")
@options.log_to
@options.dry_run
@options.trust_code
@options.as_json
def command(
    recipe: str | None,
    output: Path | None,
    model: str | None,
    data: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    first: str | None,
    last: str | None,
    values: str,
    backends: tuple[str, ...],
    batches: tuple[int, ...],
    profile: bool,
    data_dir: Path | None,
    device: str,
    threads: int | None,
    log_to: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run the whole pipeline: train, prune, export, bench, report. Stages that are up to date are skipped.

    \b
    Example:
      rigl-compress run --recipe mnist-demo -o runs/demo
      rigl-compress run -o runs/demo --from bench --backend onnxruntime --backend torch
    """
    import torch

    from rigl_compress.cli import _render
    from rigl_compress.pipeline.bench.stage import BenchConfig
    from rigl_compress.pipeline.recipe import load_recipe
    from rigl_compress.pipeline.run_pipeline import RunConfig, bench_report, default_backends, plan, run
    from rigl_compress.pipeline.train.recipe_check import check_recipe
    from rigl_compress.pipeline.train.stage import RunEnvironment
    from rigl_compress.pipeline.workspace import Run

    changes = options.changes(overrides, model, data, seed)
    if recipe is None and output is not None and not changes and Run(output).recipe_file.exists():
        loaded = Run(output).recipe()
    else:
        loaded = load_recipe(options.needs_recipe(recipe), changes)
    if threads:
        torch.set_num_threads(threads)
    folder = output or Path("runs") / loaded.name
    loggers = options.loggers(log_to, folder, dry_run=dry_run)
    measured = BenchConfig(backends or default_backends(), batches, (threads or 1,), profile=profile)
    with _render.running(f"{loaded.name}, seed {loaded.seed}") as (listener, bench_listener):
        run_environment = RunEnvironment(device, data_dir, listener, _render.note, loggers=loggers)
        config = RunConfig(loaded, folder, values, measured, run_environment, bench_listener)
        if dry_run:
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
