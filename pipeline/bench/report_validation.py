"""Validation of a report's figures: reports are read from files, which may be untrusted."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rigl_compress.core.errors import InputError

if TYPE_CHECKING:
    from rigl_compress.pipeline.bench.bench_report import BenchedModel, CompressionReport, Timing

LARGEST = 1e30  # of any figure: sums and ratios of them stay finite
SHORTEST, LONGEST = 1e-12, 1e12  # seconds of a run
BATCH = 2**40


def check_figures(report: "CompressionReport") -> None:
    """Raise if figures of a report are impossible, or do not fit each other."""
    _check_environment(report.environment)
    for model in report.models:
        _check_model(model)
    known = {model.label for model in report.models}
    timed = [*(each.candidate for each in report.timings), *(each.candidate for each in report.failures)]
    for label in [*(candidate.label for candidate in timed), *report.profiles, *report.layers]:
        if label not in known:
            raise InputError(f"the report has figures of {label!r}, which is none of its models: bench again")
    for timing in report.timings:
        _check_timing(timing)
        _check_rounds(timing, report.reference(timing.candidate))
    for label, rows in report.profiles.items():
        _check_numbers(f"the profile of {label!r}", (asdict(row) for row in rows))
    for label, layers in report.layers.items():
        _check_numbers(f"the layers of {label!r}", (asdict(row) for row in layers))


def _check_environment(facts: Mapping[str, Any]) -> None:
    flags = facts.get("cpu_flags", [])
    if not isinstance(flags, list) or not all(isinstance(each, str) for each in flags):
        raise InputError(f"environment.cpu_flags is {flags!r}, expected a list of names: bench again")
    for key, kind in (("versions", Mapping), ("load", list)):
        if not isinstance(facts.get(key, kind() if kind is list else {}), kind):
            raise InputError(f"environment.{key} is {facts[key]!r}, expected a {kind.__name__.lower()}: bench again")


def _check_model(model: "BenchedModel") -> None:
    sizes = {"bytes": model.bytes, "footprint": None if model.footprint is None else asdict(model.footprint)}
    _check_numbers(f"model {model.label!r}", [sizes, asdict(model.costs), model.pixels])
    if model.bytes < 1:
        raise InputError(f"model {model.label!r} has {model.bytes} bytes, expected the size of a file: bench again")
    if model.pixels and (len({len(row) for row in model.pixels}) > 1 or not model.pixels[0]):
        raise InputError(f"the pixels of model {model.label!r} are not a rectangle: bench again")


def _check_timing(timing: "Timing") -> None:
    samples, candidate = [each for opening in timing.samples for each in opening], timing.candidate
    if not samples or not all(SHORTEST <= each <= LONGEST for each in samples):
        raise InputError(f"the timings of {candidate.label!r} are not all seconds above 0: bench again")
    if not (1 <= candidate.batch <= BATCH and 1 <= candidate.threads <= BATCH):
        raise InputError(
            f"the timings of {candidate.label!r} are of batch {candidate.batch} on {candidate.threads} threads, "
            "expected 1 or more: bench again"
        )


def _check_rounds(timing: "Timing", reference: "Timing | None") -> None:
    """Raise unless a candidate has as many samples as the baseline: they are timed in the same rounds."""
    if reference is not None and [*map(len, timing.samples)] != [*map(len, reference.samples)]:
        raise InputError(f"{timing.candidate.label!r} was not timed as often as the baseline: bench again")
    if not all(map(len, timing.samples)):
        raise InputError(f"an opening of {timing.candidate.label!r} has no timings: bench again")


def _check_numbers(what: str, content: Iterable[Any]) -> None:
    for number in _numbers(content):
        if not 0 <= number <= LARGEST:
            raise InputError(f"{what} has the figure {number}, expected one from 0 to {LARGEST:.0e}: bench again")


def _numbers(content: Any) -> Iterator[float]:
    """Yield all numbers in plain data.

    >>> list(_numbers({"a": [1, 2.5], "b": "3", "c": {"d": 4}}))
    [1, 2.5, 4]
    """
    if isinstance(content, int | float):
        yield content
    elif isinstance(content, Mapping):
        yield from _numbers(content.values())
    elif isinstance(content, Iterable) and not isinstance(content, str):
        for each in content:
            yield from _numbers(each)
