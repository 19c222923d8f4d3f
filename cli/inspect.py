"""rigl-compress inspect"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options


@click.command()
@options.source
@options.option("--runtime", is_flag=True, help="Show how `InferenceSession` runs each layer of an ONNX file, and why.")
@options.png
@options.trust_code
@options.as_json
def command(source: Path, runtime: bool, png: Path | None, as_json: bool) -> None:
    """Show the results, training, layers and connections per pixel of a run, or the tensors of an ONNX file.

    \b
    Example:
      rigl-compress inspect runs/mnist-rigl --png connections.png
      rigl-compress inspect model.onnx
      rigl-compress inspect model.onnx --runtime
    """
    from rigl_compress.cli import _render

    if source.suffix == ".onnx" or source.is_file():
        _explain_file(source, png, as_json) if runtime else _inspect_file(source, png, as_json)
        return
    if runtime:
        raise click.UsageError(f"--runtime explains an ONNX file, but {source} is a run: export it, and pass the file")
    from rigl_compress.pipeline.bench.training_course import course_of
    from rigl_compress.pipeline.run_inspection import inspection, layer_rows, own_topologies, pixel_map, side_by_side
    from rigl_compress.pipeline.run_plots import connections_picture
    from rigl_compress.pipeline.workspace import Run

    opened = Run.open(source)
    found = inspection(opened)
    if png:
        connections_picture(opened, png)
    if as_json:
        _render.json_result(found)
        return
    model, start, end = own_topologies(opened)
    _render.result(source, found["result"], as_json=False)
    _render.course(course_of(opened))
    _render.table("layers", ("layer", "shape", "connections", "sparsity", "new since start"), layer_rows(start, end))
    first, last = pixel_map(model, start), pixel_map(model, end)
    if first is not None and last is not None:
        _render.text("", "connections per input pixel", *side_by_side(("start", "end"), (first, last)))
    if png:
        _render.text("", f"plot: {png}")


def _explain_file(file: Path, png: Path | None, as_json: bool) -> None:
    from rigl_compress.cli import _layer_tables, _render
    from rigl_compress.runtime.explain import explain

    _refuse_png(file, png)
    rows = explain(file)
    _render.json_result({"layers": [row.to_json() for row in rows]}) if as_json else _layer_tables.choices(rows)


def _refuse_png(file: Path, png: Path | None) -> None:
    if png:
        raise click.UsageError(f"--png draws the connections of a run, but {file} is an ONNX file: leave it out")


def _inspect_file(file: Path, png: Path | None, as_json: bool) -> None:
    from rigl_compress.cli import _render
    from rigl_compress.runtime.file_contents import read_contents

    _refuse_png(file, png)
    found = read_contents(file)
    if as_json:
        # No outputs were compared.
        _render.json_result({name: value for name, value in found.to_json().items() if name != "difference"})
    else:
        _render.exported(found)
