"""What can be benchmarked: ONNX files, ours or not, and the networks of runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.export import ExportConfig, export_run, network_file
from rigl_compress.pipeline.workspace import Run


@dataclass(frozen=True)
class Source:
    """An ONNX file under a name. `given`: what the user named; `network`: the torch network's file, of a run."""

    label: str
    path: Path
    given: str = ""
    network: Path | None = None


@contextmanager
def opened_sources(paths: Sequence[Path]) -> Iterator[tuple[Source, ...]]:
    """Give the sources for paths of ONNX files and run folders; runs are exported for as long as the block lasts."""
    labels = distinct_labels(paths)
    with TemporaryDirectory() as folder:
        yield tuple(
            _source(path, label, Path(folder) / f"{number}.onnx")
            for number, (path, label) in enumerate(zip(paths, labels, strict=True))
        )


def _source(path: Path, label: str, exported: Path) -> Source:
    if not path.exists():
        raise InputError(f"{path} does not exist: give ONNX files or run folders")
    if not path.is_dir():
        return Source(label, path, str(path))
    run = Run.open(path)
    export_run(run, exported, ExportConfig())
    return Source(label, exported, str(path), network_file(run, "auto"))


def distinct_labels(paths: Sequence[Path]) -> list[str]:
    """Give each path the shortest end of it that tells it from the others.

    >>> distinct_labels([Path("a/model.onnx"), Path("b/model.onnx"), Path("other.onnx")])
    ['a/model', 'b/model', 'other']
    """
    parts = [(*path.parts[:-1], path.stem if path.suffix == ".onnx" else path.name) for path in paths]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if list(paths).count(path) > 1)
        raise InputError(f"{twice} is given twice: name each model once")
    return [_shortest(own, [other for other in parts if other is not own]) for own in parts]


def _shortest(own: tuple[str, ...], others: Sequence[tuple[str, ...]]) -> str:
    for length in range(1, len(own) + 1):
        if all(other[-length:] != own[-length:] for other in others):
            return "/".join(own[-length:])
    return "/".join(own)
