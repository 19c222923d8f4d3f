"""What sparse training costs beside dense training: the masked step, and the topology update.

    python benchmarks/train_overhead.py [--rounds 15] [--threads 1]

Rounds alternate between the candidates, so that drift of the machine hits all alike; printed are medians of the ratios
within a round. Steps are timed in CPU time of this process, which other processes on the machine disturb less.
"""

import json
from collections.abc import Callable
from statistics import median, quantiles
from time import process_time

import click
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress import Sparsifier
from rigl_compress.core.provenance import environment
from rigl_compress.models.model_registry import ModelSpec


def lenet() -> tuple[nn.Module, Tensor]:
    return ModelSpec("lenet-300-100").build(), torch.rand(100, 1, 28, 28)


class Block(nn.Module):
    """The bottleneck of ResNet-50's third stage."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4 * width, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add the block to its input."""
        return F.relu(x + self.body(x))


def resnet_like() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(Block(128), Block(128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return model, torch.rand(32, 512, 14, 14)


class Candidate:
    """One way to train, ready to be timed."""

    def __init__(self, build: Callable[[], tuple[nn.Module, Tensor]], sparsity: float | None) -> None:
        torch.manual_seed(0)
        self.model, self.x = build()
        self.y = torch.randint(0, 10, (len(self.x),))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
        self.sparse = None
        if sparsity is not None:
            # Updates are timed on their own, so none may fall into the timed steps.
            self.sparse = Sparsifier(self.model, self.optimizer, sparsity=sparsity, interval=10**9, end=10**9)
            self.backward()
            self.sparse.step()
            self.optimizer.zero_grad()

    def backward(self) -> None:
        """Compute the gradients of one batch."""
        F.cross_entropy(self.model(self.x), self.y).backward()

    def step(self) -> None:
        """Take a whole training step."""
        self.backward()
        if self.sparse is not None:
            self.sparse.step()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self, count: int) -> float:
        """Return the seconds of a step, over so many."""
        began = process_time()
        for _ in range(count):
            self.step()
        return (process_time() - began) / count

    def updates(self, count: int) -> float:
        """The update alone: the forward and backward pass it needs is that of any step."""
        assert self.sparse is not None
        seconds = 0.0
        for _ in range(count):
            self.backward()
            began = process_time()
            with torch.no_grad():
                self.sparse._update(0)  # step 0: f_decay is at its largest, α
            seconds += process_time() - began
            self.sparse.updater.end_step()  # as Sparsifier.step does: else the next step reads all weights
            self.optimizer.zero_grad()
        return seconds / count


def measure(
    build: Callable[[], tuple[nn.Module, Tensor]], rounds: int, count: int, sparsity: float
) -> dict[str, float]:
    dense, sparse = Candidate(build, None), Candidate(build, sparsity)
    for candidate in (dense, sparse):
        candidate.steps(count)
    ratios, updates = [], []
    for number in range(rounds):
        pair = (dense, sparse) if number % 2 else (sparse, dense)
        seconds = {candidate: candidate.steps(count) for candidate in pair}
        ratios.append(seconds[sparse] / seconds[dense])
        updates.append(sparse.updates(max(1, count // 10)) / seconds[dense])
    low, _, high = quantiles(ratios, n=4)
    return {"step": median(ratios), "step_low": low, "step_high": high, "update_in_dense_steps": median(updates)}


@click.command()
@click.option("--rounds", default=15, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, threads: int, as_json: bool) -> None:
    """Print the ratios: masked step over dense step, and topology update over dense step."""
    torch.set_num_threads(threads)
    found = {
        "LeNet-300-100, batch 100, 98 % sparse": measure(lenet, rounds, 100, 0.98),
        "two ResNet-50 bottlenecks 512×14×14, batch 32, 90 % sparse": measure(resnet_like, rounds, 2, 0.9),
    }
    if as_json:
        click.echo(json.dumps({"threads": threads, "rounds": rounds, "ratios": found, "environment": environment()}))
        return
    for name, ratios in found.items():
        click.echo(name)
        quartiles = f"(quartiles {ratios['step_low']:.3f} … {ratios['step_high']:.3f})"
        click.echo(f"  masked step / dense step  {ratios['step']:.3f}  {quartiles}")
        click.echo(f"  topology update           {ratios['update_in_dense_steps']:.2f} dense steps")


if __name__ == "__main__":
    main()
