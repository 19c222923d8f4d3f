"""rigl-compress export"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The ONNX file to write.")
@click.option(
    "--target",
    default="onnx",
    show_default=True,
    help="onnx: for any ONNX Runtime. sparse-runtime: with operators of our own, for any that loads their library.",
)
@click.option(
    "--encoding",
    default="sparse",
    show_default=True,
    help="How zeros are left out: sparse, bitmask, gap8, compact (the smallest of all for each tensor) or dense.",
)
@click.option("--values", default="fp32", show_default=True, help="How weights are written: fp32, fp16 or int8.")
@click.option(
    "--network", default="auto", show_default=True, help="Of a run: trained, pruned, or auto (pruned if there is one)."
)
@click.option("--keep-batch-norm", is_flag=True, help="Do not fold batch normalisation into the weights.")
@click.option("--inputs", type=click.Path(path_type=Path), help="An .npz file of inputs to compare outputs with.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
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
    """Write a run's network, or any ONNX file with zeros in it, as a small ONNX file that any ONNX Runtime opens.

    \b
    Example:
      rigl-compress export runs/mnist-rigl -o model.onnx --encoding compact
      rigl-compress export runs/mnist-rigl -o fast.onnx --target sparse-runtime
    """
    from rigl_compress.cli import _render
    from rigl_compress.exporters.export import Layout
    from rigl_compress.pipeline.export import ExportConfig, export, library_for

    config = ExportConfig(Layout(encoding, values), network, keep_batch_norm, force, inputs, target)
    exported = export(source, output, config, write=not dry_run)
    library = library_for(exported)
    if as_json:
        _render.json_result({**exported.to_json(), **({"library": str(library)} if library else {})})
        return
    _render.exported(exported)
    _render.text(f"largest difference of the outputs: {exported.difference:.2g}")
    if library:
        _render.text(f"to be opened with the operators of {library}")
    _render.text("nothing was written (--dry-run)" if dry_run else f"written to {output}")
