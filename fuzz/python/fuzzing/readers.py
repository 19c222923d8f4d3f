"""All fuzz targets, and where their inputs lie."""

import importlib
import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from fuzzing.outcomes import Reader, findings_of

HERE = Path(__file__).resolve().parents[1]
CORPUS, FINDINGS = HERE.parent / "corpus", HERE.parent / "findings"


def all_readers() -> list[Reader]:
    """Return the readers of all targets beside this file."""
    return [importlib.import_module(file.stem).READER for file in sorted(HERE.glob("fuzz_*.py"))]


def warm_up(readers: Sequence[Reader]) -> None:
    """Let children find loaded what libraries import late. Not ONNX Runtime: its threads would not survive a fork."""
    for reader in readers:
        if reader.corpus not in ("onnx", "sparse_runtime"):
            for seed in sorted((CORPUS / reader.corpus).iterdir()):
                with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
                    findings_of(reader, seed.read_bytes(), Path(folder))
