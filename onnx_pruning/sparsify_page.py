"""Results of `sparsify` as one HTML page: the error against the latency, and a table by layer."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from rigl_compress.core.artifacts import write_text
from rigl_compress.core.provenance import command_line
from rigl_compress.core.wording import percent
from rigl_compress.onnx_pruning.sparsify_report import SparsifyReport, dense_lines, layer_table, summary_table
from rigl_compress.pipeline.bench import html_charts as charts
from rigl_compress.pipeline.bench.bench_page import STYLE
from rigl_compress.pipeline.bench.html_charts import Bar, Point


def write_sparsify_page(reports: Sequence[SparsifyReport], path: Path) -> None:
    """Write the page of one result, or of several of the same file."""
    write_text(path, sparsify_page(reports))


def sparsify_page(reports: Sequence[SparsifyReport]) -> str:
    """Return the page."""
    title = f"{reports[0].source.name}: pruned"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main>{''.join(_body(reports, title))}</main></body></html>\n"
    )


def _body(reports: Sequence[SparsifyReport], title: str) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    points = [
        Point(percent(each.sparsity, 0), 1e6 * each.latency, each.quality.snr)
        for each in reports
        if each.latency and each.quality.snr is not None
    ]
    if points:
        axes = ("latency, µs", "signal to noise, dB")
        yield f'<div class="grid">{charts.scatter("Outputs against latency", points, axes)}</div>'
    for report in reports:
        yield from _one(report)
    yield f"<p><code>{escape(command_line())}</code></p>"


def _one(report: SparsifyReport) -> Iterator[str]:
    yield f"<h2>{escape(str(report.path.name))}: {percent(report.sparsity)} zeros, {escape(report.method)}</h2>"
    yield from (f'<p class="warn">{escape(line)}</p>' for line in report.notes)
    yield charts.table(summary_table(report))
    bars = [
        Bar(each.name, each.sparsity, percent(each.sparsity, 1), hint=f"{each.count:,} of {each.size:,} left")
        for each in report.layers
    ]
    yield f'<div class="grid">{charts.bar_chart("Zeros by layer", bars, top=1.0)}</div>'
    yield f"<details open><summary>Layers</summary>{charts.table(layer_table(report))}</details>"
    kept = "".join(f"<p class='soft'>{escape(line)}</p>" for line in dense_lines(report.dense))
    yield f"<details><summary>Left as they are</summary>{kept}</details>" if kept else ""
