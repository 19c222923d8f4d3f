"""rigl-compress list"""

import click

from rigl_compress.cli import _options as options


@click.command()
@options.as_json
def command(as_json: bool) -> None:
    """List recipes, comparisons, models, data sets, methods, distributions, backends, kernels, decays and variants.

    \b
    Example:
      rigl-compress list
    """
    from rigl_compress.cli import _render
    from rigl_compress.pipeline.catalog import everything

    found = everything()
    if as_json:
        _render.json_result(found)
        return
    for kind, entries in found.items():
        _render.text("", kind, *(f"  {name:<22} {about}".rstrip() for name, about in entries.items()))
