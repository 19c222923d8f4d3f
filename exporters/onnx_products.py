"""Products of ONNX operators: where each operator has its operands, and which FLOP rule applies to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

from rigl_compress.exporters.execution_trace import Executed, Shape
from rigl_compress.models.flop_rules import FLOP_RULES, FlopRule, Product, einsum


@dataclass(frozen=True)
class Operand:
    """A factor of a product; `zero_point` names the value that stands for zero in a quantized one."""

    name: str
    zero_point: str = ""


@dataclass(frozen=True)
class OperatorProduct:
    """A product in an operator, in which each element of an operand is used equally often."""

    product: Product
    operands: tuple[Operand, ...]

    @property
    def names(self) -> set[str]:
        """The values that determine what is zero."""
        return {name for each in self.operands for name in (each.name, each.zero_point) if name}


@dataclass(frozen=True)
class OperatorRule:
    """The kind of product (a key of `FLOP_RULES`, or einsum), and the numbers of the inputs that take part in it."""

    kind: str
    data: int = 0
    weights: tuple[int, ...] = (1,)
    data_zero_point: int | None = None
    weight_zero_point: int | None = None


OPERATORS = {
    "Conv": OperatorRule("conv"),
    "FusedConv": OperatorRule("conv"),
    "ConvInteger": OperatorRule("conv", weight_zero_point=3),
    "QLinearConv": OperatorRule("conv", weights=(3,), weight_zero_point=5),
    "ConvTranspose": OperatorRule("transposed conv"),
    "Gemm": OperatorRule("matmul"),
    "FusedGemm": OperatorRule("matmul"),
    "MatMul": OperatorRule("matmul"),
    "FusedMatMul": OperatorRule("matmul"),
    "MatMulInteger": OperatorRule("matmul", data_zero_point=2, weight_zero_point=3),
    "QLinearMatMul": OperatorRule("matmul", weights=(3,), data_zero_point=2, weight_zero_point=5),
    "GRU": OperatorRule("recurrent", weights=(1, 2)),  # of the input, and of the hidden state
    "LSTM": OperatorRule("recurrent", weights=(1, 2)),
    "RNN": OperatorRule("recurrent", weights=(1, 2)),
    "Einsum": OperatorRule("einsum"),
}


def operator_products(each: Executed) -> Sequence[OperatorProduct]:
    """Return the products of an operator: none for one without a rule, or with shapes that the run did not show."""
    rule = OPERATORS.get(each.node.op_type)
    try:
        return [_product(each, rule, weight) for weight in rule.weights] if rule else ()
    except (KeyError, IndexError, ValueError):
        return ()


def _product(each: Executed, rule: OperatorRule, weight: int) -> OperatorProduct:
    # A recurrent operator may leave out its outputs, and its rule does not need them.
    output = () if rule.kind == "recurrent" else each.shapes[each.node.output[0]]
    product = _flop_rule(each.node, rule.kind)(_data_shape(each, rule.data), _shape(each, weight), output)
    return OperatorProduct(product, _operands(each.node, rule, weight))


def _operands(node: onnx.NodeProto, rule: OperatorRule, weight: int) -> tuple[Operand, ...]:
    """Return the operands, first the one that is usually a weight."""
    right = _operand(node, weight, rule.weight_zero_point)
    if rule.kind == "recurrent":  # what it is multiplied with is a sequence or a hidden state, never a constant
        return (right,)
    return right, _operand(node, rule.data, rule.data_zero_point)


def _operand(node: onnx.NodeProto, index: int, zero_point: int | None) -> Operand:
    names = node.input
    return Operand(names[index], names[zero_point] if zero_point is not None and zero_point < len(names) else "")


def _flop_rule(node: onnx.NodeProto, kind: str) -> FlopRule:
    if kind != "einsum":
        return FLOP_RULES[kind]
    if len(node.input) != 2:
        raise ValueError("the cost of an Einstein sum of one or three operands depends on the order of its products")
    return einsum(_attribute(node, "equation", b"").decode())


def _data_shape(each: Executed, index: int) -> Shape:
    shape = _shape(each, index)
    transposed = len(shape) > 1 and _attribute(each.node, "transA", 0)
    return (*shape[:-2], shape[-1], shape[-2]) if transposed else shape


def _shape(each: Executed, index: int) -> Shape:
    return each.shapes[each.node.input[index]]


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), default)
