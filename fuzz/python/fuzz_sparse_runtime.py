"""ONNX files with our operators in them: opened, run, inspected, and refused where there is no way back."""

from pathlib import Path

from fuzzing.outcomes import Reader, attempt
from fuzzing.protobuf import mutate_model
from fuzzing.standalone import main


def consume(data: bytes, folder: Path) -> None:
    """Run a file on our kernels. There is nothing to compare with: it must not crash, hang or fill the memory."""
    path = folder / "fast.onnx"
    path.write_bytes(data)
    attempt("run", lambda: _run(path))
    attempt("inspect", lambda: _inspect(path))
    attempt("export", lambda: _refuse(path))


def _run(path: Path) -> None:
    from fuzzing.sessions import outcome, quiet_options
    from rigl_compress.runtime.session import InferenceSession

    outcome(lambda: InferenceSession(path, quiet_options()))


def _inspect(path: Path) -> None:
    from rigl_compress.cli import _render
    from rigl_compress.runtime.file_contents import read_contents

    _render.exported(read_contents(path))


def _refuse(path: Path) -> None:
    from rigl_compress.runtime.sparse_runtime_export import refuse_rewritten

    refuse_rewritten(path)


READER = Reader("sparse_runtime", consume, mutate_model, share=20)

if __name__ == "__main__":
    main(READER)
