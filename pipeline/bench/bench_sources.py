"""What can be benchmarked: ONNX files, ours or not, and the networks of runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.export.stage import ExportConfig, export_run, network_file
from rigl_compress.pipeline.workspace import Run


@dataclass(frozen=True)
class Source:
    """An ONNX file under a name. `given`: what the user named; `network`: the torch network's file, of a run.

    `trained`: the label of the network that this one was pruned from; `added`: not named by the user, for comparison.
    """

    label: str
    path: Path
    given: str = ""
    network: Path | None = None
    trained: str = ""
    added: bool = False


@contextmanager
def opened_sources(paths: Sequence[Path]) -> Iterator[tuple[Source, ...]]:
    """Yield the sources for paths of ONNX files and run folders; runs are exported for as long as the block lasts.

    A pruned run has two sources: the pruned network, and the network as trained.
    """
    labels = distinct_labels(paths)
    with TemporaryDirectory() as folder:
        yield tuple(
            source
            for number, (path, label) in enumerate(zip(paths, labels, strict=True))
            for source in _sources(path, label, Path(folder) / f"{number}.onnx")
        )


def _sources(path: Path, label: str, exported: Path) -> Iterator[Source]:
    if not path.exists():
        raise InputError(f"{path} does not exist: pass ONNX files or run folders")
    if not path.is_dir():
        yield Source(label, path, str(path))
        return
    run = Run.open(path)
    export_run(run, exported, ExportConfig())
    network, trained = network_file(run, "auto"), f"{label} (trained)"
    pruned = network == run.pruned_file
    yield Source(label, exported, str(path), network, trained if pruned else "")
    if pruned:
        before = exported.with_name(f"trained-{exported.name}")
        export_run(run, before, ExportConfig(network="trained"))
        yield Source(trained, before, "", network_file(run, "trained"), added=True)


def distinct_labels(paths: Sequence[Path]) -> list[str]:
    """Return the shortest distinct end of each path.

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
