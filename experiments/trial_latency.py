"""The latency of an experiment's networks, in stock ONNX Runtime and in ours: all rows of a section take turns."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from re import sub

from rigl_compress.core.artifacts import write_json
from rigl_compress.experiments.results import RowResult, by_section
from rigl_compress.exporters.onnx_file import sha256_of
from rigl_compress.pipeline.bench.bench_report import CompressionReport
from rigl_compress.pipeline.bench.bench_sources import Source
from rigl_compress.pipeline.bench.stage import BenchConfig, Listener, bench
from rigl_compress.pipeline.run_pipeline import DENSE, default_backends, machine_facts
from rigl_compress.pipeline.stage_cache import Stage, run_stages

CONFIG = BenchConfig(batches=(1,), threads=(1,), footprint=False)


def latencies(rows: Sequence[RowResult], out: Path, listener: Listener) -> dict[str, CompressionReport]:
    """Benchmark every section, unless its files are those of its last benchmark."""
    sections = {section: sources_of(each) for section, each in by_section(rows).items()}
    return {section: _benched(section, sources, out, listener) for section, sources in sections.items() if sources}


def sources_of(rows: Sequence[RowResult]) -> list[Source]:
    """Return what is benchmarked: the dense network, and the compact file of each row's first trained seed.

    The dense network is the largest of the rows that do not start from another (those may be pruned).
    """
    good = [row for row in rows if row.good]
    first = [row for row in good if not row.row.after] or good
    dense = [row.good[0].run.export_file("dense-network") for row in first]
    largest = max(dense, key=lambda file: file.stat().st_size, default=None)
    files = [Source(row.row.label, row.good[0].run.export_file("compact")) for row in good]
    return [Source(DENSE, largest), *files] if largest else []


def _benched(section: str, sources: Sequence[Source], out: Path, listener: Listener) -> CompressionReport:
    file = out / f"bench{sub(r'[^A-Za-z0-9.+-]+', '_', f'-{section}' if section else '')}.json"

    config = replace(CONFIG, backends=default_backends())

    def facts() -> Mapping[str, object]:
        settings = {key: value for key, value in asdict(config).items() if key != "input_spec"}
        files = {source.label: sha256_of(source.path) for source in sources}
        return {"files": files, "settings": settings, **machine_facts()}

    def measure() -> None:
        write_json(file, bench(sources, config, listener).to_json())

    run_stages([Stage(file.stem, facts, (), (file,), measure)], out / "stages.json")
    return CompressionReport.load(file)
