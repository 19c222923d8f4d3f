"""'first' and 'last' are so in the forward pass, not in the order in which layers were made."""

import pytest
import torch
from torch import Tensor, nn

from rigl_compress.models.forward_order import computed_order, find_layers
from rigl_compress.models.model_registry import MODELS, ModelSpec
from rigl_compress.models.sparse_parameters import sparse_layers, sparse_parameters
from rigl_compress.pipeline.optimizers import OptimizerConfig, ParameterGroup, group_members
from rigl_compress.sparsity.sparsity_config import SparsityConfig


class Crossed(nn.Module):
    """Made from the head to the stem, with a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 3)
        self.head, self.attention, self.stem = nn.Linear(8, 4), nn.MultiheadAttention(8, 2), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Go from the stem to the head."""
        x = self.stem(x)
        x = x + self.attention(x, x, x)[0]
        return nn.functional.linear(x, self.head.weight)


class Fickle(nn.Module):
    """Cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.stem = nn.Linear(8, 4), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Go from the stem to the head, if it likes."""
        found: Tensor = self.head(self.stem(x)) if x.sum() > 0 else self.head(-self.stem(x))
        return found


def test_first_and_last_are_those_of_the_forward_pass() -> None:
    names = list(sparse_parameters(model := Crossed()))
    attention = ["attention.in_proj_weight", "attention.out_proj.weight"]
    assert computed_order(model, names) == ["stem.weight", *attention, "head.weight"]
    assert find_layers(model, "first", names) == ["stem.weight"]
    assert find_layers(model, "last", names) == ["head.weight"]


def test_wrapped_networks() -> None:
    compiled = torch.compile(Crossed(), backend="eager")
    names = list(sparse_parameters(compiled))  # type: ignore[arg-type]
    assert find_layers(compiled, "first", names) == ["_orig_mod.stem.weight"]  # type: ignore[arg-type]
    parallel = nn.DataParallel(Crossed())
    assert find_layers(parallel, "first", sparse_parameters(parallel)) == ["module.stem.weight"]


def test_all_gates_of_a_recurrent_layer_are_first() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.gru = nn.Linear(5, 4), nn.GRU(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.gru(x)[0])
            return found

    model = Reader()
    assert find_layers(model, "first", sparse_layers(model)) == [
        f"gru.weight_ih_l0.{gate}" for gate in ("reset", "update", "new")
    ]


def test_where_it_cannot_be_known_that_is_said() -> None:
    with pytest.warns(UserWarning, match=r"Fickle cannot be traced: 'first' is taken for head.weight.*write its name"):
        assert find_layers(Fickle(), "first", ["head.weight", "stem.weight"]) == ["head.weight"]


def test_uniform_sparsity_leaves_the_first_computed_layer_dense() -> None:
    densities = SparsityConfig(sparsity=0.9, distribution="uniform").densities(Crossed())
    assert [name for name, density in densities.items() if density == 1] == ["stem.weight"]


def test_an_optimizer_group_of_the_first_layer() -> None:
    config = OptimizerConfig(groups=(ParameterGroup("first", weight_decay=0.5),))
    assert [*group_members(Crossed(), config)] == ["stem.weight", "stem.bias"]


@pytest.mark.parametrize("name", list(MODELS))
def test_registered_networks_were_made_in_their_order(name: str) -> None:
    with torch.device("meta"):
        model = ModelSpec(name).build()
    names = list(sparse_parameters(model))
    assert find_layers(model, "first", names) == names[:1]
    assert find_layers(model, "last", names) == names[-1:]
