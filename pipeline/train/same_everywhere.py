"""Whether all processes of a run have the same code, recipe, data and files."""

import os
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from platform import python_version

import torch

import rigl_compress
from rigl_compress.core.errors import InputError
from rigl_compress.data.dataset import DataSet
from rigl_compress.data.samples import Samples
from rigl_compress.data.torch_datasets import LoadedBatches
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.train.process_group import World

SAMPLES = 4  # at each end of a split that are compared


def check_same_everywhere(world: World, recipe: Recipe, data: DataSet) -> None:
    """Raise, in every process, where one has other code, another recipe or other data than rank 0."""
    if world.alone:
        return
    found = world.gather(dict(facts(recipe, data)))
    for rank, other in enumerate(found):
        for what, value in other.items():
            if value != found[0][what]:
                raise InputError(_difference(rank, what, found[0], other))


def _difference(rank: int, what: str, first: Mapping[str, str], other: Mapping[str, str]) -> str:
    shown = f" ({other[what]}, rank 0 has {first[what]})" if len(first[what]) < 20 else ""
    return f"rank {rank} has another {what} than rank 0{shown}: start all processes with the same"


def facts(recipe: Recipe, data: DataSet) -> Iterator[tuple[str, str]]:
    """Yield what must be the same in all processes, in words or as a digest."""
    yield "version of torch", str(torch.__version__)
    yield "version of Python", python_version()
    yield "code of rigl-compress", _code()
    yield "recipe", _digest(recipe.to_toml().encode())
    yield "number of samples", f"{len(data.train)} and {len(data.test)}"
    yield "data", _digest(b"".join(_content(data.train) + _content(data.test)))


def _content(samples: Samples) -> list[bytes]:
    if isinstance(samples, LoadedBatches):  # a sampler of its own has no ends
        return []
    ends = (samples[:SAMPLES], samples[max(0, len(samples) - SAMPLES) :])
    pairs = (pair for part in ends for pair in part.in_order(SAMPLES))
    return [tensor.cpu().contiguous().numpy().tobytes() for pair in pairs for tensor in pair]


@cache
def _code() -> str:
    """Return the digest of all source files; in a checkout their folders are links."""
    folders = sorted(os.walk(Path(rigl_compress.__file__).parent, followlinks=True))
    sources = (Path(folder, name) for folder, _, names in folders for name in sorted(names) if name.endswith(".py"))
    return _digest(b"".join(path.read_bytes() for path in sources))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def sees_checkpoint(world: World, file: Path) -> bool:
    """Whether a run has a checkpoint; raise where rank 0 sees one and this process does not."""
    there = bool(world.first_of(file.exists()))
    if there and not file.exists():
        raise InputError(f"{file} is not on this machine: put the run folder where all processes can read it")
    return there
