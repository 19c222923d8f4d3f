"""Networks with zeros, one of each kind that is exported."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from rigl_compress.exporters.torch_to_onnx import export_graph
from rigl_compress.models.sparse_parameters import sparse_parameters


class Recurrent(nn.Module):
    """Words → a guess after each of them."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.gru = nn.GRU(16, 24, batch_first=True, **options)
        self.out = nn.Linear(self.gru.hidden_size * (1 + self.gru.bidirectional), 20)

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.gru(self.embedding(words))
        guess: Tensor = self.out(states)
        return guess


class Two(nn.Module):
    """Two inputs, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(x) + y, self.right(y)


def perceptron() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)), torch.rand(1, 64)


def convolutions() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, groups=32), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 48, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10)),
    )
    for module in model:
        if isinstance(module, nn.BatchNorm2d):  # not the identity, and with negative factors
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return model, torch.rand(1, 3, 9, 9)


def sequences() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 32)), torch.rand(1, 5, 32)


def recurrent() -> tuple[nn.Module, Tensor]:
    return Recurrent(), torch.randint(0, 20, (1, 7))


NETS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "perceptron": perceptron,
    "convolutions": convolutions,
    "sequences": sequences,
    "recurrent": recurrent,
}


def sparse_net(name: str, sparsity: float = 0.9) -> tuple[nn.Module, Tensor]:
    """One of the networks, with so many zeros in each weight, and an example."""
    torch.manual_seed(0)
    model, example = NETS[name]()
    for parameter in sparse_parameters(model).values():
        parameter.data.masked_fill_(torch.rand_like(parameter) < sparsity, 0)
    return model.eval(), example


@lru_cache
def plain_model(name: str) -> onnx.ModelProto:
    """The plain ONNX model of one of the networks. No test may change it."""
    return export_graph(*sparse_net(name))


def onnx_layer(weight: NDArray[Any], opset: int = 17, **extra: Any) -> onnx.ModelProto:
    """A model from elsewhere: a fully connected layer."""
    outputs, inputs = weight.shape
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", outputs])],
        **{"initializer": [numpy_helper.from_array(weight, "w")], **extra},
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def sparse_weight(sparsity: float = 0.9, shape: tuple[int, ...] = (40, 60), seed: int = 0) -> NDArray[Any]:
    """Random numbers among zeros."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal(shape).astype(np.float32)
    weight[rng.random(shape) < sparsity] = 0
    return weight
