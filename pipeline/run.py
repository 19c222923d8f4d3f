"""The whole line in one go: train → prune → export → bench → report, each stage only where it is needed."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import onnxruntime as ort

from rigl_compress.exporters.export import Layout
from rigl_compress.exporters.values import VALUES
from rigl_compress.models.artifacts import write_json, write_text
from rigl_compress.models.errors import InputError
from rigl_compress.models.references import is_reference
from rigl_compress.models.settings import plain
from rigl_compress.pipeline.bench.backends import usable_backend
from rigl_compress.pipeline.bench.page import write_page
from rigl_compress.pipeline.bench.report import CompressionReport
from rigl_compress.pipeline.bench.sources import Source
from rigl_compress.pipeline.bench.stage import BenchConfig, Listener, bench
from rigl_compress.pipeline.bench.tables import report_markdown
from rigl_compress.pipeline.environment import environment
from rigl_compress.pipeline.export import ExportConfig, export_run, network_file
from rigl_compress.pipeline.prune.stage import prune_run
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.stages import Done, Stage, check_stage, run_stages, up_to_date
from rigl_compress.pipeline.train.data.load import dataset_status
from rigl_compress.pipeline.train.stage import Circumstances, train
from rigl_compress.pipeline.workspace import Run
from rigl_compress.runtime.library import why_not

# What is exported and compared: the network as it was trained, and what is left of it in two encodings.
EXPORTS = {"dense": ("trained", "dense"), "sparse": ("pruned", "sparse"), "compact": ("pruned", "compact")}


def default_backends() -> tuple[str, ...]:
    """Give the runtimes that a run is benchmarked in: ONNX Runtime, and our session where its kernels are."""
    return ("onnxruntime",) if why_not() else ("onnxruntime", "rigl")


@dataclass(frozen=True)
class RunConfig:
    """What to run, and where: the recipe, the folder, how to export, what to bench, and who listens."""

    recipe: Recipe
    folder: Path
    values: str = "fp32"
    bench: BenchConfig = field(default_factory=BenchConfig)
    here: Circumstances = field(default_factory=Circumstances)
    benching: Listener = lambda *_: None

    def __post_init__(self) -> None:
        _ = VALUES[self.values], [usable_backend(name) for name in self.bench.backends]  # not after hours of training


def run(config: RunConfig, first: str = "", last: str = "") -> list[Done]:
    """Run the stages that are not up to date, all of them from `first` on, and none after `last`."""
    wanted, folder = _wanted(config, last), Run(config.folder)
    with folder.locked():
        return run_stages(wanted, folder.stages_file, first, config.here.say)


def plan(config: RunConfig, first: str = "", last: str = "") -> dict[str, bool]:
    """Say of every stage that `run` would look at whether it is up to date; nothing is after one that is not."""
    stages, current, found = _wanted(config, last), True, {}
    check_stage(first, stages)
    for stage in stages:
        current = current and stage.name != first and up_to_date(stage, Run(config.folder).stages_file)
        found[stage.name] = current
    return found


def _wanted(config: RunConfig, last: str) -> list[Stage]:
    stages = stages_of(config)
    check_stage(last, stages)
    names = [stage.name for stage in stages]
    return stages[: names.index(last) + 1] if last else stages


def stages_of(config: RunConfig) -> list[Stage]:
    """Give the stages of a run, each with what it depends on and what it writes."""
    run = Run(config.folder)
    exports = tuple(run.export_file(name) for name in EXPORTS)
    return [
        Stage("train", lambda: _training_facts(config), (), (run.model_file, run.result_file), lambda: _train(config)),
        Stage("prune", dict, (run.model_file,), (run.pruned_file, run.prune_file), lambda: prune_run(run)),
        Stage(
            "export",
            lambda: {"values": config.values, "exports": EXPORTS},
            (run.model_file, run.pruned_file, run.result_file),
            exports,
            lambda: _export(run, config),
        ),
        Stage("bench", lambda: _bench_facts(config), exports, (run.bench_file,), lambda: _bench(run, config)),
        Stage("report", dict, (run.bench_file,), (run.page_file, run.markdown_file), lambda: _report(run)),
    ]


def _training_facts(config: RunConfig) -> dict[str, Any]:
    """Give what training depends on: the recipe, the data that it finds, the run that it starts from."""
    start, name = config.recipe.start, config.recipe.data.name
    earlier = Run(Path(start.run)).model_file if start else None
    return {
        "recipe": config.recipe.to_toml(),
        "data": name if is_reference(name) else str(dataset_status(name, config.here.data_dir)),
        "start": earlier.stat().st_mtime_ns if earlier and earlier.exists() else None,
    }


def _train(config: RunConfig) -> None:
    """Train; an unfinished run of the same recipe is taken up again, a run of another is replaced."""
    run = Run(config.folder)
    begun = run.recipe_file.exists() and run.recipe() == config.recipe and run.checkpoint_file.exists()
    resume = begun and not run.result_file.exists()
    train(config.recipe, config.folder, config.here, resume=resume, overwrite=not resume)


def _export(run: Run, config: RunConfig) -> None:
    for name, (network, encoding) in EXPORTS.items():
        layout = Layout(encoding, config.values if encoding != "dense" else "fp32")
        export_run(run, run.export_file(name), ExportConfig(layout, network, overwrite=True))


def _bench_facts(config: RunConfig) -> dict[str, Any]:
    settings = {key: value for key, value in asdict(config.bench).items() if key != "wishes"}
    return {"settings": settings, **machine_facts()}


def machine_facts() -> dict[str, Any]:
    """Give what a benchmark depends on beside the models: on another machine, or runtime, it is to be done anew."""
    machine = environment()
    return {"cpu": machine["cpu"], "cores": machine["cores"], "runtime": ort.__version__}


def _bench(run: Run, config: RunConfig) -> None:
    sources = [
        Source(name, run.export_file(name), str(run.export_file(name)), network_file(run, network), _trained(network))
        for name, (network, _) in EXPORTS.items()
    ]
    found = bench(sources, replace(config.bench, baseline="dense"), config.benching)
    write_json(run.bench_file, replace(found, recipe=plain(run.recipe())).to_json())


def _trained(network: str) -> str:
    """Name the export of the network as it was trained, for one that was pruned."""
    trained = next(name for name, (each, _) in EXPORTS.items() if each == "trained")
    return trained if network == "pruned" else ""


def _report(run: Run) -> None:
    found = bench_report(run)
    write_page(found, run.page_file)
    write_text(run.markdown_file, report_markdown(found))


def bench_report(run: Run) -> CompressionReport:
    """Give what the benchmark of a run found."""
    if not run.bench_file.exists():
        raise InputError(f"{run.path} was not benchmarked: do it with `rigl-compress run --run {run.path}`")
    return CompressionReport.load(run.bench_file)
