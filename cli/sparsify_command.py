"""rigl-compress sparsify"""

from pathlib import Path
from typing import Any

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._option_types import OneOf
from rigl_compress.core.errors import InputError

CURVE = (0.4, 0.5, 0.6, 0.7, 0.8)


@click.command("sparsify")
@click.argument("file", metavar="FILE", type=options.PATH)
@options.output(metavar="FILE", required=True)
@options.option(
    "--sparsity",
    "sparsities",
    type=float,
    multiple=True,
    metavar="SHARE",
    show_default="0.5",
    help="Share of zeros; several for a curve, each in a file of its own.",
)
@options.option("--curve", is_flag=True, help="Five sparsities, from 0.4 to 0.8.")
@options.option(
    "--budget",
    default="",
    metavar="KIND=AMOUNT",
    help="Least error within speedup=2, latency=8ms, size=4MB or flops=100M, instead of a sparsity.",
)
@options.option(
    "--calibration",
    type=options.PATH,
    metavar="FILE|DIR",
    help="Samples of the inputs: an .npz file by input name, or a folder of images, .npy or .npz files.",
)
@options.option(
    "--method",
    type=OneOf("method", ("obs", "magnitude")),
    show_default="obs with calibration data",
    help="obs: the other weights make up for those removed. magnitude: the smallest weights are removed.",
)
@options.option(
    "--allocation",
    type=OneOf("allocation", ("error", "uniform", "scaled")),
    show_default="error with calibration data, else scaled",
    help="Sparsity of layers: by their effect on the outputs, the same for all, or by scaled magnitude.",
)
@options.option("--dense", multiple=True, metavar="PATTERN", help="Weights to leave as they are, e.g. '*head*'.")
@options.option("--keep-dead-channels", is_flag=True, help="Leave channels in the file that have become dead.")
@options.option(
    "--calibration-samples",
    "samples",
    type=options.COUNT,
    metavar="N",
    default=256,
    show_default=True,
    help="Calibration samples to use; a fifth of them is held out to check the result.",
)
@options.option(
    "--normalize",
    type=OneOf("normalization", ("imagenet", "half", "none")),
    default="imagenet",
    show_default=True,
    help="Pixels of images: by ImageNet's mean and deviation, from -1 to 1, or from 0 to 1.",
)
@options.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", help="Shape of an input.")
@options.encoding(default="compact", show_default=True)
@options.values
@options.target
@options.threads(default=1, show_default=True)
@options.option("--no-timing", is_flag=True, help="Do not measure the latency.")
@options.option(
    "--assert", "conditions", multiple=True, metavar="METRIC>=N", help="Exit with code 1 unless this condition holds."
)
@options.option("--html", type=options.PATH, metavar="FILE", help="Also write a page with charts to this HTML file.")
@options.force
@options.trust_code
@options.as_json
def command(
    file: Path,
    output: Path,
    sparsities: tuple[float, ...],
    curve: bool,
    conditions: tuple[str, ...],
    html: Path | None,
    no_timing: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Prune the weights of any ONNX file, without training code and labels.

    \b
    Example:
      rigl-compress sparsify model.onnx -o small.onnx --sparsity 0.6 --calibration photographs/
      rigl-compress sparsify model.onnx -o small.onnx --curve --html curve.html
      rigl-compress sparsify model.onnx -o small.onnx --budget speedup=2 --calibration data.npz
      rigl-compress sparsify model.onnx -o small.onnx --calibration data.npz --assert "agreement>=0.98"
    """
    from rigl_compress.cli import _layer_tables, _render
    from rigl_compress.onnx_pruning.sparsify_onnx import sparsify_curve, sparsify_onnx
    from rigl_compress.onnx_pruning.sparsify_page import write_sparsify_page
    from rigl_compress.onnx_pruning.sparsify_report import METRICS
    from rigl_compress.onnx_pruning.written_paths import check_page, paths_of_curve
    from rigl_compress.pipeline.bench.conditions import parse_condition

    if curve and sparsities:
        raise InputError("--curve has sparsities of its own: leave out --sparsity, or name several with it")
    wanted = [parse_condition(text, METRICS) for text in conditions]
    sparsities = sparsities or (CURVE if curve else ())
    config = _config(sparsity=sparsities[0] if len(sparsities) == 1 else None, no_timing=no_timing, **settings)
    if html:
        outputs = paths_of_curve(output, sparsities) if len(sparsities) > 1 else [output]
        check_page(html, outputs, file, config.samples_config.path)
    with _render.layer_listener("sparsify") as listener:
        if len(sparsities) > 1:
            reports = list(sparsify_curve(file, output, sparsities, config, listener))
        else:
            reports = [sparsify_onnx(file, output, config, listener=listener)]
    if html:
        write_sparsify_page(reports, html)
    verdicts = [verdict for report in reports for verdict in report.check(wanted)]
    if as_json:
        found = [report.to_json() for report in reports]
        content = found[0] if len(found) == 1 else {"curve": found}
        _render.json_result({**content, "conditions": [{**vars(each)} for each in verdicts]})
    else:
        for report in reports:
            _layer_tables.sparsified(report)
    warnings = dict.fromkeys(f"warning: {each}" for report in reports for each in report.notes)
    for line in (*warnings, *map(str, verdicts)):
        _render.note(line)
    if not all(each.holds for each in verdicts):
        raise SystemExit(1)


def _config(shapes: tuple[str, ...], force: bool, no_timing: bool, **settings: Any) -> Any:
    from rigl_compress.onnx_pruning.sparsify_config import SparsifyConfig
    from rigl_compress.pipeline.bench.model_inputs import parse_shape

    named = {key: value or "" for key, value in settings.items() if key in ("method", "allocation")}
    timing = {"timing": None} if no_timing else {}
    return SparsifyConfig(**{**settings, **named, **timing}, shapes=dict(map(parse_shape, shapes)), overwrite=force)
