"""Sparse training that begins at the largest weights: exact counts, by layer and over all layers."""

from typing import Any

import pytest
import torch
from small_training import Loop, perceptron, sgd
from torch import Tensor, nn

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.models.sparse_parameters import layer_shapes, sparse_layers
from rigl_compress.models.topology import Topology, connections
from rigl_compress.sparsity.methods import METHODS
from rigl_compress.sparsity.sparsifier import Sparsifier
from rigl_compress.sparsity.sparsity_config import SparsityConfig

BEGIN_SPARSE = [name for name, method in METHODS.items() if method.start is not None]


def smallest_kept_and_largest_dropped(weight: Tensor, mask: Tensor) -> tuple[float, float]:
    size = weight.detach().abs()
    return float(size[mask].min()), float(size[~mask].max())


@pytest.mark.parametrize("distribution", ["uniform", "er", "erk"])
def test_the_largest_of_each_layer(distribution: str) -> None:
    model = perceptron()
    config = SparsityConfig(sparsity=0.7, distribution=distribution)
    found = rc.magnitude_topology(model, config)
    densities = config.densities(model)
    for layer in found.layers:
        assert layer.active == connections(densities[layer.name], layer.total)
        if layer.active < layer.total:
            kept, dropped = smallest_kept_and_largest_dropped(model.get_parameter(layer.name), found[layer.name])
            assert kept > dropped


def test_the_largest_of_all_layers_at_the_same_total() -> None:
    model = perceptron()
    one, every = (
        make(model, sparsity=0.7, distribution="er") for make in (rc.magnitude_topology, rc.global_magnitude_topology)
    )
    assert every.active == one.active
    assert every != one
    weights = torch.cat([model.get_parameter(name).reshape(-1) for name in every])
    kept, dropped = smallest_kept_and_largest_dropped(weights, torch.cat([mask.reshape(-1) for mask in every.values()]))
    assert kept > dropped


def test_dense_layers_and_layers_of_their_own_are_not_compared() -> None:
    model = perceptron()
    settings: dict[str, Any] = {"sparsity": 0.5, "dense": ("first",), "layers": {"4": 0.25}, "distribution": "er"}
    one, every = rc.magnitude_topology(model, **settings), rc.global_magnitude_topology(model, **settings)
    assert every["0.weight"].all()
    assert int(every["4.weight"].sum()) == 48
    assert every == one, "one layer is left to share"


def test_gates_are_layers() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.gru, self.head = nn.GRU(6, 5), nn.Linear(5, 4)

    model = Reader()
    config = SparsityConfig(sparsity=0.5, distribution="er")
    found, densities = rc.magnitude_topology(model, config), config.densities(model)
    shapes = layer_shapes(model)
    for name, part in sparse_layers(model).items():
        mask, weight = part.of(found[part.parameter]), part.of(model.get_parameter(part.parameter))
        assert int(mask.sum()) == connections(densities[name], torch.Size(shapes[name]).numel())
        kept, dropped = smallest_kept_and_largest_dropped(weight, mask)
        assert kept > dropped
    assert rc.global_magnitude_topology(model, config).active == found.active


@pytest.mark.parametrize("word", ["magnitude", "magnitude-global"])
@pytest.mark.parametrize("method", BEGIN_SPARSE)
def test_every_method_that_begins_sparse_begins_there(method: str, word: str) -> None:
    before = perceptron()
    loop = Loop(perceptron(), method=method, topology=word, distribution="er", interval=4)
    begun = loop.sparse.topology
    make = {"magnitude": rc.magnitude_topology, "magnitude-global": rc.global_magnitude_topology}[word]
    assert begun == make(before, sparsity=0.7, distribution="er")
    loop.train(12)
    assert loop.sparse.topology.active == begun.active
    if METHODS[method].straight_through:
        return
    assert loop.exact


