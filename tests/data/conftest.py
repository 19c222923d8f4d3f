"""Every test here starts without network, environment variable or cache of the person who runs it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch

from rigl_compress.data import data_files as files
from rigl_compress.data import load_dataset as load
from rigl_compress.data.data_files import DataFile, md5
from rigl_compress.data.dataset import DataSpec
from rigl_compress.data.dataset_registry import DATASETS
from rigl_compress.data.idx_format import format_idx, write_idx
from rigl_compress.data.mnist import MNIST


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, empty and in a temporary folder."""
    folder = tmp_path / "cache"
    monkeypatch.delenv("RIGL_COMPRESS_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(files, "cache_folder", lambda: folder)
    monkeypatch.setattr(load, "cache_folder", lambda: folder)
    monkeypatch.setattr(load, "_failed", {})
    return folder


def _contents(train: int, test: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(train)
    values = {}
    for part, count in (("train", train), ("t10k", test)):
        pixels = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=generator)
        values[f"{part}-images-idx3-ubyte"] = pixels
        values[f"{part}-labels-idx1-ubyte"] = (torch.arange(count) % 10).to(torch.uint8)
    return values


@pytest.fixture
def digits() -> dict[str, bytes]:
    """The four files of a small MNIST (20 + 10 random images), uncompressed."""
    return {name: format_idx(values) for name, values in _contents(20, 10).items()}


@pytest.fixture
def write_digits() -> Callable[..., Path]:
    """Write a small MNIST into a folder: write_digits(folder, suffix=".gz", train=20, test=10)."""

    def write(folder: Path, suffix: str = "", train: int = 20, test: int = 10) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in _contents(train, test).items():
            write_idx(folder / f"{name}{suffix}", values)
        return folder

    return write


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[DataSpec], DataSpec]:
    """Put a data set into the registry for one test."""

    def put(spec: DataSpec) -> DataSpec:
        monkeypatch.setitem(DATASETS._items, spec.name, spec)
        return spec

    return put


@pytest.fixture
def tiny(digits: dict[str, bytes]) -> DataSpec:
    """MNIST as if the small one were the published one, with no source and no fallback."""
    published = tuple(DataFile(name, len(content), md5(content)) for name, content in digits.items())
    return replace(MNIST, name="tiny", files=published, sources=(), fallback="", counts=(20, 10))


@dataclass
class Web:
    """A web server on this machine: paths to contents (an int is an error status), and what was asked for."""

    url: str
    pages: dict[str, bytes | int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server that serves `web.pages`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            here.asked.append(self.path)
            page = here.pages.get(self.path, 404)
            self.send_response(page if isinstance(page, int) else 200)
            content = b"" if isinstance(page, int) else page
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here = Web(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield here
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Make PATH a folder with nothing but the shell scripts put there: tools("npm", "echo 1.0")."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        (folder / name).chmod(0o755)

    return put
