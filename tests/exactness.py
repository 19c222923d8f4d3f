"""Random masks and numbers for a network, and what must hold of every pruned one."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.models.prune_plan import PrunePlan
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.models.topology import Topology
from rigl_compress.pruning.dead_neurons import Pruned, prune_dead_neurons


@torch.no_grad()
def randomize(model: nn.Module, seed: int) -> nn.Module:
    """Set biases and statistics values that are not trivial; some biases are 0, as after a fresh start."""
    rng = torch.Generator().manual_seed(seed)

    def uniform(tensor: Tensor, low: float, high: float) -> None:
        tensor.copy_(torch.rand(tensor.shape, generator=rng).to(tensor) * (high - low) + low)

    for module in model.modules():
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if "bias" in name or name == "running_mean":
                uniform(tensor, -1, 1)
                tensor[torch.rand(tensor.shape, generator=rng) < 0.3] = 0
            elif name == "running_var" or (name == "weight" and tensor.dim() == 1):
                uniform(tensor, 0.5, 1.5)
            elif tensor.is_floating_point():
                uniform(tensor, -1, 1)
    return model


ALSO = (nn.Embedding, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)  # masks may be theirs, too


def random_topology(model: nn.Module, sparsity: float, seed: int) -> Topology:
    """Random masks, and in every second layer some rows and columns without any connection."""
    rng = torch.Generator().manual_seed(seed)
    parameters = dict(sparse_parameters(model))
    parameters |= {f"{name}.weight": each.weight for name, each in model.named_modules() if isinstance(each, ALSO)}
    masks = {name: torch.rand(weight.shape, generator=rng) >= sparsity for name, weight in parameters.items()}
    for mask in masks.values():
        if torch.rand((), generator=rng) < 0.5:
            mask[torch.rand(mask.shape[0], generator=rng) < 0.4] = False
            mask[:, torch.rand(mask.shape[1], generator=rng) < 0.4] = False
    names = dict(model.named_parameters())  # a tied weight has one name
    return Topology.from_masks({name: mask for name, mask in masks.items() if name in names})


def tensors(value: Any) -> list[Tensor]:
    """All tensors of an answer, however it is packed."""
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value
    return [tensor for part in parts for tensor in tensors(part)]


@torch.no_grad()
def answers(model: nn.Module, example: Any) -> list[Tensor]:
    """What a network gives in evaluation mode; the input is not touched, and neither is the network."""
    inputs = example if isinstance(example, tuple) else (example,)
    return tensors(deepcopy(model).eval()(*deepcopy(inputs)))


def difference(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest difference over the largest value."""
    assert [tensor.shape for tensor in one] == [tensor.shape for tensor in other]
    largest = max(float(tensor.double().abs().max()) for tensor in one)
    apart = max(float((a.double() - b.double()).abs().max()) for a, b in zip(one, other, strict=True))
    assert apart >= 0, "not a number"
    return apart / largest if largest else apart


def masked(model: nn.Module, topology: Topology) -> nn.Module:
    """A copy with exact zeros where nothing lives."""
    copy = deepcopy(model)
    topology.apply_to(copy)
    return copy


def other_inputs(example: Any, seed: int) -> Any:
    """Inputs like the example, but random ones."""
    rng = torch.Generator().manual_seed(seed)
    inputs = example if isinstance(example, tuple) else (example,)
    drawn = tuple(
        torch.randn(value.shape, generator=rng).to(value)
        if value.is_floating_point()
        else torch.randint(0, int(value.max()) + 1, value.shape, generator=rng)
        for value in inputs
    )
    return drawn if len(drawn) > 1 else drawn[0]


def pruned_of(model: nn.Module, topology: Topology, example: Any) -> Pruned:
    """Apply a topology to a copy of a model, and prune it."""
    return prune_dead_neurons(masked(model, topology), topology, example)


def pruned_exactly(model: nn.Module, topology: Topology, example: Any, tolerance: float = 1e-5) -> Pruned:
    """Prune, and check that it computes the same, on the example and on other inputs."""
    before = masked(model, topology)
    pruned = prune_dead_neurons(before, topology, example)
    for inputs in (example, other_inputs(example, 1), other_inputs(example, 2)):
        apart = difference(answers(before, inputs), answers(pruned.model, inputs))
        assert apart < tolerance, f"{apart}\n{pruned.plan}"
    return pruned


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shapes of everything that is saved of a network."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def replayed(model: nn.Module, pruned: Pruned) -> nn.Module:
    """The network rebuilt from the plan alone, with the weights of the pruned one."""
    plan = PrunePlan.from_json(pruned.plan.to_json())
    assert plan == pruned.plan
    again = plan.reshape(model)
    assert shapes(again) == shapes(pruned.model)
    assert list(again.state_dict()) == list(pruned.model.state_dict())
    again.load_state_dict(pruned.model.state_dict())
    return again


def widths(pruned: Pruned) -> dict[str, tuple[int, int]]:
    """Inputs and outputs that are left of every layer that changed."""
    return {
        change.layer: (change.inputs - len(change.removed_inputs), change.outputs - len(change.removed_outputs))
        for change in pruned.plan.changes
    }


def alive(*rows: str) -> Tensor:
    """A mask drawn with x and . (or any other sign)."""
    return torch.tensor([[sign == "x" for sign in row] for row in rows])
