"""How many photographs are read in a second, from folders and tar shards, with 0, 1 and 2 workers; cores for each GPU.

    python benchmarks/image_loading.py FOLDER [--rounds 3] [--images 480] [--rate 400 --rate 1000] [--pinned]

FOLDER has train/CLASS/*.jpg and val/CLASS/*.jpg. Images are decoded, cut at random, scaled to 224 × 224, mirrored and
normalised, as in training. Images per second are by the clock, after the first batch, without training beside them.
Cores are CPU time per image (without workers) times the images that a GPU trains in a second, which you measure. The
same shards are written from the folder. `--pinned` puts batches into pinned memory, where there is a GPU.
"""

import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import click
import torch

from rigl_compress.core.provenance import command_line, environment
from rigl_compress.data.image_files import ImageFiles
from rigl_compress.data.load_dataset import load_dataset
from rigl_compress.pipeline.markdown import markdown as markdown_table

BATCH, SHARDS = 16, 4


def write_shards(source: ImageFiles, folder: Path) -> None:
    """Pack images into tar files, a class as a number beside each."""
    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:04}.tar", "w") as tar:
            for number in range(shard, len(source), SHARDS):
                content = Path(source.paths[number]).read_bytes()
                for suffix, each in ((".jpg", content), (".cls", str(int(source.classes[number])).encode())):
                    entry = tarfile.TarInfo(f"{number:08}{suffix}")
                    entry.size = len(each)
                    tar.addfile(entry, BytesIO(each))


def measured(samples: ImageFiles, workers: int) -> tuple[float, float]:
    """Return images per second by the clock, and the CPU seconds of this process per image."""
    chosen = replace(samples, reading=replace(samples.reading, workers=workers))
    batches = chosen.batches(BATCH, torch.Generator().manual_seed(0))
    next(batches)  # workers start
    began, cpu, count = perf_counter(), process_time(), 0
    for x, _ in batches:
        count += len(x)
    return count / (perf_counter() - began), (process_time() - cpu) / count


def rows(kinds: dict[str, ImageFiles], rounds: int, rates: Sequence[int]) -> Iterator[tuple[str, ...]]:
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(rounds):  # all take turns
        for name, samples in kinds.items():
            for workers in (0, 1, 2):
                found.setdefault((name, workers), []).append(measured(samples, workers))
    for (name, workers), values in found.items():
        speed, cpu = (median(each) for each in zip(*values, strict=True))
        cores = (f"{rate * cpu:.1f}" for rate in rates) if not workers else ("" for _ in rates)
        yield name, str(workers), f"{speed:.0f}", f"{1e3 * cpu:.2f}", *cores


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--rounds", default=3, show_default=True)
@click.option("--images", default=480, show_default=True, help="Images of an epoch.")
@click.option("--rate", "rates", multiple=True, default=(400, 1000, 2500), show_default=True, help="Images/s of a GPU.")
@click.option("--pinned", is_flag=True, help="For a GPU, through pinned memory.")
def main(folder: Path, rounds: int, images: int, rates: tuple[int, ...], pinned: bool) -> None:
    torch.set_num_threads(1)
    options = {"check": False}
    train = load_dataset("image-folder", folder, options=options).train
    assert isinstance(train, ImageFiles)
    step = max(1, len(train) // images)
    train = replace(train, paths=train.paths[::step][:images], classes=train.classes[::step][:images])
    with tempfile.TemporaryDirectory() as place:
        for part in ("train", "val"):
            write_shards(train, Path(place) / part)
        shards = load_dataset("image-shards", Path(place)).train
        assert isinstance(shards, ImageFiles)
        kinds = {"folder": train, "tar shards": shards}
        if pinned:
            kinds = {f"{name}, pinned, to the GPU": each.to("cuda") for name, each in kinds.items()}
        heads = ("source", "workers", "images/s", "CPU ms per image, main process", *(f"cores at {r}/s" for r in rates))
        click.echo(markdown_table(heads, list(rows(kinds, rounds, rates))))
    here = environment()
    click.echo(f"`{command_line()}`, {here['date']}, {here['cpu']}, {here['cores']} cores, torch {torch.__version__}")


if __name__ == "__main__":
    main()
