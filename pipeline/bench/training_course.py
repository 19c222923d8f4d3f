"""The course of a training: its epochs, and target and actual sparsity, as tables of text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

from rigl_compress.core.dataclass_io import parse
from rigl_compress.core.wording import percent
from rigl_compress.pipeline.bench.bench_tables import TextTable, duration
from rigl_compress.pipeline.metrics import Metric, metric_of
from rigl_compress.pipeline.sparsity_account import WeightAccount, all_sparsity
from rigl_compress.pipeline.workspace import Run

MOST_EPOCHS = 12  # lines of a table that is read at a glance; metrics.jsonl has them all
LARGEST = 1e30  # what a chart can show
EPOCH_COLUMNS = ("epoch", "loss", "{metric}", "dropped", "grown", "learning rate", "sparsity", "time")
WEIGHT_COLUMNS = ("weight", "size", "target sparsity", "sparsity", "left dense because")
T = TypeVar("T")


@dataclass(frozen=True)
class TrainingCourse:
    """The result of a run, the lines of its metrics, and the account of its weights."""

    result: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]

    @property
    def metric(self) -> Metric:
        """The metric of the run."""
        return metric_of(self.result)

    @property
    def weights(self) -> tuple[WeightAccount, ...]:
        """The account of each weight; empty for runs of earlier versions."""
        return tuple(parse(WeightAccount, each) for each in self.result.get("sparsity_by_weight", ()))

    def points(self, key: str) -> tuple[tuple[float, float], ...]:
        """Return (epoch, value) of a number in the metrics, where there is one."""
        found = ((row["epoch"], row.get(key)) for row in self.rows)
        return tuple((x, y) for x, y in found if y is not None and isfinite(y) and abs(y) < LARGEST)


def course_of(run: Run) -> TrainingCourse:
    """Read the course of a run."""
    return TrainingCourse(run.result(), tuple(run.metrics()))


def course_lines(course: TrainingCourse) -> list[str]:
    """Return sentences about a training: its length, its quality, its sparsity."""
    return [_time_line(course), sparsity_line(course)]


def _time_line(course: TrainingCourse) -> str:
    result, metric = course.result, course.metric
    final, best = map(metric.show, metric.final_and_best(result))
    epochs = max((row["epoch"] for row in course.rows), default=0)
    count = f"{epochs} epoch{'' if epochs == 1 else 's'}"
    quality = f"{metric.title} {final} at the end, {best} at best"
    return f"{result['method']}, seed {result['seed']}: {count} in {duration(result['seconds'])}; {quality}."


def sparsity_line(course: TrainingCourse) -> str:
    """Return a sentence about the sparsity of the whole network: target, actual, and over all weights."""
    target, weights = course.result.get("target_sparsity"), course.weights
    wanted = "no target" if target is None else f"target {percent(target)}"
    planned = _planned(weights)
    differs = planned is not None and percent(planned) != percent(target or 0)
    by_layer = f", by layer {percent(planned or 0)}" if differs else ""
    everything = f", {percent(all_sparsity(weights))} of all weights" if course.result.get("left_dense") else ""
    return f"Sparsity: {wanted}{by_layer}; it is {percent(course.result['sparsity'])}{everything}."


def _planned(weights: Sequence[WeightAccount]) -> float | None:
    """Return the sparsity that the layers have together if each has its target.

    >>> _planned([WeightAccount("a", 30, 0.8, 0.8), WeightAccount("b", 10, 0.0, 0.0), WeightAccount("c", 9, None, 0.0)])
    0.6
    """
    targets = [(each.size, each.target) for each in weights if each.target is not None]
    return sum(size * share for size, share in targets) / sum(size for size, _ in targets) if targets else None


def epochs_table(course: TrainingCourse, most: int = MOST_EPOCHS) -> TextTable:
    """Return the table of the epochs, some of them if there are more than fit."""
    rows = evenly(course.rows, most)
    columns = tuple(column.format(metric=course.metric.heading) for column in EPOCH_COLUMNS)
    title = "training" if len(rows) == len(course.rows) else f"training, {len(rows)} of {len(course.rows)} epochs"
    return TextTable(title, columns, tuple(_epoch_row(row, course.metric) for row in rows))


def _epoch_row(row: Mapping[str, Any], metric: Metric) -> tuple[str, ...]:
    return (
        str(row["epoch"]),
        _shown(row.get("train_loss"), ".4f"),
        _shown(row.get(metric.name), f".{metric.digits}f"),
        _shown(row.get("dropped"), ",.0f"),
        _shown(row.get("grown"), ",.0f"),
        _shown(row.get("learning_rate"), ".4g"),
        "" if row.get("sparsity") is None else percent(row["sparsity"]),
        _shown(row.get("seconds"), ",.1f", " s"),
    )


def _shown(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def evenly(rows: Sequence[T], most: int) -> list[T]:
    """Return at most so many rows, evenly spaced, with the first and the last.

    >>> evenly([1, 2, 3, 4, 5, 6, 7], 3), evenly([1, 2], 3)
    ([1, 4, 7], [1, 2])
    """
    if len(rows) <= most:
        return list(rows)
    return [rows[round(place * (len(rows) - 1) / (most - 1))] for place in range(most)]


def weights_table(course: TrainingCourse) -> TextTable:
    """Return the table of the weights: target and actual sparsity, and why those without zeros have none."""
    return TextTable("sparsity by weight", WEIGHT_COLUMNS, tuple(map(_weight_row, course.weights)))


def _weight_row(each: WeightAccount) -> tuple[str, ...]:
    target = "" if each.target is None else percent(each.target)
    return each.name, f"{each.size:,}", target, percent(each.sparsity), each.dense_because


def course_markdown(course: TrainingCourse) -> str:
    """Return the course in Markdown."""
    tables = [table for table in (epochs_table(course), weights_table(course)) if table.rows]
    return "\n\n".join([*course_lines(course), *(f"**{each.title}**\n\n{each.markdown}" for each in tables)])
