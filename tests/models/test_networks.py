"""Conformance of every registered network, and of the way they are specified."""

import json

import pytest
import torch

from rigl_compress.models.errors import InputError
from rigl_compress.models.layers import sparse_parameters
from rigl_compress.models.mlp import perceptron
from rigl_compress.models.networks import MODELS, ModelSpec, all_models, register_model

every_model = pytest.mark.parametrize("name", list(all_models()))


def batch(name: str) -> torch.Tensor:
    return torch.rand(2, *all_models()[name].input_shape)


@every_model
@pytest.mark.parametrize("classes", [None, 7])
def test_forward_and_backward(name: str, classes: int | None) -> None:
    network = all_models()[name]
    model = ModelSpec(name, {} if classes is None else {"classes": classes}).build()
    answers = model(batch(name))
    assert answers.shape == (2, classes or network.classes)
    answers.logsumexp(dim=1).sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().sum() > 0, parameter_name


@every_model
def test_it_builds_without_memory(name: str) -> None:
    with torch.device("meta"):
        model = ModelSpec(name).build()
        answers = model(torch.empty(2, *all_models()[name].input_shape))
    assert answers.shape == (2, all_models()[name].classes)
    assert all(parameter.is_meta for parameter in model.parameters())


@every_model
def test_the_seed_decides(name: str) -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(sparse_parameters(ModelSpec(name).build()).values())

    assert all(torch.equal(one, other) for one, other in zip(weights(1), weights(1), strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(weights(1), weights(2), strict=True))


@every_model
def test_half_the_width_has_fewer_parameters_and_the_same_interface(name: str) -> None:
    def size(**options: float) -> int:
        return sum(parameter.numel() for parameter in ModelSpec(name, options).build().parameters())

    assert size(width=0.5) < size()
    assert ModelSpec(name, {"width": 1e-9}).build()(batch(name)).shape == (2, all_models()[name].classes)


@every_model
def test_an_unknown_option_suggests_the_nearest(name: str) -> None:
    with pytest.raises(InputError, match=f"model '{name}' has no option 'clases': did you mean 'classes'"):
        ModelSpec(name, {"clases": 3}).build()


@every_model
@pytest.mark.parametrize("value", ["wide", [1], None])
def test_an_option_of_the_wrong_type_is_an_error_of_one_sentence(name: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        ModelSpec(name, {"width": value}).build()
    assert len(str(caught.value).splitlines()) == 1
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


@every_model
def test_it_is_described_in_a_line(name: str) -> None:
    assert 10 < len(all_models()[name].summary) < 120


def test_an_unknown_model_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown model 'lenet-100': did you mean 'lenet-300-100'"):
        ModelSpec("lenet-100").build()


def test_a_decorated_function_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "_items", dict(MODELS._items))

    @register_model("mine", input_shape=(3,), classes=2)
    def mine(classes: int = 2) -> torch.nn.Module:
        """Mine, all mine.

        With more to say.
        """
        return torch.nn.Linear(3, classes)

    assert all_models()["mine"].summary == "Mine, all mine."
    assert ModelSpec("mine", {"classes": 5}).build()(torch.zeros(1, 3)).shape == (1, 5)
    with pytest.raises(InputError, match="model 'mine' is registered twice"):
        register_model("mine", input_shape=(3,), classes=2)(mine)


def test_a_specification_is_plain_data() -> None:
    spec = ModelSpec("mlp", {"hidden": [3]}).with_options(classes=4)
    assert ModelSpec(**json.loads(json.dumps({"name": spec.name, "options": dict(spec.options)}))) == spec
    assert spec.options == {"hidden": [3], "classes": 4}


# Perceptrons


@pytest.mark.parametrize("sizes", [[], [3], [3, 0, 2], [-1, 2]])
def test_a_perceptron_needs_two_sizes_of_one_or_more(sizes: list[int]) -> None:
    with pytest.raises(InputError, match="at least an input and an output size"):
        perceptron(sizes)


def test_lenet_has_the_sizes_of_the_paper() -> None:
    shapes = [tuple(weight.shape) for weight in sparse_parameters(ModelSpec("lenet-300-100").build()).values()]
    assert shapes == [(300, 784), (100, 300), (10, 100)]
