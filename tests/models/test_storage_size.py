"""The paper's sizes, to the printed byte."""

import json
from itertools import pairwise
from math import floor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.storage_size import bitmask_bytes, layer_bytes, network_bytes

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rigl_paper_costs.json").read_text())


def mlp(sizes: list[int]) -> dict[str, Tensor]:
    layers = (nn.Linear(a, b, device="meta") for a, b in pairwise(sizes))
    return dict(nn.Sequential(*layers).named_parameters())


@pytest.mark.parametrize(("name", "printed"), [("sbp", 195100), ("l0", 107092), ("vib", 38696)])
def test_a_dense_network_needs_no_mask(name: str, printed: int) -> None:
    assert network_bytes(mlp(GOLDEN["mnist"][name]["arch"]), {}) == GOLDEN["mnist"][name]["bytes"] == printed


@pytest.mark.parametrize(("name", "printed"), [("rigl", 31914), ("rigl_plus", 16113)])
def test_a_sparse_network_stores_a_bit_per_place_of_its_sparse_layers(name: str, printed: int) -> None:
    facts = GOLDEN["mnist"][name]
    parameters = mlp(facts["final_arch"])
    alive = {"0.weight": 100, "1.weight": facts["nnz"] - parameters["2.weight"].numel() - 100, "2.weight": 10**6}
    topology = {
        weight: (torch.arange(parameters[weight].numel()) < count).reshape(parameters[weight].shape)
        for weight, count in alive.items()  # the last layer has a mask, but a full one: no bits
    }
    assert network_bytes(parameters, topology) == facts["bytes"]
    assert floor(facts["bytes"]) == printed


WEIGHTS, BIASES, CONV1 = 25_502_912, 27_560, 9_408  # ResNet-50, all layers with biases, as the authors count


@pytest.mark.parametrize(("density", "megabytes"), [(1.0, 102.122), (0.2, 23.729), (0.1, 13.532)])
def test_the_sizes_of_resnet50(density: float, megabytes: float) -> None:
    first, rest = layer_bytes(CONV1, CONV1, BIASES), layer_bytes(WEIGHTS - CONV1, density * (WEIGHTS - CONV1))
    assert round((first + rest) / 1e6, 3) == megabytes


def test_an_empty_layer_still_has_its_mask() -> None:
    assert layer_bytes(weights=16, nonzeros=0) == bitmask_bytes(0, 0, 16) == 2


@pytest.mark.parametrize("name", ["1.weight", "0.weight"])
def test_a_foreign_topology_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}' does not fit the parameters"):
        network_bytes(mlp([4, 3]), {name: torch.ones(4, 3, dtype=torch.bool)})
