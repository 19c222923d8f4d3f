"""What the command line says to plausible mistakes: the value, the key and a cure that works."""

import io
import json
import shutil
from pathlib import Path

import pytest
import tiny
from rich.console import Console
from tiny import Cli, Spoken, Trainer, untouched

from rigl_compress.cli import _render
from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.recipe import shipped_recipes
from rigl_compress.pipeline.workspace import Run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Run:
    """A finished run. No test may change it."""
    return Trainer(tmp_path_factory.mktemp("runs"), data_dir)("train.epochs=1")


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(tiny.RECIPE, encoding="utf-8")
    return path


def complaint(spoken: Spoken) -> str:
    assert spoken.code == 2, spoken
    assert spoken.out == ""
    assert len(spoken.err.splitlines()) == 1, spoken.err
    return spoken.err


# Dry runs


@pytest.mark.parametrize("name", list(shipped_recipes()))
def test_every_shipped_recipe_can_be_as_short_as_an_epoch(name: str, cli: Cli, tmp_path: Path) -> None:
    words = ["--recipe", name, "-o", tmp_path / "run", "--set", "train.epochs=1", "--dry-run", "--json"]
    narrow = ["--set", "model.options.width=0.25"] if name.startswith("imagenet") else []
    shown = cli("train", *words, *narrow)
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)
    assert (found["run"], found["recipe"]["train"]["epochs"]) == (str(tmp_path / "run"), 1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("optimizer.name=sdg", "did you mean 'sgd'"),
        ("init.weights=he-norml", "did you mean 'he-normal'"),
        ("sparsity.method=rigel", "did you mean 'rigl'"),
        ("sparsity.decay=cosin", "did you mean 'cosine'"),
        ("model.name=lenet-300", "did you mean 'lenet-300-100'"),
        ("data.name=mnits", "did you mean 'mnist'"),
        ("model.options.hiden=[3]", "did you mean 'hidden'"),
        ("sparsity.layers.conv9=0.5", "set sparsity.layers to {}"),
        ("sparsity.end=100000", "sparsity.end_share"),
        ("train.batch=1000", "only 300 training samples"),
        ("sparsity.options.momentum=0.5", "has no option 'momentum'"),
    ],
)
@pytest.mark.parametrize("command", ["train", "run"])
def test_a_dry_run_finds_what_training_would(
    command: str, setting: str, said: str, cli: Cli, recipe_file: Path, data_dir: Path, tmp_path: Path
) -> None:
    words = ["--recipe", recipe_file, "-o", tmp_path / "run", "--data-dir", data_dir, "--set", setting]
    dry = complaint(cli(command, *words, "--dry-run"))
    assert said in dry
    assert dry == complaint(cli(command, *words)), "without --dry-run it is the same sentence"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["sweep", "compare"])
@pytest.mark.parametrize("setting", ["model.name=foo", "data.name=foo", "sparsity.method=foo", "optimizer.name=foo"])
def test_many_runs_are_not_begun_with_an_unknown_name(
    command: str, setting: str, cli: Cli, recipe_file: Path, tmp_path: Path
) -> None:
    with untouched(tmp_path):
        said = complaint(cli(command, "--recipe", recipe_file, "--grid", setting, "-o", tmp_path / "out"))
    assert "'foo': " in said


def test_every_dry_run_can_be_json(cli: Cli, recipe_file: Path, data_dir: Path, tmp_path: Path, finished: Run) -> None:
    common = ["--recipe", recipe_file, "--data-dir", data_dir, "--dry-run", "--json"]
    grid = ["--grid", "sparsity.method=rigl,set", "-o", tmp_path / "out"]
    with untouched(tmp_path):
        run = json.loads(cli("run", *common, "-o", tmp_path / "run", "--until", "export").out)
        sweep, compare = (json.loads(cli(each, *common, *grid).out) for each in ("sweep", "compare"))
        fetch = json.loads(cli("data", "fetch", "mnist", "--data-dir", data_dir, "--dry-run", "--json").out)
        assert json.loads(cli("prune", finished.path, "--dry-run", "--json").out)["report"]
        output = tmp_path / "a.onnx"
        assert json.loads(cli("export", finished.path, "-o", output, "--dry-run", "--json").out)["path"] == str(output)
    assert run["stages"] == {"train": "pending", "prune": "pending", "export": "pending"}
    assert [each["state"] for each in (*sweep["runs"], *compare["runs"])] == ["to be trained"] * 4
    assert fetch == {"name": "mnist", "present": True, "folder": str(data_dir / "mnist")}


