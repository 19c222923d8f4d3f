"""Artifacts on disk: one safetensors file, tensors plus a JSON header, written atomically, never pickle."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rigl_compress.core.errors import InputError
from rigl_compress.core.temporary_files import make_folder, sync_file, sync_folder, temporary_for
from rigl_compress.core.trust import DEEPEST, from_file

FORMAT = 1
MOST_TEXT = 2**26  # bytes; the metrics of 100,000 epochs have a third of it
_HEADER = "rigl_compress"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path` to write to; it takes the name `path` only when the block succeeds."""
    with _prepared(path) as temporary:
        yield temporary
        sync_file(temporary)
        temporary.replace(path)
        sync_folder(path.parent)


@contextmanager
def atomic_pair(path: Path, about: Path) -> Iterator[tuple[Path, Path]]:
    """Yield temporary files beside a file and the one that describes it; both are replaced, or none.

    Two files cannot be renamed at once. The old description goes before the old file does, so that a process that is
    killed in between leaves a file without a description, never one with that of another.
    """
    with _prepared(path) as temporary, _prepared(about) as description:
        yield temporary, description
        sync_file(temporary)
        sync_file(description)
        earlier = about.read_bytes() if about.exists() else None
        if earlier is not None:
            about.unlink()
        try:
            sync_folder(about.parent)
            temporary.replace(path)
        except OSError:
            if earlier is not None:
                write_bytes(about, earlier)
            raise
        sync_folder(path.parent)
        description.replace(about)
        sync_folder(about.parent)


@contextmanager
def _prepared(path: Path) -> Iterator[Path]:
    """Yield a temporary file; a system error about it names the file that was to be written."""
    if path.exists() and not path.is_file() and not path.is_dir():  # the rename would put a file in its place
        raise InputError(f"{path} is a device or a pipe, not a file: pass the name of a file")
    make_folder(path.parent)
    with temporary_for(path) as temporary:
        try:
            yield temporary
        except OSError as error:
            if error.errno is not None and error.filename in (None, str(temporary), temporary):
                error.filename, error.filename2 = str(path), None
            raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def json_text(content: Any, indent: int | None = None) -> str:
    """Write JSON that every reader takes: it has no infinite or undefined numbers, they become null.

    >>> json_text({"loss": float("nan"), "step": 3})
    '{"loss": null, "step": 3}'
    """
    return json.dumps(_finite(content), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    return [_finite(value) for value in content] if isinstance(content, list | tuple) else content


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically, indented."""
    write_text(path, json_text(content, indent=2) + "\n")


def _number(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _check_depth(content: Any, left: int = DEEPEST) -> None:
    """Refuse what could be read, but not written again: Python's stack ends at some hundred levels."""
    if not left:
        raise ValueError(f"lists in lists, {DEEPEST} deep and more")
    if isinstance(content, dict | list):
        for each in content.values() if isinstance(content, dict) else content:
            _check_depth(each, left - 1)


def check_regular(path: Path) -> None:
    """Refuse what is no file: to open a pipe waits for ever, and some devices never end."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a folder, a device or a pipe, not a file: pass a file")


def read_small_text(path: Path, errors: str = "strict") -> str:
    """Read a text file of a run, a recipe or a comparison; raises OSError where it cannot be read."""
    check_regular(path)
    if path.stat().st_size > MOST_TEXT:
        raise InputError(f"{path} has more than {MOST_TEXT:,} bytes: it is damaged, restore it")
    return path.read_text(encoding="utf-8", errors=errors)


def read_json(path: Path) -> Any:
    """Read a JSON file; a missing or damaged one is an error of one sentence."""
    try:
        content = json.loads(read_small_text(path), parse_int=_number, parse_constant=_no_number)
        _check_depth(content)
        return content
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {path}: {error}; restore the file or start the run again") from None


def save_artifact(path: Path, kind: str, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> None:
    """Save named tensors and JSON content as one file of the given kind."""
    header = json_text({"format": FORMAT, "kind": kind, "content": content})
    packed = _apart({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    write_bytes(path, save(packed, metadata={_HEADER: header}))


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy what shares memory with an earlier tensor (tied weights): the file format refuses it."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return apart


def load_artifact(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load what `save_artifact` wrote: tensors on the CPU, and the JSON content, its texts marked (see `trust`)."""
    check_regular(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {}).get(_HEADER, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (OSError, SafetensorError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise InputError(f"cannot read {path}: {error}; the file is missing or damaged: create it again") from None
    header = header if isinstance(header, dict) else {}
    if header.get("kind") != kind:
        raise InputError(f"{path} holds a {header.get('kind', 'foreign safetensors file')!r}, not a {kind!r}")
    if header.get("format") != FORMAT:
        raise InputError(f"{path} has format {header.get('format')!r}, this version reads {FORMAT}: create it again")
    content = header.get("content")
    if not isinstance(content, dict):
        raise InputError(f"{path} has no table of contents in its header: it is damaged, create it again")
    return tensors, from_file(content, str(path))
