"""How Reshape, Transpose and selections rearrange the axes of a value, and where each axis comes from.

An axis is a tuple of factors, outermost first: after [n, tokens, 6 · 64] became [n · 6, tokens, 64] the first axis has
the factors n and 6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx

from rigl_compress.runtime.onnx_graph import Graph, attributes, has_input, is_standard

Size = int | str  # a name for a size that is not known


@dataclass(frozen=True)
class Factor:
    """A part of an axis of the source: `step` elements of that axis apart."""

    axis: int
    size: Size
    step: int = 1


Axis = tuple[Factor, ...]
Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class View:
    """A rearranged value: its axes, and what was selected, as elements of the axes of the source."""

    axes: Axes
    first: Mapping[int, int]
    scale: float = 1.0


def size_of(axis: Axis) -> Size:
    """Return the size of an axis; a name if it is not known."""
    if all(isinstance(each.size, int) for each in axis):
        return prod(each.size for each in axis if isinstance(each.size, int))
    return str(axis[0].size) if len(axis) == 1 else ""


class Tracing:
    """Views of the values of a graph, computed from a source onwards."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[str, View] = {}

    def view(self, name: str, source: str) -> View | None:
        """Return how a value is a view of the source; None if it is not, or not known to be."""
        if name == source and name in self._known:
            return self._known[name]
        if name == source:
            return self.start(source, self._graph.shape(source) or ())
        node = self._graph.producers.get(name)
        behind = None if node is None else self.behind(node)
        before = None if behind is None else self.view(behind, source)
        if node is None or before is None:
            return None
        found = _STEPS[node.op_type](self, node, before)
        if found is not None:
            self._known[name] = found
        return found

    def start(self, source: str, shape: Sequence[Size]) -> View | None:
        """Return the view of a whole value of this shape."""
        axes = tuple((Factor(index, size or f"{source}/{index}"),) for index, size in enumerate(shape))
        self._known[source] = View(axes, {})
        return self._known[source] if axes else None

    def source(self, name: str) -> str:
        """Return the value that a view is made of."""
        node = self._graph.producers.get(name)
        while node is not None and (behind := self.behind(node)) is not None:
            name, node = behind, self._graph.producers.get(behind)
        return name

    def behind(self, node: onnx.NodeProto) -> str | None:
        """Return the value that a node gives another view of."""
        if not is_standard(node, *_STEPS):
            return None
        if node.op_type == "Mul" and self._graph.constant(node.input[0]) is not None:
            return str(node.input[1])
        return None if node.op_type in ("Mul", "Div") and self.factor(node) is None else str(node.input[0])

    def reshape(self, node: onnx.NodeProto, before: View) -> View | None:
        """Follow a Reshape, whose axes may be computed from the shapes of other values."""
        target = self.numbers(node.input[1])
        if target is None or any(each == 0 and at >= len(before.axes) for at, each in enumerate(target)):
            return None
        copied = not attributes(node).get("allowzero", 0)
        sizes = [size_of(before.axes[at]) if copied and each == 0 else each for at, each in enumerate(target)]
        factors = [factor for axis in before.axes for factor in axis]
        names = {factor.size for factor in factors}
        axes = _regrouped(factors, [size if isinstance(size, int) or size in names else "" for size in sizes])
        return None if axes is None else replace(before, axes=axes)

    def transpose(self, node: onnx.NodeProto, before: View) -> View | None:
        """Follow a Transpose."""
        order = attributes(node).get("perm", range(len(before.axes))[::-1])
        return replace(before, axes=tuple(before.axes[axis] for axis in order))

    def squeeze(self, node: onnx.NodeProto, before: View) -> View | None:
        """Follow a Squeeze of axes that are 1."""
        dropped = self.numbers(node.input[1]) if has_input(node, 1) else attributes(node).get("axes")
        places = {each % len(before.axes) for each in dropped or () if isinstance(each, int)}
        if not dropped or len(places) != len(dropped) or any(size_of(before.axes[place]) != 1 for place in places):
            return None
        return replace(before, axes=tuple(axis for at, axis in enumerate(before.axes) if at not in places))

    def cut(self, node: onnx.NodeProto, before: View) -> View | None:
        """Follow a Slice that selects one element of an axis."""
        ends = [self.numbers(name) or [] for name in node.input[1:4]]
        numbers = [each[0] for each in ends if len(each) == 1]
        start, end, axis = (each if isinstance(each, int) else -1 for each in (*numbers, -1, -1, -1)[:3])
        steps = self.numbers(node.input[4]) if has_input(node, 4) else [1]
        plain = len(numbers) == 3 and steps == [1] and start >= 0 and end == start + 1
        return _selected(before, axis, start, keep=True) if plain else None

    def gather(self, node: onnx.NodeProto, before: View) -> View | None:
        """Follow a Gather of one element of an axis."""
        index = self._graph.constant(node.input[1])
        if index is None or index.ndim:
            return None
        return _selected(before, attributes(node).get("axis", 0), int(index), keep=False)

    def scaled(self, node: onnx.NodeProto, before: View) -> View | None:
        """Follow a product with a number, or a quotient."""
        factor = self.factor(node)
        return None if factor is None else replace(before, scale=before.scale * factor)

    def factor(self, node: onnx.NodeProto) -> float | None:
        """Return the number by which a Mul or Div scales a value."""
        turned = node.op_type == "Mul" and self._graph.constant(node.input[0]) is not None
        array = self._graph.constant(node.input[0 if turned else 1])
        if array is None or array.size != 1 or array.ndim > 1 or array.dtype != np.float32:
            return None
        number = float(array.reshape(()))
        return number if node.op_type == "Mul" else 1 / number if number else None

    def numbers(self, name: str) -> list[Size] | None:
        """Return the elements of a list of sizes, as far as they are known: a name for others."""
        array = self._graph.constant(name)
        if array is not None:
            return [int(each) for each in array.reshape(-1)] if array.dtype.kind in "iu" else None
        node = self._graph.producers.get(name)
        if node is None or not is_standard(node, "Shape", "Slice", "Gather", "Concat", "Unsqueeze", "Squeeze"):
            return None
        if node.op_type == "Shape":
            return self._shape(node)
        if node.op_type == "Concat":
            parts = [self.numbers(each) for each in node.input]
            return None if any(part is None for part in parts) else [each for part in parts for each in part or ()]
        found = self.numbers(node.input[0])
        if found is None or node.op_type in ("Unsqueeze", "Squeeze"):
            return found
        return self._part(node, found)

    def _part(self, node: onnx.NodeProto, found: list[Size]) -> list[Size] | None:
        if node.op_type == "Gather":
            places = self.numbers(node.input[1])
            inside = places is not None and all(isinstance(p, int) and -len(found) <= p < len(found) for p in places)
            return [found[p] for p in places or () if isinstance(p, int)] if inside else None
        ends = [self.numbers(each) or [""] for each in node.input[1:]]
        (start, end), *rest = (ends[0][0], ends[1][0]), *ends[2:]
        plain = all(list(each) in ([0], [1]) for each in rest) and (len(rest) < 2 or list(rest[1]) == [1])
        return found[start:end] if isinstance(start, int) and isinstance(end, int) and plain else None

    def _shape(self, node: onnx.NodeProto) -> list[Size] | None:
        given, name = attributes(node), str(node.input[0])
        known = self._known.get(name)
        sizes = [size_of(axis) for axis in known.axes] if known is not None else self._graph.shape(name)
        return None if sizes is None else list(sizes)[given.get("start", 0) : given.get("end")]


