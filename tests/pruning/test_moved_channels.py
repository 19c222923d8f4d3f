"""Channels that are moved, merged, picked and gated: which go, at every place, worked out by hand."""

from typing import Any

import pytest
import torch
from exactness import alive, pruned_exactly, randomize, widths
from prunable import Code, conv
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.models.topology import Topology
from rigl_compress.pruning.dead_neurons import Pruned

IMAGE = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))


def unread(model: nn.Module, layer: str, *places: int) -> Pruned:
    """Prune a network in which a layer reads nothing of some of its inputs."""
    weight = model.get_parameter(f"{layer}.weight")
    mask = torch.ones_like(weight).bool()
    mask[:, list(places)] = False
    return pruned_exactly(randomize(model, 1), Topology({f"{layer}.weight": mask}), IMAGE)


def made_by(code: Any, made: int, read: int) -> nn.Module:
    """A 1×1 layer that makes channels, an operation, and a padded layer that reads what it gives."""
    op = code if isinstance(code, nn.Module) else Code(lambda self, x: code(x))
    return Code(lambda self, x: self.out(self.op(self.a(x))), a=conv(2, made, 1), op=op, out=conv(read, 2, padding=1))


# Pixel shuffle: r² channels become one


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_pixel_shuffle_loses_whole_groups(place: int) -> None:
    found = unread(made_by(nn.PixelShuffle(2), 12, 3), "out", place)
    assert widths(found) == {"a": (2, 8), "out": (2, 2)}
    assert found.plan.changes[0].removed_outputs == tuple(range(4 * place, 4 * place + 4))


def test_one_living_pixel_keeps_its_group() -> None:
    model: Any = randomize(made_by(nn.PixelShuffle(2), 8, 2), 1)
    mask = torch.ones(8, 2, 1, 1).bool()
    mask[:3] = False
    assert not pruned_exactly(model, Topology({"a.weight": mask}), IMAGE).plan
    mask[3] = False  # all of them are constants, but not the same: the channel is a pattern
    assert not pruned_exactly(model, Topology({"a.weight": mask}), IMAGE).plan
    with torch.no_grad():
        model.a.bias[:4] = 0
    assert widths(pruned_exactly(model, Topology({"a.weight": mask}), IMAGE)) == {"a": (2, 4), "out": (1, 2)}


def test_a_pixel_unshuffle_loses_a_channel_that_nobody_reads_any_pixel_of() -> None:
    model = made_by(nn.PixelUnshuffle(2), 3, 12)
    assert widths(unread(model, "out", 4, 5, 6, 7)) == {"a": (2, 2), "out": (8, 2)}
    assert not unread(model, "out", 4, 5, 6).plan


# Channel shuffle: g groups, dealt in turn


