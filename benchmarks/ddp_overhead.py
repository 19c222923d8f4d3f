"""What sparse training adds to DistributedDataParallel: CPU time of a step, and peak memory, in two real processes.

    python benchmarks/ddp_overhead.py [--rounds 9] [--no-memory] [--markdown FILE]

Time: both ranks (gloo, one thread each) take turns with a dense and a sparse network in the same processes; CPU time of
rank 0, of our part that of its main thread, medians over the rounds. Memory: each kind of training in processes of its
own; the largest resident memory of rank 0 above that of dense training, and what of it is more than a byte for each
weight, in bytes for each weight of one layer.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import process_time, thread_time

import click
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from rigl_compress import Sparsifier
from rigl_compress.core.provenance import command_line, environment
from rigl_compress.pipeline.markdown import markdown as markdown_table
from rigl_compress.sparsity.rank_agreement import check_same_connections

INTERVAL, RANKS, SPARSITY = 100, 2, 0.9
# Freed memory goes back to the system at once, so that resident memory is what is allocated.
PRECISE = {"MALLOC_MMAP_THRESHOLD_": "65536"}
WIDTH, DEPTH, BATCH = 1900, 8, 16  # of the network whose memory is measured: layers of 14 MB


def convolutions() -> tuple[nn.Module, Tensor]:
    def block(width: int, size: int) -> list[nn.Module]:
        return [nn.Conv2d(width, width, size, padding=size // 2, bias=False), nn.BatchNorm2d(width), nn.ReLU()]

    body = [layer for size in (3, 1, 3, 1) for layer in block(128, size)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), torch.rand(16, 128, 14, 14)


def perceptron() -> tuple[nn.Module, Tensor]:
    return linear_layers(1024, 4), torch.rand(128, 1024)


def linear_layers(width: int, depth: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "4 convolutions of 128 channels, batch 16": convolutions,
    "4 linear layers of 1024, batch 128": perceptron,
}


class Candidate:
    """A network in training, dense or sparse."""

    def __init__(self, model: nn.Module, x: Tensor, *, sparse: bool) -> None:
        self.model, self.x = DistributedDataParallel(model), x
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.sparse = self._sparsifier(model) if sparse else None
        self.own = 0.0  # seconds in the sparsifier, its hook after a step of the optimizer included

    def _sparsifier(self, model: nn.Module) -> Sparsifier:
        self.optimizer.register_step_post_hook(lambda *_: self._add(-thread_time()))
        sparse = Sparsifier(model, self.optimizer, sparsity=SPARSITY, interval=10**9, end=10**9, dense=[])
        self.optimizer.register_step_post_hook(lambda *_: self._add(thread_time()))
        return sparse

    def _add(self, seconds: float) -> None:
        self.own += seconds

    def step(self) -> None:
        """Take a step of training."""
        self.model(self.x).square().mean().backward()
        began = thread_time()
        if self.sparse is not None:
            self.sparse.step()
        self._add(thread_time() - began)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def update(self) -> float:
        """Return the seconds of a topology update."""
        assert self.sparse is not None
        self.model(self.x).square().mean().backward()
        began = thread_time()
        with torch.no_grad():
            self.sparse._update(0)
        seconds = thread_time() - began
        self.sparse.updater.end_step()  # as Sparsifier.step does: else the next step reads all weights
        self.optimizer.zero_grad()
        return seconds


def seconds(call: Callable[[], object], count: int) -> float:
    began = process_time()
    for _ in range(count):
        call()
    return (process_time() - began) / count


def timed(build: Callable[[], tuple[nn.Module, Tensor]], rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    model, x = build()
    torch.manual_seed(0)
    dense, sparse = Candidate(model, x, sparse=False), Candidate(build()[0], x, sparse=True)
    dense.step(), sparse.step(), sparse.step()
    found: dict[str, list[float]] = {key: [] for key in ("step", "masking", "update", "hash", "agreement")}
    updater = sparse.sparse.updater  # type: ignore[union-attr]
    for _ in range(rounds):
        found["step"].append(seconds(dense.step, 4))
        sparse.own = 0.0
        seconds(sparse.step, 4)
        found["masking"].append(sparse.own / 4)
        found["update"].append(sparse.update())
        found["hash"].append(seconds(lambda: check_same_connections(updater.active, 0), 3))
        told: list[object] = [None] * RANKS
        found["agreement"].append(seconds(lambda told=told: distributed.all_gather_object(told, (False, 1)), 3))  # type: ignore[misc]
    return {key: median(values) for key, values in found.items()}


def peak(kind: str) -> int:
    """Return the largest resident memory in bytes; a sparse training makes an update in it."""
    torch.manual_seed(0)
    candidate = Candidate(linear_layers(WIDTH, DEPTH), torch.rand(BATCH, WIDTH), sparse=kind == "sparse")
    for number in range(6):
        candidate.step()
        if candidate.sparse is not None and number == 3:
            candidate.update()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def launched(what: str, rounds: int) -> object:
    """Run this script in all ranks, and return what rank 0 printed."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--what", what, "--rounds", str(rounds), "--store", f"{folder}/store"]
        environ = {**os.environ, **(PRECISE if what in ("dense", "sparse") else {})}
        ranks = [
            subprocess.Popen([*words, "--rank", str(rank)], stdout=subprocess.PIPE, env=environ)
            for rank in range(RANKS)
        ]
        printed = [process.communicate()[0] for process in ranks]
        if any(process.returncode for process in ranks):
            raise click.ClickException("a rank failed, see above")
    return json.loads(printed[0])


