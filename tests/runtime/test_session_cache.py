"""The cache of rewritten models: the same numbers from it, and nothing of it where it is damaged or not the user's."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime import rewritten_cache as module
from rigl_compress.runtime import session as session_module
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.session import InferenceSession

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
X = {"x": np.linspace(-1, 1, 2000, dtype=np.float32).reshape(2, 1000)}
WEIGHT = sparse_weight(0.95, (700, 1000))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(module.SWITCH, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def rewrites(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows whenever a model is rewritten."""
    seen: list[Any] = []
    rewrite = session_module.rewrite
    monkeypatch.setattr(session_module, "rewrite", lambda *given: seen.append(1) or rewrite(*given))  # type: ignore[func-returns-value]
    return seen


def opened(layer: Path | bytes, **others: Any) -> InferenceSession:
    """Open a layer and check what it computes."""
    found = InferenceSession(layer, **others)
    expected = ort.InferenceSession(layer, providers=["CPUExecutionProvider"]).run(None, X)
    assert largest_difference(found.run(None, X), expected) < 1e-5
    assert found.sparse_layers == ("y",)
    return found


def entries(place: Path) -> list[Path]:
    return sorted(place.glob(f"*{module.ENTRY}"))


def test_the_second_opening_rewrites_nothing(layer: Path, place: Path, rewrites: list[Any]) -> None:
    content = layer.read_bytes()
    opened(layer)
    opened(layer)
    opened(content)
    opened(layer.rename(layer.with_name("moved.onnx")))
    assert len(rewrites) == len(entries(place)) == 1
    assert place.stat().st_mode & 0o777 == 0o700
    assert entries(place)[0].stat().st_mode & 0o777 == 0o600


def test_what_is_opened_otherwise_has_entries_of_its_own(layer: Path, place: Path, rewrites: list[Any]) -> None:
    opened(layer)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    opened(layer, sess_options=options)
    onnx.save(onnx_layer(sparse_weight(0.96, (700, 1000))), layer)
    opened(layer)
    assert len(rewrites) == len(entries(place)) == 3


@pytest.mark.parametrize("name", ["chosen_set", "processor"])
def test_another_machine(
    name: str, layer: Path, place: Path, rewrites: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(layer)
    monkeypatch.setattr(module, name, lambda: "another")
    module._machine.cache_clear()
    try:
        opened(layer)
    finally:
        module._machine.cache_clear()
    assert len(rewrites) == 2


@pytest.mark.parametrize("off", ["option", "variable"])
def test_the_cache_can_be_off(
    off: str, layer: Path, place: Path, rewrites: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(layer)
    if off == "variable":
        monkeypatch.setenv(module.SWITCH, "0")
    opened(layer, cache=off != "option")
    assert len(rewrites) == 2


def test_a_file_that_changes_without_another_size(layer: Path, place: Path, rewrites: list[Any]) -> None:
    """A hash is remembered for a file that has settled; one that was changed just before is read again."""
    old = time.time() - 100
    os.utime(layer, (old, old))  # the time of the change of the file itself stays what it is
    opened(layer)
    content = bytearray(layer.read_bytes())
    start = content.index(WEIGHT.tobytes()[:64])
    content[start : start + WEIGHT.nbytes] = np.roll(WEIGHT, 1).tobytes()
    layer.write_bytes(content)
    os.utime(layer, (old, old))
    opened(layer)
    assert len(rewrites) == 2


def test_hashes_of_settled_files_are_remembered(layer: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLED", -1)
    opened(layer)
    monkeypatch.setattr(module.hashlib, "file_digest", lambda *_: pytest.fail("the file is read"))
    opened(layer)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_model(path: Path) -> None:
    """A file of the right form that ONNX Runtime does not open."""
    path.write_bytes(b"".join(module._written(module.Entry(b"no model", ("y",)))))


def no_table(path: Path) -> None:
    path.write_bytes(b"RIGLCACHE1\n" + b"0" * 64 + b"\n[]\n")


@pytest.mark.parametrize("damage", [cut, flip, empty, other_model, no_table])
def test_damaged_entries_are_made_again(
    damage: Callable[[Path], None], layer: Path, place: Path, rewrites: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    opened(layer)
    (path,) = entries(place)
    good = path.read_bytes()
    damage(path)
    with caplog.at_level(logging.WARNING, "rigl_compress"):
        opened(layer)
    assert "will be made again" in caplog.text
    assert len(rewrites) == 2
    assert path.read_bytes() == good


@pytest.mark.parametrize("what", ["entry", "folder", "link"])
def test_what_others_could_have_written_is_not_used(
    what: str, layer: Path, place: Path, rewrites: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    opened(layer)
    (path,) = entries(place)
    if what == "link":
        path.rename(place / "elsewhere")
        path.symlink_to(place / "elsewhere")
    else:
        (path if what == "entry" else place).chmod(0o666 if what == "entry" else 0o777)
    opened(layer)
    assert len(rewrites) == 2
    assert "not used" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners of files")
def test_files_of_somebody_else(layer: Path, place: Path, rewrites: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    opened(layer)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    opened(layer)
    assert len(rewrites) == 2


def test_the_oldest_entries_go(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{number}.onnx" for number in range(4)]
    for number, path in enumerate(paths):
        onnx.save(onnx_layer(sparse_weight(0.95, (700, 1000), number)), path)
        opened(path)
        for each in entries(place):  # as if time had passed
            os.utime(each, ns=(0, each.stat().st_mtime_ns - 10**9))
        size = entries(place)[0].stat().st_size
        monkeypatch.setenv(module.LIMIT, str(2 * size + size // 2))
    assert len(entries(place)) == 2
    monkeypatch.setenv(module.LIMIT, "10")
    opened(paths[0])
    assert len(entries(place)) == 2


def test_a_folder_that_cannot_be_written(layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(module.SWITCH, str(tmp_path / "file"))
    opened(layer)
    monkeypatch.setenv(module.SWITCH, str(tmp_path / "file" / "below"))
    opened(layer)


def test_models_without_gain_are_remembered(place: Path, rewrites: list[Any]) -> None:
    model = onnx_layer(sparse_weight(0.0, (700, 1000))).SerializeToString()
    assert [InferenceSession(model).sparse_layers for _ in range(2)] == [(), ()]
    assert len(rewrites) == 1


def test_small_models_and_external_data_are_not_kept(place: Path, tmp_path: Path) -> None:
    InferenceSession(onnx_layer(sparse_weight(0.95, (300, 300))).SerializeToString())
    model = onnx_layer(WEIGHT)
    model.metadata_props.add(key="long", value="x" * 2**20)
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="values.bin")
    assert InferenceSession(tmp_path / "net.onnx").sparse_layers == ("y",)
    assert not entries(place)


def test_processes_share_it(layer: Path, place: Path) -> None:
    code = "import sys, rigl_compress as rc; print(rc.InferenceSession(sys.argv[1]).sparse_layers)"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, layer], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["('y',)\n"] * 2
    assert len(entries(place)) == 1
    assert not [path for path in place.iterdir() if path.suffix not in (module.ENTRY, module.SOURCE)]
