"""rigl-compress inspect"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options


@click.command()
@click.argument("source", metavar="RUN|FILE", type=click.Path(path_type=Path))
@click.option("--png", type=click.Path(path_type=Path), help="Also draw the maps and the error into this PNG file.")
@options.trust_code
@options.as_json
def command(source: Path, png: Path | None, as_json: bool) -> None:
    """Look into a run (its result, its layers, its connections per input pixel) or an ONNX file (its tensors).

    \b
    Example:
      rigl-compress inspect runs/mnist-rigl --png connections.png
      rigl-compress inspect model.onnx
    """
    from rigl_compress.cli import _render

    if source.suffix == ".onnx" or source.is_file():
        _inspect_file(source, png, as_json)
        return
    from rigl_compress.pipeline.inspect import inspection, layer_rows, pixel_map, side_by_side
    from rigl_compress.pipeline.pictures import connections_picture
    from rigl_compress.pipeline.workspace import Run

    opened = Run.open(source)
    found = inspection(opened)
    if png:
        connections_picture(opened, png)
    if as_json:
        _render.json_result(found)
        return
    begin, end = opened.topology("begin"), opened.topology("end")
    _render.result(source, found["result"], as_json=False)
    _render.text("")
    _render.table("layers", ("layer", "shape", "connections", "sparsity", "new since begin"), layer_rows(begin, end))
    model = opened.model()
    first, last = pixel_map(model, begin), pixel_map(model, end)
    if first is not None and last is not None:
        _render.text("", "connections per input pixel", *side_by_side(("begin", "end"), (first, last)))
    if png:
        _render.text("", f"picture: {png}")


def _inspect_file(file: Path, png: Path | None, as_json: bool) -> None:
    from rigl_compress.cli import _render
    from rigl_compress.runtime.contents import read_contents

    if png:
        raise click.UsageError(f"--png draws the connections of a run, and {file} is an ONNX file")
    found = read_contents(file)
    if as_json:
        # Nothing was compared with anything here.
        _render.json_result({name: value for name, value in found.to_json().items() if name != "difference"})
    else:
        _render.exported(found)