def test_a_dry_run_of_a_run_looks_at_the_stages_that_are_asked_for(cli: Cli, recipe_file: Path, tmp_path: Path) -> None:
    words = ["run", "--recipe", recipe_file, "-o", tmp_path / "run", "--dry-run"]
    assert cli(*words, "--until", "prune").out.splitlines() == ["train: pending", "prune: pending"]
    assert "unknown stage 'benhc': did you mean 'bench'" in complaint(cli(*words, "--from", "benhc"))


# Data


@pytest.mark.parametrize(("recipe", "what"), [("char-gru-short", "a text"), ("imagenet-resnet50-erk", "train, val")])
def test_a_data_dir_that_was_given_is_not_asked_for(
    recipe: str, what: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["train", "--recipe", recipe, "-o", tmp_path / "run"]
    without = complaint(cli(*words))
    assert what in without
    assert "with --data-dir" in without
    there, gone = (complaint(cli(*words, "--data-dir", folder)) for folder in (tmp_path, tmp_path / "gone"))
    for said in (there, gone):
        assert what in said
        assert "with --data-dir" not in said
    assert f"--data-dir {tmp_path / 'gone'} (which does not exist)" in gone
    assert "does not exist" not in there


# Names that are not there, options of other commands


@pytest.mark.parametrize("command", ["inspect", "prune", "export", "bench", "landscape"])
def test_what_does_not_exist(command: str, cli: Cli, tmp_path: Path) -> None:
    more = {"export": ["-o", tmp_path / "a.onnx"], "landscape": [tmp_path / "nope"]}.get(command, [])
    assert f"{tmp_path / 'nope'} does not exist: pass " in complaint(cli(command, tmp_path / "nope", *more))


def test_run_takes_another_network(cli: Cli, recipe_file: Path, data_dir: Path, tmp_path: Path) -> None:
    words = ["--recipe", recipe_file, "-o", tmp_path / "run", "--data-dir", data_dir]
    done = cli("run", *words, "--model", "lenet-300-100", "--set", "train.epochs=1", "--until", "train")
    assert done.code == 0, done.err
    assert Run.open(tmp_path / "run").recipe().model.name == "lenet-300-100"
    assert "tiny, seed 0: epoch 1/1 · error" in done.err


@pytest.mark.parametrize("option", ["--model", "--data"])
@pytest.mark.parametrize("command", ["compare", "sweep", "flops", "train"])
def test_another_network_or_data_set_is_named_everywhere(command: str, option: str, cli: Cli) -> None:
    assert "unknown" in complaint(cli(command, "--recipe", "mnist-methods", option, "x"))


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["train", "mnist-rigl"], "use --recipe NAME for a recipe"),
        (["train", "--recipe", "mnist-demo", "--set", "train.epochs", "3"], "--set KEY=VALUE for a change of it"),
        (["train", "--recipe", "mnist-demo", "--epochs", "3"], "use --set train.epochs=N"),
        (["sweep", "--recipe", "mnist-demo", "--lr", "0.1"], "use --set learning_rate.peak=RATE"),
        (["train", "--recipe", "mnist-demo", "--set", "epochs=3"], "unknown key 'epochs': write train.epochs"),
        (["train", "--recipe", "mnist-demo", "--set", "weights=a"], "write init.weights"),
        (["train", "--recipe", "mnist-demo", "--set", "sparsity=0.9"], "set one of its keys, begin, begin_share"),
        (["prune", "--run", "runs/a"], "has no option --run: use a positional argument for the run"),
        (["train", "--run", "runs/a"], "has no option --run: use --output DIR"),
        (
            ["compare", "--recipe", "mnist-structured", "--only", "RIGL"],
            "did you mean 'RigL'? Known: Dense, 'De",
        ),
        (["flops"], "no recipe: use --recipe NAME or --recipe FILE (see `rigl-compress list`)\n"),
    ],
)
def test_a_slip_is_answered_with_what_to_write(words: list[str], cure: str, cli: Cli) -> None:
    assert cure in complaint(cli(*words))


