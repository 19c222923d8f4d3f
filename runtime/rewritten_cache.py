"""A cache of rewritten models in the user's cache folder: a model that was opened before opens as fast as it is read.

An entry is found by the content of the source, and by everything else that the choice of layers depends on: the version
of this package and of ONNX Runtime, the kernels, the processor, the costs, and the number of threads.
"""

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import onnxruntime as ort
from platformdirs import user_cache_path

import rigl_compress
from rigl_compress.core.native_library import library_path
from rigl_compress.core.private_files import (
    NotPrivateError,
    keep_newest,
    mark_used,
    private_folder,
    read_private,
    write_private,
)
from rigl_compress.runtime.kernel_library import OPERATORS_VERSION
from rigl_compress.runtime.kernels import chosen_set

SWITCH = "RIGL_COMPRESS_SESSION_CACHE"  # 0 turns the cache off, a folder is used instead of the user's
LIMIT = "RIGL_COMPRESS_SESSION_CACHE_BYTES"
MOST_BYTES = 2**30  # of all entries
SMALLEST = 2**20  # bytes of a source; smaller models are rewritten at once
ENTRY, SOURCE = ".entry", ".source"
_MAGIC = b"RIGLCACHE1\n"
_SETTLED = 2_000_000_000  # nanoseconds: a file that was changed just before may change again with the same time
_MOST_SOURCES = 2**20
_LOG = logging.getLogger("rigl_compress.session_cache")


@dataclass(frozen=True)
class Entry:
    """A rewritten model and its sparse layers; both empty if no layer gains. `notes` are for the user."""

    model: bytes
    layers: tuple[str, ...]
    notes: tuple[str, ...] = ()


def folder() -> Path | None:
    """Return the folder of the cache, for the user alone; None if the cache is off or cannot be used."""
    wish = os.environ.get(SWITCH, "")
    if wish == "0":
        return None
    place = Path(wish) if wish else user_cache_path("rigl-compress", appauthor=False) / "sessions"
    try:
        return private_folder(place)
    except OSError as error:
        _LOG.warning("the cache of rewritten models is not used: %s", error)
        return None


@dataclass(frozen=True)
class Slot:
    """The place of one source, opened in one way, in the cache."""

    path: Path

    def load(self) -> Entry | None:
        """Return the entry; None if there is none, or if it is damaged or not the user's."""
        try:
            found = _parsed(read_private(self.path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            _LOG.warning("%s is not used and will be made again: %s", self.path, error)
            if not isinstance(error, NotPrivateError):
                self.drop()
            return None
        mark_used(self.path)
        return found

    def store(self, entry: Entry) -> None:
        """Write the entry and remove those that were used longest ago; what fails is logged."""
        try:
            if len(entry.model) <= _most():
                write_private(self.path, *_written(entry))
                keep_newest(self.path.parent, ENTRY, _most())
        except OSError as error:
            _LOG.warning("the rewritten model is not kept: %s", error)

    def drop(self) -> None:
        """Remove the entry."""
        with suppress(OSError):
            self.path.unlink()


def slot_of(source: str | bytes, threads: int, costs: Mapping[str, Any]) -> Slot | None:
    """Return where a source that is opened with so many threads has its entry; None if it is not kept."""
    try:
        if (len(source) if isinstance(source, bytes) else Path(source).stat().st_size) < SMALLEST:
            return None
        place = folder()
        if place is None:
            return None
        digest = hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else _digest_of(Path(source), place)
    except OSError:  # opening the model reports it
        return None
    facts = {"source": digest, "threads": threads, "costs": costs, **_machine()}
    return Slot(place / (hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest() + ENTRY))


@lru_cache
def _machine() -> dict[str, Any]:
    """Return what the choice of layers depends on besides the model and the costs."""
    package = Path(rigl_compress.__file__).parent
    files = [*sorted(package.glob("runtime/*.py")), *sorted(package.glob("exporters/*.py")), library_path()]
    states = [(path.name, (status := path.stat()).st_size, status.st_mtime_ns) for path in files if path is not None]
    versions = [rigl_compress.__version__, ort.__version__, OPERATORS_VERSION]
    limits = os.environ.get("RIGL_COMPRESS_MAX_DECODED_BYTES", "")
    return {"versions": versions, "kernels": chosen_set(), "cpu": processor(), "files": states, "limits": limits}


def processor() -> str:
    """Return the name of the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line
    return platform.processor()


def _digest_of(path: Path, place: Path) -> str:
    """Return the hash of a file's content; it is remembered while the file has the same size, times and number."""
    now, status = time.time_ns(), path.stat()
    state = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    note = place / (hashlib.sha256(os.fsencode(path.resolve())).hexdigest() + SOURCE)
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(read_private(note))
        if known["state"] == state:
            return str(known["sha256"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if now - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED:
        with suppress(OSError):
            write_private(note, json.dumps({"state": state, "sha256": digest}).encode())
            keep_newest(place, SOURCE, _MOST_SOURCES)
    return digest


def _written(entry: Entry) -> tuple[bytes, ...]:
    about = json.dumps({"layers": entry.layers, "notes": entry.notes, "bytes": len(entry.model)}).encode() + b"\n"
    digest = hashlib.sha256(about)
    digest.update(entry.model)
    return _MAGIC, digest.hexdigest().encode() + b"\n", about, entry.model


def _parsed(content: bytes) -> Entry:
    """Return what a file of the cache holds; raise `ValueError` if its hash differs."""
    head, middle, end = len(_MAGIC), len(_MAGIC) + 65, 0
    if (
        not content.startswith(_MAGIC)
        or hashlib.sha256(memoryview(content)[middle:]).hexdigest().encode() != (content[head : middle - 1])
    ):
        raise ValueError("its content has another hash")
    end = content.index(b"\n", middle)
    about = json.loads(content[middle:end])
    model = content[end + 1 :]
    if len(model) != about["bytes"]:
        raise ValueError("it has another size")
    return Entry(model, tuple(about["layers"]), tuple(about["notes"]))


def _most() -> int:
    wish = os.environ.get(LIMIT, "")
    return int(wish) if wish.isascii() and wish.isdigit() else MOST_BYTES
