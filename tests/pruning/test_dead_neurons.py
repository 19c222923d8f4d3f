"""Cases worked out by hand."""

import torch
from exactness import alive, answers, pruned_exactly, pruned_of, randomize, widths
from prunable import Code, conv
from prunable_graphs import Block
from torch import Tensor, nn

from rigl_compress.models.topology import Topology


def kernels(mask: Tensor, size: int = 3) -> Tensor:
    return mask[:, :, None, None].expand(-1, -1, size, size)


# Constants


def test_a_unit_without_inputs_is_the_activation_of_its_bias() -> None:
    model = randomize(nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1)), 0)
    topology = Topology.from_masks({"0.weight": alive("x.", "..", ".x")})
    pruned = pruned_exactly(model, topology, torch.randn(4, 2))
    first, last = model[0], model[2]
    assert widths(pruned) == {"0": (2, 2), "2": (2, 1)}
    expected = last.bias + last.weight[:, 1] * torch.sigmoid(first.bias[1])  # type: ignore[union-attr, index, operator]
    assert torch.allclose(pruned.model[2].bias, expected)  # type: ignore[index]


def test_a_constant_goes_on_through_layers_that_hear_nothing_else() -> None:
    model = randomize(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), 0)
    topology = Topology.from_masks({"0.weight": alive("xx", ".."), "2.weight": alive("x.", ".x")})
    assert widths(pruned_exactly(model, topology, torch.randn(4, 2))) == {"0": (2, 1), "2": (1, 1), "4": (1, 1)}


def test_a_layer_without_bias_gains_one_for_a_constant_that_is_not_zero() -> None:
    for activation, gains in ((nn.Sigmoid(), True), (nn.ReLU(), False)):
        model = nn.Sequential(nn.Linear(2, 2, bias=False), activation, nn.Linear(2, 2, bias=False))
        pruned = pruned_exactly(model, Topology.from_masks({"0.weight": alive("xx", "..")}), torch.randn(4, 2))
        assert [change.new_bias for change in pruned.plan.changes] == [False, gains]
        assert (pruned.model[2].bias is not None) == gains  # type: ignore[index]
        assert ("gains a bias" in str(pruned.plan)) == gains


def test_behind_zero_padding_one_constant_carries_the_others() -> None:
    model = randomize(nn.Sequential(conv(2, 5), nn.Sigmoid(), conv(5, 2, padding=1)), 1)
    topology = Topology.from_masks({"0.weight": kernels(alive("xx", "..", "..", "..", "xx"))})
    pruned = pruned_exactly(model, topology, torch.randn(2, 2, 7, 7))
    assert widths(pruned) == {"0": (2, 3), "2": (3, 2)}  # two that vary and the carrier


def test_a_carrier_takes_over_connections_too() -> None:
    model = randomize(nn.Sequential(conv(1, 2), nn.Sigmoid(), conv(2, 1, padding=1)), 1)
    masks = {"0.weight": torch.zeros(2, 1, 3, 3).bool(), "2.weight": torch.zeros(1, 2, 3, 3).bool()}
    masks["2.weight"][0, 0, 0, 0] = masks["2.weight"][0, 1, 2, 2] = True
    pruned = pruned_exactly(model, Topology.from_masks(masks), torch.randn(2, 1, 7, 7))
    assert pruned.topology["2.weight"].nonzero().tolist() == [[0, 0, 0, 0], [0, 0, 2, 2]]


def test_a_constant_that_stays_anyway_carries_the_others() -> None:
    """Unit 1 is smaller than unit 2, but the depthwise layer needs it."""
    model = Code(
        lambda self, x: (self.padded(h := torch.sigmoid(self.first(x))), h.sum(1)),
        first=conv(2, 3),
        padded=conv(3, 2, padding=1),
    )
    randomize(model, 1)
    model.first.bias.data.copy_(torch.tensor([0.0, 0.5, 1.0]))
    topology = Topology.from_masks({"first.weight": kernels(alive("xx", "..", ".."))})
    assert not pruned_exactly(model, topology, torch.randn(2, 2, 7, 7)).plan  # the sum pins all: nothing goes
    two = Code(
        lambda self, x: self.one(h := torch.sigmoid(self.first(x))) + self.other(h),
        first=conv(2, 3),
        one=conv(3, 2, padding=1),
        other=conv(3, 2, padding=1),
    )
    randomize(two, 1)
    two.first.bias.data.copy_(torch.tensor([0.0, 0.5, 1.0]))
    masks = {"first.weight": kernels(alive("xx", "..", "..")), "other.weight": kernels(alive("xx.", "xx."))}
    pruned = pruned_exactly(two, Topology.from_masks(masks), torch.randn(2, 2, 7, 7))
    assert widths(pruned)["one"] == widths(pruned)["other"] == (2, 2)  # one carrier for both: unit 1