def test_an_array_file_that_is_none(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("import os")
    said = complaint(cli("bench", tmp_path / "a.onnx", "--inputs", tmp_path / "a.npz"))
    assert "is not an .npz file of arrays (File is not a zip file): write one with numpy.savez" in said
    assert "pickle" not in said


def test_a_recipe_for_another_network_names_few_of_its_layers(cli: Cli, tmp_path: Path) -> None:
    words = ["-o", tmp_path / "run", "--model", "resnet-50", "--dry-run"]
    said = complaint(cli("train", "--recipe", "mnist-rigl", *words))
    assert "sparsity.layers: layer 'fc1' matches nothing" in said
    assert "and 51 more" in said
    assert len(said) < 250


# Ctrl-C: advice that can be followed


@pytest.mark.parametrize(
    ("words", "broken", "advice"),
    [
        (["export", "RUN", "-o", "a.onnx"], "rigl_compress.pipeline.export.stage._export", "starts over"),
        (["bench", "RUN"], "rigl_compress.pipeline.bench.stage.bench", "starts over"),
        (["prune", "RUN"], "rigl_compress.pipeline.prune.stage.prune_run", "starts over"),
        (["train", "--recipe", "mnist-demo"], "rigl_compress.pipeline.train.stage.load_dataset", "starts over"),
        (["run", "-o", "RUN"], "rigl_compress.pipeline.run_pipeline.run", "the same command resumes"),
    ],
)
def test_an_interrupt_advises_what_works(
    words: list[str],
    broken: str,
    advice: str,
    cli: Cli,
    finished: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(broken, interrupt)
    said = cli(*(str(finished.path) if word == "RUN" else word for word in words))
    assert said.code == 130
    assert said.err.lstrip().startswith("interrupted: "), said.err
    assert advice in said.err
    assert "--resume" not in said.err


# People's names are names


EVIL = "fc1[/bold] [start] :smile: \x1b[31m\udcff"


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    _render.table(EVIL, ("layer", EVIL), [(EVIL, "1")])
    _render.text(EVIL)
    _render.note(EVIL)
    with _render.running(EVIL):
        pass
    spoken = capsys.readouterr()
    shown = "fc1[/bold] [start] :smile: \\x1b[31m\\udcff"
    assert spoken.out.count(shown) == 4
    assert spoken.err.count(shown) == 1


def test_json_is_json_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    content = {"<script>\x9b31m\udcff": ["\x1b[31m", "\u202e", "×"]}
    _render.json_result(content)
    said = capsys.readouterr().out
    assert json.loads(said) == content
    assert all(each.isprintable() or each == "\n" for each in said)


def test_a_bar_does_not_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(_render, "_err", Console(file=stream, force_terminal=True, width=200, color_system=None))
    with _render.running("bench") as (_, benched):
        benched("a\x1b]0;owned\x07", 1, 2)
    assert "a\\x1b]0;owned\\x07" in stream.getvalue()


def test_an_error_does_not_steer_the_terminal(cli: Cli, tmp_path: Path) -> None:
    assert "a\\x1b[31m does not exist" in complaint(cli("inspect", tmp_path / "a\x1b[31m"))


@pytest.mark.parametrize("lost", ["recipe", "method", "sparsity", "seconds", "data"])
def test_a_result_that_lacks_something(lost: str, cli: Cli, finished: Run, tmp_path: Path) -> None:
    run = Run(Path(shutil.copytree(finished.path, tmp_path / "run")))
    content = json.loads(run.result_file.read_text())
    run.result_file.write_text(json.dumps({key: value for key, value in content.items() if key != lost}))
    said = complaint(cli("inspect", run.path))
    assert f"{run.result_file}: key '{lost}' is missing; restore the file or train again" in said


# The library says what a library can do


def test_in_python_a_file_is_overwritten_by_a_parameter(trainer: Trainer) -> None:
    trainer("train.epochs=1")
    with pytest.raises(InputError, match=r"resume with resume=True, or replace it with overwrite=True"):
        trainer("train.epochs=1")
    trainer("train.epochs=1", overwrite=True)
