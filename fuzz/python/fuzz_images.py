"""Photographs in folders: PNG, JPEG, BMP, GIF and whatever else Pillow takes their bytes for."""

from pathlib import Path
from random import Random

from fuzzing.binary import mutate_bytes
from fuzzing.bundle import mutate_files, write
from fuzzing.outcomes import Reader, attempt
from fuzzing.standalone import main


def mutate(data: bytes, rng: Random) -> bytes:
    """Change the bytes of one of the photographs."""
    return mutate_files(data, rng, lambda _: mutate_bytes)


def consume(data: bytes, folder: Path) -> None:
    """Load a folder of photographs, refusing and leaving out damaged ones, and read a batch of each part."""
    write(data, folder)
    attempt("refusing", lambda: _load(folder, "fatal"))
    attempt("leaving out", lambda: _load(folder, "skip"))


def _load(folder: Path, damaged: str) -> None:
    import torch

    from rigl_compress.data.load_dataset import load_dataset

    options = {"side": 8, "workers": 0, "damaged": damaged}
    found = load_dataset("image-folder", folder, fetch=False, options=options)
    for _ in found.test.in_order(2):
        pass
    for _ in found.train.batches(1, torch.Generator().manual_seed(0)):
        pass


READER = Reader("images", consume, mutate, share=10)

if __name__ == "__main__":
    main(READER)
