"""How long pruning takes, what a fixpoint finds that one pass does not, and what is left of the networks of runs.

    python benchmarks/prune_results.py [--runs 5] [--seeds 200] [NAME=RUN …]

A RUN is a folder that `rigl-compress train` and `rigl-compress prune` have written; its row is what they wrote.
"""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from time import perf_counter, process_time

import click
import torch
from resnet50 import resnet50
from torch import Tensor, nn

from rigl_compress import Topology, prune_dead_neurons
from rigl_compress.core.provenance import environment
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.models.topology import connections
from rigl_compress.pipeline.markdown import markdown
from rigl_compress.sparsity.distributions import DISTRIBUTIONS

SECONDS = 60
CLASSES = 1000
LENET = (784, 300, 100, 10)


def random_mask(shape: Sequence[int], density: float, random: torch.Generator) -> Tensor:
    mask = torch.zeros(torch.Size(shape).numel(), dtype=torch.bool)
    mask[torch.randperm(len(mask), generator=random)[: connections(density, len(mask))]] = True
    return mask.reshape(tuple(shape))


# ResNet-50


def timed(distribution: str, dead: float, runs: int) -> list[str]:
    """Prune a ResNet-50 with 95 % zeros, spread over its layers by a distribution, and a share of filters without any.

    Random masks alone leave hardly a filter of this size empty; training does.
    """
    torch.manual_seed(0)
    model, random = resnet50(), torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # what training leaves is not the identity
            nn.init.uniform_(module.bias, -0.1, 0.1)
            module.running_var.uniform_(0.02, 0.06)  # type: ignore[union-attr]
    shapes = {name: tuple(weight.shape) for name, weight in sparse_parameters(model).items()}
    densities = DISTRIBUTIONS[distribution].share(shapes, 0.05)
    masks = {}
    for name, shape in shapes.items():
        alive = shape[0] if shape[0] == CLASSES else round(shape[0] * (1 - dead))
        masks[name] = torch.zeros(shape, dtype=torch.bool)
        rows = torch.randperm(shape[0], generator=random)[:alive]
        masks[name][rows] = random_mask((alive, *shape[1:]), min(1, densities[name] * shape[0] / alive), random)
    topology = Topology.from_masks(masks)
    topology.apply_to(model)
    wall, cpu = [], []
    for _ in range(runs):
        began = perf_counter(), process_time()
        report = prune_dead_neurons(model, topology, torch.rand(1, 3, 64, 64)).report
        wall.append(perf_counter() - began[0])
        cpu.append(process_time() - began[1])
    sizes = f"{report.before.parameters:,} → {report.after.parameters:,}"
    times = [f"{median(cpu):.1f}", f"{median(wall):.1f}", f"{max(wall):.1f}"]
    spread = f"{distribution}, {dead:.0%} of the filters empty" if dead else distribution
    return [spread, report.architecture, sizes, f"{report.relative_difference:.1e}", *times]


# Random masks


def fixpoint(masks: Sequence[Tensor]) -> list[int]:
    layers = [module for mask in masks for module in (nn.Linear(mask.shape[1], mask.shape[0]), nn.ReLU())][:-1]
    topology = Topology.from_masks({f"{2 * place}.weight": mask for place, mask in enumerate(masks)})
    model = nn.Sequential(*layers)
    topology.apply_to(model)
    report = prune_dead_neurons(model, topology, torch.zeros(1, LENET[0])).report
    return [int(width) for width in report.architecture.split(" → ")[1].split("-")]


def one_pass(masks: Sequence[Tensor]) -> list[int]:
    """The authors' rule: forwards, once, keep a unit with something before it and something behind it."""
    kept = [masks[0].any(dim=0)]
    for mask, following in pairwise(masks):
        kept.append((mask & kept[-1]).any(dim=1) & following.any(dim=0))
    return [int(units.sum()) for units in kept]


def averaged(rule: Callable[[Sequence[Tensor]], list[int]], sparsities: Sequence[float], seeds: int) -> str:
    found = []
    for seed in range(seeds):
        random = torch.Generator().manual_seed(seed)
        shapes = zip(LENET[1:], LENET, strict=False)
        found.append(rule([random_mask(each, 1 - s, random) for each, s in zip(shapes, sparsities, strict=True)]))
    return "-".join(f"{mean(column):.1f}" for column in zip(*found, strict=True))


# Runs


def run_row(name: str, run: Path) -> list[str]:
    report = json.loads((run / "prune.json").read_text(encoding="utf-8"))["report"]
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    kflops, size = report["after"]["flops"] / 1000, report["after"]["bitmask_bytes"]
    facts = [f"{result['final_error']:.2f}", f"{kflops:.2f}", f"{size:,.0f}", f"{report['relative_difference']:.1e}"]
    return [name, str(result["seed"]), report["architecture"], *facts]


@click.command()
@click.option("--runs", default=5, show_default=True, help="How often the ResNet-50 is pruned.")
@click.option("--seeds", default=200, show_default=True, help="Random masks to average over.")
@click.argument("named", nargs=-1)
def main(runs: int, seeds: int, named: tuple[str, ...]) -> None:
    """Print three tables, and what they were made on."""
    torch.set_num_threads(1)
    if named:
        columns = ("run", "seed", "architecture", "error %", "KFLOPs", "bytes", "difference")
        rows = [run_row(each.partition("=")[0], Path(each.partition("=")[2])) for each in named]
        click.echo(markdown(columns, rows) + "\n")
    columns = ("zeros", "units", "parameters", "difference", "seconds, computing", "on the wall", "the longest")
    click.echo(markdown(columns, [timed(*each, runs) for each in (("uniform", 0), ("uniform", 0.2), ("erk", 0))]))
    click.echo(f"\nallowed: {SECONDS} s\n")
    rows = []
    for sparsities in ((0.998, 0.99, 0.9), (0.99, 0.891, 0.0)):
        rules = (averaged(rule, sparsities, seeds) for rule in (one_pass, fixpoint))
        rows.append([" / ".join(map(str, sparsities)), *rules])
    click.echo(markdown(("sparsity", "one pass", "until nothing changes"), rows))
    click.echo(f"\n{json.dumps(environment())}")


if __name__ == "__main__":
    main()
