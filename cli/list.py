"""rigl-compress list"""

import click

from rigl_compress.cli import _options as options


@click.command()
@options.as_json
def command(as_json: bool) -> None:
    """List recipes, comparisons, models, data sets, methods, encodings, backends and all other names.

    \b
    Example:
      rigl-compress list
    """
    from rigl_compress.cli import _render
    from rigl_compress.cli._catalog import everything

    found = everything()
    if as_json:
        _render.json_result(found)
        return
    for kind, entries in found.items():
        width = max(map(len, entries), default=0)
        _render.text("", kind, *(f"  {name:<{width}}  {about}".rstrip() for name, about in entries.items()))
