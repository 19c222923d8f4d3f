"""What attention multiplies: its projections, and activations with each other."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.exporters.onnx_costs import graph_costs
from rigl_compress.exporters.torch_to_onnx import export_graph
from rigl_compress.models.flop_counter import count_flops
from rigl_compress.models.layer_flops import FlopReport

N, L, S, E, HEADS = 2, 5, 7, 8, 2


def rows(report: FlopReport) -> dict[str, tuple[str, int, float]]:
    return {row.name: (row.parameter, row.weights, row.dense_flops) for row in report.layers}


class Cross(nn.Module):
    """Attention from one sequence to another."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(E, HEADS, **options)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Read y."""
        found: Tensor = self.attention(x, y, y)[0]
        return found


@pytest.mark.parametrize("batch_first", [True, False])
def test_queries_and_keys_of_different_length(batch_first: bool) -> None:
    inputs = [torch.rand(N, L, E), torch.rand(N, S, E)]
    inputs = inputs if batch_first else [each.transpose(0, 1) for each in inputs]
    report = count_flops(Cross(batch_first=batch_first), tuple(inputs))
    assert rows(report) == {
        "attention.q": ("attention.in_proj_weight.q", E * E, 2 * N * L * E * E),
        "attention.k": ("attention.in_proj_weight.k", E * E, 2 * N * S * E * E),
        "attention.v": ("attention.in_proj_weight.v", E * E, 2 * N * S * E * E),
        "attention": ("", 0, 2 * (2 * N * L * S * E)),
        "attention.out_proj": ("attention.out_proj.weight", E * E, 2 * N * L * E * E),
    }
    assert (report.weights, report.uncounted) == (4 * E * E, ())


def test_separate_projections_and_added_keys() -> None:
    model = nn.MultiheadAttention(E, HEADS, kdim=3, vdim=6, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    inputs = torch.rand(N, L, E), torch.rand(N, S, 3), torch.rand(N, S, 6)
    found = rows(count_flops(model, inputs))
    assert found["k"] == ("k_proj_weight", E * 3, 2 * N * S * E * 3)
    assert found["v"] == ("v_proj_weight", E * 6, 2 * N * S * E * 6)
    assert found["MultiheadAttention"][2] == 2 * (2 * N * L * (S + 2) * E)


def test_one_sequence_without_a_batch() -> None:
    report = count_flops(nn.MultiheadAttention(E, HEADS, batch_first=True), (torch.rand(L, E),) * 3)
    assert rows(report)["MultiheadAttention"][2] == 2 * (2 * L * L * E)


def test_masks_and_densities_of_packed_weights() -> None:
    mask = torch.zeros(3 * E, E, dtype=torch.bool)
    mask[E : E + 3] = True  # three rows of the keys
    report = count_flops(Cross(), (torch.rand(L, 1, E),) * 2, {"attention.in_proj_weight": mask})
    assert [row.nonzeros for row in report.layers] == [0, 3 * E, 0, 0, E * E]
    report = count_flops(Cross(), (torch.rand(L, 1, E),) * 2, {"attention.in_proj_weight": 0.25})
    assert [row.nonzeros for row in report.layers] == [E * E / 4] * 3 + [0, E * E]


def test_products_are_neither_sparse_nor_forgotten() -> None:
    report = count_flops(Cross(), (torch.rand(L, 1, E),) * 2, {"attention.in_proj_weight": 0.0})
    products = 2 * (2 * L * L * E)
    assert report.sparse == products + 2 * L * E * E
    assert report.layers[3].extra == products
    assert count_flops(Cross(), (torch.rand(L, 1, E),) * 2, convention="micronet").layers[3].dense_flops == products
    assert FlopReport.from_json(report.to_json()) == report


class Functions(nn.Module):
    """Products as functions."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of, self.fc = of, nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to projected values."""
        found: Tensor = self.of(self.fc(x))
        return found


FUNCTIONS = {
    "sdpa": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]).squeeze(1),
    "@": lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x,
    "matmul": lambda x: torch.matmul(x, x.transpose(1, 2)).softmax(-1).matmul(x),
    "bmm": lambda x: torch.bmm(torch.bmm(x, x.transpose(1, 2)).softmax(-1), x),
    "baddbmm": lambda x: torch.baddbmm(x, torch.baddbmm(torch.zeros(()), x, x.transpose(1, 2)), x),
    "einsum": lambda x: torch.einsum("nij,njk->nik", torch.einsum("nie,nje->nij", x, x).softmax(-1), x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_of_functions(name: str) -> None:
    model = Functions(FUNCTIONS[name])
    report = count_flops(model, torch.rand(N, L, E))
    assert report.dense == 2 * N * L * E * E + 2 * (2 * N * L * L * E)
    assert {row.name for row in report.layers} == {"fc", "Functions"}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    costs = graph_costs(export_graph(model, torch.rand(N, L, E)), {"input": np.zeros((N, L, E), np.float32)})
    assert costs.dense_flops == report.dense


BLOCKS = {
    "packed": nn.MultiheadAttention(E, HEADS, batch_first=True),
    "encoder layer": nn.TransformerEncoderLayer(E, HEADS, 16, batch_first=True),
    "norm first": nn.TransformerEncoderLayer(E, HEADS, 16, norm_first=True, activation="gelu"),
    "encoder": nn.TransformerEncoder(nn.TransformerEncoderLayer(E, HEADS, 16, batch_first=True), 2),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_torch_and_the_file_count_the_same(name: str) -> None:
    model = BLOCKS[name].eval()
    one = torch.rand(N, L, E)
    wrapped = Alone(model)
    report = count_flops(wrapped, one)
    costs = graph_costs(export_graph(wrapped, one), {"input": one.numpy()})
    assert costs.dense_flops == report.dense
    assert not report.uncounted


class Alone(nn.Module):
    """A block that reads one sequence."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """Attend to itself."""
        found: Tensor = self.block(x, x, x)[0] if isinstance(self.block, nn.MultiheadAttention) else self.block(x)
        return found


def test_other_layers_than_before_are_counted() -> None:
    up = count_flops(nn.ConvTranspose2d(3, 4, 2, stride=2), torch.rand(1, 3, 5, 5))
    assert (up.dense, up.layers[0].positions) == (2 * 25 * 3 * 4 * 4, 25)
    cell = count_flops(nn.GRUCell(4, 3), torch.rand(2, 4))
    assert cell.dense == 2 * 2 * (9 * 4 + 9 * 3)


class Written(nn.MultiheadAttention):
    """Attention that calls its layers itself, as one that lost heads has to."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **_: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return the same as before."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        projected = [F.linear(*each) for each in zip((query, key, value), weights, biases, strict=True)]
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in projected)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)), None


def test_a_subclass_is_counted_once() -> None:
    model = Written(E, HEADS, batch_first=True)
    model._qkv_same_embed_dim = False  # keeps torch from its fast path
    plain = nn.MultiheadAttention(E, HEADS, batch_first=True)
    one, other = (count_flops(each, (torch.rand(N, L, E),) * 3) for each in (model, plain))
    assert [row.dense_flops for row in one.layers] == [row.dense_flops for row in other.layers]
    assert [row.parameter for row in one.layers] == [row.parameter for row in other.layers]
    assert one.uncounted == ()
