"""A fuzz target by itself, as OSS-Fuzz runs it: libFuzzer's options, and a finding ends the process."""

import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from fuzzing.outcomes import Reader, findings_of
from fuzzing.package import has_atheris, load_package


def main(reader: Reader) -> None:
    """Fuzz with atheris; without it, take the files that are named through the reader once."""
    load_package(has_atheris())
    if has_atheris():
        _fuzz(reader)
    for name in sys.argv[1:]:
        check(reader, Path(name).read_bytes())


def check(reader: Reader, data: bytes) -> None:
    """Raise if an input leads to a finding."""
    with TemporaryDirectory() as folder:
        found = findings_of(reader, data, Path(folder))
    if found:
        raise RuntimeError("\n".join(f"{each.kind} at {each.where} ({each.step})\n{each.text}" for each in found))


def _fuzz(reader: Reader) -> None:
    import atheris

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        changed = reader.mutate(data, Random(seed))
        return changed if len(changed) <= most else data[:most]

    atheris.Setup(sys.argv, lambda data: check(reader, data), custom_mutator=mutate)
    atheris.Fuzz()
