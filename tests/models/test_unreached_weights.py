"""Why weights stay dense whatever a recipe asks for."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from rigl_compress.models.sparse_parameters import left_dense
from rigl_compress.models.unreached_weights import unreached_reasons


class Own(nn.Module):
    """A network with a parameter that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(3, 4))
        self.head = nn.Linear(4, 2)


class Tied(nn.Module):
    """A head that is defined before the embedding whose weight it shares."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 10, bias=False)
        self.embedding = nn.Embedding(10, 4)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Embedding(5, 3), {"weight": "embedding"}),
        (nn.ConvTranspose2d(2, 3, 2), {"weight": "no sparse support for ConvTranspose2d"}),
        (nn.Bilinear(2, 3, 4), {"weight": "no sparse support for Bilinear"}),
        (Own(), {"positions": "a parameter of Own itself, not of a layer"}),
        (Tied(), {"head.weight": "tied to an embedding"}),
        (nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), {}),
    ],
)
def test_reasons(model: nn.Module, expected: dict[str, str]) -> None:
    if left_dense(model).keys() == expected.keys():  # what is reached may grow, never without a reason
        assert unreached_reasons(model) == expected
    assert unreached_reasons(model).keys() == left_dense(model).keys()


def test_parametrized_layers() -> None:
    assert {*unreached_reasons(nn.Sequential(weight_norm(nn.Linear(3, 2)))).values()} == {"parametrized"}
