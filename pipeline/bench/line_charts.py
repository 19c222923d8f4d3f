"""Charts of values over the epochs: SVG in the page's colours."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rigl_compress.pipeline.bench.html_charts import figure, padded_range, ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 380, 240, 62, 16, 24, 44
FEW = 40  # so many points have a marker each: a single one would not be seen otherwise
KINDS = ("first", "second")  # the lines of a chart, by their class in the style


@dataclass(frozen=True)
class Line:
    """Values by epoch under a name."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Frame:
    """The ranges of the axes, and where a value lies on the picture."""

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        """Return the horizontal place of a value."""
        return LEFT + (value - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - LEFT - RIGHT)

    def down(self, value: float) -> float:
        """Return the vertical place of a value."""
        return HEIGHT - BOTTOM - (value - self.y[0]) / (self.y[1] - self.y[0]) * (HEIGHT - BOTTOM - TOP)


def line_chart(title: str, lines: Sequence[Line], show: Callable[[float], str], caption: str = "") -> str:
    """Draw lines over whole epochs; `show` writes a value.

    >>> chart = line_chart("loss", [Line("loss", ((1, 0.5),))], str)
    >>> chart.count("<circle"), ">1</text>" in chart
    (1, True)
    """
    frame, kinds = frame_of(lines), zip(KINDS, lines, strict=False)
    marks = [*_rules(frame, show), *(mark for kind, line in kinds for mark in _line(kind, line, frame, show))]
    names = _legend(lines) if len(lines) > 1 else ()
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
    return figure(title, f"{svg}{''.join((*marks, *names))}</svg>", caption)


def frame_of(lines: Sequence[Line]) -> Frame:
    """Return axes around all points: at least one epoch wide, and from zero where values are not negative.

    >>> frame_of([Line("loss", ((1, 2.0),))]).x
    (0.5, 1.5)
    """
    xs, ys = ([point[axis] for line in lines for point in line.points] for axis in (0, 1))
    low, high = padded_range(ys)
    return Frame((min(xs) - 0.5, max(xs) + 0.5), (0.0 if min(ys) >= 0 else low, high))


def _rules(frame: Frame, show: Callable[[float], str]) -> Iterator[str]:
    for tick in (*([0] if frame.y[0] == 0 else []), *ticks(*frame.y, most=5)):
        y = frame.down(tick)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="rule"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(show(tick))}</text>'
    for tick in whole_ticks(*frame.x):
        yield f'<text x="{frame.across(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick}</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">epoch</text>'


def whole_ticks(low: float, high: float) -> list[int]:
    """Return round whole numbers between two others.

    >>> whole_ticks(0.5, 1.5), whole_ticks(0.5, 3.5), whole_ticks(0.5, 20.5)
    ([1], [1, 2, 3], [5, 10, 15, 20])
    """
    return [int(tick) for tick in ticks(low, high) if tick == int(tick)]


def _line(kind: str, line: Line, frame: Frame, show: Callable[[float], str]) -> Iterator[str]:
    places = [(frame.across(x), frame.down(y)) for x, y in line.points]
    yield f'<polyline class="line {kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
    if len(places) <= FEW:
        for (x, y), (epoch, value) in zip(places, line.points, strict=True):
            hint = f"{line.label}, epoch {epoch:g}: {show(value)}"
            yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{escape(hint)}</title></circle>'


def _legend(lines: Sequence[Line]) -> Iterator[str]:
    """Write the names of the lines above the picture, in their colours."""
    for place, (kind, line) in enumerate(zip(KINDS, lines, strict=False)):
        x = LEFT + 110 * place
        yield f'<line class="line {kind}" x1="{x}" x2="{x + 22}" y1="10" y2="10"/>'
        yield f'<text x="{x + 28}" y="14" class="name">{escape(line.label)}</text>'
