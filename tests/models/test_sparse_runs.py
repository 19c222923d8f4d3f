"""Runs of sparse layers as one node of autograd: what the layers compute one by one, seen by whatever watches them."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models import sparse_runs
from rigl_compress.models.sparse_modules import SparseLinear, make_sparse
from rigl_compress.models.sparse_runs import Run, SparseSequential, join_runs, split_runs
from rigl_compress.models.training_kernels import training_library

pytestmark = pytest.mark.skipif(training_library() is None, reason="installed without a C++ compiler")


def sparse_layer(inputs: int, outputs: int, density: float, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    make_sparse(layer, torch.randperm(inputs * outputs)[: round(density * inputs * outputs)].sort().values)
    return layer


def network() -> nn.Sequential:
    """Two sparse layers and a dense readout, all in one run."""
    torch.manual_seed(0)
    layers = (sparse_layer(20, 30, 0.2), nn.ReLU(), sparse_layer(30, 16, 0.3), nn.ReLU(), nn.Linear(16, 4))
    model = nn.Sequential(*layers)
    join_runs(model)
    return model


def runs(model: nn.Module) -> list[Run]:
    assert isinstance(model, SparseSequential)
    return [part for part in model._parts() if isinstance(part, Run)]


def gradients(model: nn.Module, x: Tensor, dy: Tensor) -> list[Tensor]:
    """The output and the gradients of the input and the parameters."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    y = model(x)
    y.backward(dy)
    return [y.detach(), *(each.grad.clone() for each in (x, *model.parameters()) if each.grad is not None)]


def in_float64(model: nn.Sequential) -> nn.Module:
    """The plain network of the same weights."""
    layers = []
    for name, module in model.named_children():
        if isinstance(module, nn.Linear):
            plain = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
            prefix = f"{name}."
            plain.load_state_dict(
                {k.removeprefix(prefix): v for k, v in model.state_dict().items() if k.startswith(prefix)}
            )
            layers.append(plain)
        else:
            layers.append(copy.deepcopy(module))
    return nn.Sequential(*layers).double()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 90), min_size=3, max_size=5),
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.5, None]), st.booleans(), st.booleans()), min_size=4, max_size=4),
    st.sampled_from([1, 2, 15, 16, 17, 64, 100, 130]),
    st.integers(0, 2**31 - 1),
)
def test_runs_are_dense_autograd_in_float64(
    sizes: list[int], kinds: list[tuple[float | None, bool, bool]], batch: int, seed: int
) -> None:
    torch.manual_seed(seed)
    modules: list[nn.Module] = []
    for inputs, outputs, (density, bias, relu) in zip(sizes, sizes[1:], kinds, strict=False):
        plain = density is None
        modules.append(nn.Linear(inputs, outputs, bias) if plain else sparse_layer(inputs, outputs, density, bias))
        modules += [nn.ReLU()] if relu else []
    model = nn.Sequential(*modules)
    join_runs(model)
    x, dy = torch.randn(batch, sizes[0]), torch.randn(batch, modules[-1 - kinds[len(sizes) - 2][2]].out_features)
    expected = gradients(in_float64(model), x.double(), dy.double())
    found = gradients(model, x, dy)
    for own, layer in zip(found[2:], expected[2:], strict=True):
        module = next((m for m in model if isinstance(m, SparseLinear) and m.weight.shape == own.shape), None)
        if module is not None and own.shape != layer.shape:
            layer = module.wiring.gather(layer.float())
        assert_near(own, layer)
    for own, wide in zip(found[:2], expected[:2], strict=True):
        assert_near(own, wide)


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Compare with what float64 has; one output near zero may be on the other side of ReLU's kink."""
    torch.testing.assert_close(found, expected.float(), atol=2e-4, rtol=1e-3)


def test_one_run_is_one_node() -> None:
    model = network()
    assert len(runs(model)) == 1
    assert len(model._parts()) == 1
    y = model(torch.randn(5, 20))
    assert type(y.grad_fn.next_functions[0][0]).__name__ == "_ProductBackward"


