"""torch → plain ONNX: names, shapes that stay free, folding, and the network left as it was."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from sparse_nets import NETS, Recurrent, Two, sparse_net
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.onnx_export import export_onnx
from rigl_compress.exporters.torch_to_onnx import bake, export_graph
from rigl_compress.runtime.session import InferenceSession


def run(model: onnx.ModelProto, *inputs: Tensor) -> list[Any]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    outputs: list[Any] = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
    return outputs


def tensors(model: onnx.ModelProto) -> dict[str, Any]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("name", NETS)
def test_the_outputs_are_the_networks_for_any_batch(name: str) -> None:
    model, example = sparse_net(name)
    plain = export_graph(model, example)
    onnx.checker.check_model(plain, full_check=True)
    for batch in (1, 2, 5):
        x = torch.cat([example] * batch)
        assert np.allclose(run(plain, x)[0], model(x).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("fold", [True, False])
def test_one_input_and_one_output_have_plain_names(fold: bool) -> None:
    plain = export_graph(*sparse_net("perceptron"), fold_batch_norm=fold)
    assert [value.name for value in (*plain.graph.input, *plain.graph.output)] == ["input", "output"]


def test_several_inputs_and_outputs_are_numbered() -> None:
    torch.manual_seed(0)
    model, x = Two(), torch.rand(2, 32)
    plain = export_graph(model, (x, x))
    assert [value.name for value in plain.graph.input] == ["input0", "input1"]
    assert [value.name for value in plain.graph.output] == ["output0", "output1"]
    y = torch.rand(3, 32)
    for found, expected in zip(run(plain, y, y), model(y, y), strict=True):
        assert np.allclose(found, expected.detach().numpy(), atol=1e-6)


def test_weights_keep_their_names() -> None:
    model, example = sparse_net("perceptron")
    found = tensors(export_graph(model, example))
    for name, weight in model.state_dict().items():
        assert np.array_equal(found[name], weight.numpy())


def test_a_transposed_weight_says_so() -> None:
    model, example = sparse_net("sequences")
    found = tensors(export_graph(model, example))
    assert np.array_equal(found["0.weight.T"], model.state_dict()["0.weight"].numpy().T)
    assert not any(name.startswith("val_") for name in found)


def test_batch_norm_is_folded_and_names_stay() -> None:
    model, example = sparse_net("convolutions")
    plain = export_graph(model, example)
    assert "BatchNormalization" not in operators(plain)
    weights = model.state_dict()
    for name in ("0.weight", "3.weight"):
        assert np.array_equal(tensors(plain)[name] != 0, weights[name].numpy() != 0)
        assert not np.allclose(tensors(plain)[name], weights[name].numpy())


def test_batch_norm_can_be_kept() -> None:
    model, example = sparse_net("convolutions")
    plain = export_graph(model, example, fold_batch_norm=False)
    assert operators(plain).count("BatchNormalization") == 2
    assert np.array_equal(tensors(plain)["0.weight"], model.state_dict()["0.weight"].numpy())


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}])
def test_a_sequence_can_have_any_length(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model = Recurrent(**options).eval()
    plain = export_graph(model, torch.randint(0, 20, (1, 7)))
    axes = [axis.dim_param or axis.dim_value for axis in plain.graph.output[0].type.tensor_type.shape.dim]
    assert axes == ["batch", "sequence", 20]
    for shape in ((1, 1), (1, 7), (4, 12)):
        words = torch.randint(0, 20, shape)
        assert np.allclose(run(plain, words)[0], model(words).detach().numpy(), atol=1e-5)


def test_recurrent_weights_keep_their_names() -> None:
    model, example = sparse_net("recurrent")
    found = tensors(export_graph(model, example))
    for name in ("gru.weight_ih_l0", "gru.weight_hh_l0"):
        assert sorted(found[name].reshape(-1)) == sorted(model.state_dict()[name].reshape(-1).tolist())
    assert {"embedding.weight", "gru.bias_l0", "out.weight.T"} <= found.keys()


def test_masks_of_torch_are_baked() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    prune.l1_unstructured(model[0], "weight", amount=0.75)  # type: ignore[no-untyped-call]
    x = torch.rand(3, 16)
    expected = model(x).detach().numpy()
    plain = export_graph(model, x)
    assert operators(plain) == ["Gemm", "Relu", "Gemm"]
    assert np.count_nonzero(tensors(plain)["0.weight"]) == 64
    assert np.allclose(run(plain, x)[0], expected, atol=1e-6)
    assert "weight_mask" in dict(model[0].named_buffers())


def test_parametrizations_are_baked() -> None:
    class Halves(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight / 2

    layer = nn.Linear(4, 4)
    before = layer.weight.detach().clone()
    parametrize.register_parametrization(layer, "weight", Halves())
    assert torch.equal(dict(bake(layer).named_parameters())["weight"], before / 2)
    assert parametrize.is_parametrized(layer)


def test_the_network_is_left_as_it_was() -> None:
    model, example = sparse_net("convolutions")
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export_graph(model, example)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


NORMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "weight norm by hooks": weight_norm,
    "spectral norm by hooks": spectral_norm,
}


def normed(norm: str) -> nn.Module:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # those by hooks are old, and still about
        return nn.Sequential(NORMS[norm](nn.Linear(6, 6)), nn.ReLU(), NORMS[norm](nn.Linear(6, 6)))


def _own(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("__")]


def everything_about(model: nn.Module) -> list[Any]:
    """Classes, what they know, hooks, modes and bits."""
    modules = [
        (type(each), _own(type(each)), [*vars(each)], each.training, [*each._forward_pre_hooks.items()])
        for each in model.modules()
    ]
    return [modules, [(name, tensor.numpy().tobytes()) for name, tensor in model.state_dict().items()]]


@pytest.mark.parametrize("example", [torch.rand(2, 6), torch.rand(2, 7)], ids=["fits", "does not fit"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_normed_network_is_left_as_it_was(norm: str, example: Tensor) -> None:
    model, twin = normed(norm), normed(norm)
    before = everything_about(model)
    try:
        plain = export_graph(model, example)
    except InputError:
        assert example.shape[1] == 7
    else:
        assert operators(plain) == ["Gemm", "Relu", "Gemm"]
        assert tensors(plain).keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
        assert np.allclose(run(plain, example)[0], twin.eval()(example).detach().numpy(), atol=1e-5)
    assert everything_about(model) == before
    x = torch.rand(4, 6)
    for _ in range(2):  # spectral norms change with each run in training
        assert torch.equal(model.train()(x), twin.train()(x))
    model(x).sum().backward()


@pytest.mark.parametrize("pool", [nn.MaxPool2d, nn.AvgPool2d])
@pytest.mark.parametrize("encoding", ["sparse", "compact"])
def test_pooling_with_padding_that_is_rounded_up(pool: Any, encoding: str, tmp_path: Path) -> None:
    """onnx's inference of shapes rounds otherwise than torch, ONNX Runtime does not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), pool(2, 2, padding=1, ceil_mode=True), nn.Conv2d(8, 4, 3), nn.ReLU())
    example = torch.rand(1, 1, 9, 9)
    exported = export_onnx(model, example, tmp_path / "pooled.onnx", encoding=encoding)
    found = InferenceSession(exported.path).run(None, {"input": example.numpy()})[0]
    assert np.allclose(found, model(example).detach().numpy(), atol=1e-5)


def test_nothing_of_the_exporter_is_left(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        plain = export_graph(*sparse_net("perceptron"))
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert not plain.metadata_props
    assert not plain.graph.value_info
    assert not any(node.doc_string or node.metadata_props for node in plain.graph.node)
    assert plain.ByteSize() < 4 * (64 * 48 + 48 + 480 + 10) + 600


def test_what_torch_cannot_export_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum().item() > 0 else -x

    with pytest.raises(InputError, match="torch cannot export the network: Could not guard on data-dep") as caught:
        export_graph(Odd(), torch.rand(1, 4))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_the_operator_that_torch_cannot_export_is_named() -> None:
    with pytest.raises(InputError, match=r"No ONNX function found for .*adaptive_max_pool2d") as caught:
        export_graph(nn.AdaptiveMaxPool2d(3), torch.rand(1, 3, 8, 8))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