@pytest.mark.parametrize("kind", ["layer", "views"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_channel_shuffle_loses_the_same_place_of_all_groups(kind: str, place: int) -> None:
    def views(x: Tensor) -> Tensor:
        return x.view(x.size(0), 2, 3, 4, 4).transpose(1, 2).reshape(-1, 6, 4, 4)

    model = made_by(nn.ChannelShuffle(2) if kind == "layer" else views, 6, 6)
    found = unread(model, "out", 2 * place, 2 * place + 1)
    assert found.plan.changes[0].removed_outputs == (place, 3 + place)
    assert not unread(model, "out", 2 * place).plan


def test_what_is_needed_is_needed_where_it_comes_from() -> None:
    """Each channel reads one of its own: of those behind the shuffle, 0 and 1 come from 0 and 3."""
    model = nn.Sequential(conv(2, 6, 1), nn.ReLU(), conv(6, 6, 1), nn.ChannelShuffle(2), conv(6, 2))
    masks = {"2.weight": torch.eye(6).bool()[:, :, None, None], "4.weight": torch.zeros(2, 6, 3, 3).bool()}
    masks["4.weight"][:, :2] = True
    found = pruned_exactly(randomize(model, 0), Topology(masks), IMAGE)
    assert found.plan.changes[0].removed_outputs == (1, 2, 4, 5)


# Slices


def test_a_slice_is_written_anew() -> None:
    model = Code(
        lambda self, x: self.out((h := F.relu(self.a(x)))[:, 2:5]) + self.other(h),
        a=conv(2, 7, 1),
        out=conv(3, 2),
        other=conv(7, 2),
    )
    masks = {"out.weight": alive("x.x", "x.x"), "other.weight": alive("x.xx..x", "x.xx..x")}
    topology = Topology({name: mask[:, :, None, None].expand(-1, -1, 3, 3) for name, mask in masks.items()})
    found = pruned_exactly(randomize(model, 0), topology, IMAGE)
    assert found.plan.changes[0].removed_outputs == (1, 5)
    assert dict(found.plan.sizes) == {"pick 1": (1, 1, 4)}
    assert "slice(1, 4, None)" in found.model.code


def test_a_slice_of_dead_channels_keeps_one() -> None:
    model = Code(lambda self, x: self.out(F.relu(self.a(x))[:, :3]), a=conv(2, 7, 1), out=conv(3, 2))
    assert widths(unread(model, "out", 0, 1, 2)) == {"a": (1, 1), "out": (1, 2)}


# Gates


@pytest.mark.parametrize("place", [0, 2, 3])
def test_a_gated_unit_goes_with_its_gate(place: int) -> None:
    found = unread(made_by(lambda x: F.glu(x, dim=1), 8, 4), "out", place)
    assert found.plan.changes[0].removed_outputs == (place, 4 + place)


def test_a_gate_of_nothing_is_not_needed() -> None:
    model: Any = randomize(made_by(lambda x: F.glu(x, dim=1), 4, 2), 1)
    mask = torch.ones(4, 2, 1, 1).bool()
    mask[0] = False
    with torch.no_grad():
        model.a.bias[0] = 0
    assert widths(pruned_exactly(model, Topology({"a.weight": mask}), IMAGE)) == {"a": (2, 2), "out": (1, 2)}


# Group norm


@pytest.mark.parametrize("group", [0, 1, 2])
def test_a_group_norm_loses_whole_groups(group: int) -> None:
    model = Code(
        lambda self, x: self.out(self.norm(self.a(x))), a=conv(2, 6, 1), norm=nn.GroupNorm(3, 6), out=conv(6, 2)
    )
    found = unread(model, "out", 2 * group, 2 * group + 1)
    assert widths(found) == {"a": (2, 4), "norm": (0, 4), "out": (4, 2)}
    assert found.model.norm.num_groups == 2  # type: ignore[union-attr]
    assert not unread(model, "out", 2 * group).plan  # its statistics need both


# The network's input


def test_channels_of_the_input_stay_and_others_go() -> None:
    model = Code(lambda self, x: self.out(torch.cat([x, F.relu(self.a(x)), x], 1)), a=conv(2, 4, 1), out=conv(8, 2))
    found = unread(model, "out", 0, 3, 6)
    assert widths(found) == {"a": (2, 3), "out": (7, 2)}
    assert found.plan.changes[1].removed_inputs == (3,)


# Transposed convolutions


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_transposed_convolution_loses_channels_on_both_sides(place: int) -> None:
    model = nn.Sequential(conv(2, 4, 1), nn.ReLU(), nn.ConvTranspose2d(4, 4, 3, 2), nn.ReLU(), conv(4, 2))
    masks = {"2.weight": torch.ones(4, 4, 3, 3).bool(), "4.weight": torch.ones(2, 4, 3, 3).bool()}
    masks["2.weight"][place] = False
    masks["4.weight"][:, 3 - place] = False
    found = pruned_exactly(randomize(model, 1), Topology(masks), IMAGE)
    assert widths(found) == {"0": (2, 3), "2": (3, 3), "4": (3, 2)}
    assert found.model[2].weight.shape == (3, 3, 3, 3)  # type: ignore[index, union-attr]


def test_one_constant_carries_the_others_through_a_transposed_convolution() -> None:
    model = nn.Sequential(conv(2, 5, 1), nn.Sigmoid(), nn.ConvTranspose2d(5, 3, 3, 2, 1, output_padding=1))
    masks = {"0.weight": torch.ones(5, 2, 1, 1).bool(), "2.weight": torch.ones(5, 3, 3, 3).bool()}
    masks["0.weight"][[0, 2, 4]] = False
    masks["2.weight"][0, :, 0] = masks["2.weight"][2, :, 2] = masks["2.weight"][4, :, 1] = False
    found = pruned_exactly(randomize(model, 1), Topology(masks), IMAGE)
    assert widths(found) == {"0": (2, 3), "2": (3, 3)}
    (fold,) = found.removals[0].folds
    assert fold.carrier is not None
    carrier = [place for place in range(5) if place not in fold.inputs].index(fold.carrier)
    assert found.topology["2.weight"][carrier].all()  # it has the connections of all


def test_a_transposed_convolution_loses_whole_groups() -> None:
    model = nn.Sequential(conv(2, 6, 1), nn.ReLU(), nn.ConvTranspose2d(6, 9, 2, groups=3), nn.ReLU(), conv(9, 2))
    found = unread(model, "4", 3, 4, 5)
    assert widths(found) == {"0": (2, 4), "2": (4, 6), "4": (6, 2)}
    assert found.model[2].groups == 2  # type: ignore[index, union-attr]
    assert not unread(model, "4", 3, 4).plan
    one = unread(model, "4", 1, 3, 4, 5, 6, 7, 8)  # a single group can lose single channels
    assert widths(one) == {"0": (2, 2), "2": (2, 2), "4": (2, 2)}
    assert one.model[2].weight.shape == (2, 2, 2, 2)  # type: ignore[index, union-attr]


# Features as an image


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_image_of_features_loses_channels(place: int) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 12), nn.Unflatten(1, (3, 2, 2)), nn.ConvTranspose2d(3, 2, 2, 2))
    mask = torch.ones(3, 2, 2, 2).bool()
    mask[place] = False
    found = pruned_exactly(randomize(model, 1), Topology({"3.weight": mask}), IMAGE)
    assert widths(found) == {"1": (32, 8), "2": (0, 2), "3": (2, 2)}
    assert found.model[2].unflattened_size == (2, 2, 2)  # type: ignore[index, union-attr]