def _selected(before: View, axis: int, index: int, *, keep: bool) -> View | None:
    """Select one element of an axis that is one factor."""
    axis %= len(before.axes)
    if len(before.axes[axis]) != 1:
        return None
    (factor,) = before.axes[axis]
    if not isinstance(factor.size, int) or not -factor.size <= index < factor.size:
        return None
    first = {**before.first, factor.axis: before.first.get(factor.axis, 0) + index % factor.size * factor.step}
    left: Axes = ((replace(factor, size=1),),) if keep else ()
    return View((*before.axes[:axis], *left, *before.axes[axis + 1 :]), first, before.scale)


def _regrouped(factors: Sequence[Factor], sizes: Sequence[Size]) -> Axes | None:
    """Group factors to axes of these sizes; one size may be unknown, and takes what the others leave."""
    unknown = [at for at, size in enumerate(sizes) if size in (-1, "")]
    if len(unknown) > 1:
        return None
    cut = unknown[0] if unknown else len(sizes)
    front = _taken(list(factors), sizes[:cut])
    if front is None:
        return None
    if not unknown:
        return front[0] if all(factor.size == 1 for factor in front[1]) else None
    turned = _taken(front[1][::-1], sizes[:cut:-1], turned=True)
    return None if turned is None else (*front[0], tuple(turned[1][::-1]), *turned[0][::-1])


def _taken(
    factors: list[Factor], sizes: Sequence[Size], *, turned: bool = False
) -> tuple[tuple[Axis, ...], list[Factor]] | None:
    """Take axes of these sizes from the front of the factors, splitting them; from the back where they are turned."""
    axes = []
    for size in sizes:
        axis: list[Factor] = []
        while size_of(tuple(axis)) != size:
            if not factors:
                return None
            factor = factors.pop(0)
            wanted = _rest(size, axis)
            if isinstance(factor.size, int) and wanted and factor.size > wanted and factor.size % wanted == 0:
                part, left = _split(factor, wanted, turned=turned)
                factors.insert(0, left)
                factor = part
            axis.append(factor)
        axes.append(tuple(axis[::-1] if turned else axis))
    return tuple(axes), factors


def _rest(size: Size, axis: Sequence[Factor]) -> int:
    """Return what is missing to an axis of this size; 0 if it is not known."""
    taken = size_of(tuple(axis))
    known = isinstance(size, int) and isinstance(taken, int) and taken > 0 and size % taken == 0
    return int(size) // int(taken) if known else 0


def _split(factor: Factor, size: int, *, turned: bool) -> tuple[Factor, Factor]:
    """Split a factor into one of this size and the rest: the outer one, or the inner one where turned."""
    other = int(factor.size) // size
    inner, outer = (size, other) if turned else (other, size)
    low, high = replace(factor, size=inner), replace(factor, size=outer, step=factor.step * inner)
    return (low, high) if turned else (high, low)


_STEPS = {
    "Reshape": Tracing.reshape,
    "Transpose": Tracing.transpose,
    "Squeeze": Tracing.squeeze,
    "Slice": Tracing.cut,
    "Gather": Tracing.gather,
    "Mul": Tracing.scaled,
    "Div": Tracing.scaled,
}
