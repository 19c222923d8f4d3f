"""What the operators of ONNX multiply: a rule for each operator that has weights, from the shapes of one execution."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx
from onnx import helper

from rigl_compress.exporters.executed import Executed, Shape


@dataclass(frozen=True)
class Operand:
    """A factor of a product; `zero` names the value that stands for zero in a quantized one."""

    name: str
    zero: str = ""


@dataclass(frozen=True)
class Product:
    """So many multiplications and additions, in which each element of an operand is used equally often."""

    multiply_adds: int
    operands: tuple[Operand, ...]

    @property
    def names(self) -> set[str]:
        """The values that say what is zero."""
        return {name for each in self.operands for name in (each.name, each.zero) if name}


Rule = Callable[[Executed], Sequence[Product]]


def products(each: Executed) -> Sequence[Product]:
    """Give what an operator multiplies; nothing for one without a rule, or whose shapes nobody saw."""
    rule = RULES.get(each.node.op_type)
    try:
        return rule(each) if rule else ()
    except (KeyError, IndexError, ValueError):
        return ()


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), default)


def _shape(each: Executed, place: int) -> Shape:
    return each.shapes[each.node.input[place]]


def _output(each: Executed) -> int:
    return prod(each.shapes[each.node.output[0]])


def _operand(each: Executed, place: int, zero: int | None = None) -> Operand:
    names = each.node.input
    return Operand(names[place], names[zero] if zero is not None and zero < len(names) else "")


def _convolution(data: int = 0, weight: int = 1, zero: int | None = None) -> Rule:
    """Each output element is a sum over one kernel [out, in / groups, …]."""

    def rule(each: Executed) -> list[Product]:
        sums = _output(each) * prod(_shape(each, weight)[1:])
        return [Product(sums, (_operand(each, weight, zero), _operand(each, data)))]

    return rule


def _transposed_convolution(each: Executed) -> list[Product]:
    """Each input element goes through one kernel [in, out / groups, …]."""
    return [Product(prod(_shape(each, 0)) * prod(_shape(each, 1)[1:]), (_operand(each, 1), _operand(each, 0)))]


def _matrix_product(left: int = 0, right: int = 1, zeros: tuple[int, int] | None = None) -> Rule:
    """Each output element is a sum over the inner length."""

    def rule(each: Executed) -> list[Product]:
        shape = _shape(each, left)
        turned = len(shape) > 1 and _attribute(each.node, "transA", 0)
        sums = _output(each) * shape[-2 if turned else -1]
        first, second = zeros or (None, None)
        return [Product(sums, (_operand(each, right, second), _operand(each, left, first)))]

    return rule


def _recurrence(each: Executed) -> list[Product]:
    """Weights of the input and of the hidden state, [directions, gates · hidden, …], are used at every step."""
    steps = prod(_shape(each, 0)[:2])  # time and batch, in either order
    return [Product(steps * prod(_shape(each, place)), (_operand(each, place),)) for place in (1, 2)]


def _einsum(each: Executed) -> list[Product]:
    """Two operands: one multiplication for each combination of all indices. Others have no single answer."""
    terms = _terms(_attribute(each.node, "equation", b"").decode())
    if len(terms) != 2 or len(each.node.input) != 2:
        return []
    sizes: dict[str, int] = {}
    for place, term in enumerate(terms):
        shape = _shape(each, place)
        before, dots, after = term.partition("...")
        spread = len(shape) - len(before) - len(after) if dots else 0
        labels = [*before, *(f"...{spread - index}" for index in range(spread)), *after]
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return [Product(prod(sizes.values()), (_operand(each, 1), _operand(each, 0)))]


def _terms(equation: str) -> list[str]:
    """Give the operands of an equation.

    >>> _terms("...ij, jk -> ...ik")
    ['...ij', 'jk']
    """
    return equation.replace(" ", "").partition("->")[0].split(",")


RULES: dict[str, Rule] = {
    "Conv": _convolution(),
    "FusedConv": _convolution(),
    "ConvInteger": _convolution(zero=3),
    "QLinearConv": _convolution(data=0, weight=3, zero=5),
    "ConvTranspose": _transposed_convolution,
    "Gemm": _matrix_product(),
    "FusedGemm": _matrix_product(),
    "MatMul": _matrix_product(),
    "FusedMatMul": _matrix_product(),
    "MatMulInteger": _matrix_product(zeros=(2, 3)),
    "QLinearMatMul": _matrix_product(left=0, right=3, zeros=(2, 5)),
    "GRU": _recurrence,
    "LSTM": _recurrence,
    "RNN": _recurrence,
    "Einsum": _einsum,
}
