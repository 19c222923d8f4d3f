"""Opening what somebody else made runs nothing: the code that a file names needs the user's word."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from tiny import Cli, Spoken, Trainer

from rigl_compress.core.artifacts import load_artifact, save_artifact
from rigl_compress.core.trust import code_is_trusted
from rigl_compress.pipeline.workspace import Run

CODE = """
from pathlib import Path
from torch import nn
import tiny
from rigl_compress import DataSet
from rigl_compress.data.mnist import as_split

Path({canary!r}).touch()

def net(classes=10, hidden=24):
    Path({canary!r}).touch()
    return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, classes))

def load():
    Path({canary!r}).touch()
    train, test = (as_split(*tiny.digits(count, seed)) for seed, count in enumerate((300, 100)))
    return DataSet("mine", "made here", 10, (1, 28, 28), train, test)
"""


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that foreign code would write, and a module in the working folder that does."""
    canary = tmp_path / "canary"
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "lying_around.py").write_text(CODE.format(canary=str(canary)), encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield canary
    sys.modules.pop("lying_around", None)
    assert not code_is_trusted()


def hostile(kind: str, canary: Path) -> tuple[str, dict[str, Any]]:
    return {
        "builtin": ("os:system", {"command": f"touch {canary}"}),
        "function": ("subprocess:getoutput", {"cmd": f"touch {canary}"}),
        "working folder": ("lying_around:net", {}),
    }[kind]


HOSTILE = pytest.mark.parametrize("kind", ["builtin", "function", "working folder"])


def forge(run: Run, name: str, options: dict[str, Any]) -> None:
    """Let every file of a run folder name other code."""
    for file in run.path.glob("*.safetensors"):
        kind = "checkpoint" if "checkpoint" in file.name else "topology" if "topology" in file.name else "sparse-model"
        tensors, content = load_artifact(file, kind)
        spec = {"name": name, "options": options, "plan": None, "input_shape": None}
        save_artifact(file, kind, tensors, {**content, **({"model": spec} if kind == "sparse-model" else {})})
    recipe = run.recipe_file.read_text(encoding="utf-8")
    table = ", ".join(f"{key} = {value!r}" for key, value in options.items())
    before = recipe.partition("[model]")[0]
    after = recipe.partition("[init]")[2]
    run.recipe_file.write_text(
        f'{before}[model]\nname = "{name}"\noptions = {{ {table} }}\n\n[init]{after}', encoding="utf-8"
    )


def complaints(said: str) -> list[str]:
    """What stands on stderr beside the progress of training and where its weights come from."""
    return [line for line in said.splitlines() if ": epoch " not in line and not line.startswith("initial weights: ")]


def refused(done: Spoken, name: str, file: Path | str, canary: Path) -> None:
    assert not canary.exists(), "foreign code was run"
    assert done.code == 2, done
    assert f"'{name}' of {file}" in done.err
    assert "add --trust-code" in done.err
    assert len(done.err.splitlines()) == 1
    assert "lying_around" not in sys.modules


@HOSTILE
def test_a_foreign_run_folder(cli: Cli, trainer: Trainer, canary: Path, tmp_path: Path, kind: str) -> None:
    run = trainer("train.epochs=1")
    assert cli("prune", run.path).code == 0
    name, options = hostile(kind, canary)
    forge(run, name, options)
    model, pruned, recipe = run.model_file, run.pruned_file, run.recipe_file
    out, quick = tmp_path / "x.onnx", ["--openings", 1, "--rounds", 1]
    refused(cli("prune", run.path), name, model, canary)
    refused(cli("prune", run.path, "--dry-run"), name, model, canary)
    refused(cli("export", run.path, "-o", out), name, pruned, canary)
    refused(cli("export", run.path, "-o", out, "--network", "trained"), name, model, canary)
    refused(cli("export", run.path, "-o", out, "--target", "sparse-runtime"), name, pruned, canary)
    refused(cli("bench", run.path, *quick), name, pruned, canary)
    refused(cli("bench", run.path, "--backend", "torch", *quick), name, pruned, canary)
    other = shutil.copytree(run.path, tmp_path / "other")
    refused(cli("landscape", run.path, other, "--data-dir", trainer.data_dir), name, model, canary)
    refused(cli("train", "--resume", run.path, "--data-dir", trainer.data_dir), name, recipe, canary)
    refused(cli("run", "-o", run.path, "--data-dir", trainer.data_dir), name, recipe, canary)
    refused(cli("flops", "--recipe", recipe), name, recipe, canary)
    assert not out.exists()


@HOSTILE
def test_looking_needs_no_word(cli: Cli, trainer: Trainer, canary: Path, kind: str) -> None:
    run = trainer("train.epochs=1")
    forge(run, *hostile(kind, canary))
    for more in ([], ["--json"]):
        done = cli("inspect", run.path, *more)
        assert (done.code, complaints(done.err)) == (0, [])
    assert Run.open(run.path).model().spec.name == hostile(kind, canary)[0]
    assert not canary.exists()
    assert "lying_around" not in sys.modules


def write_recipe(path: Path, text: str) -> Path:
    path.write_text(tiny.RECIPE.partition("[model]")[0] + text, encoding="utf-8")
    return path


@HOSTILE
def test_a_recipe(cli: Cli, trainer: Trainer, canary: Path, tmp_path: Path, kind: str) -> None:
    name, options = hostile(kind, canary)
    table = ", ".join(f'{key} = "{value}"' for key, value in options.items())
    recipe = write_recipe(tmp_path / "a.toml", f'[model]\nname = "{name}"\noptions = {{ {table} }}\n')
    data = ["--data-dir", trainer.data_dir]
    refused(cli("flops", "--recipe", recipe), name, recipe, canary)
    refused(cli("train", "--recipe", recipe, "-o", tmp_path / "run", *data), name, recipe, canary)
    refused(cli("run", "--recipe", recipe, "-o", tmp_path / "run", *data), name, recipe, canary)
    assert not (tmp_path / "run").exists()


def test_the_data_of_a_recipe(cli: Cli, canary: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "a.toml", '[data]\nname = "lying_around:load"\n')
    refused(cli("flops", "--recipe", recipe), "lying_around:load", recipe, canary)
    refused(cli("train", "--recipe", recipe, "-o", tmp_path / "run"), "lying_around:load", recipe, canary)


@pytest.mark.parametrize("setting", ["model.name=lying_around:net", 'model={name="lying_around\\\\u003anet"}'])
def test_a_row_of_a_comparison(
    cli: Cli, trainer: Trainer, canary: Path, tmp_path: Path, in_threads: None, setting: str
) -> None:
    """What a row changes is the file's word too, however it is spelt; each run is refused, and said in the table."""
    (tmp_path / "base.toml").write_text(tiny.RECIPE, encoding="utf-8")
    comparison = tmp_path / "c.toml"
    rows = f'name = "c"\n[[row]]\nlabel = "a"\nrecipe = "base.toml"\nset = [{setting!r}]\n'
    comparison.write_text(rows.replace("\\\\\\\\", "\\"), encoding="utf-8")
    done = cli("compare", "--recipe", comparison, "-o", tmp_path / "out", "--data-dir", trainer.data_dir)
    assert done.code == 1
    assert f"'lying_around:net' of {comparison}" in done.err + done.out
    assert not canary.exists()


def test_an_earlier_run_that_a_recipe_starts_from(cli: Cli, trainer: Trainer, canary: Path, tmp_path: Path) -> None:
    run = trainer("train.epochs=1", run="earlier")
    forge(run, "lying_around:net", {})
    start = f'[start]\nrun = "{run.path}"\narchitecture = "pruned"\n'
    recipe = write_recipe(tmp_path / "a.toml", start)
    arguments = ["train", "--recipe", recipe, "-o", tmp_path / "run", "--data-dir", trainer.data_dir]
    refused(cli(*arguments), "lying_around:net", run.model_file, canary)


def refused_here(done: Spoken) -> None:
    assert done.code == 2
    assert "add --trust-code" in done.err


# The user's word

FEW = ["--set", "train.epochs=1", "--set", "train.batch=20", "--device", "cpu"]


def own_recipe(folder: Path) -> Path:
    return write_recipe(folder / "own.toml", '[model]\nname = "lying_around:net"\noptions = { hidden = 24 }\n')


def test_the_word_is_given_for_a_command(cli: Cli, trainer: Trainer, canary: Path, tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path)
    done = cli("flops", "--recipe", recipe, "--trust-code")
    assert (done.code, complaints(done.err)) == (0, [])
    assert canary.exists()
    canary.unlink()
    sys.modules.pop("lying_around")
    refused(cli("flops", "--recipe", recipe), "lying_around:net", recipe, canary)


@pytest.mark.parametrize("word", ["--model", "--set", "--trust-code"])
def test_what_was_trained_here_needs_no_further_word(
    cli: Cli, trainer: Trainer, canary: Path, tmp_path: Path, word: str
) -> None:
    plain = write_recipe(tmp_path / "plain.toml", "")
    source = {
        "--model": ["--recipe", plain, "--model", "lying_around:net"],
        "--set": ["--recipe", plain, "--set", "model.name=lying_around:net"],
        "--trust-code": ["--recipe", own_recipe(tmp_path), "--trust-code"],
    }[word]
    run, data = tmp_path / "run", ["--data-dir", trainer.data_dir]
    first = [["train", *source, "-o", run, *data, *FEW], ["train", "--resume", run, *data], ["prune", run]]
    again = ["train", *source, "-o", tmp_path / "again", *data, *FEW]
    line = ["landscape", run, tmp_path / "again", "--points", 2, "--between", "linear", "--samples", 20, *data]
    last = [["export", run, "-o", tmp_path / "a.onnx"], ["inspect", run], again, line]
    for command in [*first, *(last if word == "--model" else [])]:
        done = cli(*command)
        assert (done.code, complaints(done.err)) == (0, []), (command, done.err)
    refused_here(cli("prune", run.rename(tmp_path / "moved")))


def test_the_memory_is_of_one_call(cli: Cli, trainer: Trainer, canary: Path, tmp_path: Path) -> None:
    """Other options, other code or another module of the same name are not what the user trained."""
    plain, run = write_recipe(tmp_path / "plain.toml", ""), tmp_path / "run"
    data = ["--data-dir", trainer.data_dir]
    assert cli("train", "--recipe", plain, "--model", "lying_around:net", "-o", run, *data, *FEW).code == 0
    assert cli("prune", run).code == 0
    sys.modules.pop("lying_around")
    sys.path[:] = [path for path in sys.path if path != str(tmp_path / "here")]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lying_around.py").write_text(f"open({str(tmp_path / 'second')!r}, 'w')", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(elsewhere)
        refused_here(cli("prune", run))
    assert not (tmp_path / "second").exists()
    assert cli("prune", run).code == 0
    forge(Run(run), "lying_around:net", {"classes": 10, "hidden": 7})
    refused_here(cli("prune", run))
    forge(Run(run), "subprocess:getoutput", {"cmd": "true"})
    refused_here(cli("prune", run))


def test_a_foreign_folder_brings_no_memory(cli: Cli, trainer: Trainer, canary: Path, tmp_path: Path) -> None:
    """The word of another user is not this user's."""
    plain, run = write_recipe(tmp_path / "plain.toml", ""), tmp_path / "run"
    common = ["--data-dir", trainer.data_dir, *FEW]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIGL_COMPRESS_STATE", str(tmp_path / "state of another"))
        assert cli("train", "--recipe", plain, "--model", "lying_around:net", "-o", run, *common).code == 0
        assert cli("prune", run).code == 0
    canary.unlink()
    sys.modules.pop("lying_around")
    refused(cli("prune", run), "lying_around:net", run / "model.safetensors", canary)
    assert cli("prune", run, "--trust-code").code == 0


def test_the_memory_cannot_be_written(
    cli: Cli, trainer: Trainer, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on, and says what it means."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("RIGL_COMPRESS_STATE", str(tmp_path / "file"))
    plain, run = write_recipe(tmp_path / "plain.toml", ""), tmp_path / "run"
    common = ["--data-dir", trainer.data_dir, *FEW]
    done = cli("train", "--recipe", plain, "--model", "lying_around:net", "-o", run, *common)
    assert done.code == 0
    assert "cannot record that lying_around:net is trusted" in " ".join(done.err.split())
    refused_here(cli("prune", run))


def test_a_sweep_hands_the_word_to_its_processes(cli: Cli, trainer: Trainer, canary: Path, tmp_path: Path) -> None:
    """Of the recipe, and of the run that each of its runs starts from."""
    earlier, common = tmp_path / "earlier", ["--data-dir", trainer.data_dir, *FEW]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIGL_COMPRESS_STATE", str(tmp_path / "state of another"))
        plain = write_recipe(tmp_path / "plain.toml", "")
        assert cli("train", "--recipe", plain, "--model", "lying_around:net", "-o", earlier, *common).code == 0
    start = ["--set", f"start.run={earlier}", "--set", "start.architecture=pruned"]
    recipe, out = own_recipe(tmp_path), tmp_path / "out"
    done = cli("sweep", "--recipe", recipe, "-o", out, *common, *start, "--trust-code")
    assert done.code == 0, done.err
    assert Run.open(out / "own" / "seed=0").model().spec.plan is not None
