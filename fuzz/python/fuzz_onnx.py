"""ONNX files in every encoding and from elsewhere: inspected, restored, exported again, counted."""

from pathlib import Path
from zlib import crc32

from fuzzing.outcomes import Reader, attempt
from fuzzing.protobuf import mutate_model
from fuzzing.standalone import main

ENCODINGS = ("sparse", "bitmask", "gap8", "compact", "dense")
VALUES = ("fp32", "fp32", "fp16", "int8")
RARELY = 2000  # random inputs are looked for in a process of their own, which takes a second


def consume(data: bytes, folder: Path) -> None:
    """Do with a file what commands do: inspect, export in one of the encodings, bench without timing."""
    path, chance = folder / "model.onnx", crc32(data)
    path.write_bytes(data)
    attempt("inspect", lambda: _inspect(path))
    attempt("restore", lambda: _restore(path))
    attempt("export", lambda: _export(path, chance))
    attempt("bench", lambda: _count(path))
    if chance % 4 == 0:
        attempt("export sparse-runtime", lambda: _export_sparse(path))


def _inspect(path: Path) -> None:
    from rigl_compress.cli import _render
    from rigl_compress.runtime.file_contents import read_contents

    found = read_contents(path)
    _render.exported(found)
    _render.json_result(found.to_json())


def _restore(path: Path) -> None:
    from rigl_compress.exporters.onnx_file import load_model
    from rigl_compress.exporters.restore import restore

    restore(load_model(path))


def _inputs(path: Path) -> object:
    """Return inputs that fit, so that none are looked for; the file may be one that ONNX Runtime does not open."""
    import onnxruntime as ort

    from fuzzing.sessions import drawn_inputs, quiet_options

    try:
        return drawn_inputs(ort.InferenceSession(str(path), quiet_options(), ["CPUExecutionProvider"])) or {}
    except Exception:
        return {}


def _export(path: Path, chance: int) -> None:
    from rigl_compress.exporters.onnx_export import Layout, reencode
    from rigl_compress.runtime.sparse_runtime_export import refuse_rewritten

    layout = Layout(ENCODINGS[chance % len(ENCODINGS)], VALUES[chance // 7 % len(VALUES)])
    refuse_rewritten(path)
    inputs = None if chance % RARELY == 0 else _inputs(path)
    reencode(path, path.with_name("out.onnx"), layout, inputs=inputs)  # type: ignore[arg-type]


def _export_sparse(path: Path) -> None:
    from rigl_compress.runtime.sparse_runtime_export import export_sparse_runtime

    export_sparse_runtime(path, path.with_name("fast.onnx"), inputs=_inputs(path))  # type: ignore[arg-type]


def _count(path: Path) -> None:
    from rigl_compress.exporters.onnx_file import load_model
    from rigl_compress.pipeline.bench.bench_sources import Source
    from rigl_compress.pipeline.bench.model_inputs import InputSpec
    from rigl_compress.pipeline.bench.stage import Prepared, benched_model

    benched_model(Prepared(Source("model", path, str(path)), load_model(path)), InputSpec())


READER = Reader("onnx", consume, mutate_model, share=20)

if __name__ == "__main__":
    main(READER)
