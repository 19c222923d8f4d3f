"""What each operation does to a constant, to the axis of the channels, and to the need for them: tables."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from exactness import alive
from prunable import Code, conv
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.models.topology import Topology
from rigl_compress.pruning.analysis import Analysis
from rigl_compress.pruning.channel_facts import Channels, Source, Units
from rigl_compress.pruning.graph_walk import analyse
from rigl_compress.pruning.traced_graph import trace

C = 0.5  # the constant that goes in


def analysed(operation: Callable[..., Any], bias: float = C, shape: tuple[int, ...] = (2, 1, 6, 6)) -> Analysis:
    """A layer with two units, the second of them constant, and an operation on what it gives."""
    layer = conv(1, 2, 1) if len(shape) > 3 else nn.Linear(shape[-1], 2)
    nn.init.constant_(layer.bias, bias)  # type: ignore[arg-type]
    mask = torch.ones_like(layer.weight, dtype=torch.bool)
    mask[1] = False
    extra = {"operation": operation} if isinstance(operation, nn.Module) else {}
    model = Code(lambda self, x: operation(self.layer(x)), layer=layer, **extra)
    topology = Topology({"layer.weight": mask})
    topology.apply_to(model)
    return analyse(trace(model.eval(), torch.randn(shape)), topology)


def result(found: Analysis) -> Any:
    """What is known of the value that comes out."""
    (output,) = (node for node in found.graph.graph.nodes if node.op == "output")
    return found.facts[output.args[0]]


KEPT: dict[str, Callable[..., Any]] = {
    "max": nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
    "average": nn.AvgPool2d(3),
    "average-not-counting": nn.AvgPool2d(3, padding=1, count_include_pad=False),
    "average-ceil": nn.AvgPool2d(4, ceil_mode=True),
    "adaptive": nn.AdaptiveAvgPool2d(4),
    "upsample": nn.Upsample(scale_factor=2, mode="bilinear"),
    "f-max": lambda x: F.max_pool2d(x, 2, padding=1),
    "f-average": lambda x: F.avg_pool2d(x, 2),
    "f-adaptive": lambda x: F.adaptive_max_pool2d(x, 1),
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "padded-with-itself": lambda x: F.pad(x, (1, 1, 1, 1), value=C),
    "mean": lambda x: x.mean((2, 3)),
    "mean-kept": lambda x: torch.mean(x, dim=-1, keepdim=True),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "nothing": nn.Identity(),
    "contiguous": lambda x: x.contiguous().clone().detach(),
    "flat": lambda x: x.flatten(2),
    "expanded": lambda x: x.mean((2, 3), keepdim=True).expand(-1, -1, 3, 3),
}
CHANGED: dict[str, tuple[Callable[..., Any], float]] = {
    "relu6": (nn.ReLU6(), 0.5),
    "neg": (lambda x: -x, -0.5),
    "sigmoid": (torch.sigmoid, 0.6224593312018546),
    "clamp": (lambda x: x.clamp(min=0.75), 0.75),
    "twice": (lambda x: 2 * x, 1.0),
    "less": (lambda x: 1 - x, 0.5),
    "more": (lambda x: x + 1, 1.5),
    "half": (lambda x: x / 2, 0.25),
    "sum-with-itself": (lambda x: x + torch.relu(x), 1.0),
    "product": (lambda x: x * torch.neg(x), -0.25),
    "gate": (lambda x: x * F.relu(-x), 0.0),
    "larger": (lambda x: torch.maximum(x, x * 3), 1.5),
    "group-norm": (nn.GroupNorm(2, 2, affine=False), 0.0),
    "gated-by-itself": (lambda x: F.glu(x, 2), 0.3112296656009273),
}
LOST: dict[str, Callable[..., Any]] = {
    "average-padded": nn.AvgPool2d(3, padding=1),
    "average-divisor": nn.AvgPool2d(2, divisor_override=3),
    "f-average-padded": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "f-average-divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=1),
    "zero-pad": nn.ZeroPad2d(1),
    "f-pad": lambda x: F.pad(x, (1, 1)),
    "group-norm-all": nn.GroupNorm(1, 2),
    "infinite": lambda x: x / 0.0,
    "other-on-the-other-side": lambda x: torch.cat([x, 2 * x], dim=2),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_constant_stays(name: str) -> None:
    fact = result(analysed(KEPT[name]))
    assert isinstance(fact, Channels)
    assert fact.constant.tolist() == pytest.approx([torch.nan, C], nan_ok=True)


@pytest.mark.parametrize("name", CHANGED)
def test_a_constant_becomes_another(name: str) -> None:
    operation, expected = CHANGED[name]
    fact = result(analysed(operation))
    assert isinstance(fact, Channels)
    assert fact.constant.tolist() == pytest.approx([torch.nan, expected], nan_ok=True)


@pytest.mark.parametrize("name", LOST)
def test_a_constant_is_lost(name: str) -> None:
    fact = result(analysed(LOST[name]))
    assert isinstance(fact, Channels)
    assert fact.varies.tolist() == [True, True]


@pytest.mark.parametrize("name", ["average-padded", "average-divisor", "f-average-padded", "zero-pad", "f-pad"])
def test_zero_stays_zero_at_every_border(name: str) -> None:
    fact = result(analysed(LOST[name], bias=0.0))
    assert fact.constant.tolist() == pytest.approx([torch.nan, 0.0], nan_ok=True)


AXES: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...], int, int]] = {
    # operation, shape of the input, axis and number of channels afterwards
    "permute": (lambda x: x.permute(0, 2, 3, 1), (2, 1, 6, 6), 3, 2),
    "permute-tuple": (lambda x: torch.permute(x, (1, -4, 2, 3)), (2, 1, 6, 6), 0, 2),
    "transpose": (lambda x: x.transpose(1, -1), (2, 1, 6, 6), 3, 2),
    "flatten": (lambda x: x.flatten(1), (2, 1, 6, 6), 1, 72),
    "flatten-sequence": (lambda x: x.flatten(1), (2, 5, 3), 1, 10),
    "rows": (lambda x: x.reshape(-1, 2), (2, 5, 3), 1, 2),
    "space-only": (lambda x: x.view(2, 2, -1), (2, 1, 6, 6), 1, 2),
    "last-step": (lambda x: x[:, -1], (2, 5, 3), 1, 2),
    "slices": (lambda x: x[:, :, 1:3, 0], (2, 1, 6, 6), 1, 2),
    "new-axes": (lambda x: x[None, :, :, ..., None], (2, 1, 6, 6), 2, 2),
    "unflatten-ahead": (lambda x: x.unflatten(0, (1, 2)), (2, 5, 3), 3, 2),
    "unflatten-behind": (lambda x: x.unflatten(-1, (2, 3)), (2, 1, 6, 6), 1, 2),
    "unflatten-one": (lambda x: x.unflatten(-1, (1, 2)), (2, 5, 3), 3, 2),
    "unsqueeze": (lambda x: x.unsqueeze(1), (2, 5, 3), 3, 2),
    "squeeze": (lambda x: x.mean(1, keepdim=True).squeeze(1), (2, 5, 3), 1, 2),
    "mean": (lambda x: x.mean(1), (2, 5, 3), 1, 2),
    "joined": (lambda x: torch.cat([x, x], 1), (2, 1, 6, 6), 1, 4),
    "joined-along-space": (lambda x: torch.cat([x, x], dim=-1), (2, 1, 6, 6), 1, 2),
    "half": (lambda x: x.chunk(2, 1)[1], (2, 1, 6, 6), 1, 1),
    "sliced": (lambda x: x[0, :1], (2, 1, 6, 6), 0, 1),
    "picked": (lambda x: x[:, [1, 0, 1]], (2, 1, 6, 6), 1, 3),
    "other-places": (lambda x: x[[1, 0]], (2, 1, 6, 6), 1, 2),
    "narrow": (lambda x: x.narrow(-1, -1, 1), (2, 5, 3), 2, 1),
    "narrow-elsewhere": (lambda x: x.narrow(1, 2, 3), (2, 5, 3), 2, 2),
    "gate": (F.glu, (2, 5, 3), 2, 1),
    "gate-elsewhere": (lambda x: F.glu(x, 2), (2, 1, 6, 6), 1, 2),
    "unshuffled": (lambda x: F.pixel_unshuffle(x, 3), (2, 1, 6, 6), 1, 18),
    "shuffled": (lambda x: F.pixel_shuffle(torch.cat([x, x], 1), 2), (2, 1, 6, 6), 1, 1),
    "dealt": (lambda x: torch.channel_shuffle(torch.cat([x, x], 1), 2), (2, 1, 6, 6), 1, 4),
    "with-the-input": (lambda x: torch.cat([x, torch.ones(2, 3, 6, 6)], 1), (2, 1, 6, 6), 1, 5),
}


@pytest.mark.parametrize("name", AXES)
def test_where_the_channels_go(name: str) -> None:
    operation, shape, axis, count = AXES[name]
    found = analysed(operation, shape=shape)
    fact = result(found)
    assert (fact.axis, len(fact.units)) == (axis, count)
    assert not found.notes


GIVEN_UP: dict[str, Callable[[Tensor], Any]] = {
    "softmax": lambda x: F.softmax(x, 1),
    "mean-over-channels": lambda x: x.mean(1),
    "mean-over-all": lambda x: x.mean(),
    "single-channel": lambda x: x[:, 1],
    "lists": lambda x: x[:, [1, 0], :, [0, 1]],
    "list-and-number": lambda x: x[0, :, [0, 1]],
    "mask": lambda x: x[:, [True, False]],
    "computed-positions": lambda x: x.index_select(1, x.argmax(1)[0, 0]),
    "shuffled-space": lambda x: F.pixel_shuffle(x.transpose(1, 2).repeat(1, 2, 1, 1), 2),
    "torn": lambda x: x.view(12, 12),
    "split-along-space": lambda x: x.split(3, dim=2),
    "bare-squeeze": lambda x: x.squeeze(),
    "padded-channels": lambda x: F.pad(x, (0, 0, 0, 0, 1, 1)),
    "reinterpreted": lambda x: x.view(torch.int32),
    "sum-with-a-size": lambda x: x + x.size(1),
    "whole-split": lambda x: torch.cat(x.chunk(2, 1), 1),
    "list": lambda x: x.tolist(),
    "power-of-two": lambda x: 2**x,
    "larger-with-alpha": lambda x: torch.add(x, x, alpha=2),
}


@pytest.mark.parametrize("name", GIVEN_UP)
def test_what_is_not_followed_is_kept_and_needed(name: str) -> None:
    found = analysed(GIVEN_UP[name])
    layer = found.layers["layer"]
    assert found.notes
    assert found.units.pinned(found.outputs(layer).units).all()
    assert found.needed(layer).all()
    assert not isinstance(result(found), Channels)


def test_a_product_with_nothing_needs_nothing() -> None:
    layers = {"a": nn.Linear(3, 2), "b": nn.Linear(3, 2), "out": nn.Linear(2, 1)}
    model = Code(lambda self, x: self.out(self.a(x) * F.relu(self.b(x))), **layers)
    nn.init.constant_(model.b.bias, -1.0)  # type: ignore[arg-type]
    topology = Topology({"b.weight": alive("xxx", "...")})
    topology.apply_to(model)
    found = analyse(trace(model, torch.randn(1, 3)), topology)
    assert found.needed(found.layers["a"]).tolist() == [True, False]


def test_the_input_is_not_a_value_of_units() -> None:
    found = analyse(trace(nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(4, 2)), torch.randn(1, 2, 2)), Topology({}))
    assert list(found.facts.values())[:3] == [Source.INPUT] * 3


def test_units_are_coupled_in_any_order() -> None:
    units = Units()
    a, b, c = (units.fresh(3) for _ in range(3))
    units.couple(a, b)
    units.couple(c, b)
    units.couple_all(torch.stack([a[0], a[1]]))
    assert not units.pinned(a).any()
    units.pin(c[:1])
    assert units.pinned(torch.cat([a, b, c])).tolist() == [True, True, False] * 3
