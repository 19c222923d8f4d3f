"""What must hold for the models that people bring: any order, precision, layout, mode, signature."""

import pytest
import torch
from exactness import (
    alive,
    answers,
    difference,
    masked,
    pruned_exactly,
    pruned_of,
    random_topology,
    randomize,
    widths,
)
from prunable import NETWORKS, Code, conv
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.models.topology import Topology
from rigl_compress.pruning.dead_neurons import Pruned

# Order


@pytest.mark.parametrize("name", ["resnet", "densenet", "mobilenet-v2", "grouped", "squeeze-excite-view", "gru-flat"])
def test_the_order_of_masks_and_modules_does_not_matter(name: str) -> None:
    torch.manual_seed(1)
    model = randomize(NETWORKS[name].build(), 1)
    example, topology = NETWORKS[name].example(), random_topology(model, 0.9, 1)
    backwards = Topology({key: topology[key] for key in reversed(list(topology))})
    plan = pruned_of(model, topology, example).plan
    assert pruned_of(model, backwards, example).plan == plan
    for module in list(model.modules()):
        if not isinstance(module, nn.Sequential):
            module._modules = dict(reversed(module._modules.items()))
    assert pruned_of(model, backwards, example).plan == plan


# Every kind of model


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)],
)
def test_in_every_precision(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    model = randomize(NETWORKS["mobilenet-v1"].build(), 0).to(dtype)
    topology = random_topology(model, 0.9, 0)
    pruned = pruned_exactly(model, topology, torch.randn(2, 3, 9, 9).to(dtype), tolerance)
    assert pruned.plan
    assert {tensor.dtype for tensor in pruned.model.state_dict().values()} == {dtype, torch.int64}


def test_weights_in_any_memory_layout() -> None:
    torch.manual_seed(0)
    model = randomize(NETWORKS["cnn-padded"].build(), 0).to(memory_format=torch.channels_last)
    linear: nn.Linear = model[-1]  # type: ignore[index]
    linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())
    assert not linear.weight.is_contiguous()
    assert pruned_exactly(model, random_topology(model, 0.9, 0), torch.randn(2, 3, 9, 9)).plan


def test_every_module_keeps_its_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2))
    model.train()
    model[1].eval()  # frozen
    pruned = pruned_exactly(model, Topology.from_masks({"3.weight": alive("x.x", "x.x")}), torch.randn(3, 4))
    assert [module.training for module in pruned.model] == [True, False, True, True]  # type: ignore[union-attr, attr-defined]
    assert [module.training for module in model] == [True, False, True, True]
    assert pruned.model.training
    assert not pruned_of(model.eval(), pruned.topology if False else Topology({}), torch.randn(3, 4)).model.training


def test_gradients_are_not_taken_over_and_frozen_weights_stay_frozen() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    model(torch.randn(2, 4)).sum().backward()
    pruned = pruned_of(model, Topology.from_masks({"2.weight": alive("x.x", "x.x")}), torch.randn(1, 4))
    assert all(parameter.grad is None for parameter in pruned.model.parameters())
    assert [p.requires_grad for p in pruned.model.parameters()] == [False, True, True, True]
    assert model[2].weight.grad is not None


def test_the_class_stays_unless_sizes_are_written_in_its_code() -> None:
    for name, stays in (("flatten-torch", True), ("flatten-view-products", True), ("flatten-view-constant", False)):
        torch.manual_seed(0)
        model = randomize(NETWORKS[name].build(), 0)
        pruned = pruned_exactly(model, random_topology(model, 0.9, 0), NETWORKS[name].example())
        assert isinstance(pruned.model, Code) == stays
        assert [*pruned.model.state_dict()] == [
            key for key in pruned.model.state_dict() if key.endswith("index") or key in model.state_dict()
        ]


def test_dropout_by_function_still_asks_for_the_mode() -> None:
    """The graph that takes the place of the code must not have the mode of its tracing in it."""
    model = NETWORKS["functional-dropout"].build().train()
    pruned = pruned_exactly(randomize(model, 0), random_topology(model, 0.5, 0), torch.randn(3, 8))
    x = torch.randn(50, 8)
    assert any(not torch.equal(pruned.model(x), pruned.model(x)) for _ in range(3))
    pruned.model.eval()
    assert torch.equal(pruned.model(x), pruned.model(x))


def test_default_arguments_keep_their_values() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor, scale: Tensor | None = None, twice: bool = False) -> Tensor:
            h = F.relu(self.a(x))
            h = h if scale is None else h * scale
            result: Tensor = self.b(h * 2 if twice else h)
            return result

    model, topology = randomize(Optional(), 0), Topology.from_masks({"b.weight": alive("x.xx.", "x.x..")})
    assert widths(pruned_exactly(model, topology, torch.randn(3, 4))) == {"a": (4, 3), "b": (3, 2)}
    kept = pruned_exactly(model, topology, (torch.randn(3, 4), torch.randn(3, 5)))
    assert not kept.plan
    assert kept.plan.notes == ("mul: combines values whose channels are not all known",)


