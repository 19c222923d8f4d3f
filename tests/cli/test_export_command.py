"""`rigl-compress export` and `rigl-compress inspect FILE`: what they print, and what they say to bad input."""

import json
from pathlib import Path

import onnx
import pytest
from sparse_nets import onnx_layer, sparse_weight
from tiny import Cli, Trainer, untouched

import rigl_compress
from rigl_compress.pipeline.workspace import Run
from rigl_compress.runtime.kernel_library import unavailable_reason

needs_kernels = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Run:
    """A finished run. No test may change it."""
    return Trainer(tmp_path_factory.mktemp("runs"), data_dir)("train.epochs=1")


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    path = tmp_path / "layer.onnx"
    onnx.save(onnx_layer(sparse_weight()), path)
    return path


def test_a_run_is_exported(cli: Cli, finished: Run, tmp_path: Path) -> None:
    spoken = cli("export", finished.path, "-o", tmp_path / "net.onnx", "--encoding", "compact")
    assert (spoken.code, spoken.err) == (0, "")
    assert "fc1.weight" in spoken.out
    assert "bitmask" in spoken.out
    assert "max output difference: " in spoken.out
    assert spoken.out.endswith(f"written to {tmp_path / 'net.onnx'}\n")


def test_export_in_json(cli: Cli, layer: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    told = json.loads(cli("export", layer, "-o", target, "--encoding", "gap8", "--values", "int8", "--json").out)
    assert told["format"] == 1
    assert told["path"] == str(target)
    assert told["bytes"] == target.stat().st_size
    assert told["tensors"][0]["encoding"] == "gap8+int8"
    assert told["metadata"]["values"] == "int8"


def test_a_file_is_inspected(cli: Cli, layer: Path, tmp_path: Path) -> None:
    cli("export", layer, "-o", tmp_path / "out.onnx", "--encoding", "gap8")
    spoken = cli("inspect", tmp_path / "out.onnx")
    assert (spoken.code, spoken.err) == (0, "")
    row = next(line.split() for line in spoken.out.splitlines() if line.startswith("w "))
    zeros = int((sparse_weight() == 0).sum())
    assert row[:3] == ["w", "40×60", f"{zeros:,}"]
    assert row[4] == "gap8"
    told = json.loads(cli("inspect", tmp_path / "out.onnx", "--json").out)
    assert told["tensors"][0]["nonzeros"] == 2400 - zeros
    assert f"{told['tensors'][0]['bytes']:,}" == row[5]


def test_a_file_from_elsewhere_is_inspected(cli: Cli, layer: Path) -> None:
    spoken = cli("inspect", layer)
    assert spoken.code == 0
    assert "dense" in spoken.out


def test_a_file_under_any_name_is_inspected(cli: Cli, layer: Path, tmp_path: Path) -> None:
    other = layer.rename(tmp_path / "layer.model")
    told = json.loads(cli("inspect", other, "--json").out)
    assert [row["name"] for row in told["tensors"]] == ["w"]
    assert "difference" not in told  # nothing was compared
    (tmp_path / "notes.txt").write_text("no model")
    assert "notes.txt is not an ONNX" in cli("inspect", tmp_path / "notes.txt").err


def test_there_and_back(cli: Cli, layer: Path, tmp_path: Path) -> None:
    cli("export", layer, "-o", tmp_path / "small.onnx", "--encoding", "compact")
    assert cli("export", tmp_path / "small.onnx", "-o", tmp_path / "back.onnx", "--encoding", "dense").code == 0
    assert onnx.load(tmp_path / "back.onnx").graph == onnx.load(layer).graph


def test_a_dry_run(cli: Cli, layer: Path, tmp_path: Path) -> None:
    with untouched(tmp_path):
        spoken = cli("export", layer, "-o", tmp_path / "small.onnx", "--dry-run")
    assert spoken.code == 0
    assert spoken.out.endswith("dry run: nothing written\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--encoding", "gap7"], "unknown encoding 'gap7': did you mean 'gap8'?"),
        (["--values", "fp61"], "unknown value type 'fp61': did you mean 'fp16'?"),
        (["--keep-batch-norm"], "leave out --keep-batch-norm"),
        (["--network", "pruned"], "--network chooses among the networks of a run"),
        (["--inputs", "none.npz"], "none.npz does not exist"),
        (["--target", "sparse-runtme"], "unknown target 'sparse-runtme': did you mean 'sparse-runtime'?"),
        (["--target", "sparse-runtime", "--encoding", "gap8"], "leave out --encoding and --values"),
        (["--target", "sparse-runtime", "--values", "fp16"], "leave out --encoding and --values"),
    ],
)
def test_bad_options(cli: Cli, layer: Path, tmp_path: Path, options: list[str], message: str) -> None:
    with untouched(tmp_path):
        spoken = cli("export", layer, "-o", tmp_path / "out.onnx", *options)
    assert spoken.code == 2
    assert spoken.out == ""
    assert message in spoken.err
    assert spoken.err.count("\n") == 1


