"""Why layers that could be sparse are dense."""

from typing import Any

import pytest
from torch import nn

from rigl_compress.pipeline.train.initial_network import keep_frozen_dense
from rigl_compress.sparsity.dense_layers import dense_reasons
from rigl_compress.sparsity.sparsity_config import SparsityConfig


def three() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20), nn.Linear(20, 2))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"distribution": "uniform"}, {"0.weight": "first layer, by the distribution uniform"}),
        ({"distribution": "uniform", "dense": ()}, {}),
        ({"distribution": "uniform", "dense": ("last",)}, {"2.weight": "named in sparsity.dense"}),
        ({"distribution": "uniform", "dense": (), "layers": {"1": 0.0}}, {"1.weight": "sparsity 0 in sparsity.layers"}),
        # A sparsity of its own overrules the list, as it does in training.
        ({"distribution": "uniform", "dense": ("1",), "layers": {"1": 0.5}}, {}),
        ({"distribution": "erk", "sparsity": 0.8}, {"2.weight": "full by the distribution erk"}),
        (
            {"method": "dense"},
            dict.fromkeys(("0.weight", "1.weight", "2.weight"), "every connection, by the method dense"),
        ),
    ],
)
def test_reasons(settings: dict[str, Any], expected: dict[str, str]) -> None:
    assert dense_reasons(three(), SparsityConfig(**settings)) == expected


class WithHead(nn.Sequential):
    dense_layers = ("2",)


def test_layers_that_the_network_keeps_dense() -> None:
    model = WithHead(*three())
    assert dense_reasons(model, SparsityConfig(distribution="uniform")) == {
        "0.weight": "first layer, by the distribution uniform",
        "2.weight": "kept dense by the network (dense_layers)",
    }
    assert dense_reasons(model, SparsityConfig(distribution="uniform", dense=())) == {}


@pytest.mark.parametrize(
    ("dense", "others"),
    [
        (None, {"2.weight": "kept dense by the network (dense_layers)"}),
        (("2.weight",), {"2.weight": "named in sparsity.dense"}),
    ],
)
def test_frozen_layers_are_not_named_by_the_user(dense: tuple[str, ...] | None, others: dict[str, str]) -> None:
    model = WithHead(*three())
    model[1].weight.requires_grad_(False)
    config = keep_frozen_dense(SparsityConfig(distribution="er", sparsity=0.5, dense=dense), model)
    assert dense_reasons(model, config) == {"1.weight": "not trained (frozen)", **others}
