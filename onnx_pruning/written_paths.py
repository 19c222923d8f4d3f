"""The files that a run writes: none of them may be one that it reads, and all of them can be written."""

import os
from collections.abc import Sequence
from pathlib import Path

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.external_data import contained, spans_of
from rigl_compress.exporters.onnx_file import read_contained


def paths_of_curve(path: Path, sparsities: Sequence[float]) -> list[Path]:
    """Return the file of each sparsity.

    >>> [each.name for each in paths_of_curve(Path("net.onnx"), (0.4, 0.8))]
    ['net-0.4.onnx', 'net-0.8.onnx']
    """
    found = [path.with_name(f"{path.stem}-{each:g}{path.suffix}") for each in sparsities]
    twice = next((each for each in found if found.count(each) > 1), None)
    if twice is not None:
        raise InputError(f"two sparsities of the curve are written to {twice}: name each sparsity once")
    return found


def check_page(page: Path, outputs: Sequence[Path], source: Path, samples: Path | None = None) -> None:
    """Raise `InputError` for a page that would replace another file of the run, or that cannot be written."""
    if page.is_dir():
        raise InputError(f"{page} is a folder, expected a file for the page: use a name such as {page / 'page.html'}")
    if any(_is_same(page, each) for each in outputs):
        raise InputError(f"{page} is the pruned model, too: choose another name for the page")
    check_written(page, source, samples)


def check_written(path: Path, source: Path, samples: Path | None = None) -> None:
    """Raise `InputError` for a path that is a file of the source or its samples, or that cannot be written."""
    if path.exists():
        for file, what in _read(source, samples).items():
            if file.exists() and path.samefile(file):
                raise InputError(f"{path} is {what}: choose another name")
    folder = next(each for each in path.absolute().parents if each.exists())
    if not folder.is_dir():
        raise InputError(f"{path} cannot be written, {folder} is not a folder: choose another name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written, {folder} is not yours to write to: choose another folder")


def _read(source: Path, samples: Path | None) -> dict[Path, str]:
    """Return the files that a run reads, and what they are."""
    spans = spans_of(read_contained(source))
    found = {source: "the source itself"}
    found |= {contained(each.location, source.parent, each.tensor.name): f"external data of {source}" for each in spans}
    return found if samples is None else {**found, samples: "the calibration data"}


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))
