"""The whole pipeline: train → prune → export → bench → report; stages that are up to date are skipped."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import onnxruntime as ort

from rigl_compress.core.artifacts import write_json, write_text
from rigl_compress.core.dataclass_io import plain
from rigl_compress.core.errors import InputError
from rigl_compress.core.import_by_name import is_reference
from rigl_compress.core.provenance import environment
from rigl_compress.data.load_dataset import dataset_status
from rigl_compress.exporters.onnx_export import Layout
from rigl_compress.exporters.value_precision import VALUES
from rigl_compress.pipeline.bench.backends import usable_backend
from rigl_compress.pipeline.bench.bench_page import report_page
from rigl_compress.pipeline.bench.bench_report import CompressionReport
from rigl_compress.pipeline.bench.bench_sources import Source
from rigl_compress.pipeline.bench.bench_tables import report_markdown
from rigl_compress.pipeline.bench.stage import BenchConfig, Listener, bench
from rigl_compress.pipeline.bench.training_course import course_markdown, course_of
from rigl_compress.pipeline.export.stage import ExportConfig, export_layouts, network_file
from rigl_compress.pipeline.prune.stage import prune_run
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.stage_cache import Stage, StageOutcome, check_stage, run_stages, up_to_date
from rigl_compress.pipeline.train.stage import RunEnvironment, train
from rigl_compress.pipeline.train.teacher import teacher_facts
from rigl_compress.pipeline.workspace import Run
from rigl_compress.runtime.kernel_library import unavailable_reason


@dataclass(frozen=True)
class Export:
    """An exported network: its name in reports, which network of the run it is, and how its weights are stored."""

    label: str
    network: str
    encoding: str


DENSE = "dense network"  # what every speed-up is relative to
# What is exported and compared, by file: the network without any sparsity, as trained, and pruned in two encodings.
EXPORTS = {
    "dense-network": Export(DENSE, "dense", "dense"),
    "dense": Export("trained", "trained", "dense"),
    "sparse": Export("sparse", "pruned", "sparse"),
    "compact": Export("compact", "pruned", "compact"),
}


def default_backends() -> tuple[str, ...]:
    """Return the runtimes to benchmark: ONNX Runtime, and the sparse runtime where its kernels are available."""
    return ("onnxruntime",) if unavailable_reason() else ("onnxruntime", "sparse")


@dataclass(frozen=True)
class RunConfig:
    """What to run, and where: the recipe, the folder, how to export, what to bench, listeners."""

    recipe: Recipe
    folder: Path
    values: str = "fp32"
    bench: BenchConfig = field(default_factory=BenchConfig)
    run_environment: RunEnvironment = field(default_factory=RunEnvironment)
    bench_listener: Listener = lambda *_: None

    def __post_init__(self) -> None:
        _ = VALUES[self.values], [usable_backend(name) for name in self.bench.backends]  # before training


def run(config: RunConfig, first: str = "", last: str = "") -> list[StageOutcome]:
    """Run the stages that are not up to date, all of them from `first` on, and none after `last`."""
    wanted, folder = _wanted(config, last), Run(config.folder)
    with folder.locked():
        return run_stages(wanted, folder.stages_file, first, config.run_environment.log)


def plan(config: RunConfig, first: str = "", last: str = "") -> dict[str, bool]:
    """Return whether each stage of `run` is up to date; none is after one that is not."""
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
    """Return the stages of a run, each with what it depends on and what it writes."""
    run = Run(config.folder)
    exports = tuple(run.export_file(name) for name in EXPORTS)
    return [
        Stage("train", lambda: _training_facts(config), (), (run.model_file, run.result_file), lambda: _train(config)),
        Stage("prune", dict, (run.model_file,), (run.pruned_file, run.prune_file), lambda: prune_run(run)),
        Stage(
            "export",
            lambda: {"values": config.values, "exports": EXPORTS},
            (run.initial_file, run.model_file, run.pruned_file, run.result_file),
            exports,
            lambda: _export(run, config),
        ),
        Stage("bench", lambda: _bench_facts(config), exports, (run.bench_file,), lambda: _bench(run, config)),
        Stage(
            "report",
            dict,
            (run.bench_file, run.metrics_file, run.result_file),
            (run.page_file, run.markdown_file),
            lambda: _report(run),
        ),
    ]


def _training_facts(config: RunConfig) -> dict[str, Any]:
    """Return what training depends on: the recipe, the data found, the run to start from."""
    name = config.recipe.data.name
    return {
        "recipe": config.recipe.to_toml(),
        **teacher_facts(config.recipe),
        "data": name if is_reference(name) else str(dataset_status(name, config.run_environment.data_dir)),
        "start": [file.stat().st_mtime_ns for file in start_files(config.recipe) if file.exists()],
    }


def start_files(recipe: Recipe) -> list[Path]:
    """Return the files that a run starts from: the model of an earlier one, a file or folder of weights, hf:FOLDER."""
    start = recipe.start
    earlier = [Run(Path(start.run)).model_file] if start and start.run is not None else []
    weights = [start.file] if start and start.file else []
    library, _, name = recipe.model.name.partition(":")
    folder = [Path(name)] if library == "hf" and Path(name).is_dir() else []
    loaded = [file for each in folder for file in sorted(each.iterdir()) if file.suffix in (".json", ".safetensors")]
    inside = [file for each in weights if each.is_dir() for file in sorted(each.iterdir()) if file.is_file()]
    return [*earlier, *weights, *inside, *loaded]


def _train(config: RunConfig) -> None:
    """Train; an unfinished run of the same recipe is resumed, a run of another is replaced."""
    run = Run(config.folder)
    started = run.recipe_file.exists() and run.recipe() == config.recipe and run.checkpoint_file.exists()
    resume = started and not run.result_file.exists()
    train(config.recipe, config.folder, config.run_environment, resume=resume, overwrite=not resume)


def _export(run: Run, config: RunConfig) -> None:
    for network in dict.fromkeys(each.network for each in EXPORTS.values()):
        encodings = {name: each.encoding for name, each in EXPORTS.items() if each.network == network}
        layouts = {run.export_file(name): _layout(encoding, config.values) for name, encoding in encodings.items()}
        export_layouts(run, ExportConfig(network=network, overwrite=True), layouts)


def _layout(encoding: str, values: str) -> Layout:
    return Layout(encoding, values if encoding != "dense" else "fp32")


def _bench_facts(config: RunConfig) -> dict[str, Any]:
    settings = {key: value for key, value in asdict(config.bench).items() if key != "input_spec"}
    return {"settings": settings, **machine_facts()}


def machine_facts() -> dict[str, Any]:
    """Return what a benchmark depends on besides the models: another machine or runtime makes it stale."""
    machine = environment()
    return {"cpu": machine["cpu"], "cores": machine["cores"], "runtime": ort.__version__}


def _bench(run: Run, config: RunConfig) -> None:
    sources = [_source(run.export_file(name), each, run) for name, each in EXPORTS.items()]
    found = bench(sources, replace(config.bench, baseline=DENSE), config.bench_listener)
    write_json(run.bench_file, replace(found, recipe=plain(run.recipe())).to_json())


def _source(file: Path, export: Export, run: Run) -> Source:
    trained = next(each.label for each in EXPORTS.values() if each.network == "trained")
    before = trained if export.network == "pruned" else ""
    return Source(export.label, file, str(file), network_file(run, export.network), before)


def _report(run: Run) -> None:
    found, course = bench_report(run), course_of(run)
    write_text(run.page_file, report_page(found, course))
    write_text(run.markdown_file, f"{course_markdown(course)}\n\n{report_markdown(found)}")


def bench_report(run: Run) -> CompressionReport:
    """Return the benchmark of a run."""
    if not run.bench_file.exists():
        raise InputError(f"{run.path} was not benchmarked: use `rigl-compress run -o {run.path}`")
    return CompressionReport.load(run.bench_file)