def test_no_padding_no_carrier() -> None:
    for options in ({}, {"padding": 1, "padding_mode": "reflect"}, {"padding": "valid"}):
        model = randomize(nn.Sequential(conv(2, 4), nn.Sigmoid(), conv(4, 2, **options)), 1)
        topology = Topology.from_masks({"0.weight": kernels(alive("xx", "..", "..", "xx"))})
        assert widths(pruned_exactly(model, topology, torch.randn(2, 2, 7, 7)))["0"] == (2, 2)
    point = randomize(nn.Sequential(conv(2, 4), nn.Sigmoid(), conv(4, 2, 1, padding="same")), 1)
    assert widths(pruned_exactly(point, topology, torch.randn(2, 2, 7, 7)))["0"] == (2, 2)


# Residual streams


def test_a_channel_dies_only_when_every_contributor_is_dead() -> None:
    model = Code(
        lambda self, x: self.out((h := torch.relu(self.a(x))) + torch.relu(self.b(h))),
        a=nn.Linear(2, 3),
        b=nn.Linear(3, 3),
        out=nn.Linear(3, 1),
    )
    randomize(model, 3)
    masks = {"a.weight": alive("xx", "..", ".."), "b.weight": alive("xx.", "xxx", "..."), "out.weight": alive("xxx")}
    # Unit 1 of the stream: silent in a, alive in b. Unit 2: silent in both.
    assert widths(pruned_exactly(model, Topology.from_masks(masks), torch.randn(4, 2))) == {
        "a": (2, 2),
        "b": (2, 2),
        "out": (2, 1),
    }


def test_a_block_that_died_leaves_the_stream() -> None:
    torch.manual_seed(0)
    model = randomize(nn.Sequential(conv(3, 4), Block(4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)), 0)
    masks = {"1.conv1.weight": torch.zeros(4, 4, 3, 3).bool(), "1.conv2.weight": torch.zeros(4, 4, 3, 3).bool()}
    pruned = pruned_exactly(model, Topology.from_masks(masks), torch.randn(2, 3, 7, 7))
    assert widths(pruned)["1.conv1"] == (4, 1)  # its constant


# Nothing is ever emptied


def test_a_layer_that_loses_all_its_units_keeps_one() -> None:
    model = randomize(nn.Sequential(nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 6), nn.Sigmoid(), nn.Linear(6, 3)), 0)
    masks = {
        "0.weight": torch.ones(5, 4).bool(),
        "2.weight": torch.zeros(6, 5).bool(),
        "4.weight": alive(*["x" * 6] * 3),
    }
    pruned = pruned_exactly(model, Topology.from_masks(masks), torch.randn(4, 4))
    assert widths(pruned) == {"0": (1, 1), "2": (1, 1), "4": (1, 3)}
    assert pruned.report.architecture == "4-5-6 → 1-1-1"


def test_outputs_stay_without_a_single_connection() -> None:
    model = randomize(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), 0)
    pruned = pruned_exactly(model, Topology.from_masks({"2.weight": torch.zeros(3, 5).bool()}), torch.randn(4, 4))
    assert answers(pruned.model, torch.randn(2, 4))[0].shape == (2, 3)


def test_a_part_of_a_split_keeps_one() -> None:
    model = Code(
        lambda self, x: self.b((parts := torch.sigmoid(self.a(x)).chunk(2, 1))[0]) + self.c(parts[1]),
        a=nn.Linear(4, 6),
        b=nn.Linear(3, 2),
        c=nn.Linear(3, 2),
    )
    masks = {"a.weight": alive(*["xxxx"] * 3, *["...."] * 3)}
    assert widths(pruned_exactly(randomize(model, 0), Topology.from_masks(masks), torch.randn(3, 4)))["c"] == (1, 2)


# What counts as a connection


def test_fresh_connections_at_zero_are_connections() -> None:
    """RigL grows at 0; by the value of the weights these units would be dead."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.zeros_(model[0].weight)  # type: ignore[arg-type]
    grown = {"0.weight": torch.ones(3, 4).bool(), "2.weight": torch.ones(2, 3).bool()}
    assert not pruned_of(model, Topology.from_masks(grown), torch.randn(1, 4)).plan
    assert not pruned_of(model, Topology.from_masks({}), torch.randn(1, 4)).plan


def test_weights_that_cancel_are_connections() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1))
    model[0].weight.data.copy_(torch.tensor([[1.0, -1.0]]))  # type: ignore[union-attr, operator]
    assert not pruned_of(model, Topology.full({"0.weight": (1, 2)}), torch.randn(1, 2)).plan


def test_a_masked_bias_stays_consistent() -> None:
    model = randomize(nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 2)), 0)
    masks = {"0.weight": alive("x.", "..", ".x"), "2.weight": alive("xxx", "x.x"), "2.bias": torch.zeros(2).bool()}
    pruned = pruned_exactly(model, Topology.from_masks(masks), torch.randn(4, 2))
    assert pruned.topology["2.bias"].tolist() == [True, False]
