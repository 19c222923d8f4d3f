"""How long a checkpoint keeps training waiting: a ResNet-50 with momentum and masks, as `train` writes it.

    python benchmarks/checkpoint_stall.py [--rounds 9] [--folder FOLDER]

Seconds of a whole checkpoint, synced to the disk of the folder, and of its parts: everything but the disk (the same
file written to memory, /dev/shm), and a plain copy of the file's bytes; by the clock, and CPU time, which other work on
the machine disturbs less. Shares of what lies between two checkpoints: `train.checkpoint_minutes = 10`, and an epoch of
ImageNet at 2,500 images per second (eight GPUs).
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import click
import torch

from rigl_compress import Sparsifier
from rigl_compress.core.provenance import command_line, environment
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.pipeline.train.checkpoint import save_checkpoint

INTERVALS = {"10 minutes": 600.0, "an epoch of ImageNet at 2,500 images/s": 1_281_167 / 2500}
PROGRESS = {"epochs_done": 1, "seen": {}, "seconds": 0.0, "scaler": {}, "recalibrated": 0}


def training() -> tuple[torch.nn.Module, torch.optim.Optimizer, Sparsifier]:
    model = ModelSpec("resnet-50").build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparse = Sparsifier(model, optimizer, sparsity=0.9, distribution="erk", total_steps=1000)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    sparse.step()  # an update, which takes the place of the first step
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    sparse.step()
    optimizer.step()
    return model, optimizer, sparse


def seconds(write: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the median seconds by the clock, and of CPU time."""
    found = []
    for _ in range(rounds):
        begin, busy = perf_counter(), process_time()
        write()
        found.append((perf_counter() - begin, process_time() - busy))
    return median(clock for clock, _ in found), median(cpu for _, cpu in found)


@click.command(help=__doc__)
@click.option("--rounds", default=9, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path(), help="On the disk to be measured.")
def main(rounds: int, folder: Path) -> None:
    trained = training()
    with tempfile.TemporaryDirectory(dir=folder) as disk, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        files = {"whole": Path(disk) / "checkpoint.safetensors", "without a disk": Path(memory) / "checkpoint"}
        found = {
            what: seconds(lambda file=file: save_checkpoint(file, *trained, PROGRESS), rounds)
            for what, file in files.items()
        }  # type: ignore[misc]
        size = files["whole"].stat().st_size
        found["copy of the file"] = seconds(lambda: shutil.copyfile(files["whole"], Path(disk) / "copy"), rounds)
    click.echo(
        f"{size / 1e6:.0f} MB; "
        + ", ".join(f"{what} {clock:.2f} s ({cpu:.2f} s CPU)" for what, (clock, cpu) in found.items())
    )
    for name, interval in INTERVALS.items():
        click.echo(f"of {name}: {found['whole'][0] / interval:.2%}")
    here = environment()
    click.echo(f"`{command_line()}`, {here['date']}, {here['cpu']}, {here['cores']} cores, torch {torch.__version__}")


if __name__ == "__main__":
    main()