@pytest.mark.parametrize("command", [["inspect"], ["export", "-o", "out.onnx"]])
@pytest.mark.parametrize("content", [b"", b"no model", None])
def test_files_that_are_no_models(
    cli: Cli, layer: Path, command: list[str], content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(layer.parent)
    layer.write_bytes(layer.read_bytes()[:3000] if content is None else content)
    with untouched(layer.parent):
        spoken = cli(*command, layer)
    assert spoken.code == 2
    assert spoken.err.count("\n") == 1
    assert "ONNX" in spoken.err


def test_an_existing_output(cli: Cli, layer: Path, tmp_path: Path) -> None:
    (tmp_path / "out.onnx").write_bytes(b"precious")
    with untouched(tmp_path):
        spoken = cli("export", layer, "-o", tmp_path / "out.onnx")
    assert spoken.code == 2
    assert "exists: choose another name, or replace it with --force" in spoken.err
    assert cli("export", layer, "-o", tmp_path / "out.onnx", "--force").code == 0


def test_no_picture_of_a_file(cli: Cli, layer: Path, tmp_path: Path) -> None:
    with untouched(tmp_path):
        assert "--png draws the connections of a run" in cli("inspect", layer, "--png", tmp_path / "x.png").err


@needs_kernels
def test_for_the_sparse_runtime(cli: Cli, tmp_path: Path) -> None:
    onnx.save(onnx_layer(sparse_weight(0.95, (700, 1000))), tmp_path / "layer.onnx")
    spoken = cli("export", tmp_path / "layer.onnx", "-o", tmp_path / "fast.onnx", "--target", "sparse-runtime")
    assert (spoken.code, spoken.err) == (0, "")
    row = next(line.split() for line in spoken.out.splitlines() if line.startswith("w "))
    assert (row[1], row[4]) == ("700×1000", "SparseMatMul")
    library = str(rigl_compress.kernels_library())
    assert f"open it with the custom operators of {library}\n" in spoken.out
    assert spoken.out.endswith(f"written to {tmp_path / 'fast.onnx'}\n")
    looked = cli("inspect", tmp_path / "fast.onnx")
    assert "SparseMatMul" in looked.out
    assert "sparse-runtime" in looked.out
    assert "y/packed" not in looked.out
    told = json.loads(
        cli("export", tmp_path / "layer.onnx", "-o", tmp_path / "x.onnx", "--target", "sparse-runtime", "--json").out
    )
    assert told["library"] == library
    assert json.loads(cli("list", "--json").out)["sparse kernels"]["library"] == library
    spoken = cli("export", tmp_path / "fast.onnx", "-o", tmp_path / "back.onnx")
    assert (spoken.code, spoken.err.count("\n")) == (2, 1)
    assert "cannot be exported again" in spoken.err


def test_nothing_to_gain(cli: Cli, layer: Path, tmp_path: Path) -> None:
    with untouched(tmp_path):
        spoken = cli("export", layer, "-o", tmp_path / "fast.onnx", "--target", "sparse-runtime")
    assert (spoken.code, spoken.err.count("\n")) == (2, 1)
    assert unavailable_reason() or "would be faster on sparse kernels" in spoken.err
