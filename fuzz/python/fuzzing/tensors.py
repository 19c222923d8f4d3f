"""Mutations of safetensors files: the header, the JSON of ours within it, the length before it, the bytes behind it."""

import json
from random import Random
from typing import Any

from fuzzing.binary import EDGES, mutate_bytes
from fuzzing.values import mutate_json, mutate_value

_OURS = "rigl_compress"


def mutate_safetensors(data: bytes, rng: Random) -> bytes:
    """Change one part of a file."""
    length = int.from_bytes(data[:8], "little")
    header, content, chance = data[8 : 8 + length], data[8 + length :], rng.random()
    if chance < 0.05:
        return mutate_bytes(data, rng)
    if chance < 0.1:
        return (rng.choice(EDGES) % 2**64).to_bytes(8, "little") + header + content
    if chance < 0.2:
        return data[: 8 + length] + mutate_bytes(content, rng)
    return _packed(_mutated_header(header, rng), content)


def _packed(header: bytes, content: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + content


def _mutated_header(header: bytes, rng: Random) -> bytes:
    try:
        table: dict[str, Any] = json.loads(header)
        inner = json.loads(table["__metadata__"][_OURS])
    except (ValueError, KeyError, TypeError):
        return mutate_json(header, rng)
    if rng.random() < 0.35:
        return json.dumps(mutate_value(table, rng)).encode()
    table["__metadata__"][_OURS] = json.dumps(mutate_value(inner, rng))
    return json.dumps(table).encode()
