"""Data sets on disk: idx files, CIFAR-10's records and texts, plain and gzip'd."""

import gzip
import zlib
from pathlib import Path
from random import Random

from fuzzing.binary import mutate_bytes
from fuzzing.bundle import Mutate, mutate_files, write
from fuzzing.outcomes import Reader, attempt
from fuzzing.standalone import main

SETS = ("mnist", "fashion-mnist", "cifar10", "text", "tiny-shakespeare", "wikitext103")


def mutate(data: bytes, rng: Random) -> bytes:
    """Change one of the files, mostly within what is compressed."""
    return mutate_files(data, rng, _mutator)


def _mutator(name: str) -> Mutate:
    return _mutate_gzip if name.endswith(".gz") else mutate_bytes


def _mutate_gzip(data: bytes, rng: Random) -> bytes:
    try:
        content = gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return mutate_bytes(data, rng)
    chance = rng.random()
    if chance < 0.3:
        return mutate_bytes(data, rng)
    if chance < 0.302:  # a bomb
        return gzip.compress(content + bytes(rng.choice((10**6, 10**8))), mtime=0, compresslevel=1)
    return gzip.compress(mutate_bytes(content, rng), mtime=0)


def consume(data: bytes, folder: Path) -> None:
    """Load the data sets whose folders there are."""
    write(data, folder)
    for name in SETS:
        if (folder / name).exists():
            attempt(name, lambda name=name: _load(name, folder))


def _load(name: str, folder: Path) -> None:
    from rigl_compress.data.load_dataset import load_dataset

    options = {} if name in ("mnist", "fashion-mnist", "cifar10") else {"length": 8}
    where = folder / name if name == "text" else folder
    found = load_dataset(name, where, fetch=False, options=options)
    next(iter(found.train.in_order(2)), None)


READER = Reader("data", consume, mutate, share=12)

if __name__ == "__main__":
    main(READER)
