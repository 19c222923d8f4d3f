"""Channels that pruning left in an uneven number are filled up with zeros, and nothing else changes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper
from onnx_graphs import model, node
from torch import Tensor, nn

import rigl_compress as rc
from rigl_compress.exporters.channel_padding import pad_channels
from rigl_compress.exporters.restore import restore
from rigl_compress.models.layer_resizing import cut_weights

RNG = np.random.default_rng(0)


class Residual(nn.Module):
    """A stream that blocks add to, with a gate, depthwise filters and normalisation; what is left ends in a product."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.norm.running_var = torch.rand(32) + 0.5  # not one number all over, which an exporter stores once
        self.a, self.b = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.deep = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.gate = nn.Conv2d(32, 32, 1)
        self.out = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.b(torch.relu(self.deep(torch.sigmoid(self.a(torch.relu(self.norm(x)))))))
        x = x + y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        return self.out(x.mean((2, 3)))  # type: ignore[no-any-return]


def pruned(whole: nn.Module, lost: int) -> Any:
    """A network whose convolutions lost some of their filters, the same of each."""
    filters = {name: weight for name, weight in whole.named_parameters() if weight.dim() == 4}
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in filters.items()}
    for mask in masks.values():
        mask[:lost] = False
    for layer in whole.modules():
        if isinstance(layer, nn.Conv2d) and layer.bias is not None:
            layer.bias.data[:lost] = 0
        if isinstance(layer, nn.BatchNorm2d):
            layer.bias.data[:lost] = 0
    topology = rc.Topology.from_masks(masks)
    topology.apply_to(whole)
    return rc.prune_dead_neurons(whole.eval(), topology, torch.rand(1, 3, 8, 8)).model


def weights(path: Path) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tuple(tensor.dims) for tensor in restore(onnx.load(path)).graph.initializer}


def test_every_layer_of_a_stream(tmp_path: Path) -> None:
    small = pruned(Residual(), 2)
    assert small.a.weight.shape[1] == 30
    exported = rc.export_onnx(small, torch.rand(1, 3, 8, 8), tmp_path / "net.onnx")
    found = weights(exported.path)
    assert found["stem.weight"] == (32, 3, 3, 3)
    assert found["a.weight"] == (32, 32, 3, 3)
    assert found["deep.weight"] == (32, 1, 3, 3)
    assert found["norm.running_var"] == (32,)
    assert found["out.weight"] == (4, 32)
    assert exported.difference < 1e-5
    told = exported.metadata["pruned_shapes"]
    assert told["a.weight"] == [30, 30, 3, 3]
    assert (told["out.weight"], told["stem.bias"]) == ([4, 30], [30])
    assert small.a.weight.shape[1] == 30, "the network itself must stay as it is"


def test_a_network_that_was_not_pruned_stays_as_it_is(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Conv2d(3, 30, 3), nn.ReLU(), nn.Conv2d(30, 5, 3))
    exported = rc.export_onnx(layers, torch.rand(1, 3, 8, 8), tmp_path / "net.onnx")
    assert weights(exported.path)["2.weight"] == (5, 30, 3, 3)
    assert not cut_weights(layers)


def drawn(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


CONV, LAST = node("Conv", "x w b", "c", pads=[1] * 4), node("Conv", "r v", "y")
PLAIN = {"w": drawn(62, 3, 3, 3), "b": drawn(62), "v": drawn(5, 62, 1, 1)}
FILLED: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "chain": ([CONV, node("Relu", "c", "r"), LAST], PLAIN),
    "pooled": ([CONV, node("MaxPool", "c", "r", kernel_shape=[2, 2]), LAST], PLAIN),
    "product of pixels": (
        [CONV, node("Relu", "c", "r"), LAST, node("Reshape", "r s", "f"), node("Gemm", "f m", "z", transB=1)],
        {**PLAIN, "s": np.array([-1, 62 * 36]), "m": drawn(4, 62 * 36)},
    ),
    "matrix": (
        [CONV, node("Relu", "c", "r"), LAST, node("Flatten", "r", "f"), node("MatMul", "f m", "z")],
        {**PLAIN, "m": drawn(62 * 36, 4)},
    ),
}
LEFT: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "seen by callers": ([CONV, node("Relu", "c", "z"), node("Conv", "z v", "y")], PLAIN),
    "joined": (
        [CONV, node("Relu", "c", "r"), node("Concat", "c r", "j", axis=1), LAST],
        {"w": drawn(31, 3, 3, 3), "b": drawn(31), "v": drawn(5, 62, 1, 1)},
    ),
    "shifted by a constant": ([CONV, node("Add", "c k", "r"), LAST], {**PLAIN, "k": drawn(62, 1, 1)}),
    "shared weights": ([CONV, node("Relu", "c", "r"), LAST, node("Conv", "r v", "z")], PLAIN),
    "normed over channels": (
        [CONV, node("ReduceMean", "c", "m", axes=[1]), node("Sub", "c m", "r"), LAST],
        PLAIN,
    ),
    "few": ([CONV, node("Relu", "c", "r"), LAST], {"w": drawn(9, 3, 3, 3), "b": drawn(9), "v": drawn(5, 9, 1, 1)}),
}


def built(nodes: list[onnx.NodeProto], constants: dict[str, Any]) -> onnx.ModelProto:
    made = model(nodes, {"x": ("n", 3, 6, 6)}, constants)
    if any("z" in each.output for each in nodes):
        made.graph.output.extend([onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)])
    del made.graph.value_info[:]
    return made


def run(made: onnx.ModelProto) -> list[Any]:
    session = ort.InferenceSession(made.SerializeToString())
    return list(session.run(None, {"x": np.random.default_rng(1).random((2, 3, 6, 6), dtype=np.float32)}))


@pytest.mark.parametrize("name", FILLED)
def test_filled(name: str) -> None:
    made = built(*FILLED[name])
    before = run(made)
    shapes = pad_channels(made, {"w"})
    assert shapes["w"] == (62, 3, 3, 3)
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    assert (tensors["w"].shape, tensors["b"].shape, tensors["v"].shape) == ((64, 3, 3, 3), (64,), (5, 64, 1, 1))
    assert not tensors["w"][62:].any()
    assert all(np.allclose(one, other, atol=1e-4) for one, other in zip(before, run(made), strict=True))
    assert not pad_channels(made, {"w"}), "once is enough"


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    made = built(*LEFT[name])
    content = made.SerializeToString()
    assert pad_channels(made, {"w"}) == {}
    assert made.SerializeToString() == content


def test_only_what_was_cut() -> None:
    assert pad_channels(built(*FILLED["chain"]), {"another"}) == {}
