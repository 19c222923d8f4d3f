"""Run folders: opened, inspected, pruned, exported, reported and resumed."""

from pathlib import Path
from random import Random
from zlib import crc32

from fuzzing.binary import mutate_bytes
from fuzzing.bundle import Mutate, mutate_files, unpack, write
from fuzzing.outcomes import Reader, attempt
from fuzzing.standalone import main
from fuzzing.tensors import mutate_safetensors
from fuzzing.values import mutate_json, mutate_json_lines, mutate_toml

RARELY = 300  # a network goes through torch's exporter in a second

_MUTATORS: dict[str, Mutate] = {
    ".safetensors": mutate_safetensors,
    ".json": mutate_json,
    ".jsonl": mutate_json_lines,
    ".toml": mutate_toml,
}


def mutate(data: bytes, rng: Random) -> bytes:
    """Change one of the files as its ending asks for."""
    return mutate_files(data, rng, lambda name: _MUTATORS.get(Path(name).suffix, mutate_bytes))


def consume(data: bytes, folder: Path) -> None:
    """Do with a run what commands do; what takes long is done with a part of the inputs."""
    run, chance = folder / "run", crc32(data)
    run.mkdir()
    write(data, run)
    attempt("inspect", lambda: _inspect(run, as_json=chance % 8 == 0))
    attempt("show", lambda: _show(run))
    attempt("metrics", lambda: _metrics(run))
    attempt("export", lambda: _facts(run))
    attempt("stages", lambda: _stages(run))
    if chance % 3 == 0:
        attempt("prune", lambda: _prune(run))
        attempt("resume", lambda: _resume(run))
    if chance % RARELY == 0 and unpack(data):
        attempt("export to a file", lambda: _export(run))
        attempt("report", lambda: _report(run))


def _inspect(path: Path, *, as_json: bool) -> None:
    from rigl_compress.cli import _render
    from rigl_compress.pipeline.run_inspection import inspection, layer_rows, pixel_map, side_by_side
    from rigl_compress.pipeline.workspace import Run

    run = Run.open(path)
    if as_json:
        _render.json_result(inspection(run))
    start, end = run.topology("start"), run.topology("end")
    _render.table("layers", ("layer", "shape", "connections", "sparsity", "new"), layer_rows(start, end))
    maps = pixel_map(run.model(), start), pixel_map(run.model(), end)
    if maps[0] is not None and maps[1] is not None:
        _render.text(*side_by_side(("start", "end"), (maps[0], maps[1])))


def _show(path: Path) -> None:
    from rigl_compress.cli import _render
    from rigl_compress.pipeline.workspace import Run

    _render.result(path, Run.open(path).result(), as_json=False)


def _metrics(path: Path) -> None:
    from rigl_compress.pipeline.workspace import Run

    run = Run.open(path)
    list(run.metrics())
    run.keep_metrics(1)


def _prune(path: Path) -> None:
    from rigl_compress.pipeline.prune.stage import prune_run
    from rigl_compress.pipeline.workspace import Run

    prune_run(Run.open(path), write=False)


def _facts(path: Path) -> None:
    """What an export reads of a run before torch's exporter, which is slow, begins."""
    from rigl_compress.models.sparse_model import SparseModel
    from rigl_compress.pipeline.export.stage import facts_of, network_file
    from rigl_compress.pipeline.workspace import Run

    run = Run.open(path)
    for network in ("trained", "auto"):
        facts_of(run, SparseModel.load(network_file(run, network)))


def _export(path: Path) -> None:
    from rigl_compress.pipeline.export.stage import ExportConfig, export
    from rigl_compress.pipeline.workspace import Run

    Run.open(path)
    export(path, path.parent / "out.onnx", ExportConfig())


def _report(path: Path) -> None:
    from rigl_compress.cli import _render
    from rigl_compress.pipeline.run_pipeline import bench_report
    from rigl_compress.pipeline.workspace import Run

    _render.benched(bench_report(Run.open(path)))


def _stages(path: Path) -> None:
    from rigl_compress.pipeline.run_pipeline import RunConfig, stages_of
    from rigl_compress.pipeline.stage_cache import up_to_date
    from rigl_compress.pipeline.workspace import Run

    run = Run.open(path)
    for stage in stages_of(RunConfig(run.recipe(), path)):
        up_to_date(stage, run.stages_file)


def _resume(path: Path) -> None:
    """Load the checkpoint into what the recipe builds; nothing is trained."""
    from rigl_compress.pipeline.optimizers import build_optimizer
    from rigl_compress.pipeline.train.checkpoint import load_checkpoint
    from rigl_compress.pipeline.train.initial_network import build_initial
    from rigl_compress.pipeline.workspace import Run
    from rigl_compress.sparsity.sparsifier import Sparsifier

    run = Run.open(path)
    recipe = run.recipe()
    model = build_initial(recipe, recipe.model).model
    optimizer = build_optimizer(model, recipe.optimizer)
    sparse = Sparsifier(model, optimizer, recipe.scaled_sparsity, total_steps=1000, seed=recipe.seed)
    load_checkpoint(run.checkpoint_file, model, optimizer, sparse)


READER = Reader("run_folder", consume, mutate, share=20)

if __name__ == "__main__":
    main(READER)
