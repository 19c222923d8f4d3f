"""Why layers that could be sparse are dense."""

from typing import Any

import pytest
from torch import nn

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
