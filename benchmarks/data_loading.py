"""What data loading takes of a training step: CIFAR-10, augmented and normalised, into WRN-22-2 at batch 128.

    python benchmarks/data_loading.py [--rounds 3] [--threads 1] [--data-dir DIR]

Where CIFAR-10 is not found, random bytes of the same layout take its place: the time does not depend on what they show.
CPU time of this process, which others on the machine disturb less; the medians over the rounds are printed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import click
import torch

from rigl_compress.core.errors import InputError
from rigl_compress.core.provenance import environment
from rigl_compress.data.cifar10 import NORMALISE
from rigl_compress.data.image_batches import pad_crop_flip
from rigl_compress.data.load_dataset import load_dataset
from rigl_compress.data.samples import Samples, Split
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.pipeline.metrics import loss_of

BATCH = 128


def pictures(data_dir: Path | None) -> tuple[Samples, str]:
    try:
        found = load_dataset("cifar10", data_dir, fetch=False)
    except InputError:
        images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
        return Split(images, torch.randint(0, 10, (50_000,)), NORMALISE, pad_crop_flip), "random bytes"
    return found.train, found.name


def training_step(model: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    network = ModelSpec(model).build().train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, nesterov=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        loss_of(network(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(call: Callable[[], object], count: int) -> float:
    began = process_time()
    for _ in range(count):
        call()
    return (process_time() - began) / count


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--model", default="wrn-22-2", show_default=True)
@click.option("--data-dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, threads: int, model: str, data_dir: Path | None, as_json: bool) -> None:
    """Print the milliseconds of a batch and of a step, and the share."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    samples, source = pictures(data_dir)
    epoch = samples.batches(BATCH, torch.Generator().manual_seed(0))
    step = training_step(model)
    step(*next(epoch))  # the first pays for what is allocated once
    batches, steps = [], []
    for _ in range(rounds):
        batches.append(seconds(lambda: next(epoch), 30))
        x, y = next(epoch)
        steps.append(seconds(lambda x=x, y=y: step(x, y), 2))  # type: ignore[misc]
    batch, compute = median(batches), median(steps)
    share = batch / (batch + compute)
    if as_json:
        facts = {"data": source, "model": model, "threads": threads, "environment": environment()}
        click.echo(json.dumps({"batch_ms": 1000 * batch, "step_ms": 1000 * compute, "share": share, **facts}))
        return
    click.echo(f"{source}, {model}, batch {BATCH}, {threads} threads")
    click.echo(f"  a batch, drawn, augmented, normalised  {1000 * batch:8.2f} ms")
    click.echo(f"  forward, backward, optimizer           {1000 * compute:8.2f} ms")
    click.echo(f"  share of data loading                  {share:8.2%}")


if __name__ == "__main__":
    main()
