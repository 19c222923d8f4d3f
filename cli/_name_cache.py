"""Every registered name, kept in a file for shell completion: loading the registries imports torch."""

import json
import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

import rigl_compress

Names = Mapping[str, str]  # each with a line about it


def all_names() -> Mapping[str, Names]:
    """Return every registered name by kind, from the cache while it is valid; nothing if that fails.

    The cache is valid until a file of the package or an installed extension changes.
    """
    try:
        current = _fingerprint()
        return _cached(current) or _written(current)
    except Exception:  # a traceback must not appear while someone is typing
        return {}


def cache_file() -> Path:
    """Return the file that holds the names."""
    return user_cache_path("rigl-compress", appauthor=False) / "completion.json"


def _cached(fingerprint: str) -> dict[str, Any]:
    try:
        content = json.loads(cache_file().read_bytes())
        return dict(content["names"]) if content["fingerprint"] == fingerprint else {}
    except (OSError, ValueError, LookupError, TypeError):  # missing or damaged
        return {}


def _written(fingerprint: str) -> dict[str, Any]:
    from rigl_compress.cli._catalog import everything, recipe_keys
    from rigl_compress.core.artifacts import write_json

    found = {**everything(), "recipe keys": dict.fromkeys(recipe_keys(), "")}
    write_json(cache_file(), {"fingerprint": fingerprint, "names": found})
    return found


def _fingerprint() -> str:
    """Return a hash of the installed extensions and of the modification times of the package's files."""
    return sha256("\n".join(sorted([*_extensions(), *_source_files()])).encode()).hexdigest()


def _extensions() -> Iterator[str]:
    for installed in distributions():
        for each in installed.entry_points:
            if each.group.startswith("rigl_compress."):
                yield f"{each.group} {each.name} {each.value} {installed.version}"


def _source_files() -> Iterator[str]:
    for folder, _, files in os.walk(Path(rigl_compress.__file__).parent, followlinks=True):
        for path in (Path(folder) / file for file in files):
            if path.suffix in (".py", ".toml"):
                yield f"{path} {path.stat().st_mtime_ns}"
