"""Recurrent layers, worked out by hand: which units go, at every place, and which only look dead."""

from typing import Any

import pytest
import torch
from exactness import pruned_exactly, pruned_of, randomize
from prunable import Code
from torch import Tensor, nn

from rigl_compress.models.recurrent_layers import UnevenLSTM, cell_sizes, gate_count
from rigl_compress.models.topology import Topology
from rigl_compress.pruning.dead_neurons import Pruned

KINDS: dict[str, Any] = {
    "gru": nn.GRU,
    "lstm": nn.LSTM,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
X = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))


def network(kind: str, **options: Any) -> nn.Module:
    layer = KINDS[kind](3, 4, batch_first=True, **options)
    width = 4 * (2 if options.get("bidirectional") else 1)
    return randomize(Code(lambda self, x: self.out(self.rnn(x)[0]), rnn=layer, out=nn.Linear(width, 2)), 1)


def full(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.ones_like(each).bool() for name, each in model.named_parameters() if each.dim() > 1}


def pruned(model: nn.Module, masks: dict[str, Tensor], example: Any = X) -> Pruned:
    return pruned_exactly(model, Topology.from_masks(masks), example)


def hidden(found: Pruned) -> list[int]:
    return cell_sizes(found.model.rnn)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_that_nobody_reads_goes(kind: str, place: int) -> None:
    model = network(kind)
    masks = full(model)
    masks["out.weight"][:, place] = False
    masks["rnn.weight_hh_l0"][:, place] = False
    assert hidden(pruned(model, masks)) == [3]
    masks["rnn.weight_hh_l0"][(place + 1) % 4, place] = True  # one unit reads it at the next step
    assert hidden(pruned(model, masks)) == [4]
    masks["rnn.weight_hh_l0"][(place + 1) % 4, place] = False
    masks["rnn.weight_hh_l0"][place, place] = True  # only the unit itself reads it
    assert hidden(pruned(model, masks)) == [3]


