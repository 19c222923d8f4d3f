"""rigl-compress export"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._option_types import OneOf


@click.command()
@options.source
@options.output(metavar="FILE", required=True)
@options.target
@options.encoding(default="sparse", show_default=True)
@options.values
@options.option(
    "--network",
    type=OneOf("network", ("auto", "trained", "pruned", "dense")),
    default="auto",
    show_default=True,
    help="Network of a run to export; auto: the pruned one if available.",
)
@options.option("--keep-batch-norm", is_flag=True, help="Do not fold batch normalization into the weights.")
@options.inputs
@options.force
@options.dry_run
@options.trust_code
@options.as_json
def command(
    source: Path,
    output: Path,
    target: str,
    encoding: str,
    values: str,
    network: str,
    keep_batch_norm: bool,
    inputs: Path | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Export a run or an ONNX file to a compact ONNX file that stock ONNX Runtime opens.

    \b
    Example:
      rigl-compress export runs/mnist-rigl -o model.onnx --encoding compact
      rigl-compress export runs/mnist-rigl -o fast.onnx --target sparse-runtime
    """
    from rigl_compress.cli import _render
    from rigl_compress.exporters.onnx_export import Layout
    from rigl_compress.pipeline.export.stage import ExportConfig, export, library_for

    config = ExportConfig(Layout(encoding, values), network, keep_batch_norm, force, inputs, target)
    exported = export(source, output, config, write=not dry_run)
    library = library_for(exported)
    if as_json:
        _render.json_result({**exported.to_json(), **({"library": str(library)} if library else {})})
        return
    _render.exported(exported)
    _render.text(f"max output difference: {exported.difference:.2g}")
    if library:
        _render.text(f"open it with the custom operators of {library}")
    _render.text("dry run: nothing written" if dry_run else f"written to {output}")
