"""Charts for a page: plain HTML and SVG in the page's colours, without scripts or downloads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from rigl_compress.pipeline.bench.bench_tables import TextTable

HARD_SPACE = "\u00a0"  # no line is broken there
LONG = 45  # longer cells may be broken into lines


@dataclass(frozen=True)
class Bar:
    """A bar: a value, what is written beside it, an interval around it, and a whole (`back`) of which it is a part."""

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    back: float = 0.0
    accent: bool = True
    hint: str = ""


@dataclass(frozen=True)
class Point:
    """A point with a name."""

    label: str
    x: float
    y: float


def bar_chart(title: str, bars: Sequence[Bar], caption: str = "", top: float = 0.0) -> str:
    """Draw horizontal bars on one scale from zero, to `top` or the longest.

    >>> "width:50.00%" in bar_chart("size", [Bar("a", 2, "2"), Bar("b", 1, "1")])
    True
    """
    longest = top or max((max(bar.value, bar.high or 0, bar.back) for bar in bars), default=0) or 1
    rows = "".join(_bar(bar, longest) for bar in bars)
    return figure(title, f'<div class="bars">{rows}</div>', caption)


def _bar(bar: Bar, top: float) -> str:
    whisker = ""
    if bar.low is not None and bar.high is not None:
        left, width = 100 * bar.low / top, 100 * (bar.high - bar.low) / top
        whisker = f'<i class="whisker" style="left:{left:.2f}%;width:{width:.2f}%"></i>'
    behind = f'<i class="fill muted" style="width:{100 * bar.back / top:.2f}%"></i>' if bar.back else ""
    kind = "fill" if bar.accent else "fill muted"
    return (
        f'<div class="bar" title="{escape(bar.hint or f"{bar.label}: {bar.text}", quote=True)}">'
        f'<span class="name">{escape(bar.label)}</span>'
        f'<span class="track">{behind}<i class="{kind}" style="width:{100 * bar.value / top:.2f}%"></i>{whisker}</span>'
        f'<span class="value">{escape(bar.text)}</span></div>'
    )


def scatter(title: str, points: Sequence[Point], axes: tuple[str, str], caption: str = "") -> str:
    """Draw points, the horizontal axis logarithmic: costs span orders of magnitude."""
    width, height, left, bottom = 380, 260, 60, 44
    xs, ys = [log10(point.x) for point in points], [point.y for point in points]
    (x0, x1), (y0, y1) = padded_range(xs), padded_range(ys)

    def across(x: float) -> float:
        return left + (x - x0) / (x1 - x0) * (width - left - 24)

    def down(y: float) -> float:
        return height - bottom - (y - y0) / (y1 - y0) * (height - bottom - 20)

    marks = [
        f'<line x1="{left}" x2="{width - 24}" y1="{down(tick):.1f}" y2="{down(tick):.1f}" class="rule"/>'
        f'<text x="{left - 8}" y="{down(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in ticks(y0, y1)
    ]
    marks += [
        f'<line x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="20" y2="{height - bottom}" class="rule"/>'
        f'<text x="{across(tick):.1f}" y="{height - bottom + 18}" text-anchor="middle">{_power(tick)}</text>'
        for tick in ticks(x0, x1)
    ]
    marks += _dots(points, [(across(x), down(y)) for x, y in zip(xs, ys, strict=True)], width)
    marks.append(f'<text x="{(left + width) / 2}" y="{height - 4}" text-anchor="middle">{escape(axes[0])}</text>')
    marks.append(
        f'<text transform="translate(14 {(height - bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(axes[1])}</text>"
    )
    return figure(title, f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(marks)}</svg>', caption)


def _dots(points: Sequence[Point], places: Sequence[tuple[float, float]], width: int) -> Iterator[str]:
    """Draw points with their labels; labels of points in the same place are stacked."""
    taken: list[tuple[float, float]] = []
    for point, (x, y) in sorted(zip(points, places, strict=True), key=lambda each: each[1]):
        line = y - 9
        while any(abs(line - other) < 13 and abs(x - where) < 120 for where, other in taken):
            line += 13
        taken.append((x, line))
        anchor, shift = ("end", -8) if x > width * 0.7 else ("start", 8)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(point.label)}: {point.y:g}</title></circle>'
        place = f'x="{x + shift:.1f}" y="{line:.1f}" text-anchor="{anchor}"'
        yield f'<text {place} class="name">{escape(point.label)}</text>'


def padded_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of values with some room on either side, also around a single one."""
    low, high = min(values), max(values)
    room = (high - low) * 0.12 or abs(high) * 0.005 or 1.0
    return low - room, high + room


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers between two others.

    >>> ticks(0.3, 4.2), ticks(97.1, 98.4)
    ([1, 2, 3, 4], [97.5, 98.0])
    """
    rough = (high - low) / most
    size = 10.0 ** floor(log10(rough))
    step = next(each * size for each in (1, 2, 5, 10) if each * size >= rough * 0.999)
    first = floor(low / step) + 1
    found = [round(number * step, 10) for number in range(first, floor(high / step + 1e-9) + 1)]
    return [int(each) if step >= 1 else each for each in found]


def _power(tick: float) -> str:
    """Format a power of ten with a prefix.

    >>> _power(3), _power(6.5), _power(4)
    ('1 K', '3.16 M', '10 K')
    """
    size = 3 * max(0, int(tick // 3))
    return f"{10 ** (tick - size):.3g} {' KMGT'[size // 3] if size < 15 else f'e{size}'}".strip()


def heat_map(title: str, counts: Sequence[Sequence[int]], caption: str = "") -> str:
    """Draw a map of counts, the darker the more; a count is shown where the pointer rests."""
    rows, columns = len(counts), len(counts[0])
    top = max(max(row) for row in counts) or 1
    cells = "".join(
        f'<rect x="{x}" y="{y}" width="1.02" height="1.02" fill-opacity="{0.15 + 0.85 * value / top:.2f}">'
        f"<title>row {y}, column {x}: {value}</title></rect>"
        for y, row in enumerate(counts)
        for x, value in enumerate(row)
        if value
    )
    return figure(title, f'<svg viewBox="0 0 {columns} {rows}" class="map" role="img">{cells}</svg>', caption)


def table(content: TextTable) -> str:
    """Write a table of text."""
    head = "".join(f"<th>{escape(column)}</th>" for column in content.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in content.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    """Write a cell; a sentence is broken into lines, figures only before a parenthesis."""
    if len(text) > LONG:
        return f'<td class="long">{escape(text)}</td>'
    return f"<td>{escape(text.replace(' ', HARD_SPACE).replace(f'{HARD_SPACE}(', ' ('))}</td>"


def figure(title: str, body: str, caption: str) -> str:
    """Frame a chart with its title and caption."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure><h3>{escape(title)}</h3>{body}{below}</figure>"