@pytest.mark.parametrize(
    ("shape", "change"),
    [
        ((7, 20), lambda x: x),
        ((20, 7), Tensor.t),
        ((3, 40), lambda x: x[:, ::2]),
        ((2, 5, 20), lambda x: x),
        ((20,), lambda x: x),
    ],
    ids=["rows", "transposed", "strided", "tokens", "one sample"],
)
def test_any_layout(shape: tuple[int, ...], change: Callable[[Tensor], Tensor]) -> None:
    model, x = network(), change(torch.randn(shape))
    plain = in_float64(model)
    y = model(x)
    assert y.shape == (*x.shape[:-1], 4)
    torch.testing.assert_close(y, plain(x.double()).float(), atol=1e-5, rtol=1e-5)


def test_nan_is_not_hidden_by_relu() -> None:
    x = torch.randn(4, 20)
    x[1] = torch.nan
    y = network()(x)
    assert y[1].isnan().all()
    assert y[0].isfinite().all()


@pytest.mark.parametrize(
    "register", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
)
@pytest.mark.parametrize("index", range(5))
def test_a_module_with_hooks_is_called(register: str, index: int) -> None:
    model, seen = network(), []
    expected = gradients(model, torch.ones(3, 20), torch.ones(3, 4))
    handle = getattr(model[index], register)(lambda *_: seen.append(index))
    found = gradients(model, torch.ones(3, 20), torch.ones(3, 4))
    assert seen == [index]
    torch.testing.assert_close(found, expected)
    handle.remove()
    gradients(model, torch.ones(3, 20), torch.ones(3, 4))
    assert seen == [index]
    assert len(runs(model)) == 1


def test_a_replaced_forward_is_called() -> None:
    model = network()
    assert runs(model)
    model[1].forward = torch.zeros_like  # as libraries patch single modules
    bias = model[2].bias.relu()
    torch.testing.assert_close(model(torch.randn(1, 20)), model[4](bias)[None])


def test_other_modules_and_shapes_end_a_run() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        sparse_layer(8, 8, 0.5), nn.Dropout(0.5), sparse_layer(8, 8, 0.5), nn.GELU(), nn.Linear(8, 200)
    )
    model.append(nn.Linear(200, 200))
    join_runs(model)
    assert not runs(model)
    model.append(sparse_layer(200, 3, 0.5)).append(nn.ReLU())
    assert [len(run.layers) for run in runs(model)] == [1]
    assert sparse_runs.SMALL < 200 * 200


def test_without_gradients_modules_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network(), torch.randn(3, 20)
    expected = model(x)
    monkeypatch.setattr(Run, "__call__", lambda *_: pytest.fail("a run was computed"))
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16  # of the dense readout


def test_wrong_inputs_are_the_errors_of_the_layers() -> None:
    with pytest.raises(InputError, match="has 21 features"):
        network()(torch.randn(3, 21))
    with pytest.raises(InputError, match='kernels="masked"'):
        network()(torch.randn(3, 20, dtype=torch.float64))
    with pytest.raises(InputError, match='kernels="masked"'):
        network().double()(torch.randn(3, 20))


def test_frozen_parts_get_no_gradient() -> None:
    model, x = network(), torch.randn(6, 20)
    expected = gradients(model, x, torch.ones(6, 4))
    model[0].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    model.zero_grad()
    y = model(x)
    y.backward(torch.ones_like(y))
    assert model[0].weight.grad is None
    assert model[4].bias.grad is None
    assert torch.equal(model[2].weight.grad, expected[4])


def test_an_output_may_be_written_to_and_the_topology_may_not_change() -> None:
    model, x = network(), torch.randn(6, 20)
    y = model(x)
    y += 1
    y.sum().backward()
    y = model(x)
    model[0].wiring.rewire(model[0].wiring.positions)
    with pytest.raises(InputError, match="the topology changed"):
        y.sum().backward()
    y = model(x)
    with torch.no_grad():
        model[2].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_of_gradients_are_refused() -> None:
    x = torch.randn(6, 20, requires_grad=True)
    (gradient,) = torch.autograd.grad(network()(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_copies_and_slices() -> None:
    model, x = network(), torch.randn(6, 20)
    expected = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), expected)
        assert twin.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(model[2:](model[:2](x)), expected)
    split_runs(model.modules())
    assert type(model) is nn.Sequential
    torch.testing.assert_close(model(x), expected)


def test_an_input_of_another_type_is_not_read_as_float32() -> None:
    with pytest.raises(InputError, match=r"input of torch\.float64"):
        sparse_layer(20, 30, 0.2)(torch.randn(3, 20, dtype=torch.float64))
