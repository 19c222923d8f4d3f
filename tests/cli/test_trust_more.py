"""What a hostile file or folder tries beyond naming code: texts without a mark, the working folder, a word unsaid."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest
import tiny
from sparse_nets import onnx_layer, sparse_weight
from tiny import Cli, Trainer

from rigl_compress.core.errors import InputError
from rigl_compress.core.trust import FromFile, may_import, only_named
from rigl_compress.data.image_decoding import DamagedImageError, decode
from rigl_compress.exporters.external_data import contained
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.pipeline.bench.footprint import footprints
from rigl_compress.pipeline.recipe import parse_recipe
from rigl_compress.pipeline.train.stage import train

NET = "torch.nn:Identity"


def test_a_text_that_lost_its_mark_is_refused_by_a_command(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks are not the only line: a command imports what its options name, and nothing else."""
    recipe = tmp_path / "a.toml"
    recipe.write_text(f'name = "a"\n[model]\nname = "{NET}"\ninput_shape = [3]\n', encoding="utf-8")
    monkeypatch.setattr("rigl_compress.pipeline.recipe.from_file", lambda content, _: content)
    for command in (["flops"], ["train", "--dry-run"], ["run", "--dry-run"], ["train", "-o", tmp_path / "run"]):
        done = cli(command[0], "--recipe", recipe, *command[1:])
        assert done.code == 2, command
        assert f"'{NET}' that no option of the command names" in done.err
    done = cli("flops", "--recipe", recipe, "--set", f"model.name={NET}")
    assert "--trust-code" not in done.err


OWN = """
from dataclasses import replace
from rigl_compress.exporters.encodings import ENCODINGS
from rigl_compress.pipeline.bench.backends import BACKENDS

GAPS = replace(ENCODINGS["gap8"], name="own-gaps")
RUNTIME = replace(BACKENDS["onnxruntime"], name="own-runtime")
"""


@pytest.mark.usefixtures("registries")
def test_what_an_option_names_is_the_users_word(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encodings and backends as well: models, data sets and methods are typed in other tests."""
    (tmp_path / "own_things.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    onnx.save(onnx_layer(sparse_weight()), "a.onnx")
    done = cli("export", "a.onnx", "-o", "b.onnx", "--encoding", "own_things:GAPS")
    assert done.code == 0, done.err
    done = cli("bench", "b.onnx", "--backend", "own_things:RUNTIME", "--openings", 1, "--rounds", 1)
    assert done.code == 0, done.err
    sys.modules.pop("own_things", None)


def test_python_needs_no_ceremony() -> None:
    assert ModelSpec(NET).build() is not None
    with only_named([]), pytest.raises(InputError, match="add --trust-code"):
        ModelSpec(NET).build()
    with only_named([f"--model={NET}"]):
        assert ModelSpec(NET).build() is not None
        assert not may_import(FromFile(NET, "a.toml"))


def test_a_model_that_is_never_built_is_not_remembered(cli: Cli, trainer: Trainer, tmp_path: Path) -> None:
    """A recipe that starts from another network could otherwise have the word put down for whatever it names."""
    earlier = trainer("train.epochs=1", run="earlier")
    start = f'\n[start]\nrun = "{earlier.path.as_posix()}"\narchitecture = "pruned"\n'
    text = tiny.RECIPE.replace('"mlp"', f'"{NET}"').replace("options = { hidden = [24, 16] }", "") + start
    recipe = parse_recipe(text, "foreign.toml", ["train.epochs=1"])
    train(recipe, tmp_path / "later", trainer.here())
    done = cli("flops", "--recipe", tmp_path / "later" / "recipe.toml")
    assert done.code == 2
    assert "add --trust-code" in done.err


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with modules of names that every process imports; the file that they would write."""
    caught = tmp_path / "caught"
    (tmp_path / "here").mkdir()
    for name in ("json", "multiprocessing", "numpy", "torch"):
        code = f"import os\nos.close(os.open({str(caught)!r}, os.O_CREAT))\nraise SystemExit(3)\n"
        (tmp_path / "here" / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    return caught


def test_the_working_folder_when_models_are_opened_in_their_own_process(trap: Path) -> None:
    assert footprints({"a": Path("missing.onnx")}, {"a": Path("missing.npz")}, 1) == {}
    assert not trap.exists()


def test_the_working_folder_in_the_processes_of_a_sweep(trap: Path, trainer: Trainer, tmp_path: Path) -> None:
    recipe = tmp_path / "a.toml"
    recipe.write_text(tiny.RECIPE, encoding="utf-8")
    out, data = str(tmp_path / "out"), str(trainer.data_dir)
    words = ["sweep", "--recipe", str(recipe), "-o", out, "--data-dir", data, "--set", "train.epochs=1", "--json"]
    # As the script of the installed command, which does not search the working folder.
    code = f"import sys; sys.path.remove(''); sys.argv[1:] = {words!r}; from rigl_compress.cli.main import main; main()"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert not trap.exists()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("name", ["model.safetensors", "topology-end.safetensors", "result.json", "metrics.jsonl"])
def test_a_pipe_in_the_place_of_a_file(cli: Cli, trainer: Trainer, tmp_path: Path, name: str) -> None:
    """It would be waited for without end."""
    run = trainer("train.epochs=1")
    (run.path / name).unlink()
    os.mkfifo(run.path / name)
    with _in_time():
        done = cli("inspect", run.path, "--png", tmp_path / "a.png")
    assert done.code == 2
    assert f"{run.path / name} is a folder, a device or a pipe" in done.err


@contextmanager
def _in_time() -> Iterator[None]:
    """Turn waiting without end into a failure."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for a pipe"))
    signal.alarm(30)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "recipe.toml"])
def test_texts_of_any_size(cli: Cli, trainer: Trainer, tmp_path: Path, name: str) -> None:
    run = trainer("train.epochs=1")
    os.truncate(run.path / name, 2**40)  # takes no room on the disk
    command = ["flops", "--recipe", run.recipe_file] if name == "recipe.toml" else ["inspect", run.path]
    done = cli(*command, *(["--png", tmp_path / "a.png"] if command[0] == "inspect" else []))
    assert done.code == 2
    assert "has more than 67,108,864 bytes" in done.err


def test_a_style_in_the_working_folder(
    cli: Cli, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matplotlib reads it when it is imported; LaTeX, which it can ask for, runs what stands in its preamble."""
    import matplotlib

    run = trainer("train.epochs=1")
    with matplotlib.rc_context({"text.usetex": True}):
        monkeypatch.setenv("PATH", str(tmp_path))  # no LaTeX
        assert cli("inspect", run.path, "--png", tmp_path / "a.png").code == 0


def test_a_location_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="outside the model's folder"):
        contained("a" * 5000, tmp_path, "w")


def test_a_picture_that_is_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has Ghostscript run PostScript, whatever the file is called."""
    ghostscript, ran = tmp_path / "gs", tmp_path / "ran"
    ghostscript.write_text(f"#!/bin/sh\n: > '{ran}'\n", encoding="utf-8")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    picture = tmp_path / "a.jpg"
    picture.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n", encoding="utf-8")
    with pytest.raises(DamagedImageError):
        decode(picture, 32, None)
    assert not ran.exists()
