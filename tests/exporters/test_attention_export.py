"""Attention in ONNX files: its zeros survive transposition, encoding and verification."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from rigl_compress.exporters.onnx_costs import graph_costs
from rigl_compress.exporters.onnx_export import Layout, export_onnx, plain_export, reencode
from rigl_compress.models.flop_counter import count_flops
from rigl_compress.models.sparse_parameters import sparse_parameters

WIDTH, TOKENS = 32, 6


class Reader(nn.Module):
    """Reads one sequence with another, both from the input."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        """[N, tokens, width] → the same."""
        keys, values = x[:, :4, : self.attention.kdim], x[:, :4, : self.attention.vdim]
        found: Tensor = self.attention(x, keys, values, need_weights=False)[0]
        return found


class Memory(nn.Module):
    """Keys and values of one sequence: their projections are computed together."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """[N, tokens, width] → the same."""
        memory = x[:, :4]
        found: Tensor = self.attention(x, memory, memory, need_weights=False)[0]
        return found


BLOCKS = {
    "packed": lambda: Reader(),
    "one source": lambda: Memory(),
    "separate": lambda: Reader(kdim=24, vdim=16),
    "post-norm": lambda: nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True, activation="gelu"),
    "pre-norm": lambda: nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True, norm_first=True),
}


def sparse(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = BLOCKS[name]().eval()
    with torch.no_grad():
        for weight in sparse_parameters(model).values():
            weight.mul_(torch.rand_like(weight) < 0.1)
    return model


@pytest.mark.parametrize("name", BLOCKS)
def test_zeros_outputs_and_costs_are_those_of_the_network(name: str, tmp_path: Path) -> None:
    model, x = sparse(name), torch.rand(3, TOKENS, WIDTH)
    before = torch.backends.mha.get_fastpath_enabled()
    exported = export_onnx(model, x[:1], tmp_path / "block.onnx", encoding="compact")
    assert torch.backends.mha.get_fastpath_enabled() == before
    for parameter, weight in sparse_parameters(model).items():
        rows = [row for row in exported.tensors if row.name.startswith(parameter)]
        assert sum(row.total for row in rows) == weight.numel()
        assert sum(row.nonzeros for row in rows) == int((weight != 0).sum())
        assert "dense" not in {row.encoding for row in rows}
    session = ort.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        np.testing.assert_allclose(session.run(None, {"input": x.numpy()})[0], model(x).numpy(), rtol=1e-4, atol=1e-5)
    costs = graph_costs(onnx.load(exported.path), {"input": x[:1].numpy()})
    report = count_flops(model, x[:1], {name: weight != 0 for name, weight in sparse_parameters(model).items()})
    assert costs.dense_flops == report.dense
    assert costs.sparse_flops == pytest.approx(report.sparse)
    assert report.sparse < 0.5 * report.dense


def test_parts_of_packed_weights_are_constants() -> None:
    """Else no runtime finds a layer with constant weights."""
    graph = plain_export(sparse("packed"), torch.rand(1, TOKENS, WIDTH)).model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    weights = [name for node in graph.node if node.op_type == "MatMul" for name in node.input if name in constants]
    assert weights == [f"attention.in_proj_weight.{part}.T" for part in "qkv"]
    assert {f"attention.in_proj_bias.{part}" for part in "qkv"} < set(constants)
    assert not {"attention.in_proj_weight", "attention.in_proj_bias"} & set(constants)
    assert "Split" not in {node.op_type for node in graph.node}


def test_packed_weights_are_restored(tmp_path: Path) -> None:
    model, x = sparse("post-norm"), torch.rand(1, TOKENS, WIDTH)
    export_onnx(model, x, tmp_path / "compact.onnx", encoding="compact")
    reencode(tmp_path / "compact.onnx", tmp_path / "plain.onnx", Layout("dense"))
    stored = {tensor.name: tensor for tensor in onnx.load(tmp_path / "plain.onnx").graph.initializer}
    weight = dict(model.named_parameters())["self_attn.in_proj_weight"].detach().numpy()
    assert np.array_equal(onnx.numpy_helper.to_array(stored["self_attn.in_proj_weight.T"]).T, weight)
