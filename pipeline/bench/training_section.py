"""The part of a run's page about its training: curves, and target and actual sparsity."""

from collections.abc import Iterator
from dataclasses import replace
from html import escape

from rigl_compress.pipeline.bench.bench_tables import count
from rigl_compress.pipeline.bench.html_charts import table
from rigl_compress.pipeline.bench.line_charts import Line, line_chart
from rigl_compress.pipeline.bench.training_course import TrainingCourse, course_lines, epochs_table, weights_table

MOST_WEIGHTS = 24  # more than these are collapsed


def training_section(course: TrainingCourse) -> Iterator[str]:
    """Yield the section."""
    yield "<h2>Training</h2>"
    yield from (f'<p class="soft">{escape(line)}</p>' for line in course_lines(course))
    yield f'<div class="grid">{"".join(_charts(course))}</div>'
    every = epochs_table(course, most=len(course.rows) or 1)
    yield f"<details><summary>Every epoch</summary>{table(every)}</details>"
    yield from _weights(course)


def _charts(course: TrainingCourse) -> Iterator[str]:
    metric = course.metric
    yield from _chart(course, "Training loss", "train_loss", "Mean over the batches of an epoch.")
    yield from _chart(course, metric.heading.capitalize(), metric.name, "On the test set, after the epoch.")
    yield from _changes(course)
    yield from _chart(course, "Learning rate", "learning_rate", "Of the last step of an epoch.")
    yield from _chart(course, "Sparsity", "sparsity", "Share of the connections that are inactive, after the epoch.")
    yield from _chart(course, "Time", "seconds", "Seconds since training began, after the epoch.")


def _chart(course: TrainingCourse, title: str, key: str, caption: str) -> Iterator[str]:
    """Draw a number of the metrics, if there is any."""
    if points := course.points(key):
        yield line_chart(title, [Line(title, points)], _plain, caption)


def _changes(course: TrainingCourse) -> Iterator[str]:
    """Draw the connections that each epoch dropped and grew; of runs of earlier versions, those of the last update."""
    lines = [Line(key, course.points(key)) for key in ("dropped", "grown")]
    caption = "Connections dropped and grown from the end of an epoch to that of the next."
    if not all(line.points for line in lines):
        lines, caption = [Line("dropped", course.points("changed"))], "Connections that the last update dropped."
    if len(lines) > 1 and lines[0].points == lines[1].points:  # one line would hide the other
        lines = [Line("dropped and grown", lines[0].points)]
        caption = "As many connections grown as dropped, from the end of an epoch to that of the next."
    if any(value for line in lines for _, value in line.points):
        yield line_chart("Topology changes", lines, count, caption)
    elif lines[0].points:
        yield "<figure><h3>Topology changes</h3><p>None: the topology did not change.</p></figure>"


def _plain(value: float) -> str:
    return f"{value:.4g}"


def _weights(course: TrainingCourse) -> Iterator[str]:
    every = weights_table(course)
    if not every.rows:
        return
    yield "<h2>Target and actual sparsity</h2>"
    if len(every.rows) > MOST_WEIGHTS:  # what stays dense is in sight in any case
        dense = tuple(row for row in every.rows if row[-1])
        yield table(replace(every, rows=dense)) if dense else ""
        yield f"<details><summary>All {len(every.rows)} weights</summary>{table(every)}</details>"
    else:
        yield table(every)
    yield '<p class="soft">Biases and the parameters of normalisation layers are always dense.</p>'
