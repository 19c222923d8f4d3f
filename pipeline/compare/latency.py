"""How long the networks of a comparison take in stock ONNX Runtime: all of a section in turns, in one benchmark."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from re import sub

from rigl_compress.exporters.onnx_file import sha256_of
from rigl_compress.models.artifacts import write_json
from rigl_compress.pipeline.bench.report import CompressionReport
from rigl_compress.pipeline.bench.sources import Source
from rigl_compress.pipeline.bench.stage import BenchConfig, Listener, bench
from rigl_compress.pipeline.compare.course import Outcome
from rigl_compress.pipeline.run import machine_facts
from rigl_compress.pipeline.stages import Stage, run_stages

START = "start network"  # as it was trained, dense, before anything was removed
CONFIG = BenchConfig(batches=(1,), threads=(1,), footprint=False)


def latencies(outcomes: Sequence[Outcome], out: Path, listener: Listener) -> dict[str, CompressionReport]:
    """Bench every section; one whose files are as they were when it was last benched is not benched again."""
    found = {}
    for section in dict.fromkeys(outcome.cell.row.section for outcome in outcomes):
        sources = sources_of([outcome for outcome in outcomes if outcome.cell.row.section == section])
        if sources:
            found[section] = _benched(section, sources, out, listener)
    return found


def sources_of(outcomes: Sequence[Outcome]) -> list[Source]:
    """Give what is benched: the start network, and the compact file of each row's first seed that was trained."""
    good = [outcome.cell for outcome in outcomes if not outcome.failure]
    first = {cell.row.label: cell for cell in sorted(good, key=lambda cell: -cell.seed)}
    chosen = [first[label] for label in dict.fromkeys(cell.row.label for cell in good)]
    files = {cell.row.label: cell.run.export_file("compact") for cell in chosen}
    starts = [cell.run.export_file("dense") for cell in chosen if not cell.row.after] or list(files.values())
    return [Source(START, starts[0]), *(Source(label, path) for label, path in files.items())] if files else []


def _benched(section: str, sources: Sequence[Source], out: Path, listener: Listener) -> CompressionReport:
    file = out / f"bench{sub(r'[^A-Za-z0-9.+-]+', '_', f'-{section}' if section else '')}.json"

    def facts() -> Mapping[str, object]:
        settings = {key: value for key, value in asdict(CONFIG).items() if key != "wishes"}
        files = {source.label: sha256_of(source.path) for source in sources}
        return {"files": files, "settings": settings, **machine_facts()}

    def measure() -> None:
        write_json(file, bench(sources, CONFIG, listener).to_json())

    run_stages([Stage(file.stem, facts, (), (file,), measure)], out / "stages.json")
    return CompressionReport.load(file)