@pytest.mark.parametrize(
    "name", [name for name in NETWORKS if name.startswith(("flat", "sq", "split", "gru-l", "res"))]
)
def test_for_batches_of_other_sizes(name: str) -> None:
    model = randomize(NETWORKS[name].build(), 1)
    batch = NETWORKS[name].example()
    assert isinstance(batch, Tensor)
    if name != "squeezed":  # drops the batch itself, if it is one
        topology = random_topology(model, 0.5, 1)
        pruned = pruned_of(model, topology, batch[:1])
        assert difference(answers(masked(model, topology), batch), answers(pruned.model, batch)) < 1e-5


def test_features_are_picked_from_whatever_is_made_of_the_input_alone() -> None:
    code = {
        "cast": lambda self, x: self.fc((x * 255).to(torch.uint8).float() / 255),
        "normalised": lambda self, x: self.fc(F.normalize(x - x.mean()) * torch.arange(4)),
        "joined": lambda self, x: self.fc(torch.cat([x[:, :2], x[:, 2:] ** 2], 1)),
    }
    for each in code.values():
        model = Code(each, fc=nn.Linear(4, 3))
        topology = Topology.from_masks({"fc.weight": alive("x.x.", "..x.", "x...")})
        assert widths(pruned_exactly(model, topology, torch.rand(3, 4))) == {"fc": (2, 3)}


def test_an_input_feature_that_nobody_needs_is_not_read() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    pruned = pruned_of(model, Topology.from_masks({"0.weight": alive("x.x.", "..x.", "x...")}), torch.zeros(1, 4))
    x = torch.randn(2, 4)
    x[:, [1, 3]] = torch.nan
    assert torch.equal(pruned.model(x), pruned.model(x.nan_to_num()))
    assert "selects its inputs" in str(pruned.plan)


def test_the_report_counts() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    masks = {"0.weight": alive("xx..", "xx..", "...."), "2.weight": alive("xx.", "x.x")}
    report = pruned_of(model, Topology.from_masks(masks), torch.randn(1, 4)).report
    assert report.architecture == "4-3 → 2-2"
    assert (report.before.parameters, report.after.parameters) == (23, 12)
    assert (report.before.nonzeros, report.after.nonzeros) == (4 + 4 + 5, 4 + 3 + 4)
    assert (report.before.flops, report.after.flops) == (2 * 8, 2 * 7)
    assert (report.before.dense_flops, report.after.dense_flops) == (2 * 18, 2 * 8)
    assert report.after.bitmask_bytes == 4 * (4 + 3 + 4) + 4 / 8
    assert report.to_json()["format"] == 1


def test_pruning_again_after_more_connections_died() -> None:
    """The plans add up, also where sizes are written in the code and chunks have become splits."""
    for name in ("flatten-view-constant", "split-chunk", "split-chunk-function", "mobilenet-v2", "two-names"):
        torch.manual_seed(4)
        model = randomize(NETWORKS[name].build(), 4)
        example = NETWORKS[name].example()
        first = pruned_exactly(model, random_topology(model, 0.2, 4), example)
        fewer = random_topology(first.model, 0.8, 3)
        fewer = Topology({key: mask & first.topology[key] for key, mask in fewer.items()})
        second = pruned_exactly(first.model, fewer, example)
        assert second.plan
        again = first.plan.then(second.plan).reshape(model)
        again.load_state_dict(second.model.state_dict())
        assert difference(answers(again, example), answers(second.model, example)) == 0


def test_the_last_group_may_lose_single_channels() -> None:
    """Only the second round sees it: a grouped convolution that has one group left is an ordinary one."""
    model = randomize(nn.Sequential(nn.Linear(2, 2), nn.Flatten(1), nn.Unflatten(1, (2, 1, 1)), conv(2, 8, 1)), 0)
    model = nn.Sequential(*model, nn.ReLU(), conv(8, 8, 1, groups=2), nn.ReLU(), conv(8, 2, 1))
    randomize(model, 0)
    masks = {"5.weight": alive("xx..", "xx..", "x...", "x...", *["...."] * 4)[:, :, None, None]}
    masks["7.weight"] = alive("xx......", "xx......")[:, :, None, None]
    pruned = pruned_exactly(model, Topology.from_masks(masks), torch.randn(3, 2))
    assert widths(pruned)["5"] == (2, 2)
    grouped: nn.Conv2d = pruned.model[5]  # type: ignore[index]
    assert (grouped.groups, tuple(grouped.weight.shape)) == (1, (2, 2, 1, 1))
    assert shape_after_replay(model, pruned) == (2, 2, 1, 1)


def shape_after_replay(model: nn.Module, pruned: Pruned) -> tuple[int, ...]:
    return tuple(pruned.plan.reshape(model)[5].weight.shape)  # type: ignore[index, union-attr, operator]
