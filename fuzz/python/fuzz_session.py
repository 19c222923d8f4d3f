"""`InferenceSession` on ONNX models in every encoding and from elsewhere, beside that of ONNX Runtime."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

from fuzzing.outcomes import Reader, attempt
from fuzzing.protobuf import mutate_model
from fuzzing.standalone import main


def consume(data: bytes, folder: Path) -> None:
    """Open a model from memory and from a file, and with sparse kernels for every layer that can have them."""
    from fuzzing.sessions import compare, quiet_options
    from rigl_compress.runtime.session import InferenceSession

    path = folder / "model.onnx"
    path.write_bytes(data)
    attempt("session from bytes", lambda: compare(data, lambda: InferenceSession(data, quiet_options()), "the session"))
    attempt(
        "session from a file", lambda: compare(data, lambda: InferenceSession(path, quiet_options()), "the session")
    )
    attempt("all layers sparse", lambda: compare(data, lambda: _all_sparse(data), "the session with all layers sparse"))


def _all_sparse(data: bytes) -> Any:
    """Return a session whose layers all have sparse kernels, faster or not; where it cannot be, ours."""
    from fuzzing.sessions import quiet_options
    from rigl_compress.runtime import session

    chosen = patch.multiple(session, runs_faster=lambda *_: True, profitable_layers=lambda found, *_: found)
    with chosen:
        return session.InferenceSession(data, quiet_options())


READER = Reader("session", consume, mutate_model, share=20, seeds="onnx")

if __name__ == "__main__":
    main(READER)