def test_a_network_that_has_learnt_keeps_more_than_at_random() -> None:
    loop = Loop(method="dense", sparsity=0.0).train(60)
    state = loop.model.state_dict()

    def loss(topology: str | None) -> float:
        model = perceptron()
        model.load_state_dict(state)
        return float(Loop(model, method="static", topology=topology, sparsity=0.5).loss().detach())

    assert loss("magnitude") < loss(None)


# Refused


@pytest.mark.parametrize("method", ["pruning", "snip", "dense", "l1-filter"])
def test_methods_that_begin_with_every_connection(method: str) -> None:
    model = perceptron()
    with pytest.raises(InputError, match=f"method '{method}' begins with every connection, so that the topology"):
        Sparsifier(model, sgd(model), method=method, topology="magnitude", total_steps=9)


def test_a_new_head_of_small_weights_is_not_lost_by_comparison() -> None:
    model = perceptron()
    model[4].weight.data.mul_(1e-3)  # type: ignore[union-attr, operator]
    settings: dict[str, Any] = {"sparsity": 0.7, "distribution": "er"}
    with pytest.raises(InputError, match=r"no weight of 4\.weight is among the largest .* keep such layers dense"):
        rc.global_magnitude_topology(model, **settings)
    assert rc.global_magnitude_topology(model, **settings, dense=("last",))["4.weight"].all()


def test_a_word_that_is_none() -> None:
    model = perceptron()
    with pytest.raises(InputError, match=r"unknown topology 'magnitud': did you mean 'magnitude'.*or pass a Topology"):
        Sparsifier(model, sgd(model), topology="magnitud", total_steps=9)


def test_a_topology_for_other_layers() -> None:
    model = perceptron()
    with pytest.raises(InputError, match=r"the topology has 'fc\.weight', the model does not: it belongs to another"):
        Sparsifier(model, sgd(model), topology=Topology.full({"fc.weight": (2, 2)}), total_steps=9)


def test_a_model_without_anything_to_make_sparse() -> None:
    model = nn.Sequential(nn.Embedding(4, 4), nn.LayerNorm(4))
    with pytest.raises(InputError, match=r"no Linear, convolution, recurrent or .*, only Embedding, LayerNorm: use"):
        Sparsifier(model, sgd(model), total_steps=9)


def test_a_model_of_which_everything_is_kept_dense() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    for topology in (None, "magnitude"):
        with pytest.raises(InputError, match=r"sparsity is 0.9, but every layer .* is kept dense \(0\.weight\)"):
            Sparsifier(model, sgd(model), distribution="uniform", topology=topology, total_steps=9)
    assert Sparsifier(model, sgd(model), sparsity=0.0, distribution="uniform", total_steps=9).sparsity == 0


# Frozen layers


def frozen_perceptron() -> nn.Sequential:
    model = perceptron()
    model[2].weight.requires_grad_(False)  # type: ignore[union-attr]
    return model


def trained_only(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.05, momentum=0.9)


@pytest.mark.parametrize("topology", [None, "magnitude"])
def test_a_frozen_layer_outside_of_the_optimizer_is_not_masked_by_surprise(topology: str | None) -> None:
    model = frozen_perceptron()
    with pytest.raises(InputError, match=r"the optimizer does not hold 2\.weight: .*or leave these dense"):
        Sparsifier(model, trained_only(model), sparsity=0.7, topology=topology, total_steps=9)


@pytest.mark.filterwarnings("ignore:2.weight had no gradient")
def test_a_frozen_layer_keeps_the_mask_of_a_given_topology() -> None:
    given = Loop(method="static").sparse.topology
    loop = Loop(frozen_perceptron(), trained_only, topology=given, interval=3).train(12)
    assert loop.sparse.topology["2.weight"].equal(given["2.weight"])
    assert loop.sparse.topology["0.weight"].ne(given["0.weight"]).any()
    assert loop.exact


def test_nothing_is_said_about_a_frozen_layer_that_is_dense() -> None:
    loop = Loop(frozen_perceptron(), trained_only, dense=("2",), interval=3).train(12)  # warnings are errors
    assert loop.sparse.topology["2.weight"].all()
