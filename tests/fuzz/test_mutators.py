"""Mutators keep the formats that they know, and are the same for the same random numbers."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random

import onnx
import pytest
from google.protobuf.message import DecodeError
from safetensors.torch import save
from torch import ones

from fuzzing.binary import mutate_bytes
from fuzzing.bundle import pack, unpack
from fuzzing.protobuf import mutate_model
from fuzzing.readers import CORPUS, all_readers
from fuzzing.tensors import mutate_safetensors
from fuzzing.values import mutate_json, mutate_toml

TRIES = 200
Mutate = Callable[[bytes, Random], bytes]


def is_model(data: bytes) -> bool:
    try:
        onnx.ModelProto.FromString(data)
    except DecodeError:
        return False
    return True


def is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def is_toml(data: bytes) -> bool:
    try:
        tomllib.loads(data.decode())
    except ValueError:
        return False
    return True


def has_header(data: bytes) -> bool:
    return is_json(data[8 : 8 + int.from_bytes(data[:8], "little")])


def model() -> bytes:
    return next((CORPUS / "onnx").glob("mlp-gap8-fp32")).read_bytes()


SEEDS: dict[str, tuple[Mutate, Callable[[], bytes], Callable[[bytes], bool]]] = {
    "model": (mutate_model, model, is_model),
    "json": (mutate_json, lambda: b'{"a": [1, {"b": null}], "c": "text", "d": 2.5}', is_json),
    "toml": (mutate_toml, lambda: b'name = "x"\n[train]\nepochs = 3\n', is_toml),
    "safetensors": (
        mutate_safetensors,
        lambda: save({"a": ones(2)}, {"rigl_compress": '{"k": 1}'}),
        has_header,
    ),
}


@pytest.mark.parametrize("kind", SEEDS)
def test_the_format_mostly_stays_and_the_content_changes(kind: str) -> None:
    mutate, seed, valid = SEEDS[kind]
    found = [mutate(seed(), Random(number)) for number in range(TRIES)]
    assert sum(map(valid, found)) > 0.7 * TRIES
    assert len(set(found)) > 0.7 * TRIES
    assert found == [mutate(seed(), Random(number)) for number in range(TRIES)]


def test_bytes_of_any_length_are_mutated() -> None:
    for length in range(20):
        for number in range(20):
            mutate_bytes(bytes(length), Random(number))


def test_every_reader_mutates_its_seeds_and_what_is_none() -> None:
    for reader in all_readers():
        for seed in [b"", b"\0\xff", *(path.read_bytes() for path in (CORPUS / reader.corpus).iterdir())]:
            assert isinstance(reader.mutate(seed, Random(0)), bytes)


def test_files_are_packed_and_none_leaves_its_folder() -> None:
    files = {"a": b"", "b/c.json": b"{}\n1"}
    assert unpack(pack(files)) == files
    assert unpack(pack({"../a": b"1"})) == {}
    assert unpack(pack({"/a": b"1"})) == {}
    assert unpack(b"other") == {}


def test_corpora_are_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert len(files) > 40
    assert sum(path.stat().st_size for path in files) < 200_000


def test_every_target_is_built_for_oss_fuzz() -> None:
    folder = Path(CORPUS).parent
    assert "fuzz_*.py" in (folder / "oss-fuzz" / "build.sh").read_text()
    assert {reader.name for reader in all_readers()} == {
        path.stem.removeprefix("fuzz_") for path in (folder / "python").glob("fuzz_*.py")
    }
