"""Whether the files in a folder are whole: each under a final name can be read to its end."""

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
from safetensors import safe_open

from rigl_compress.core.folder_lock import leftover


def damaged(folder: Path) -> Iterator[str]:
    """Name the files that are not whole. Temporary files and locks are nobody's final names."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not leftover(path):
            try:
                READERS.get(path.suffix, Path.read_bytes)(path)
            except Exception as error:
                yield f"{path.name}: {type(error).__name__} {error}"


def leftovers(folder: Path) -> list[str]:
    """Name the temporary files and locks."""
    return [path.name for path in folder.rglob("*") if leftover(path)]


def _safetensors(path: Path) -> None:
    with safe_open(path, framework="np") as file:
        json.loads(file.metadata()["rigl_compress"])


def _onnx(path: Path) -> None:
    model = onnx.load(path)
    if not any(each.domain.startswith("rigl") for each in model.opset_import):
        onnx.checker.check_model(model)


def _lines(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        json.loads(line)


def _ends_with(*ends: bytes) -> Callable[[Path], object]:
    def read(path: Path) -> None:
        if not path.read_bytes().rstrip(b"\n").endswith(ends):
            raise ValueError("it is cut short")

    return read


READERS: dict[str, Callable[[Path], object]] = {
    ".safetensors": _safetensors,
    ".onnx": _onnx,
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".jsonl": _lines,
    ".toml": lambda path: tomllib.loads(path.read_text(encoding="utf-8")),
    ".html": _ends_with(b"</html>"),
    ".png": _ends_with(b"IEND\xaeB`\x82"),
}
