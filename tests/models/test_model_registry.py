"""Conformance of every registered network, and of the way they are specified."""

import json

import pytest
import torch
from small_models import every_model, small

from rigl_compress.core.errors import InputError
from rigl_compress.models.model_registry import MODELS, ModelSpec, register_model
from rigl_compress.models.networks.mlp import perceptron
from rigl_compress.models.sparse_parameters import sparse_parameters


def check_forward_and_backward(spec: ModelSpec) -> None:
    model = spec.build()
    answers = model(spec.example(2))
    per_token = spec.network.vocabulary is not None and "vocabulary" not in spec.network.options  # it scores tokens
    steps = spec.shape if per_token else ()
    assert answers.shape == (2, *steps, spec.options.get("classes", spec.network.classes))
    answers.logsumexp(dim=-1).square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().sum() > 0, parameter_name


@every_model
@pytest.mark.parametrize("options", [{}, {"classes": 7}])
def test_forward_and_backward(name: str, options: dict[str, int]) -> None:
    check_forward_and_backward(small(name, **options))


@pytest.mark.slow
@every_model
def test_forward_and_backward_in_full_size(name: str) -> None:
    check_forward_and_backward(ModelSpec(name))


@every_model
def test_it_builds_without_memory(name: str) -> None:
    with torch.device("meta"):
        model = ModelSpec(name).build()
        answers = model(ModelSpec(name).example(2).to("meta"))
    assert (answers.shape[0], answers.shape[-1]) == (2, MODELS[name].classes)
    assert all(parameter.is_meta for parameter in model.parameters())


@every_model
def test_the_seed_decides(name: str) -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(sparse_parameters(small(name).build()).values())

    assert all(torch.equal(one, other) for one, other in zip(weights(1), weights(1), strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(weights(1), weights(2), strict=True))


@every_model
def test_half_the_width_has_fewer_parameters_and_the_same_interface(name: str) -> None:
    def size(**options: float) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in ModelSpec(name, options).build().parameters())

    assert size(width=0.5) < 0.6 * size()
    thread = small(name, width=1e-9)
    assert thread.build()(thread.example(2)).shape[-1] == MODELS[name].classes


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
    assert 10 < len(MODELS[name].summary) < 120


def test_an_unknown_model_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown model 'lenet-100': did you mean 'lenet-300-100'"):
        ModelSpec("lenet-100").build()


def test_a_decorated_function_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "_items", dict(MODELS))

    @register_model("mine", input_shape=(3,), classes=2)
    def mine(classes: int = 2) -> torch.nn.Module:
        """Mine, all mine.

        With more to say.
        """
        return torch.nn.Linear(3, classes)

    assert MODELS["mine"].summary == "Mine, all mine."
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


# Examples and shapes


def test_an_example_is_what_the_network_takes_and_always_the_same() -> None:
    image, tokens = ModelSpec("resnet-20"), ModelSpec("char-gru", {"classes": 7}).taking((5,))
    assert image.example(2).shape == (2, 3, 32, 32)
    assert torch.equal(image.example(2), image.example(2))
    assert not torch.equal(image.example(2), image.example(2, seed=1))
    assert tokens.example(3).shape == (3, 5)
    assert tokens.example(300).max() == 6


def test_the_shape_of_the_samples_is_saved_where_it_is_not_the_registered_one() -> None:
    spec = ModelSpec("resnet-18").taking((3, 64, 64))
    assert ModelSpec(**json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.example().shape == (1, 3, 64, 64)
    assert ModelSpec("resnet-18").taking((3, 224, 224)) == ModelSpec("resnet-18")


# Published sizes


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("resnet-50", {}, 25_557_032),
        ("resnet-18", {}, 11_689_512),
        ("mobilenet-v1", {}, 4_231_976),
        ("mobilenet-v2", {}, 3_504_872),
        ("lenet-5", {}, 61_706),
        ("wide-resnet", {"depth": 28, "factor": 10}, 36_479_194),
        ("vit-ti", {}, 5_717_416),
        ("vit-s", {}, 22_050_664),
        # embedding 128 · 256, GRU 3 · 512 · (128 + 512) + 2 · 3 · 512, readouts 512 · 256 + 256 · 128, biases
        ("char-gru", {}, 32_768 + 983_040 + 3_072 + 163_840 + 256 + 128 + 256),
    ],
)
def test_it_has_as_many_parameters_as_published(name: str, options: dict[str, int], parameters: int) -> None:
    with torch.device("meta"):
        assert sum(each.numel() for each in ModelSpec(name, options).build().parameters()) == parameters


def test_wrn_22_2_is_the_wide_resnet_of_that_depth_and_width() -> None:
    with torch.device("meta"):
        one, other = ModelSpec("wrn-22-2").build(), ModelSpec("wide-resnet", {"depth": 22, "factor": 2}).build()
    assert {key: value.shape for key, value in one.state_dict().items()} == {
        key: value.shape for key, value in other.state_dict().items()
    }
    assert sum(name.endswith(("conv1.weight", "conv2.weight")) for name in sparse_parameters(one)) == 1 + 18


@pytest.mark.parametrize("depth", [4, 21, 23, -2])
def test_a_wide_resnet_has_certain_depths(depth: int) -> None:
    with pytest.raises(InputError, match=f"has depth {depth}, expected 6 n \\+ 4: 10, 16, 22, 28, …, at most 1204"):
        ModelSpec("wide-resnet", {"depth": depth}).build()


def test_resnet_50_has_its_stride_in_the_3x3() -> None:
    with torch.device("meta"):
        model = ModelSpec("resnet-50").build()
    strided = [name for name, layer in model.named_modules() if getattr(layer, "stride", None) == (2, 2)]
    assert strided == ["conv1", *(f"stages.{i}.0.{part}" for i in (1, 2, 3) for part in ("conv2", "shortcut.0"))]


def test_the_character_gru_shares_its_embedding() -> None:
    model = ModelSpec("char-gru").build()
    assert model.scores.weight is model.embedding.weight
    assert "scores.weight" not in sparse_parameters(model)
