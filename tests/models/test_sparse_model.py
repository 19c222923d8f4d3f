"""A sparse model is a value whose dead weights are exactly zero."""

from pathlib import Path

import pytest
import torch
from tiny import assert_same_model, untouched

from rigl_compress.core.errors import InputError
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.prune_plan import LayerChange, PrunePlan
from rigl_compress.models.sparse_model import SparseModel, load_weights
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.models.topology import Topology

SPEC = ModelSpec("mlp", {"hidden": [5, 4], "inputs": 6, "classes": 3})


def random_topology(model: torch.nn.Module, density: float = 0.4) -> Topology:
    return Topology({name: torch.rand(weight.shape) < density for name, weight in sparse_parameters(model).items()})


@pytest.fixture
def sparse() -> SparseModel:
    model = SPEC.build()
    topology = random_topology(model)
    topology.apply_to(model)
    return SparseModel.capture(SPEC, model, topology, 12, {"final_error": 1.5})


def test_a_dead_weight_that_is_not_zero_is_refused(sparse: SparseModel) -> None:
    dead = ~sparse.topology["fc2.weight"]
    weights = {name: tensor.clone() for name, tensor in sparse.weights.items()}
    place = tuple(dead.nonzero()[0].tolist())
    weights["fc2.weight"][place] = 1e-30
    with pytest.raises(InputError, match=r"'fc2\.weight' has non-zero weights at inactive connections: apply"):
        SparseModel(SPEC, weights, sparse.topology)
    weights["fc2.weight"][place] = float("nan")
    with pytest.raises(InputError, match="at inactive connections"):
        SparseModel(SPEC, weights, sparse.topology)
    weights["fc2.weight"][place] = -0.0
    SparseModel(SPEC, weights, sparse.topology)


def test_a_living_weight_may_be_zero(sparse: SparseModel) -> None:
    SparseModel(SPEC, {name: torch.zeros_like(tensor) for name, tensor in sparse.weights.items()}, sparse.topology)


def test_a_topology_of_another_model_is_refused(sparse: SparseModel) -> None:
    for topology in (Topology.full({"fc1.weight": (5, 7)}), Topology.full({"conv.weight": (5, 6)})):
        with pytest.raises(InputError, match="does not fit the weights: they belong to different models"):
            SparseModel(SPEC, sparse.weights, topology)


def test_save_and_load(sparse: SparseModel, tmp_path: Path) -> None:
    sparse.save(tmp_path / "model.safetensors")
    assert_same_model(SparseModel.load(tmp_path / "model.safetensors"), sparse)


def test_the_order_of_layers_survives(tmp_path: Path) -> None:
    """A safetensors file sorts its tensors; a network of ten layers has fc10 before fc2 there."""
    model = ModelSpec("mlp", {"hidden": [2] * 10}).build()
    captured = SparseModel.capture(ModelSpec("mlp", {"hidden": [2] * 10}), model, random_topology(model, 2), 0, {})
    captured.save(tmp_path / "x")
    assert list(SparseModel.load(tmp_path / "x").topology) == [f"fc{number}.weight" for number in range(1, 12)]


def test_the_rebuilt_network_answers_alike(sparse: SparseModel, tmp_path: Path) -> None:
    sparse.save(tmp_path / "x")
    x = torch.rand(7, 6)
    rebuilt = SparseModel.load(tmp_path / "x").build()
    assert not rebuilt.training
    assert torch.equal(rebuilt(x), sparse.build()(x))


def test_capture_is_a_copy(sparse: SparseModel) -> None:
    model = sparse.build()
    captured = SparseModel.capture(SPEC, model, sparse.topology, 0, {})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert_same_model(SparseModel(SPEC, captured.weights, captured.topology, 12, sparse.metrics), sparse)


def test_buffers_are_kept(tmp_path: Path) -> None:
    removed = tuple(pixel for pixel in range(784) if pixel not in (1, 3, 4))
    plan = PrunePlan((LayerChange("fc1", 784, 2, removed_inputs=removed, selects=True),))
    spec = ModelSpec("mlp", {"hidden": [2]}).pruned(plan)
    SparseModel.capture(spec, spec.build(), Topology({}), 0, {}).save(tmp_path / "x")
    again = SparseModel.load(tmp_path / "x")
    assert again.weights["fc1.index"].tolist() == [1, 3, 4]
    assert again.build()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_another_models_weights_are_refused_and_nothing_is_loaded(sparse: SparseModel) -> None:
    model = ModelSpec("mlp", {"hidden": [5, 9], "inputs": 6, "classes": 3}).build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match="another model's weights") as caught:
        load_weights(model, sparse.weights, "mlp")
    assert len(str(caught.value).splitlines()) == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(("spare", "found"), [("fc3.bias", "fc3.bias"), (None, "extra")])
def test_missing_and_surplus_weights_are_named(sparse: SparseModel, spare: str | None, found: str) -> None:
    weights = {name: tensor for name, tensor in sparse.weights.items() if name != spare}
    if spare is None:
        weights["extra"] = torch.zeros(1)
    with pytest.raises(InputError, match=f"'{found}' has shape"):
        load_weights(SPEC.build(), weights, "mlp")


def test_a_damaged_file_is_an_error_of_one_sentence(sparse: SparseModel, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    sparse.save(path)
    path.write_bytes(path.read_bytes()[:-5])
    with untouched(tmp_path), pytest.raises(InputError, match="missing or damaged: create it again"):
        SparseModel.load(path)
