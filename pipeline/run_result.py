"""Validation of a run's result: missing keys and wrong types are errors before it is used."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rigl_compress.core.dataclass_io import convert, parse
from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.metrics import metric_of
from rigl_compress.pipeline.sparsity_account import WeightAccount


@dataclass(frozen=True)
class _Flops:
    dense: float
    sparse: float


@dataclass(frozen=True)
class _Pruned:
    architecture: str
    sparsity: float
    kflops: float
    bitmask_bytes: float


@dataclass(frozen=True)
class _Result:
    """The keys that are read again. What could not be counted is None."""

    recipe: str
    method: str
    seed: int
    sparsity: float
    seconds: float
    data: str
    metric: str = "error"
    samples: int | None = None
    inference_flops: Mapping[str, Any] | None = None
    training_gflops: Mapping[str, float] | None = None
    pruned: Mapping[str, Any] | None = None
    left_dense: Mapping[str, int] = field(default_factory=dict)
    target_sparsity: float | None = None
    sparsity_by_weight: tuple[WeightAccount, ...] = ()


def checked_result(content: Any, path: Path) -> dict[str, Any]:
    """Return the content of a result file, or raise if it is not one."""
    try:
        _check(content)
    except InputError as error:
        raise InputError(f"{path}: {error}; restore the file or train again") from None
    return dict(content)


def parse_metrics(line: str, where: str) -> dict[str, Any]:
    """Read one line of the metrics: an epoch, and numbers by name, null where there is none.

    >>> parse_metrics('{"epoch": 1, "error": 2.5, "train_loss": null}', "metrics.jsonl, line 1")
    {'epoch': 1, 'error': 2.5, 'train_loss': None}
    """
    try:
        row = json.loads(line)
        convert(Mapping[str, float | None], row, "it")
        convert(int, row.get("epoch"), "epoch")
        return dict(row)
    except (ValueError, RecursionError) as error:  # InputError is one
        raise InputError(f"{where} is not a line of metrics ({error}): remove it, or train again") from None


def _check(content: Any) -> None:
    result = _parsed(_Result, content, "")
    for key, kind in (("inference_flops", _Flops), ("pruned", _Pruned)):
        if content.get(key):
            _parsed(kind, content[key], key)
    for which in ("final", "best"):
        key = f"{which}_{metric_of({'metric': result.metric}).name}"
        convert(float, content.get(key), key)


def _parsed(kind: type[Any], content: Any, where: str) -> Any:
    """Parse the keys that are known, and leave the others alone."""
    known = {field.name for field in fields(kind)}
    found = {key: content[key] for key in content if key in known} if isinstance(content, dict) else content
    return parse(kind, found, where)
