"""Costs that were measured on this machine, in the user's configuration folder: the session prefers them."""

import json
import logging
import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import onnxruntime as ort
from platformdirs import user_config_path

from rigl_compress.runtime.kernels import chosen_set
from rigl_compress.runtime.rewritten_cache import processor

FOLDER = "RIGL_COMPRESS_CONFIG"
FORMAT = 1
_MOST_BYTES = 2**20
_LOG = logging.getLogger("rigl_compress.costs")


def costs_file() -> Path:
    """Return the file of the user's own costs."""
    given = os.environ.get(FOLDER, "")
    return (Path(given) if given else user_config_path("rigl-compress", appauthor=False)) / "costs.json"


def machine() -> dict[str, str]:
    """Return what costs are of: the processor, the kernels, and the version of ONNX Runtime."""
    return {"cpu": processor(), "kernels": chosen_set(), "onnxruntime": ort.__version__}


def user_costs(expected: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the user's own costs; None if there are none. Those that are damaged or of another machine are logged.

    `expected` are costs with all families and sides.
    """
    path = costs_file()
    try:
        if not path.is_file():
            return None
        content = json.loads(path.read_bytes()[:_MOST_BYTES])
        if content["format"] != FORMAT or not _alike(content["families"], expected):
            raise ValueError("it does not have the costs of this version")
        if content["machine"] != machine():
            raise ValueError("it was measured on another machine, or with other kernels or another ONNX Runtime")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _LOG.warning("%s is not used: %s; run rigl-compress calibrate", path, error)
        return None
    found: Mapping[str, Any] = content["families"]
    return found


def _alike(found: Any, expected: Any) -> bool:
    """Check that costs have the same names, and numbers that are not negative."""
    if isinstance(expected, Mapping):
        same = isinstance(found, Mapping) and found.keys() == expected.keys()
        return same and all(_alike(found[key], expected[key]) for key in expected)
    return isinstance(found, int | float) and not isinstance(found, bool) and isfinite(found) and found >= 0


def write_costs(families: Mapping[str, Any], date: str) -> Path:
    """Write the user's own costs."""
    from rigl_compress.core.artifacts import write_json

    content = {"format": FORMAT, "families": families, "machine": machine(), "date": date}
    write_json(costs_file(), {**content, "made_by": "rigl-compress calibrate"})
    return costs_file()
