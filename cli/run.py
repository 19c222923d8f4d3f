"""rigl-compress run"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options

STATES = {True: "up to date", False: "to be done"}


@click.command()
@options.recipe
@click.option("--run", "path", type=click.Path(path_type=Path), help="Run folder.  [default: runs/RECIPE]")
@options.model
@options.data
@options.overrides
@click.option("--seed", type=int, help="Seed of everything random.  [default: the recipe's]")
@click.option("--from", "first", default="", metavar="STAGE", help="Do this stage and all after it anew.")
@click.option("--until", "last", default="", metavar="STAGE", help="Stop after this stage.")
@click.option("--values", default="fp32", show_default=True, help="How weights are exported: fp32, fp16 or int8.")
@click.option("--backend", "backends", multiple=True, help="A runtime to bench; can be repeated.")
@click.option("--batch", "batches", multiple=True, type=click.IntRange(min=1), help="Batch size to bench.")
@click.option("--profile", is_flag=True, help="Also show the time of every operator in ONNX Runtime.")
@options.data_dir
@options.device
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all to train, 1 to bench]")
@options.dry_run
@options.trust_code
@options.as_json
def command(
    recipe: str | None,
    path: Path | None,
    model: str | None,
    data: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    first: str,
    last: str,
    values: str,
    backends: tuple[str, ...],
    batches: tuple[int, ...],
    profile: bool,
    data_dir: Path | None,
    device: str,
    threads: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train, prune, export, bench and report in one go. What is up to date is not done again.

    \b
    Example:
      rigl-compress run --recipe mnist-demo --run runs/demo
      rigl-compress run --run runs/demo --from bench --backend onnxruntime --backend torch
    """
    import torch

    from rigl_compress.cli import _render
    from rigl_compress.pipeline.bench.stage import BenchConfig
    from rigl_compress.pipeline.recipe import load_recipe
    from rigl_compress.pipeline.run import RunConfig, bench_report, default_backends, plan, run
    from rigl_compress.pipeline.train.check import check_recipe
    from rigl_compress.pipeline.train.stage import Circumstances
    from rigl_compress.pipeline.workspace import Run

    changes = options.changes(overrides, model, data, seed)
    if recipe is None and path is not None and not changes and Run(path).recipe_file.exists():
        loaded = Run(path).recipe()
    else:
        loaded = load_recipe(options.needs_recipe(recipe), changes)
    if threads:
        torch.set_num_threads(threads)
    folder = path or Path("runs") / loaded.name
    measured = BenchConfig(backends or default_backends(), batches, (threads or 1,), profile=profile)
    with _render.running(f"{loaded.name}, seed {loaded.seed}") as (listener, benching):
        here = Circumstances(device, data_dir, listener, _render.note)
        config = RunConfig(loaded, folder, values, measured, here, benching)
        if dry_run:
            check_recipe(loaded, here)
            found = plan(config, first, last)
            _render.stages(folder, {name: STATES[current] for name, current in found.items()}, as_json=as_json)
            return
        run(config, first, last)
    done = Run(folder)
    if last and last not in ("bench", "report"):
        _render.result(folder, done.result(), as_json=as_json)
        return
    report = bench_report(done)
    _render.json_result(report.to_json()) if as_json else _render.benched(report)
    _render.bench_warnings(report)
    if not as_json and not last:
        _render.text("", f"report: {done.page_file}", f"smallest model: {done.export_file('compact')}")
