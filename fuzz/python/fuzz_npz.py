"""Inputs in .npz and .npy files, as `--inputs` and `--calibration` read them."""

import io
import zipfile
from pathlib import Path
from random import Random
from typing import Any

from fuzzing.binary import mutate_bytes
from fuzzing.outcomes import Reader, attempt
from fuzzing.standalone import main


def mutate(data: bytes, rng: Random) -> bytes:
    """Change bytes of the archive, or of a member of it, with checksums that are right."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            members = {name: packed.read(name) for name in packed.namelist()}
    except Exception:
        return mutate_bytes(data, rng)
    if not members or rng.random() < 0.2:
        return mutate_bytes(data, rng)
    name = rng.choice(list(members))
    members[rng.choice((name, name, name, "input", "x.npy", "../input.npy"))] = mutate_bytes(members[name], rng)
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as packed:
        for each, content in members.items():
            packed.writestr(zipfile.ZipInfo(each), content)
    return found.getvalue()


def consume(data: bytes, folder: Path) -> None:
    """Read inputs, and give them to a model as a benchmark does."""
    path = folder / "inputs.npz"
    path.write_bytes(data)
    attempt("inputs", lambda: _inputs(path))
    attempt("calibration", lambda: _calibration(path))
    single = folder / "sample.npy"
    single.write_bytes(_first_member(data))
    attempt("calibration from .npy", lambda: _calibration(single))


def _first_member(data: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            return packed.read(packed.namelist()[0])
    except Exception:
        return data


def _calibration(path: Path) -> None:
    from rigl_compress.onnx_pruning.calibration_samples import CalibrationConfig, read_calibration

    _ = read_calibration(_model(), CalibrationConfig(path)).digest


def _inputs(path: Path) -> None:
    from rigl_compress.pipeline.bench.model_inputs import InputSpec, draw_inputs, one_sample
    from rigl_compress.pipeline.export.stage import read_inputs

    model = _model()
    one_sample(model, draw_inputs(model, None, InputSpec(arrays=read_inputs(path))))


def _model() -> Any:
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("input", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["input"], ["y"])], "g", ends[:1], ends[1:])
    return helper.make_model(graph)


READER = Reader("npz", consume, mutate, share=6)

if __name__ == "__main__":
    main(READER)
