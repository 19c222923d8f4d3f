"""A report as one self-contained HTML page."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from rigl_compress.core.artifacts import write_text
from rigl_compress.core.wording import percent
from rigl_compress.pipeline.bench import html_charts as charts
from rigl_compress.pipeline.bench.bench_report import BenchedModel, CompressionReport, Timing
from rigl_compress.pipeline.bench.bench_tables import (
    count,
    described,
    duration,
    layer_table,
    machine,
    model_table,
    profile_table,
    times,
    timing_table,
    uncounted,
    verdict,
)
from rigl_compress.pipeline.bench.html_charts import Bar, Point
from rigl_compress.pipeline.bench.training_course import TrainingCourse
from rigl_compress.pipeline.bench.training_section import training_section

STYLE = """
:root{--ink:#1c2126;--soft:#5b6770;--paper:#fbfaf7;--card:#fff;--line:#e4e1da;--accent:#0b6e99;--mute:#a9b4bb;
--warn:#9a4b00}
@media (prefers-color-scheme:dark){:root{--ink:#e8e6e1;--soft:#a3adb4;--paper:#15191c;--card:#1d2327;--line:#323a40;
--accent:#4db3dc;--mute:#5d6a72;--warn:#f0a35e}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI","Helvetica Neue",sans-serif}
main{max-width:1240px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:27px;margin:0 0 4px}h2{font-size:19px;margin:36px 0 12px}h3{font-size:15px;margin:0 0 12px}
p{margin:0 0 8px}.soft,figcaption{color:var(--soft);font-size:13px}.warn{color:var(--warn)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:12px;margin:20px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}
.tile b{display:block;font-size:25px;line-height:1.2}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px;min-width:0}
figcaption{margin-top:10px}
.bar{display:grid;grid-template-columns:minmax(80px,32%) 1fr minmax(72px,auto);gap:10px;align-items:center;margin:6px 0}
.bar .name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;font-size:13px}
.bar .value{font-size:13px;text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.track{position:relative;height:16px;background:color-mix(in srgb,var(--mute) 18%,transparent);border-radius:4px}
.fill{position:absolute;inset:0 auto 0 0;background:var(--accent);border-radius:4px;min-width:1px}
.fill.muted{background:var(--mute)}
.whisker{position:absolute;top:7px;height:2px;background:var(--ink);opacity:.75}
svg{width:100%;height:auto;display:block;font-size:13px}
svg text{fill:var(--soft)}svg text.name{fill:var(--ink)}
svg .rule{stroke:var(--line)}svg circle{fill:var(--accent)}
svg .line{fill:none;stroke:var(--accent);stroke-width:2}
svg .line.second{stroke:var(--warn);stroke-dasharray:5 4}svg circle.second{fill:var(--warn)}
svg.map{max-width:300px;margin:0 auto;background:color-mix(in srgb,var(--mute) 14%,transparent)}
svg.map rect{fill:var(--accent)}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{padding:7px 10px;text-align:right;border-top:1px solid var(--line)}
thead th{border-top:0;color:var(--soft);font-weight:600;vertical-align:bottom}
td:first-child,th:first-child{text-align:left;position:sticky;left:0;background:var(--card)}
td.long{min-width:12em;overflow-wrap:anywhere}
td{font-variant-numeric:tabular-nums}
details{margin-top:12px}summary{cursor:pointer;color:var(--soft)}
code{background:color-mix(in srgb,var(--mute) 20%,transparent);padding:2px 5px;border-radius:4px;font-size:13px;
overflow-wrap:anywhere}
"""
_MOST_LAYERS = 24  # more than these are collapsed


def write_page(report: CompressionReport, path: Path) -> None:
    """Write the page of a report."""
    write_text(path, report_page(report))


def report_page(report: CompressionReport, course: TrainingCourse | None = None) -> str:
    """Return the page of a report, of a run with the course of its training."""
    title = f"{report.recipe.get('name', 'Benchmark')}: what was gained"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main>{''.join(_body(report, title, course))}</main></body></html>\n"
    )


def _body(report: CompressionReport, title: str, course: TrainingCourse | None) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    yield from _soft((_subtitle(report), *described(report)))
    yield f'<div class="tiles">{"".join(_tiles(report))}</div>'
    yield from (f'<p class="warn">{escape(line)}</p>' for line in report.warnings)
    yield from training_section(course) if course else ()
    yield f'<h2>Size and cost</h2><div class="grid">{"".join(_cost_charts(report))}</div>'
    yield f'<h2>Latency</h2><div class="grid">{"".join(_latency_charts(report))}</div>'
    yield f"<h2>Layers</h2>{''.join(_layers(report))}"
    if any(model.pixels for model in with_zeros(report.models)):
        yield f'<h2>What is looked at</h2><div class="grid">{"".join(_maps(with_zeros(report.models)))}</div>'
    yield from _profiles(report)
    yield f"<h2>All figures</h2>{charts.table(model_table(report))}<p></p>{charts.table(timing_table(report))}"
    yield '<h2>How it was measured</h2><p class="soft">'
    yield (
        "All candidates were open at the same time and took turns in random order; medians, with 95 % intervals by "
        "bootstrap; ratios are of the same rounds, with Student's intervals over the times the models were opened. "
        "FLOPs count a multiplication and an addition for each use of a weight, per sample.</p>"
    )
    yield from _soft((*uncounted(report), machine(report)))
    yield f"<p><code>{escape(report.command)}</code></p>"


def _soft(lines: Iterable[str]) -> Iterator[str]:
    yield from (f'<p class="soft">{escape(line)}</p>' for line in lines)


def _subtitle(report: CompressionReport) -> str:
    about = str(report.recipe.get("about", ""))
    return f"{about} Baseline: {report.baseline}.".strip()


def _tiles(report: CompressionReport) -> Iterator[str]:
    """Yield the key figures of the smallest model, compared with the baseline."""
    base = report.model(report.baseline)
    others = [model for model in report.models if model is not base and not model.added]
    if not others:
        yield _tile(f"{base.bytes:,}", "bytes on disk")
        yield _tile(count(base.costs.sparse_flops), "FLOPs, zeros skipped")
        yield from (_tile(duration(t.percentile(0.5)), f"median, {t.candidate.backend}") for t in report.timings[:2])
        return
    best = min(others, key=lambda model: model.bytes)
    yield _tile(f"{base.bytes / best.bytes:.1f}x", f"smaller on disk: {best.label}, {best.bytes:,} bytes")
    if best.costs.sparse_flops:
        gain = base.costs.dense_flops / best.costs.sparse_flops
        yield _tile(f"{gain:.1f}x", f"fewer FLOPs, zeros skipped: {count(best.costs.sparse_flops)}")
    fastest = _fastest(report, [model.label for model in others])
    ratio = report.ratio(fastest) if fastest else None
    if fastest and ratio:
        yield _tile(verdict(ratio), _compared(fastest, report))
    if best.accuracy is not None:
        yield _tile(f"{best.accuracy:.2f} %", f"accuracy of {best.label}")


def _compared(timing: Timing, report: CompressionReport) -> str:
    """Name a candidate and what it is compared with."""
    base, own = report.reference(timing.candidate), timing.candidate
    against = f"than {base.candidate.label} in {base.candidate.backend}: " if base else ""
    return f"{against}{own.label} in backend {own.backend}"


def _tile(figure: str, text: str) -> str:
    return f'<div class="tile"><b>{escape(figure)}</b><span class="soft">{escape(text)}</span></div>'


def _fastest(report: CompressionReport, labels: Sequence[str]) -> Timing | None:
    compared = [timing for timing in report.timings if timing.candidate.label in labels and report.ratio(timing)]
    return min(compared, key=lambda timing: (report.ratio(timing) or timing.median).value, default=None)


def _cost_charts(report: CompressionReport) -> Iterator[str]:
    models, base = report.models, report.baseline
    yield charts.bar_chart(
        "Bytes on disk",
        [Bar(model.label, model.bytes, f"{model.bytes:,}", accent=model.label != base) for model in models],
        "The file itself, all included.",
    )
    costs = [(model.label, model.costs.sparse_flops, model.costs.dense_flops) for model in models]
    yield charts.bar_chart(
        "FLOPs per sample",
        [Bar(label, sparse, f"{count(sparse)} of {count(dense)}", back=dense) for label, sparse, dense in costs],
        "With zeros skipped, of all. A runtime that does not know about zeros computes all.",
    )
    points = [
        Point(model.label, model.costs.sparse_flops, model.accuracy)
        for model in models
        if model.accuracy is not None and model.costs.sparse_flops
    ]
    if points:
        yield charts.scatter("Accuracy against FLOPs", points, ("FLOPs, zeros skipped", "accuracy, %"))


def _latency_charts(report: CompressionReport) -> Iterator[str]:
    cells = dict.fromkeys(timing.candidate.cell for timing in report.timings)
    for batch, threads in cells:
        timings = [timing for timing in report.timings if timing.candidate.cell == (batch, threads)]
        title = f"Batch {batch}, {threads} thread{'s' if threads > 1 else ''}"
        yield charts.bar_chart(title, [_latency_bar(timing, report) for timing in timings], "Median and its interval.")
    for failure in report.failures:
        yield f'<figure><h3>{escape(failure.candidate.label)}</h3><p class="warn">{escape(failure.reason)}</p></figure>'


def _latency_bar(timing: Timing, report: CompressionReport) -> Bar:
    median, ratio = timing.median, report.ratio(timing)
    baseline = report.reference(timing.candidate) is timing
    return Bar(
        f"{timing.candidate.label}, {timing.candidate.backend}",
        median.value,
        duration(median.value),
        median.low,
        median.high,
        accent=not baseline,
        hint="baseline" if baseline or ratio is None else f"{times(ratio)}: {verdict(ratio)}",
    )


def _layers(report: CompressionReport) -> Iterator[str]:
    """Show the sparsity of each layer of each model, equal ones once; long networks are collapsed."""
    models = with_zeros(report.models)
    alike = _alike(models, [tuple((row.weight, row.sparsity) for row in m.costs.layers) for m in models])
    shown = [_layer_chart(model, labels) for model, labels in alike]
    folded = any(len(model.costs.layers) > _MOST_LAYERS for model in report.models)
    grid = f'<div class="grid">{"".join(shown)}</div>'
    yield f"<details><summary>Sparsity of every layer</summary>{grid}</details>" if folded else grid


def with_zeros(models: Sequence[BenchedModel]) -> Sequence[BenchedModel]:
    """Return the models that have zeros; all if none has: there is little to see in a dense one."""
    return [model for model in models if model.costs.sparsity] or models


def _alike(models: Sequence[BenchedModel], keys: Sequence[Hashable]) -> list[tuple[BenchedModel, str]]:
    """Return one model per distinct key, with the labels of all that share it; empty keys are left out."""
    kinds: dict[Hashable, list[BenchedModel]] = {}
    for model, key in zip(models, keys, strict=True):
        if key:
            kinds.setdefault(key, []).append(model)
    return [(kind[0], ", ".join(model.label for model in kind)) for kind in kinds.values()]


def _layer_chart(model: BenchedModel, labels: str) -> str:
    bars = [
        Bar(
            layer.weight,
            layer.sparsity,
            percent(layer.sparsity, 1),
            hint=f"{layer.nonzeros:,} of {layer.weights:,} left",
        )
        for layer in model.costs.layers
    ]
    return charts.bar_chart(f"{labels}: zeros by layer", bars, top=1.0)


def _maps(models: Sequence[BenchedModel]) -> Iterator[str]:
    for model, labels in _alike(models, [model.pixels for model in models]):
        used = sum(value > 0 for row in model.pixels for value in row)
        total = len(model.pixels) * len(model.pixels[0])
        yield charts.heat_map(f"{labels}: connections per pixel", model.pixels, f"{used} of {total} pixels are used.")


def _profiles(report: CompressionReport) -> Iterator[str]:
    if not report.profiles:
        return
    yield '<h2>Where the time goes</h2><div class="grid">'
    for label, rows in report.profiles.items():
        slowest = sorted(rows, key=lambda row: -row.seconds)[:_MOST_LAYERS]
        bars = [Bar(row.name, row.seconds, duration(row.seconds), hint=row.operator) for row in slowest]
        yield charts.bar_chart(f"{label}: the slowest operators", bars, "ONNX Runtime's own profiler, median of runs.")
    yield "</div>"
    for label, rows in report.profiles.items():
        every = charts.table(profile_table(label, rows))
        yield f"<details><summary>{escape(label)}: every operator</summary>{every}</details>"
    for label, layers in report.layers.items():
        every = charts.table(layer_table(label, layers))
        yield f"<details><summary>{escape(label)}: every layer in the sparse runtime</summary>{every}</details>"
