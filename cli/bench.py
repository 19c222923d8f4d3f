"""rigl-compress bench"""

from pathlib import Path
from typing import Any

import click

from rigl_compress.cli import _options as options


@click.command()
@click.argument("models", metavar="RUN|FILE...", nargs=-1, required=True, type=options.PATH)
@options.option("--against", multiple=True, metavar="RUN|FILE", type=options.PATH, help="Model to compare with.")
@options.option(
    "--baseline", default="", metavar="LABEL", show_default="the first model", help="Model that ratios refer to."
)
@options.bench
@options.option(
    "--assert", "conditions", multiple=True, metavar="METRIC<=N", help="Exit with code 1 unless this condition holds."
)
@options.option("--html", type=options.PATH, metavar="FILE", help="Also write a page with charts to this HTML file.")
@options.markdown
@options.option("--report", type=options.PATH, metavar="FILE", help="Also write the JSON report to this file.")
@options.trust_code
@options.as_json
def command(
    models: tuple[Path, ...],
    against: tuple[Path, ...],
    baseline: str,
    conditions: tuple[str, ...],
    html: Path | None,
    markdown_file: Path | None,
    report: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure size, FLOPs and latency of ONNX files and run folders, side by side.

    \b
    Example:
      rigl-compress bench dense.onnx compact.onnx --threads 1 --html report.html
      rigl-compress bench runs/mnist-rigl --backend onnxruntime --backend torch --batch 1 --batch 64
      rigl-compress bench new.onnx --against old.onnx --baseline old --assert "latency<=1.05x" --assert "size<=20kB"
    """
    from rigl_compress.cli import _render
    from rigl_compress.core.artifacts import write_json, write_text
    from rigl_compress.pipeline.bench.bench_page import write_page
    from rigl_compress.pipeline.bench.bench_sources import opened_sources
    from rigl_compress.pipeline.bench.bench_tables import report_markdown
    from rigl_compress.pipeline.bench.conditions import check_conditions, parse_condition
    from rigl_compress.pipeline.bench.stage import bench
    from rigl_compress.pipeline.workspace import locked_for

    click.get_current_context().with_resource(locked_for(html, markdown_file, report))
    wanted = tuple(parse_condition(text) for text in conditions)
    config = options.bench_config(baseline=baseline, **settings)
    with opened_sources([*models, *against]) as sources, _render.bench_listener() as listener:
        found = bench(sources, config, listener)
    verdicts = check_conditions(wanted, found)
    if html:
        write_page(found, html)
    if markdown_file:
        write_text(markdown_file, report_markdown(found))
    content = {**found.to_json(), "conditions": [{**vars(each)} for each in verdicts]}
    if report:
        write_json(report, content)
    _render.json_result(content) if as_json else _render.benched(found)
    _render.bench_warnings(found)
    for verdict in verdicts:
        _render.note(str(verdict))
    if not all(verdict.holds for verdict in verdicts):
        raise SystemExit(1)
