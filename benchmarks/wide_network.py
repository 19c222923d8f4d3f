"""Train a network whose dense weights would not fit: the memory of sparse training beside that of dense training.

    python benchmarks/wide_network.py [--hidden 65536,65536] [--sparsity 0.9995] [--steps 300] [--updates 8]

A perceptron on CIFAR-10, built on the meta device, trained with RigL and SGD with momentum on sparse kernels. Prints
the loss as it trains, the time of steps and updates, and both footprints: the peak of this process over its memory
before the network was built, and the weights, gradients and momentum of the same network in dense form.
"""

import argparse
import json
import time
from dataclasses import dataclass
from itertools import pairwise
from math import prod, sqrt
from pathlib import Path
from statistics import mean, median

import torch
from torch import Tensor, nn

from rigl_compress.data.dataset import DataSet
from rigl_compress.data.load_dataset import load_dataset
from rigl_compress.sparsity.active_checkpoint import save_active
from rigl_compress.sparsity.sparsifier import Sparsifier

GIB = 2**30


def memory(field: str) -> float:
    """Return the peak (VmHWM) or present (VmRSS) memory of this process in GiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition(f"{field}:")[2].split()[0]) / 2**20


@dataclass(frozen=True)
class Settings:
    """What the command line sets."""

    hidden: tuple[int, ...]
    sparsity: float
    steps: int
    updates: int
    batch: int
    rate: float
    seed: int
    data_dir: Path | None
    checkpoint: Path | None


def build(settings: Settings, inputs: int, classes: int) -> nn.Sequential:
    """Return the network; only its readout has memory."""
    sizes = (inputs, *settings.hidden)
    with torch.device("meta"):
        wide = [nn.Linear(first, then) for first, then in pairwise(sizes)]
    layers = [each for layer in wide for each in (layer, nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(settings.hidden[-1], classes))


@torch.no_grad()
def initialise(model: nn.Module, density: float) -> None:
    """Draw the weights for the connections that a unit has, instead of those of a dense layer."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer.weight.dim() == 1:
            layer.weight.normal_(std=sqrt(2 / (layer.in_features * density)))


class Training:
    """A network in training, with what was measured of each step."""

    def __init__(self, settings: Settings, data: DataSet) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.data = settings, data
        self.model = build(settings, prod(data.input_shape), data.classes)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=settings.rate, momentum=0.9)
        self.sparse = Sparsifier(
            *(self.model, self.optimizer),
            kernels="sparse",
            sparsity=settings.sparsity,
            distribution="uniform",
            dense=("last",),
            total_steps=settings.steps,
            interval=max(1, int(0.75 * settings.steps / settings.updates)),
            seed=settings.seed,
        )
        initialise(self.model, 1 - settings.sparsity)
        self.losses: list[float] = []
        self.seconds: dict[bool, list[float]] = {False: [], True: []}  # of steps, of steps with an update

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take a step, or update the topology."""
        began = time.perf_counter()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        updated = self.sparse.step()
        if not updated:
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self.seconds[updated].append(time.perf_counter() - began)

    def run(self, every: int) -> None:
        """Train, and print the mean loss now and then."""
        epoch = 0
        while len(self.losses) < self.settings.steps:
            for x, y in self.data.train.batches(self.settings.batch, torch.Generator().manual_seed(epoch)):
                self.step(x, y)
                if len(self.losses) % every == 0:
                    print(f"step {len(self.losses):5}: loss {mean(self.losses[-every:]):.4f}", flush=True)
                if len(self.losses) == self.settings.steps:
                    return
            epoch += 1


def dense_bytes(settings: Settings, inputs: int, classes: int) -> tuple[int, int]:
    """Return the weights of the dense network, and the bytes of them with gradients and momentum in float32."""
    sizes = (inputs, *settings.hidden, classes)
    weights = sum(first * then + then for first, then in pairwise(sizes))
    return weights, 3 * 4 * weights


def train(settings: Settings) -> dict[str, object]:
    """Train the network and return what is printed."""
    data = load_dataset("cifar10", data_dir=settings.data_dir)
    next(iter(data.train.batches(settings.batch, torch.Generator())))
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak begins anew
    empty = memory("VmRSS")
    training = Training(settings, data)
    built = memory("VmHWM") - empty
    every = max(1, settings.steps // 10)
    training.run(every)
    if settings.checkpoint:
        save_active(settings.checkpoint, training.model, training.sparse)
    weights, needed = dense_bytes(settings, prod(data.input_shape), data.classes)
    return {
        "network": "-".join(map(str, (prod(data.input_shape), *settings.hidden, data.classes))),
        "sparsity": settings.sparsity,
        "connections": sum(len(positions) for _, positions in training.sparse.updater.active),
        "dense_weights": weights,
        "dense_gib": round(needed / GIB, 1),
        "built_gib": round(built, 2),
        "peak_gib": round(memory("VmHWM") - empty, 2),
        "process_gib": round(memory("VmHWM"), 2),
        "checkpoint_gib": round(settings.checkpoint.stat().st_size / GIB, 3) if settings.checkpoint else None,
        "updates": training.sparse.updates,
        "loss_first": round(mean(training.losses[:every]), 4),
        "loss_last": round(mean(training.losses[-every:]), 4),
        "step_seconds": round(median(training.seconds[False]), 3),
        "update_seconds": round(median(training.seconds[True]), 1) if training.seconds[True] else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", default="65536,65536", help="sizes of the hidden layers")
    parser.add_argument("--sparsity", type=float, default=0.9995)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--updates", type=int, default=8, help="topology updates, about")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="a file to write the state of the training to")
    options = vars(parser.parse_args())
    torch.set_num_threads(options.pop("threads"))
    options["hidden"] = tuple(map(int, options["hidden"].split(",")))
    found = train(Settings(**options))
    print(json.dumps(found, indent=1))
    print(
        f"{found['peak_gib']} GiB at the peak; dense training needs {found['dense_gib']} GiB for weights, gradients "
        f"and momentum alone"
    )


if __name__ == "__main__":
    main()
