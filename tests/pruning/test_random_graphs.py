"""Networks drawn by hypothesis: exact, once and for all; and brute force, one unit at a time."""

import random_graphs
import torch
from exactness import answers, difference, prune_dead_neurons, pruned_exactly, random_topology, randomize, replayed
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import SIZE, Chain, Program, Recurrent, Stack
from torch import Tensor, nn

from rigl_compress.models.topology import Topology
from rigl_compress.pruning.dead_neurons import Pruned

SPARSITIES = st.sampled_from([0.0, 0.5, 0.9, 0.98])
SEEDS = st.integers(0, 2**31)


def prepared(model: nn.Module, seed: int, sparsity: float) -> tuple[nn.Module, Topology]:
    """In double precision, so that a wrong number cannot hide in the rounding."""
    randomize(model.double(), seed)
    return model.eval(), random_topology(model, sparsity, seed)


def image(seed: int) -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(random_graphs.programs(), SPARSITIES, SEEDS)
def test_any_network_computes_the_same(model: Program, sparsity: float, seed: int) -> None:
    prepared_model, topology = prepared(model, seed, sparsity)
    pruned = pruned_exactly(prepared_model, topology, image(seed), tolerance=1e-9)
    again = prune_dead_neurons(pruned.model, pruned.topology, image(seed))
    assert not again.plan, str(again.plan)
    assert again.topology == pruned.topology
    assert difference(answers(replayed(model, pruned), image(1)), answers(pruned.model, image(1))) == 0


@given(random_graphs.recurrent(), SPARSITIES, SEEDS)
def test_any_recurrent_network_computes_the_same(
    drawn: tuple[Recurrent, tuple[Tensor, Tensor]], sparsity: float, seed: int
) -> None:
    network, example = drawn
    model, topology = prepared(network, seed, sparsity)
    pruned = pruned_exactly(model, topology, example, tolerance=1e-9)
    again = prune_dead_neurons(pruned.model, pruned.topology, example)
    assert not again.plan, str(again.plan)
    assert difference(answers(replayed(network, pruned), example), answers(pruned.model, example)) == 0


# Brute force: what a layer would miss is found by experiment, from its inputs and outputs alone.


@torch.no_grad()
def missed_inputs(model: nn.Module, layer: nn.Module, x: Tensor) -> list[bool]:
    """Which inputs of a layer change with the network's input, and change the network's output."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    output = model(x)
    handle.remove()
    constant = (seen[0] - seen[0][:1]).abs().amax(dim=0) < 1e-12
    heard = [(disturbed(model, layer, x, place) - output).abs().max() > 1e-12 for place in range(seen[0].shape[1])]
    return [bool(hears) and not steady for hears, steady in zip(heard, constant.tolist(), strict=True)]


def disturbed(model: nn.Module, layer: nn.Module, x: Tensor, place: int) -> Tensor:
    """What the network gives when one input of one layer is replaced by something else."""

    def replace(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        changed = inputs[0].clone()
        changed[:, place] += torch.linspace(1, 2, len(changed), dtype=changed.dtype)
        return (changed,)

    handle = layer.register_forward_pre_hook(replace)
    output: Tensor = model(x)
    handle.remove()
    return output


def stacked(chain: Chain) -> tuple[Stack, Topology, Tensor]:
    """The network of a chain with weights that are large enough to be seen, and an input for it."""
    model = Stack(chain).double()
    rng = torch.Generator().manual_seed(chain.seed)
    masks = {
        f"layers.{n}.weight": torch.rand(each.weight.shape, generator=rng) < chain.density for n, each in number(model)
    }
    with torch.no_grad():
        for parameter in model.parameters():
            sign = torch.where(torch.rand(parameter.shape, generator=rng) < 0.5, -1.0, 1.0)
            parameter.copy_(sign * (0.5 + torch.rand(parameter.shape, generator=rng)))
    topology = Topology.from_masks(masks)
    topology.apply_to(model)
    return model, topology, torch.randn(8, chain.widths[0], generator=rng, dtype=torch.float64)


def number(model: Stack) -> list[tuple[int, nn.Linear]]:
    return [(n, layer) for n, layer in enumerate(model.layers) if isinstance(layer, nn.Linear)]


def kept_inputs(pruned: Pruned, layer: str, count: int) -> list[bool]:
    change = next((change for change in pruned.plan.changes if change.layer == layer), None)
    gone = () if change is None else change.removed_inputs
    return [place not in gone for place in range(count)]


def at_least_one(kept: list[bool]) -> list[bool]:
    return kept if any(kept) else [True, *kept[1:]]


@given(random_graphs.chains())
def test_in_a_perceptron_exactly_what_nobody_misses_goes(chain: Chain) -> None:
    model, topology, x = stacked(chain)
    pruned = pruned_exactly(model, topology, x, tolerance=1e-9)
    for n, layer in number(model):
        missed = missed_inputs(model, layer, x)
        assert kept_inputs(pruned, f"layers.{n}", len(missed)) == at_least_one(missed)


@given(random_graphs.chains(skips=True))
def test_in_a_residual_stream_exactly_what_no_reader_misses_goes(chain: Chain) -> None:
    model, topology, x = stacked(chain)
    pruned = pruned_exactly(model, topology, x, tolerance=1e-9)
    missed = [missed_inputs(model, layer, x) for _, layer in number(model)]
    for readers in streams(chain):
        together = [any(column) for column in zip(*(missed[n] for n in readers), strict=True)]
        for n in readers:
            assert kept_inputs(pruned, f"layers.{n}", len(together)) == at_least_one(together)


def streams(chain: Chain) -> list[list[int]]:
    """The layers that read the same stream: it begins anew where a layer does not add to it."""
    found = [[0], [1]]
    for n in range(2, len(chain.widths) - 1):
        if chain.skips[n - 1]:
            found[-1].append(n)
        else:
            found.append([n])
    return found
