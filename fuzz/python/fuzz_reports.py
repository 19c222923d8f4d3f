"""JSON that is read again: reports of benchmarks, plans of pruning, contents of exports."""

from pathlib import Path
from random import Random
from zlib import crc32

from fuzzing.bundle import mutate_files, write
from fuzzing.outcomes import Reader, attempt
from fuzzing.standalone import main
from fuzzing.values import mutate_json


def mutate(data: bytes, rng: Random) -> bytes:
    """Change values, types and keys."""
    return mutate_files(data, rng, lambda _: mutate_json)


def consume(data: bytes, folder: Path) -> None:
    """Read every file there is, and show what a benchmark found in one of the ways."""
    files = write(data, folder)
    if "bench.json" in files:
        attempt("bench", lambda: _bench(folder / "bench.json"))
    if "prune.json" in files:
        attempt("prune", lambda: _plan(folder / "prune.json"))
    if "export.json" in files:
        attempt("export", lambda: _exported(folder / "export.json"))


def _bench(path: Path) -> None:
    from rigl_compress.cli import _render
    from rigl_compress.pipeline.bench.bench_page import write_page
    from rigl_compress.pipeline.bench.bench_report import CompressionReport
    from rigl_compress.pipeline.bench.bench_tables import report_markdown
    from rigl_compress.pipeline.bench.conditions import check_conditions, parse_condition

    report, chance = CompressionReport.load(path), crc32(path.read_bytes()) % 50
    if chance < 8:
        _render.benched(report)
    elif chance < 16:
        report_markdown(report)
    elif chance < 24:
        check_conditions((parse_condition("latency<=2x"), parse_condition("size<=1GB")), report)
    elif chance == 24:
        write_page(report, path.with_name("report.html"))


def _plan(path: Path) -> None:
    from rigl_compress.core.artifacts import read_json
    from rigl_compress.models.model_registry import ModelSpec
    from rigl_compress.models.prune_plan import PrunePlan

    content = read_json(path)
    plan = PrunePlan.from_json(content.get("plan") if isinstance(content, dict) else content)
    str(plan)
    plan.reshape(ModelSpec("mlp", {"hidden": [4, 3], "inputs": 16}).build())


def _exported(path: Path) -> None:
    from rigl_compress.core.artifacts import read_json
    from rigl_compress.exporters.onnx_export import ExportedModel

    ExportedModel.from_json(read_json(path)).to_json()


READER = Reader("reports", consume, mutate, share=12)

if __name__ == "__main__":
    main(READER)
