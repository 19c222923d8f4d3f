"""Time and memory of sparse training: masked torch, dense torch, and sparse kernels, in alternation.

    python benchmarks/sparse_training.py [--rows mlp,lenet] [--rounds 7] [--threads 1] [--peers]
    python benchmarks/sparse_training.py --memory

Whole steps: forward, backward from a random gradient of the output, optimizer, and a topology update every 100 steps,
whose time is shared among them. Prints the ratio of masked torch to each, as the median of rounds with quartiles, and
the peak memory of wide networks. With several threads, times are those of the clock instead of the processor.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import training_peers
from torch import Tensor, nn

from rigl_compress.sparsity.sparsifier import Sparsifier

INTERVAL = 100
KINDS = ("masked", "dense", "sparse")


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for first, then in pairwise(sizes):
        layers += [nn.Linear(first, then), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut; `pre`: normalise before, as wide residual networks do."""

    def __init__(self, inputs: int, outputs: int, stride: int, pre: bool) -> None:
        super().__init__()
        self.pre = pre
        self.norms = nn.ModuleList([nn.BatchNorm2d(inputs if pre else outputs), nn.BatchNorm2d(outputs)])
        self.convs = nn.ModuleList(
            [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)]
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        if self.pre:
            first = self.norms[0](x).relu()
            out: Tensor = self.convs[1](self.norms[1](self.convs[0](first)).relu())
            return out + self.shortcut(x if isinstance(self.shortcut, nn.Identity) else first)
        out = self.norms[1](self.convs[1](self.norms[0](self.convs[0](x)).relu()))
        return (out + self.shortcut(x)).relu()


