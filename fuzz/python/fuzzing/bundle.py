"""Several files as one input: a run folder or a data set, of which a mutation changes one or two files."""

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from random import Random

Mutate = Callable[[bytes, Random], bytes]
MAGIC = b"FILES\n"


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return one input for files by their names.

    >>> unpack(pack({"a/b": b"12"}))
    {'a/b': b'12'}
    """
    parts = [f"{len(content)} {name}\n".encode() + content for name, content in files.items()]
    return MAGIC + b"".join(parts)


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the files of an input; what is not one has none."""
    found: dict[str, bytes] = {}
    rest = data.removeprefix(MAGIC)
    while data.startswith(MAGIC) and rest:
        line, _, rest = rest.partition(b"\n")
        size, _, name = line.decode("utf-8", "replace").partition(" ")
        if not size.isdecimal() or len(size) > 9 or not _safe(name):
            break
        found[name], rest = rest[: int(size)], rest[int(size) :]
    return found


def _safe(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name and len(name) < 100


def folder_bytes(folder: Path) -> bytes:
    """Pack all files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return pack({path.relative_to(folder).as_posix(): path.read_bytes() for path in files})


def write(data: bytes, folder: Path) -> dict[str, bytes]:
    """Write the files of an input into a folder."""
    files = unpack(data)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return files


def mutate_files(data: bytes, rng: Random, mutate: Callable[[str], Mutate]) -> bytes:
    """Change one or two files, each as its name asks for; now and then leave one out, empty it or swap two."""
    files = unpack(data)
    if not files:
        return data + b"\0"
    for _ in range(rng.choice((1, 1, 1, 2))):
        name, chance = rng.choice(list(files)), rng.random()
        if chance < 0.02:
            files[name] = b""
        elif chance < 0.05:
            files[name] = files[rng.choice(list(files))]
        elif chance < 0.07 and len(files) > 1:
            del files[name]
        else:
            files[name] = mutate(name)(files[name], rng)
    return pack(files)
