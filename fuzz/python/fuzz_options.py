"""Texts on the command line that have a grammar: shapes, conditions, grids, overrides."""

from pathlib import Path
from random import Random

from fuzzing.binary import mutate_bytes
from fuzzing.outcomes import Reader, attempt
from fuzzing.standalone import main

WORDS = (b"=", b"==", b"<=", b">=", b"<", b",", b".", b"[", b"]", b'"', b"{", b"}", b"\n", b"x", b"1e9", b"0x", b"nan")


def mutate(data: bytes, rng: Random) -> bytes:
    """Insert a sign of the grammars, or change bytes."""
    place = rng.randrange(len(data) + 1)
    inserted = data[:place] + rng.choice(WORDS) + data[place + rng.randint(0, 2) :]
    return inserted if rng.random() < 0.6 else mutate_bytes(data, rng)


def consume(data: bytes, folder: Path) -> None:
    """Parse a text in every way."""
    del folder
    from rigl_compress.experiments.grid import grid_experiment, grid_values
    from rigl_compress.pipeline.bench.conditions import parse_condition
    from rigl_compress.pipeline.bench.model_inputs import parse_shape
    from rigl_compress.pipeline.recipe import parse_recipe

    text = data.decode("utf-8", "replace")
    attempt("shape", lambda: parse_shape(text))
    attempt("condition", lambda: parse_condition(text))
    attempt("grid", lambda: grid_values(text))
    attempt("rows", lambda: [row.folder for row in grid_experiment("mnist-rigl", [text]).row])
    attempt("override", lambda: parse_recipe('name = "x"', "x.toml", [text]))


READER = Reader("options", consume, mutate, share=6)

if __name__ == "__main__":
    main(READER)
