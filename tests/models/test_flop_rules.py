"""The table of FLOP rules: one rule for a torch layer and for the ONNX operator that computes the same."""

import pytest
import torch
from torch import Tensor, nn

from rigl_compress.exporters.onnx_products import OPERATORS
from rigl_compress.models.flop_counter import LAYER_KINDS
from rigl_compress.models.flop_rules import FLOP_RULES, einsum


def test_every_rule_serves_a_layer_or_an_operator() -> None:
    operators = {rule.kind for rule in OPERATORS.values()} - {"einsum"}
    assert operators | set(LAYER_KINDS.values()) == FLOP_RULES.keys()


@pytest.mark.parametrize(
    ("layer", "data"),
    [
        (nn.Linear(5, 3), torch.zeros(2, 7, 5)),
        (nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, groups=2), torch.zeros(2, 4, 9, 8)),
        (nn.Conv1d(3, 4, 3, dilation=2), torch.zeros(1, 3, 11)),
    ],
)
def test_a_layer_has_a_multiply_add_for_every_term_of_its_outputs(layer: nn.Linear | nn.Conv2d, data: Tensor) -> None:
    kind = LAYER_KINDS[type(layer)]
    output = layer(data)
    product = FLOP_RULES[kind](data.shape, layer.weight.shape, output.shape)
    assert product.multiply_adds == output.numel() * layer.weight[0].numel()
    assert product.positions(layer.weight.shape[0]) * layer.weight.numel() == product.multiply_adds


def test_a_transposed_convolution_multiplies_as_often_as_the_convolution_that_it_transposes() -> None:
    data, weight, output = (1, 4, 5, 5), (4, 3, 2, 2), (1, 6, 10, 10)
    forward = FLOP_RULES["conv"](output, (4, 3, 2, 2), data)
    assert FLOP_RULES["transposed conv"](data, weight, output) == forward


@pytest.mark.parametrize(
    ("equation", "left", "right", "output"),
    [
        ("bij,jk->bik", (2, 7, 5), (5, 3), (2, 7, 3)),
        ("...ij,...jk", (2, 7, 5), (1, 5, 3), (2, 7, 3)),
        ("bhqd,bhkd->bhqk", (2, 4, 7, 5), (2, 4, 9, 5), (2, 4, 7, 9)),
    ],
)
def test_an_einstein_sum_costs_as_much_as_the_matrix_product_that_it_is(
    equation: str, left: tuple[int, ...], right: tuple[int, ...], output: tuple[int, ...]
) -> None:
    product = FLOP_RULES["matmul"](left, right, output)
    assert einsum(equation)(left, right, output).multiply_adds == product.multiply_adds


def test_an_einstein_sum_needs_two_operands() -> None:
    with pytest.raises(ValueError, match="zip"):
        einsum("ij->ji")((3, 4), (4, 5), (4, 3))
