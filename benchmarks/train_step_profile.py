"""Where a training step's time goes, for every registered network: its own kernels, the optimizer, sparse training.

    python benchmarks/train_step_profile.py [--rounds 7] [--threads 1] [--model NAME] [--not-fused]

Every part of a step is timed in CPU time of this process; printed are medians over the rounds, as shares of a whole
step. A topology update comes once in ΔT = 100 steps, so a hundredth of it belongs to each. Data are not loaded here.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time

import click
import torch
from torch.nn import functional as F

from rigl_compress.core.provenance import environment
from rigl_compress.models.model_registry import MODELS, ModelSpec
from rigl_compress.pipeline.optimizers import OptimizerConfig, build_optimizer, set_learning_rate
from rigl_compress.sparsity.sparsifier import Sparsifier
from rigl_compress.sparsity.sparsity_config import SparsityConfig

INTERVAL = 100
# With the paper's batch of 4,096 images of ImageNet's size, all that is not a kernel would vanish.
BATCHES = {(1, 28, 28): 100, (3, 32, 32): 128, (3, 224, 224): 16, (512,): 32}
PARTS = ("forward", "backward", "masking", "update / ΔT", "optimizer", "rest")
COLUMNS = ("network", "batch", "ms per step", *PARTS, "sparse training")


@dataclass
class Clock:
    """Seconds by the part of a step they were spent in."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block's time as this part's."""
        began = process_time()
        yield
        self.seconds[name] += process_time() - began


class Training:
    """One network in sparse training."""

    def __init__(self, name: str, fused: bool) -> None:
        torch.manual_seed(0)
        spec = ModelSpec(name)
        self.x = spec.example(BATCHES[spec.shape])
        self.model = spec.build()
        adam = spec.network.vocabulary is not None
        config = OptimizerConfig("adam" if adam else "sgd", weight_decay=1e-4, fused=fused)
        self.optimizer = build_optimizer(self.model, config)
        # Updates are timed on their own, so none may fall into the timed steps but the first.
        settings = SparsityConfig("rigl", 0.9, "erk", interval=10**9, end=10**9)
        self.sparse = Sparsifier(self.model, self.optimizer, settings)
        shape = self.model.eval()(self.x[:1]).shape
        self.y = torch.randint(shape[-1], (len(self.x), *shape[1:-1]))
        self.model.train()

    def step(self, clock: Clock) -> None:
        """Take a step as the loop of the package does."""
        with clock.part("forward"):
            answers = self.model(self.x)
            loss = F.cross_entropy(answers.flatten(0, -2), self.y.flatten())
        with clock.part("backward"):
            loss.backward()
        with clock.part("rest"):
            set_learning_rate(self.optimizer, 0.01)
        with clock.part("masking"):
            updated = self.sparse.step()
        with clock.part("optimizer"):
            if not updated:
                self.optimizer.step()
        with clock.part("rest"):
            self.optimizer.zero_grad()

    def update(self, clock: Clock) -> None:
        """Update the topology alone: the forward and backward pass it needs is that of any step."""
        F.cross_entropy(self.model(self.x).flatten(0, -2), self.y.flatten()).backward()
        with clock.part("update / ΔT"), torch.no_grad():
            self.sparse._update(0)  # step 0: f_decay is at its largest, α
        self.sparse.updater.end_step()  # as Sparsifier.step does: else the next step reads all weights
        self.optimizer.zero_grad()


def profile(name: str, rounds: int, fused: bool) -> dict[str, float]:
    """Return the seconds of a step by part, each the median of the rounds."""
    training = Training(name, fused)
    for _ in range(3):  # the first step is an update, the second makes the optimizer's state
        training.step(Clock())
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        clock = Clock()
        steps = 1 if training.x.numel() > 10**6 else 10
        for _ in range(steps):
            training.step(clock)
        seconds = {part: spent / steps for part, spent in clock.seconds.items()}
        clock = Clock()
        training.update(clock)
        found.append(seconds | {"update / ΔT": clock.seconds["update / ΔT"] / INTERVAL})
    return {part: median(each[part] for each in found) for part in PARTS} | {"batch": len(training.x)}


def row(name: str, found: dict[str, float]) -> tuple[str, ...]:
    """Return the line of a network."""
    whole = sum(found[part] for part in PARTS)
    shares = [f"{found[part] / whole:.1%}" for part in PARTS]
    sparse = (found["masking"] + found["update / ΔT"]) / whole
    return (name, str(found["batch"]), f"{1000 * whole:,.1f}", *shares, f"{sparse:.1%}")


def markdown(lines: list[tuple[str, ...]]) -> str:
    """Return a table for the documentation."""
    head = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    return "\n".join(f"| {line} |" for line in (*head, *(" | ".join(each) for each in lines)))


@click.command()
@click.option("--rounds", default=7, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--fused/--not-fused", default=True, show_default=True, help="The optimizer's kernels.")
@click.option("--model", "names", multiple=True, help="Only these.")
@click.option("--markdown", "file", type=click.Path(path_type=Path), help="Write the table to this file.")
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, threads: int, fused: bool, names: tuple[str, ...], file: Path | None, as_json: bool) -> None:
    """Print the parts of a training step of every registered network, 90 % sparse by ERK with RigL."""
    torch.set_num_threads(threads)
    found = {}
    for name in names or MODELS:
        found[name] = profile(name, rounds, fused)
        if not as_json:
            click.echo("  ".join(row(name, found[name])))
    if as_json:
        click.echo(json.dumps({"threads": threads, "rounds": rounds, "seconds": found, "environment": environment()}))
    else:
        click.echo(json.dumps(environment()))
    if file is not None:
        file.write_text(markdown([row(name, each) for name, each in found.items()]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