def residual(widths: list[int], blocks: int, stem: int, pre: bool) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, stem, 3, 1, 1, bias=False)]
    channels = stem
    for index, width in enumerate(widths):
        for block in range(blocks):
            layers.append(ResidualBlock(channels, width, 2 if index and not block else 1, pre))
            channels = width
    return nn.Sequential(
        *layers, nn.BatchNorm2d(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    )


@dataclass(frozen=True)
class Row:
    """A network, the shape of its input, and the settings of its sparsity."""

    build: Callable[[], nn.Module]
    input: tuple[int, ...]
    settings: dict[str, object]
    steps: int = 10  # of a round


def uniform(sparsity: float) -> dict[str, object]:
    return {"sparsity": sparsity, "distribution": "uniform", "dense": ()}


def one_conv(channels: int, outputs: int, kernel: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Identity(), nn.Conv2d(channels, outputs, kernel, padding=kernel // 2, bias=False))


LENET = {"sparsity": 0.98, "layers": {"0": 0.99, "2": 0.891, "4": 0.0}}
ROWS = {
    "lenet": Row(lambda: mlp(784, 300, 100, 10), (100, 784), LENET, 100),
    **{
        f"mlp-{sparsity:g}": Row(lambda: mlp(4096, 4096, 4096), (128, 4096), uniform(sparsity), 5)
        for sparsity in (0.9, 0.95, 0.99)
    },
    **{
        f"ffn-{sparsity:g}": Row(lambda: mlp(768, 3072, 768), (512, 768), uniform(sparsity), 8)
        for sparsity in (0.9, 0.95, 0.98)
    },
    **{
        f"conv3x3-{channels}@{size}-{sparsity:g}": Row(
            one_conv(channels, channels, 3), (32, channels, size, size), uniform(sparsity), 8
        )
        for channels, size in ((64, 32), (128, 16), (256, 8))
        for sparsity in (0.6, 0.9, 0.95)
    },
    **{
        f"conv1x1-256-64@16-{sparsity:g}": Row(one_conv(256, 64, 1), (32, 256, 16, 16), uniform(sparsity), 20)
        for sparsity in (0.9, 0.95)
    },
    **{
        f"wrn22-2-{sparsity:g}": Row(
            lambda: residual([32, 64, 128], 3, 16, True),
            (64, 3, 32, 32),
            {"sparsity": sparsity, "dense": ("first",)},
            2,
        )
        for sparsity in (0.9, 0.95)
    },
    **{
        f"resnet18-{sparsity:g}": Row(
            lambda: residual([64, 128, 256, 512], 2, 64, False),
            (32, 3, 64, 64),
            {"sparsity": sparsity, "dense": ("first",)},
            1,
        )
        for sparsity in (0.9, 0.95)
    },
}


def sparsifier(
    kind: str, model: nn.Module, optimizer: torch.optim.Optimizer, settings: dict[str, Any], steps: int = 10**6
) -> Sparsifier:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernels = "sparse" if kind == "sparse" else "masked"
        schedule = {"total_steps": steps, "interval": max(1, min(INTERVAL, steps // 4))}
        return Sparsifier(model, optimizer, kernels=kernels, **schedule, **settings)


def batch_innermost(images: Tensor) -> Tensor:
    return images.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)


class Trainer:
    """One network with its optimizer, trained on random data."""

    def __init__(self, kind: str, row: Row) -> None:
        torch.manual_seed(0)
        self.model, self.x = row.build(), torch.randn(row.input)
        if len(row.input) == 4 and row.input[1] > 3:  # a layer in the middle of a network: its neighbours' layout
            self.x = batch_innermost(self.x) if kind == "sparse" else self.x
            self.x.requires_grad_()
        self.gradient: Tensor | None = None  # of the output
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6, momentum=0.9)
        self.sparse = None if kind == "dense" else sparsifier(kind, self.model, self.optimizer, row.settings)
        self.fits = True  # the library has layers for this network
        if kind in training_peers.LAYERS:
            self.sparse, self.fits = None, training_peers.with_layers_of(kind, self.model)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6, momentum=0.9)

    def step(self) -> None:
        """Take a step, or update the topology."""
        y = self.model(self.x)
        self.gradient = torch.randn_like(y) if self.gradient is None else self.gradient
        y.backward(self.gradient)
        if self.sparse is None or not self.sparse.step():
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.x.grad = None

    def seconds(self, steps: int) -> float:
        """Return the time of a step without an update."""
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        began = clock()
        for _ in range(steps):
            self.step()
        return (clock() - began) / steps

    def update_seconds(self) -> float:
        """Return how much longer a step with an update takes."""
        if self.sparse is None:
            return 0.0
        self.sparse._updated_at, self.sparse.steps = None, self.sparse.steps // INTERVAL * INTERVAL + INTERVAL
        self.sparse.updater.begin_step(self.sparse.steps)
        return self.seconds(1)


def measure(row: Row, rounds: int, kinds: list[str]) -> dict[str, dict[str, float]]:
    trainers = {kind: trainer for kind in kinds if (trainer := Trainer(kind, row)).fits}
    for trainer in trainers.values():
        trainer.seconds(2)
    times: dict[str, list[float]] = {kind: [] for kind in trainers}
    updates: dict[str, list[float]] = {kind: [] for kind in trainers}
    for _ in range(rounds):
        for kind, trainer in trainers.items():
            step = trainer.seconds(row.steps)
            update = trainer.update_seconds()
            updates[kind].append(max(0.0, update - step))
            times[kind].append(step + max(0.0, update - step) / INTERVAL)
    found = {}
    for kind in trainers:
        ratios = [masked / own for masked, own in zip(times["masked"], times[kind], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        found[kind] = {
            "ms": 1000 * median(times[kind]),
            "update_ms": 1000 * median(updates[kind]),
            "ratio": median(ratios),
            "low": low,
            "high": high,
        }
    return found


# Memory


NETWORKS = {"3072-65536-10": (3072, 65536, 10), "3072-65536-65536-10": (3072, 65536, 65536, 10)}


def peak() -> float:
    """Return the peak memory of this process in GiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # getrusage has the peak of the parent in it
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**20


def real_images(count: int) -> tuple[Tensor, Tensor]:
    """Return images of CIFAR-10 as rows, and their classes; random ones where the data set is not here."""
    from rigl_compress.core.errors import InputError
    from rigl_compress.data.load_dataset import load_dataset

    try:
        data = load_dataset("cifar10")
    except (InputError, OSError) as error:
        print(f"random images instead of CIFAR-10: {error}", file=sys.stderr)
        random = torch.Generator().manual_seed(0)
        return torch.randn(count, 3072, generator=random), torch.randint(10, (count,), generator=random)
    images, classes = next(iter(data.train.batches(count, torch.Generator().manual_seed(0))))
    return images.flatten(1), classes


def footprint(file: str, name: str, kind: str, sparsity: float, steps: int) -> dict[str, object]:
    """Train a wide network in this process; return the peak memory over that of the process before."""
    samples, labels = torch.load(file)
    empty = peak()
    sizes = NETWORKS[name]
    torch.manual_seed(0)
    with torch.device("meta" if kind == "sparse" else "cpu"):
        wide = [nn.Linear(first, then) for first, then in pairwise(sizes[:-1])]
    head = nn.Linear(*sizes[-2:])
    model = nn.Sequential(*(each for layer in wide for each in (layer, nn.ReLU())), head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    settings = {"sparsity": sparsity, "distribution": "uniform", "dense": ("last",)}
    sparse = None if kind == "dense" else sparsifier(kind, model, optimizer, settings, steps)
    built, losses, began = peak() - empty, [], time.perf_counter()
    for index in range(steps):
        batch = slice(64 * (index % (len(samples) // 64)), 64 * (index % (len(samples) // 64)) + 64)
        loss = nn.functional.cross_entropy(model(samples[batch]), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        if sparse is None or not sparse.step():
            optimizer.step()
        optimizer.zero_grad()
    tenth = max(1, steps // 10)
    return {
        "network": name,
        "kind": kind,
        "built_gib": round(built, 3),
        "peak_gib": round(peak() - empty, 3),
        "updates": sparse.updates if sparse else 0,
        "loss_first": round(sum(losses[:tenth]) / tenth, 4),
        "loss_last": round(sum(losses[-tenth:]) / tenth, 4),
        "seconds": round(time.perf_counter() - began, 1),
    }


MEMORY = (
    ("3072-65536-10", "dense", 0.999, 6),
    ("3072-65536-10", "masked", 0.999, 6),
    ("3072-65536-10", "sparse", 0.999, 100),
    ("3072-65536-65536-10", "sparse", 0.9995, 60),
)


def memory() -> None:
    """Print the peak of each network, each in a process of its own, on images that this process has read."""
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        torch.save(real_images(64 * 40), file.name)
        for each in MEMORY:
            command = [sys.executable, __file__, "--footprint", file.name, *map(str, each)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            print(done.stdout.strip() or f"{each} failed: {done.stderr.strip().splitlines()[-1:]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="beginnings of the names of rows, separated by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peers", action="store_true", help="with SparseLab and SparseProp, where installed")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--footprint", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.footprint:
        file, name, kind, sparsity, steps = options.footprint
        print(json.dumps(footprint(file, name, kind, float(sparsity), int(steps))))
        return
    if options.memory:
        memory()
        return
    kinds = [*KINDS, *(training_peers.installed() if options.peers else ())]
    titles = "".join(f"{kind:>19}" for kind in kinds[1:])
    print(f"{'row':26}{'masked ms':>11}{titles}{'update ms: masked':>19}{'sparse':>9}")
    for name, row in ROWS.items():
        if not name.startswith(tuple(options.rows.split(","))):
            continue
        found = measure(row, options.rounds, kinds)
        ratios = "".join(f"{_ratio(found.get(kind)):>19}" for kind in kinds[1:])
        updates = f"{found['masked']['update_ms']:>19.1f}{found['sparse']['update_ms']:>9.1f}"
        print(f"{name:26}{found['masked']['ms']:>11.2f}{ratios}{updates}", flush=True)


def _ratio(found: dict[str, float] | None) -> str:
    return "–" if found is None else f"{found['ratio']:.2f} [{found['low']:.2f}–{found['high']:.2f}]"


if __name__ == "__main__":
    main()
