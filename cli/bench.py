"""rigl-compress bench"""

from pathlib import Path
from typing import Any

import click

from rigl_compress.cli import _options as options

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("models", nargs=-1, required=True, type=_FILE)
@click.option("--against", multiple=True, type=_FILE, help="Another model to compare with; can be repeated.")
@click.option("--baseline", default="", help="The model that is 1.00x.  [default: the first]")
@options.benching
@click.option("--assert", "conditions", multiple=True, metavar="METRIC<=N", help="Exit with 1 if it does not hold.")
@click.option("--html", type=_FILE, help="Also write a page with charts into this file.")
@click.option("--markdown", type=_FILE, help="Also write the tables into this file, for a pull request.")
@click.option("--report", type=_FILE, help="Also write the JSON into this file.")
@options.trust_code
@options.as_json
def command(
    models: tuple[Path, ...],
    against: tuple[Path, ...],
    baseline: str,
    conditions: tuple[str, ...],
    html: Path | None,
    markdown: Path | None,
    report: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure what models cost and how long they take: ONNX files, ours or not, and run folders, side by side.

    \b
    Example:
      rigl-compress bench dense.onnx compact.onnx --threads 1 --html report.html
      rigl-compress bench runs/mnist-rigl --backend onnxruntime --backend torch --batch 1 --batch 64
      rigl-compress bench new.onnx --against old.onnx --baseline old --assert "latency<=1.05x" --assert "size<=20kB"
    """
    from rigl_compress.cli import _render
    from rigl_compress.models.artifacts import write_json, write_text
    from rigl_compress.pipeline.bench.conditions import check_conditions, parse_condition
    from rigl_compress.pipeline.bench.page import write_page
    from rigl_compress.pipeline.bench.sources import opened_sources
    from rigl_compress.pipeline.bench.stage import bench
    from rigl_compress.pipeline.bench.tables import report_markdown
    from rigl_compress.pipeline.workspace import locked_for

    click.get_current_context().with_resource(locked_for(html, markdown, report))
    wanted = tuple(parse_condition(text) for text in conditions)
    config = options.bench_config(baseline=baseline, **settings)
    with opened_sources([*models, *against]) as sources, _render.benching() as listener:
        found = bench(sources, config, listener)
    verdicts = check_conditions(wanted, found)
    if html:
        write_page(found, html)
    if markdown:
        write_text(markdown, report_markdown(found))
    content = {**found.to_json(), "conditions": [{**vars(each)} for each in verdicts]}
    if report:
        write_json(report, content)
    _render.json_result(content) if as_json else _render.benched(found)
    _render.bench_warnings(found)
    for verdict in verdicts:
        _render.note(str(verdict))
    if not all(verdict.holds for verdict in verdicts):
        raise SystemExit(1)
