"""Folders of the library `datasets`, as `save_to_disk` writes them, or of arrow, parquet, CSV and JSON files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rigl_compress.core.errors import InputError, did_you_mean, first_line
from rigl_compress.core.optional_packages import optional_package
from rigl_compress.data.data_files import cache_folder
from rigl_compress.data.download_sources import Log
from rigl_compress.data.mnist import interleaved

_SAVED = ("dataset_dict.json", "state.json")  # by save_to_disk: of several splits, of one
_BUILDERS = {".parquet": "parquet", ".arrow": "arrow", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json"}
_TESTS = ("test", "validation", "valid", "val", "dev")  # the first of these that is there is tested on
HELD_OUT = 10  # without one of them, every tenth sample is held out
MOST_CLASSES = 100_000


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a split with their classes, classes dealt out in turn: `hold_out` takes the end."""

    rows: Any  # datasets.Dataset
    classes: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> Any:
        """Return all values of a column; an unknown name suggests the nearest."""
        return self.rows[checked_column(self.rows, name)]


def holds_tables(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk`, or has tables in it or in `data`."""
    return path.is_dir() and (any((path / name).is_file() for name in _SAVED) or bool(_files(path)))


def read_tables(folder: Path, splits: tuple[str, str], label: str, log: Log) -> tuple[Table, Table]:
    """Return the training and the test split of a folder; names of splits that are empty are found."""
    found = _opened(folder)
    train_name = splits[0] or "train"
    if train_name not in found:
        raise InputError(
            f"{folder} has no split {train_name!r} (data.options.train): {did_you_mean(train_name, found)}"
        )
    if splits[1] and splits[1] not in found:
        raise InputError(f"{folder} has no split {splits[1]!r} (data.options.test): {did_you_mean(splits[1], found)}")
    test_name = splits[1] or next((name for name in _TESTS if name in found and name != train_name), "")
    if test_name:
        log(f"tested on the split {test_name!r} of {folder}")
        names = _class_names([found[train_name], found[test_name]], label)
        return _table(found[train_name], label, names), _table(found[test_name], label, names)
    log(f"{folder} has no split for testing: every {HELD_OUT}th sample is held out for it")
    return _parted(found[train_name], label)


def _parted(rows: Any, label: str) -> tuple[Table, Table]:
    whole = _table(rows, label, _class_names([rows], label))
    if len(whole) < 2 * HELD_OUT:
        raise InputError(f"{len(whole)} samples and no split for testing: name one with data.options.test")
    held = torch.arange(len(whole)) % HELD_OUT == HELD_OUT - 1
    parts = (torch.arange(len(whole))[~held], torch.arange(len(whole))[held])
    train, test = (Table(whole.rows.select(part.tolist()), whole.classes[part]) for part in parts)
    return train, test


def _opened(folder: Path) -> Mapping[str, Any]:
    datasets = optional_package("datasets", "huggingface", f"the folder {folder}")
    try:
        with _quietly(datasets):
            found = _loaded(datasets, folder)
    except Exception as error:  # the library and pyarrow raise anything for files that are damaged
        raise InputError(f"{folder} cannot be read by the library datasets: {first_line(error)}") from error
    return found if isinstance(found, Mapping) else {"train": found}


def _loaded(datasets: Any, folder: Path) -> Any:
    if any((folder / name).is_file() for name in _SAVED):
        return datasets.load_from_disk(str(folder))
    files = _files(folder)
    kinds = {_BUILDERS[path.suffix] for path in files}
    if len(kinds) > 1:
        raise InputError(f"{folder} has files of several formats ({', '.join(sorted(kinds))}): leave those of one")
    splits: dict[str, list[str]] = {}
    for path in files:
        splits.setdefault(split_of(path.stem), []).append(str(path))
    further = {"sep": "\t"} if files[0].suffix == ".tsv" else {}
    # Built into the library: no code of the folder is run. It keeps a copy for quick access.
    cache = str(cache_folder() / "huggingface")
    return datasets.load_dataset(kinds.pop(), data_files=splits, cache_dir=cache, **further)


def split_of(stem: str) -> str:
    """Return the split that a file is of, by its name.

    >>> split_of("train-00000-of-00002"), split_of("validation"), split_of("my_reviews")
    ('train', 'validation', 'train')
    """
    first = stem.partition("-")[0].partition(".")[0]
    return first if first in ("train", *_TESTS) else "train"


def _files(folder: Path) -> list[Path]:
    found = [path for where in (folder, folder / "data") if where.is_dir() for path in sorted(where.iterdir())]
    return [path for path in found if path.suffix in _BUILDERS and path.is_file()]


@contextmanager
def _quietly(datasets: Any) -> Iterator[None]:
    """Silence the progress bars of the library."""
    shown = not datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def checked_column(rows: Any, name: str) -> str:
    """Return the name of a column; raise for one that is not there."""
    if name not in rows.column_names:
        raise InputError(f"the data have no column {name!r}: {did_you_mean(name, rows.column_names)}; set data.options")
    return name


def _class_names(parts: Sequence[Any], label: str) -> list[str] | None:
    """Return the names of classes that are texts, sorted; None for numbers."""
    kind = getattr(parts[0].features[checked_column(parts[0], label)], "dtype", "")
    if not kind.startswith(("int", "uint", "string", "large_string")):
        found = kind or type(parts[0].features[label]).__name__
        raise InputError(f"the column {label!r} (data.options.label) holds {found}, expected classes: numbers or names")
    values = [value for rows in parts for value in rows.unique(checked_column(rows, label))]
    if any(value is None for value in values):
        raise InputError(f"the column {label!r} (data.options.label) has rows without a class: remove them")
    if all(isinstance(value, str) for value in values):
        return sorted(set(values))
    if values and not 0 <= min(values) <= max(values) < MOST_CLASSES:
        raise InputError(f"the column {label!r} holds {min(values)} to {max(values)}, expected classes from 0 on")
    return None


def _table(rows: Any, label: str, names: list[str] | None) -> Table:
    if not len(rows):
        raise InputError("a split of the data has no rows: name another with data.options.train or test")
    numbers: Callable[[Any], int] = int if names is None else names.index
    classes = torch.tensor([numbers(value) for value in rows[label]], dtype=torch.int64)
    order = interleaved(classes)
    return Table(rows.select(order.tolist()), classes[order])