@pytest.mark.parametrize("place", [0, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_whose_new_value_is_always_zero_goes(kind: str, bias: bool, place: int) -> None:
    model = network(kind, bias=bias)
    masks, gates = full(model), gate_count(model.rnn)  # type: ignore[arg-type]
    row = place + 4 * min(gates - 1, 2)
    masks["rnn.weight_ih_l0"][row] = masks["rnn.weight_hh_l0"][row] = False
    if bias:
        with torch.no_grad():
            for name in ("bias_ih_l0", "bias_hh_l0"):
                getattr(model.rnn, name)[row] = 0
    assert hidden(pruned(model, masks)) == [3]
    masks["rnn.weight_hh_l0"][row, place] = True  # itself: still zero
    assert hidden(pruned(model, masks)) == [3]
    masks["rnn.weight_hh_l0"][row, (place + 1) % 4] = True
    assert hidden(pruned(model, masks)) == [4]


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_with_a_bias_it_is_not_constant(kind: str) -> None:
    model = network(kind)
    with torch.no_grad():
        model.rnn.bias_ih_l0.fill_(0.5)  # type: ignore[union-attr, operator]
    masks = full(model)
    masks["rnn.weight_ih_l0"][8 + 1] = masks["rnn.weight_hh_l0"][8 + 1] = False
    assert hidden(pruned(model, masks)) == [4]


@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_a_unit_of_an_rnn_without_inputs_is_a_constant(kind: str) -> None:
    model = network(kind)
    with torch.no_grad():
        model.rnn.bias_ih_l0.fill_(0.5)  # type: ignore[union-attr, operator]
    masks = full(model)
    masks["rnn.weight_ih_l0"][1] = masks["rnn.weight_hh_l0"][1] = False
    assert hidden(pruned(model, masks)) == [4]  # others read it, and before the first step it is 0
    masks["rnn.weight_hh_l0"][:, 1] = False
    found = pruned(model, masks)
    assert hidden(found) == [3]
    assert found.removals[0].folds[0].layer == "out"


@pytest.mark.parametrize("kind", KINDS)
def test_an_initial_state_wakes_a_unit(kind: str) -> None:
    """A silent unit is one that begins at zero; where the state has a bias it does not."""
    model = Code(
        lambda self, x, s: self.out(self.rnn(x, (b := self.begin(s), b) if kind == "lstm" else self.begin(s))[0]),
        rnn=KINDS[kind](3, 4, batch_first=True, bias=False),
        begin=nn.Linear(2, 4),
        out=nn.Linear(4, 2),
    )
    randomize(model, 2)
    nn.init.constant_(model.begin.bias, 0.5)  # type: ignore[arg-type]
    masks, row = full(model), 1 + 4 * min(gate_count(model.rnn) - 1, 2)  # type: ignore[arg-type]
    masks["rnn.weight_ih_l0"][row] = False
    masks["rnn.weight_hh_l0"][row] = False
    masks["begin.weight"][1] = False
    example = (X, torch.randn(1, 2, 2))
    assert hidden(pruned(model, masks, example)) == [4]
    nn.init.zeros_(model.begin.bias)  # type: ignore[arg-type]
    found = pruned(model, masks, example)
    assert hidden(found) == [3]
    assert found.model.begin.out_features == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_state_from_outside_wakes_a_unit(kind: str) -> None:
    """The unit makes no new values, but its gates decide how long the initial one lasts: they read an input alone."""
    model = Code(
        lambda self, x, s: self.out(self.rnn(torch.relu(self.mix(x)), (s, s) if kind == "lstm" else s)[0]),
        mix=nn.Linear(3, 3),
        rnn=KINDS[kind](3, 4, batch_first=True, bias=False),
        out=nn.Linear(4, 2),
    )
    masks = full(randomize(model, 2))
    masks["rnn.weight_ih_l0"][:, 0] = False
    masks["rnn.weight_ih_l0"][4 + 1, 0] = True  # the gate that keeps the old value
    masks["rnn.weight_ih_l0"][8 + 1] = masks["rnn.weight_hh_l0"][8 + 1] = False
    found = pruned(model, masks, (X, torch.randn(1, 2, 4)))
    assert (hidden(found), found.model.rnn.input_size) == ([4], 3)  # type: ignore[union-attr]
    assert found.plan.notes == ("rnn: hidden units are kept, its initial state is not made of units",)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_projected_units_are_kept() -> None:
    model = network("lstm", proj_size=2)
    model.out = nn.Linear(2, 2)
    masks = full(model)
    masks["out.weight"][:, 0] = masks["rnn.weight_hh_l0"][:, 0] = False
    found = pruned(model, masks)
    assert not found.plan
    assert found.plan.notes == ("rnn: projects its hidden units (proj_size)",)


def test_cells_lose_units_of_their_own() -> None:
    model = network("lstm", num_layers=2, bidirectional=True)
    masks = full(model)
    masks["out.weight"][:, [0, 1, 5]] = False  # of l1: 0 and 1 forwards, 1 backwards
    masks["rnn.weight_hh_l1"][:, :2] = masks["rnn.weight_hh_l1_reverse"][:, 1] = False
    for way in ("", "_reverse"):
        masks[f"rnn.weight_ih_l1{way}"][:, 7] = False  # the last unit of l0 backwards
    masks["rnn.weight_hh_l0_reverse"][:, 3] = False
    found = pruned(model, masks)
    assert hidden(found) == [4, 3, 2, 3]
    assert isinstance(found.model.rnn, UnevenLSTM)
    assert found.model.out.in_features == 5  # type: ignore[union-attr]
    assert str(found.plan).startswith("rnn: outputs 16 → 12")


def test_nothing_is_left_of_a_cell_but_one_unit() -> None:
    model = network("gru", bidirectional=True)
    masks = full(model)
    masks["out.weight"][:, 4:] = False
    assert hidden(pruned(model, masks)) == [4, 1]


def test_constants_go_into_the_bias_of_both_directions() -> None:
    model = Code(
        lambda self, x: self.out(self.rnn(torch.sigmoid(self.mix(x)))[0]),
        mix=nn.Linear(3, 3),
        rnn=nn.LSTM(3, 4, bidirectional=True, batch_first=True),
        out=nn.Linear(8, 2),
    )
    masks = full(randomize(model, 0))
    masks["mix.weight"][1] = False
    found = pruned(model, masks)
    assert found.model.mix.out_features == 2  # type: ignore[union-attr]
    before, after = model.rnn, found.model.rnn
    expected = before.weight_ih_l0_reverse[:, 1] * torch.sigmoid(model.mix.bias[1]) + before.bias_ih_l0_reverse  # type: ignore[union-attr, index, operator]
    assert torch.allclose(after.bias_ih_l0_reverse, expected, atol=1e-6)  # type: ignore[union-attr, arg-type]


def test_sizes_of_states_are_kept() -> None:
    """A number of units in a formula, or in the shape of the states, keeps all of them."""
    model = Code(
        lambda self, x: self.out(self.rnn(x)[1][-1]) * self.rnn.hidden_size + self.rnn(x)[1].size(2),
        rnn=nn.GRU(3, 4, 2, batch_first=True),
        out=nn.Linear(4, 2),
    )
    masks = full(randomize(model, 0))
    masks["out.weight"][:, 0] = masks["rnn.weight_hh_l1"][:, 0] = False
    assert pruned_of(model, Topology.from_masks(masks), X).plan.notes