def be_rank(rank: int, store: str, what: str, rounds: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=RANKS)
    found = peak(what) if what in ("dense", "sparse") else timed(NETWORKS[what], rounds)
    distributed.destroy_process_group()
    click.echo(json.dumps(found))


def time_row(name: str, found: dict[str, float]) -> Sequence[str]:
    share = {key: value / found["step"] for key, value in found.items()}
    added = share["hash"] / INTERVAL + found["agreement"]  # once a second
    return (
        name,
        f"{1e3 * found['step']:.1f}",
        f"{share['masking']:.2%}",
        f"{share['update'] / INTERVAL:.2%}",
        f"{share['hash']:.2%}",
        f"{share['hash'] / INTERVAL:.4%}",
        f"{1e3 * found['agreement']:.2f}",
        f"{added:.3%}",
    )


TIME = (
    "network",
    "dense step ms",
    "masking, of a step",
    f"update / {INTERVAL}",
    "hash, of a step",
    f"hash / {INTERVAL}",
    "agreement ms, once a second",
    "several processes add",
)


def memory_lines(peaks: dict[str, int]) -> str:
    layer = WIDTH * WIDTH
    weights, above = DEPTH * layer, peaks["sparse"] - peaks["dense"]
    return (
        f"{DEPTH} linear layers of {WIDTH}, {weights / 1e6:.1f} million weights, {SPARSITY:.0%} sparse: "
        f"peak {peaks['dense'] / 1e6:.0f} MB dense, {peaks['sparse'] / 1e6:.0f} MB sparse. Above dense: "
        f"{above / 1e6:.1f} MB, of which {weights / 1e6:.1f} MB are a byte for each weight; the rest is "
        f"{(above - weights) / layer:.1f} bytes for each weight of one layer."
    )


@click.command(help=__doc__)
@click.option("--rounds", default=9, show_default=True)
@click.option("--memory/--no-memory", default=True, show_default=True)
@click.option("--time/--no-time", "times", default=True, show_default=True)
@click.option("--markdown", "file", type=click.Path(path_type=Path))
@click.option("--rank", type=int, hidden=True)
@click.option("--store", hidden=True)
@click.option("--what", default="", hidden=True)
def main(rounds: int, memory: bool, times: bool, file: Path | None, rank: int | None, store: str, what: str) -> None:
    if rank is not None:
        be_rank(rank, store, what, rounds)
        return
    parts = []
    if times:
        rows = [time_row(name, launched(name, rounds)) for name in NETWORKS]  # type: ignore[arg-type]
        parts.append(markdown_table(TIME, rows))
    if memory:
        parts.append(memory_lines({kind: launched(kind, rounds) for kind in ("dense", "sparse")}))  # type: ignore[misc]
    here = environment()
    parts.append(f"`{command_line()}`, {here['date']}, {here['cpu']}, {here['cores']} cores, torch {torch.__version__}")
    text = "\n\n".join(part.strip() for part in parts)
    click.echo(text)
    if file:
        file.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
