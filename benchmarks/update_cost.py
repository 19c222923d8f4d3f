"""What a RigL update costs on many GPUs, on paper, from constants that are measured here.

    python benchmarks/update_cost.py [--repeats 15]

Measured, in CPU time of one thread: a topology update and the hash that processes compare after it, each in passes
over the layer's weights (the time in units of copying them once), and their share of a training step here. On a GPU the
same passes run at the bandwidth of its memory; the all-reduce of the hash has the latency of the network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2
from time import thread_time

import click
import torch
from torch import nn
from torch.nn import functional as F

from rigl_compress import Sparsifier
from rigl_compress.core.provenance import command_line, environment
from rigl_compress.pipeline.markdown import markdown as markdown_table
from rigl_compress.sparsity.rank_agreement import digest

INTERVAL = 100  # ΔT
# Assumptions, of an A100 80 GB in nodes of eight: memory, half precision at 40 % of its peak, network within and
# between nodes as all-reduce sees it, and the latency of one step of an all-reduce.
MEMORY, COMPUTE, WITHIN, BETWEEN, LATENCY, NODE = 2.0e12, 0.4 * 312e12, 230e9, 90e9, 15e-6, 8


@dataclass(frozen=True)
class Network:
    """What the model needs to know of a network, and of its global batch."""

    name: str
    weights: float
    layers: int
    flops: float  # of a step of all GPUs together


NETWORKS = (
    Network("ResNet-50, batch 4,096", 25.5e6, 54, 3 * 8.2e9 * 4096),
    Network("transformer of 1 billion, batch 524,288 tokens", 1.0e9, 120, 6 * 1.0e9 * 524_288),
)


@dataclass(frozen=True)
class Constants:
    """Passes over the weights of a layer, and seconds of a training step here."""

    update: float
    digest: float
    step: float
    copy: float


def fastest(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = thread_time()
        action()
        times.append(thread_time() - begin)
    return min(times)


def measured(repeats: int) -> Constants:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 1536))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sparse = Sparsifier(
        model, optimizer, method="rigl", sparsity=0.9, distribution="uniform", dense=[], total_steps=10**6
    )
    x, layer = torch.randn(128, 1536), sparse.updater._masked.layers[0]  # type: ignore[attr-defined]

    def step() -> None:
        F.mse_loss(model(x), x).backward()
        if not sparse.step():
            optimizer.step()
        optimizer.zero_grad()

    copy = torch.empty_like(layer.weight)
    once = fastest(lambda: copy.copy_(layer.weight), 5 * repeats)
    usual = fastest(step, repeats)
    F.mse_loss(model(x), x).backward()
    update = fastest(lambda: sparse._update(INTERVAL), repeats) / 2  # of two layers
    hashed = fastest(lambda: digest(layer.positions), repeats)
    return Constants(update / once, hashed / once, usual, once)


def row(network: Network, gpus: int, constants: Constants) -> tuple[str, ...]:
    compute = network.flops / gpus / COMPUTE
    bandwidth = WITHIN if gpus <= NODE else BETWEEN
    reduce = 2 * (gpus - 1) / gpus * 4 * network.weights / bandwidth
    copies = 2 * 4 * network.weights / MEMORY  # to copy the weights once: read and write
    update = constants.update * copies
    digest = constants.digest * copies + 2 * ceil(log2(gpus)) * LATENCY
    step = max(compute, reduce)  # they overlap
    sent = 2 * 8 * network.layers
    share = (update + digest) / (INTERVAL * step)
    cells = (f"{each * 1e3:.2f}" for each in (compute, reduce, update, digest))
    return (
        network.name,
        str(gpus),
        *cells,
        f"{8 * network.weights * (gpus - 1) / gpus / 1e6:,.0f} MB",
        f"{sent:,} B",
        f"{share:.2%}",
    )


@click.command(help=__doc__)
@click.option("--repeats", default=15, show_default=True, help="Measurements, of which the fastest counts.")
def main(repeats: int) -> None:
    constants, here = measured(repeats), environment()
    rows = [row(network, gpus, constants) for network in NETWORKS for gpus in (8, 64, 512)]
    heads = (
        "network",
        "GPUs",
        "compute ms",
        "gradients ms",
        "update ms",
        "hash ms",
        "gradients sent",
        "hash sent",
        "share",
    )
    click.echo(f"update: {constants.update:.0f} passes over the weights, hash: {constants.digest:.2f} (90 % sparse)")
    update, digest = (2 * constants.copy * each / constants.step for each in (constants.update, constants.digest))
    click.echo(
        f"step here: {1e3 * constants.step:.1f} ms; an update takes {update:.2f} steps, the hash {digest:.2%} of one"
    )
    click.echo(f"every {INTERVAL} steps: {update / INTERVAL:.2%} and {digest / INTERVAL:.4%} of the time")
    click.echo("")
    click.echo(markdown_table(heads, rows))
    click.echo(f"\n`{command_line()}`, {here['date']}, {here['cpu']}, {here['cores']} cores, {here['system']}")


if __name__ == "__main__":
    main()
