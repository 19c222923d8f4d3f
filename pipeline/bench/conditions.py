"""Conditions on a benchmark, for CI: `latency<=0.9x`, `size<=20kB`, `compact:accuracy>=98`."""

import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.unit_factors import UNITS
from rigl_compress.pipeline.bench.bench_report import BenchedModel, CompressionReport, Timing, name_of

_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"\s*(?:(.+):)?\s*([a-z0-9-]+)\s*(<=|>=|<|>)\s*([0-9.]+(?:e[+-]?\d+)?)\s*([a-zA-Zµ%]*)\s*")
OF_MODELS: Mapping[str, Callable[[BenchedModel], float | None]] = {
    "size": lambda model: model.bytes,
    "flops": lambda model: model.costs.sparse_flops,
    "dense-flops": lambda model: model.costs.dense_flops,
    "parameters": lambda model: model.costs.parameters,
    "nonzeros": lambda model: model.costs.nonzeros,
    "sparsity": lambda model: 100 * model.costs.sparsity,
    "bitmask": lambda model: model.costs.bitmask_bytes,
    "accuracy": lambda model: model.accuracy,
    "load": lambda model: model.footprint.load_seconds if model.footprint else None,
    "memory": lambda model: model.footprint.peak_bytes if model.footprint else None,
}
OF_TIMINGS: Mapping[str, Callable[[Timing], float]] = {
    "latency": lambda timing: timing.percentile(0.5),
    "p90": lambda timing: timing.percentile(0.9),
    "p99": lambda timing: timing.percentile(0.99),
    "throughput": lambda timing: timing.throughput,
}


@dataclass(frozen=True)
class Condition:
    """A bound on a figure. `relative`: a ratio to the baseline, for all others; `label`: for one model only."""

    text: str
    metric: str
    relation: str
    bound: float
    relative: bool
    label: str = ""

    def judge(self, subject: str, found: float | None, base: float | None = None) -> "Verdict":
        """Check a figure, or its ratio to that of the baseline; one that is not known meets nothing."""
        value = _parts(found, base) if self.relative else found
        holds = value is not None and _RELATIONS[self.relation](value, self.bound)
        return Verdict(self.text, subject, value, holds)


@dataclass(frozen=True)
class Verdict:
    """Whether a condition holds for a subject, and the figure that was found."""

    condition: str
    subject: str
    found: float | None
    holds: bool

    def __str__(self) -> str:
        """Return one line."""
        found = "not known" if self.found is None else f"{self.found:.4g}"
        return f"{'met' if self.holds else 'NOT met'}: {self.condition}, {self.subject}: {found}"


def parse_condition(text: str, known: Collection[str] = (*OF_MODELS, *OF_TIMINGS)) -> Condition:
    """Read a condition on one of the known figures.

    >>> parse_condition("latency<=0.9x").relative, parse_condition("size <= 20kB").bound
    (True, 20000.0)
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise InputError(f"condition {text!r} is not of the form METRIC<=NUMBER, e.g. latency<=0.9x or size<=20kB")
    label, metric, relation, number, unit = form.groups()
    if metric not in known:
        raise InputError(f"condition {text!r} names no known metric: {did_you_mean(metric, known)}")
    if unit != "x" and unit not in UNITS:
        raise InputError(f"condition {text!r} has the unknown unit {unit!r}: use x or {', '.join(filter(None, UNITS))}")
    try:
        bound = float(number)
    except ValueError:
        raise InputError(f"condition {text!r} has no number {number!r}: write one such as 0.9") from None
    return Condition(text.strip(), metric, relation, bound * UNITS.get(unit, 1.0), unit == "x", label or "")


def check_conditions(conditions: tuple[Condition, ...], report: CompressionReport) -> list[Verdict]:
    """Check a report against conditions. A condition on a figure that could not be measured does not hold."""
    labels = [model.label for model in report.models]
    for condition in conditions:
        if condition.label and condition.label not in labels:
            raise InputError(f"condition {condition.text!r}: {did_you_mean(condition.label, labels)}")
    return [verdict for condition in conditions for verdict in _verdicts(condition, report)]


def _verdicts(condition: Condition, report: CompressionReport) -> Iterator[Verdict]:
    found = list(_figures(condition, report))
    for subject, value in found:
        holds = value is not None and _RELATIONS[condition.relation](value, condition.bound)
        yield Verdict(condition.text, subject, value, holds)
    if not found:
        yield Verdict(condition.text, condition.label or "no model to compare", None, holds=False)


def _figures(condition: Condition, report: CompressionReport) -> Iterator[tuple[str, float | None]]:
    if condition.metric in OF_TIMINGS:
        yield from _timed(condition, report)
        return
    figure = OF_MODELS[condition.metric]
    base = figure(report.model(report.baseline))
    for model in report.models:
        if _concerns(condition, model.label, report):
            value = figure(model)
            yield model.label, _parts(value, base) if condition.relative else value


def _timed(condition: Condition, report: CompressionReport) -> Iterator[tuple[str, float | None]]:
    figure = OF_TIMINGS[condition.metric]
    for timing in report.timings:
        if not _concerns(condition, timing.candidate.label, report):
            continue
        reference = report.reference(timing.candidate)
        value: float | None = figure(timing)
        if condition.relative and condition.metric == "latency":
            ratio = report.ratio(timing)  # of the same rounds: more exact than a quotient of medians
            value = ratio.value if ratio else None
        elif condition.relative:
            value = _parts(value, figure(reference) if reference else None)
        yield name_of(timing.candidate), value
    for failure in report.failures:
        if _concerns(condition, failure.candidate.label, report):
            yield name_of(failure.candidate), None


def _concerns(condition: Condition, label: str, report: CompressionReport) -> bool:
    if condition.label:
        return label == condition.label
    if any(model.added and model.label == label for model in report.models):
        return False  # not named by the user
    return not condition.relative or label != report.baseline


def _parts(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base
