"""rigl-compress data"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._option_types import Name, registered


@click.group()
def command() -> None:
    """List and fetch data sets.

    \b
    Example:
      rigl-compress data fetch mnist
    """


@command.command("list")
@options.data_dir
@options.as_json
def list_(data_dir: Path | None, as_json: bool) -> None:
    """List data sets and where their files are.

    \b
    Example:
      rigl-compress data list
    """
    from rigl_compress.cli import _render
    from rigl_compress.data.dataset_registry import DATASETS
    from rigl_compress.data.load_dataset import dataset_status

    found = [dataset_status(name, data_dir) for name in DATASETS]
    if as_json:
        _render.json_result(
            [{"name": s.name, "title": s.title, "present": s.present, "folder": str(s.folder or "")} for s in found]
        )
        return
    for status in found:
        _render.text(f"{status.name:<15} {status.title}", f"{'':<15} {status}")


@command.command()
@click.argument("name", type=Name(registered("data sets")))
@options.data_dir
@options.dry_run
@options.as_json
def fetch(name: str, data_dir: Path | None, dry_run: bool, as_json: bool) -> None:
    """Fetch a data set into --data-dir or the user cache, and verify it.

    \b
    Example:
      rigl-compress data fetch fashion-mnist
    """
    from rigl_compress.cli import _render
    from rigl_compress.data.load_dataset import dataset_status, fetch_dataset

    if dry_run:
        status = dataset_status(name, data_dir)
        if as_json:
            _render.json_result({"name": name, "present": status.present, "folder": str(status.folder or "")})
            return
        _render.text(f"{name}: {status}, nothing to fetch" if status.present else f"{name} would be fetched: {status}")
        return
    folder = fetch_dataset(name, data_dir, _render.note)
    if as_json:
        _render.json_result({"name": name, "folder": str(folder)})
    else:
        _render.text(f"{name} is in {folder}")
