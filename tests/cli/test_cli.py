"""The command line: help, JSON, and what it says to bad input."""

import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import tiny
from command_tree import LEAVES
from rich.console import Console
from tiny import Cli, Trainer, snapshot, untouched

from rigl_compress import __version__
from rigl_compress.cli import _render
from rigl_compress.cli.main import COMMANDS
from rigl_compress.cli.main import cli as group
from rigl_compress.core.errors import InputError
from rigl_compress.experiments.spec import Experiment, Row
from rigl_compress.experiments.trial_source import Outcome
from rigl_compress.experiments.trials import trials_of
from rigl_compress.pipeline.recipe import load_recipe, parse_recipe
from rigl_compress.pipeline.train.progress import Progress
from rigl_compress.pipeline.workspace import Run

GOLDEN = Path(__file__).parents[1] / "golden" / "help.txt"
every_command = pytest.mark.parametrize("path", list(LEAVES), ids=" ".join)
GROUPS = [(), ("data",)]


# Help


def test_help_does_not_import_torch() -> None:
    """Nor does the help of any command, nor a slip in a command's name."""
    calls = [[], ["--help"], ["--version"], ["trian"], *([*path, "--help"] for path in LEAVES)]
    script = f"""
import sys
from rigl_compress.cli.main import main
for call in {calls!r}:
    sys.argv = ["rigl-compress", *call]
    try:
        main()
    except SystemExit:
        pass
heavy = {{"torch", "numpy", "matplotlib", "rich", "onnx"}} & sys.modules.keys()
sys.exit(f"imported: {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[-1:]) != (1, []), done.stderr
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: rigl-compress") >= len(LEAVES) + 1


def test_every_command_is_listed_and_has_a_module() -> None:
    assert {path[0] for path in LEAVES} == set(COMMANDS)


@every_command
def test_every_command_has_an_example_that_parses(path: tuple[str, ...]) -> None:
    command = LEAVES[path]
    help_text = command.help or ""
    assert "Example:" in help_text
    examples = [line.strip() for line in help_text.partition("Example:")[2].splitlines() if line.strip()]
    assert examples
    for example in examples:
        program, *words = shlex.split(example)
        assert program == "rigl-compress"
        assert tuple(words[: len(path)]) == path
        parent = click.Context(group, **group.context_settings)  # click remembers the options of its first context
        command.make_context(" ".join(path), words[len(path) :], parent)


@pytest.mark.parametrize("path", GROUPS)
def test_groups_have_an_example_too(path: tuple[str, ...], cli: Cli) -> None:
    assert "Example:" in cli(*path, "--help").out


@every_command
def test_every_command_can_print_json(path: tuple[str, ...]) -> None:
    assert "--json" in [name for parameter in LEAVES[path].params for name in parameter.opts]


@every_command
def test_every_option_is_explained(path: tuple[str, ...]) -> None:
    options = [parameter for parameter in LEAVES[path].params if isinstance(parameter, click.Option)]
    assert all(option.help for option in options)


@pytest.mark.parametrize("name", ["train", "sweep", "compare"])
def test_what_trains_has_a_dry_run(name: str) -> None:
    assert "--dry-run" in [option for parameter in LEAVES[name,].params for option in parameter.opts]


def test_the_help_is_the_golden_one(cli: Cli, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Refresh it with `pytest tests/cli --refresh-golden`."""
    monkeypatch.setenv("COLUMNS", "100")
    pages = [cli(*path, "--help") for path in [*GROUPS, *LEAVES]]
    assert all(page.code == 0 and page.err == "" for page in pages)
    text = "\n\n".join(page.out for page in pages)
    if request.config.getoption("--refresh-golden"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"rigl-compress, version {__version__}\n"


@pytest.mark.parametrize("path", GROUPS)
def test_nothing_asked_shows_the_help(path: tuple[str, ...], cli: Cli) -> None:
    shown = cli(*path)
    assert shown.code == 2
    assert "Commands:" in shown.out + shown.err


# Results


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "tiny.toml"
    path.write_text(tiny.RECIPE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Run:
    """A finished run. No test may change it."""
    return Trainer(tmp_path_factory.mktemp("runs"), data_dir)("train.epochs=1")


Train = Callable[..., tiny.Spoken]


@pytest.fixture
def train(cli: Cli, recipe_file: Path, data_dir: Path) -> Train:
    """Call `rigl-compress train` with the tiny recipe and data: train(run, "--set", "a=b")."""

    def call(run: Path, *arguments: object) -> tiny.Spoken:
        common = ("--recipe", recipe_file, "-o", run, "--data-dir", data_dir, "--device", "cpu")
        return cli("train", *common, *arguments)

    return call


def test_train_prints_what_came_out(train: Train, tmp_path: Path) -> None:
    done = train(tmp_path / "run", "--set", "train.epochs=1", "--seed", "3")
    result = Run.open(tmp_path / "run").result()
    error = f"error {result['final_error']:.2f} %"
    assert done.code == 0
    assert done.err.startswith(f"tiny, seed 3: epoch 1/1 · {error} (best ")
    assert len(done.err.splitlines()) == 1
    assert result["seed"] == 3
    assert done.out.startswith(f"tiny, rigl, seed 3 → {tmp_path / 'run'}\n")
    assert f"{result['final_error']:.2f} % ({result['best_error']:.2f} %)" in done.out
    assert result["pruned"]["architecture"] in done.out
    assert result["command"].startswith("rigl-compress train --recipe ")


def test_train_prints_json(train: Train, tmp_path: Path) -> None:
    done = train(tmp_path / "run", "--set", "train.epochs=1", "--json")
    assert done.code == 0
    assert json.loads(done.out) == Run.open(tmp_path / "run").result()


def test_a_dry_run_prints_the_resolved_recipe_and_writes_nothing(train: Train, tmp_path: Path) -> None:
    with untouched(tmp_path):
        done = train(tmp_path / "run", "--set", "train.epochs=7", "--dry-run")
    assert done.code == 0
    assert parse_recipe(done.out, "printed") == tiny.recipe("train.epochs=7")
    assert str(tmp_path / "run") in done.out


def test_force_trains_anew(train: Train, tmp_path: Path) -> None:
    for seed in (0, 1):
        assert train(tmp_path / "run", "--set", "train.epochs=1", "--seed", seed, "--force").code == 0
    assert Run.open(tmp_path / "run").result()["seed"] == 1
    assert len(list(Run.open(tmp_path / "run").metrics())) == 1


def test_inspect(cli: Cli, finished: Run, tmp_path: Path) -> None:
    with untouched(finished.path):
        shown = cli("inspect", finished.path, "--png", tmp_path / "a.png")
    assert (shown.code, shown.err) == (0, "")
    for expected in ("tiny, rigl, seed 0", "fc1.weight", "24×784", "connections per input pixel", "start", "a.png"):
        assert expected in shown.out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_inspect_json(cli: Cli, finished: Run) -> None:
    found = json.loads(cli("inspect", finished.path, "--json").out)
    assert found.keys() == {"format", "result", "training", "layers", "connections_per_pixel"}
    assert [layer["name"] for layer in found["layers"]] == ["fc1.weight", "fc2.weight", "fc3.weight"]
    assert len(found["connections_per_pixel"]["end"]) == 28


def test_flops(cli: Cli) -> None:
    shown = cli("flops", "--recipe", "mnist-rigl-authors")
    assert (shown.code, shown.err) == (0, "")
    for figure in ("532,400", "13,244", "13,521.6000", "482.0179", "538.4659", "446.3457"):
        assert figure in shown.out
    facts = json.loads(cli("flops", "--recipe", "mnist-rigl-authors", "--json").out)
    assert facts["training_gflops"]["exact-schedule"] == pytest.approx(446.3457, abs=5e-5)


def test_flops_of_the_paper(cli: Cli) -> None:
    shown = cli("flops", "--paper")
    assert (shown.code, shown.err) == (0, "")
    for figure in ("3.225e+18", "8.202e+09", "0.10x a", "0.1285", "1.91x f", "counts the first layer as sparse"):
        assert figure in shown.out
    figures = json.loads(cli("flops", "--paper", "--json").out)["figures"]
    assert f"{sum(each['agrees'] for each in figures)} of {len(figures)} printed figures follow" in shown.out
    assert all(each["agrees"] == (each["note"] is None) for each in figures)


def test_the_paper_has_no_recipe(cli: Cli) -> None:
    done = cli("flops", "--paper", "--recipe", "mnist-rigl")
    assert done.code == 2
    assert "leave out --recipe, --model, --data and --set" in done.err


def test_list(cli: Cli) -> None:
    shown, facts = cli("list"), json.loads(cli("list", "--json").out)
    assert {"recipes", "models", "data sets", "methods", "distributions", "variants"} <= facts.keys()
    for kind, entries in facts.items():
        assert entries, kind
        assert all(name in shown.out for name in entries)


def test_data_list(cli: Cli, data_dir: Path) -> None:
    shown = cli("data", "list", "--data-dir", data_dir)
    assert str(data_dir / "mnist") in shown.out
    rows = json.loads(cli("data", "list", "--data-dir", data_dir, "--json").out)
    mnist = next(row for row in rows if row["name"] == "mnist")
    assert mnist["present"] is True
    assert mnist["folder"] == str(data_dir / "mnist")


def test_data_fetch(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []

    def fetch(name: str, data_dir: Path | None, log: Callable[[str], None]) -> Path:
        asked.append((name, data_dir))
        log("asking a mirror")
        return tmp_path / "mnist"

    monkeypatch.setattr("rigl_compress.data.load_dataset.fetch_dataset", fetch)
    shown = cli("data", "fetch", "mnist", "--data-dir", tmp_path, "--json")
    assert asked == [("mnist", tmp_path)]
    assert json.loads(shown.out) == {"name": "mnist", "folder": str(tmp_path / "mnist")}
    assert shown.err == "asking a mirror\n", "what can be piped is on stdout, the rest is not"


@pytest.mark.usefixtures("in_threads")
def test_sweep(cli: Cli, recipe_file: Path, data_dir: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    arguments = ["--recipe", recipe_file, "--set", "train.epochs=1", "--data-dir", data_dir, "-o", tmp_path / "out"]
    grid = ["--grid", "sparsity.method=rigl,static", "--seeds", 2, "--markdown", table]
    shown = cli("sweep", *arguments, *grid, "--jobs", 1)
    assert shown.code == 0
    assert shown.err.startswith("4 runs in ")
    ends = [line[:5] for line in shown.err.splitlines() if line.startswith("[")]
    assert ends == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert "method=rigl" in shown.out
    assert "method=static" in shown.out
    assert len(table.read_text().splitlines()) == 4
    again = cli("sweep", *arguments, *grid, "--json")
    content = json.loads(again.out)
    assert content["rows"] == json.loads((tmp_path / "out" / "experiment.json").read_text())["rows"]
    assert [(row["label"], [run["seed"] for run in row["runs"]]) for row in content["rows"]] == [
        ("method=rigl", [0, 1]),
        ("method=static", [0, 1]),
    ]


@pytest.mark.usefixtures("in_threads")
def test_a_failed_run_in_a_sweep_is_exit_code_1(cli: Cli, recipe_file: Path, data_dir: Path, tmp_path: Path) -> None:
    arguments = ["--recipe", recipe_file, "--set", "train.epochs=1", "--data-dir", data_dir, "-o", tmp_path / "out"]
    shown = cli("sweep", *arguments, "--grid", "sparsity.end=10,9999", "--jobs", 1)
    assert shown.code == 1
    assert "failed" in shown.out
    assert "Traceback" not in shown.err


def test_a_dry_sweep_prints_folders_and_writes_nothing(cli: Cli, recipe_file: Path, tmp_path: Path) -> None:
    with untouched(tmp_path):
        shown = cli("sweep", "--recipe", recipe_file, "--grid", "train.epochs=1,2", "-o", tmp_path / "a", "--dry-run")
    folders = [str(tmp_path / "a" / f"epochs={n}" / "seed=0") for n in (1, 2)]
    assert shown.out.splitlines() == [f"{folder}: to be trained" for folder in folders]


# Bad input: one line on stderr that names the value and the cure, exit code 2, nothing overwritten


def complaint(spoken: tiny.Spoken) -> str:
    assert spoken.code == 2, spoken
    assert spoken.out == ""
    assert spoken.err.startswith("error: ")
    assert spoken.err.endswith("\n")
    assert len(spoken.err.splitlines()) == 1, spoken.err
    assert "Traceback" not in spoken.err
    return spoken.err


@pytest.mark.parametrize(
    ("settings", "value", "cure"),
    [
        (["sparsity.sparsity=1.0"], "sparsity is 1.0", "expected at least 0 and below 1"),
        (["sparsity.sparsity=-0.1"], "sparsity is -0.1", "expected at least 0 and below 1"),
        (["sparsity.sparsity=99"], "sparsity is 99.0", "0.9 removes nine of ten"),
        (["sparsity.layers.fc1=1.5"], "sparsity of layer 'fc1' is 1.5", "expected at least 0 and below 1"),
        (["sparsity.budget=include", "sparsity.layers.fc1=0"], "sparsity 0.8 over all layers", "change the sparsity"),
        (["sparsity.budget=include", "sparsity.layers={fc1=0.99}", "sparsity.sparsity=0.1"], "0.1", "fix fewer layers"),
        (["sparsity.layers.conv1=0.5"], "layer 'conv1' matches nothing", "nown: fc1, fc2, fc3"),
        (["sparsity.dense=['fc11']"], "layer 'fc11' matches nothing", "did you mean 'fc1'"),
        (["sparsity.end=61"], "updates end at step 61, but the run has only 60", "lower sparsity.end (T_end) or"),
        (["sparsity.end=61"], "sparsity.end_share", "train.multiplier scales epochs and end"),
        (["sparsity.begin=70"], "updates begin at step 70, but the run has only 60", "lower sparsity.begin"),
        (["sparsity.interval=0"], "interval (ΔT) is 0", "expected 1 or more"),
        (["sparsity.interval=-100"], "interval (ΔT) is -100", "expected 1 or more"),
        (["sparsity.interval=0.5"], "sparsity.interval is 0.5", "expected a whole number"),
        (["train.epochs=ten"], "train.epochs is 'ten'", "expected a whole number"),
        (["learning_rate.drops=75"], "learning_rate.drops is 75", "expected a list"),
        (["sparsity=0.9"], "sparsity is 0.9", "expected a table"),
        (["model.options.width=wide"], "width = 'wide'", "model 'mlp' cannot be built"),
        (["train.epoch=3"], "unknown key 'train.epoch'", "did you mean 'epochs'"),
        (["model.name=lenet-300"], "unknown model 'lenet-300'", "did you mean 'lenet-300-100'"),
        (["data.name=mnits"], "unknown data set 'mnits'", "did you mean 'mnist'"),
        (["sparsity.method=rigel"], "unknown method 'rigel'", "did you mean 'rigl'"),
        (["sparsity.distribution=er-k"], "unknown distribution 'er-k'", "did you mean 'er"),
        (["optimizer.name=sdg"], "unknown optimizer 'sdg'", "did you mean 'sgd'"),
        (["optimizer.momentum=-1"], "Invalid momentum value: -1.0", "change [optimizer]"),
        (["train.label_smoothing=2"], "train.label_smoothing is 2.0", "between 0 and 1"),
        (["seed=-1"], "seed is -1", "from 0"),
        (["nonsense"], "override 'nonsense'", "key=value"),
    ],
)  # fmt: skip
def test_a_wrong_recipe_does_not_cost_an_earlier_run(
    train: Train, finished: Run, settings: list[str], value: str, cure: str
) -> None:
    """Even with --force the earlier run is replaced only by one that can be trained."""
    with untouched(finished.path.parent):
        said = complaint(train(finished.path, "--force", *(word for each in settings for word in ("--set", each))))
    assert value in said
    assert cure in said


def test_a_run_directory_that_exists(train: Train, finished: Run) -> None:
    with untouched(finished.path):
        said = complaint(train(finished.path))
    assert f"{finished.path} exists" in said
    assert "choose another folder, resume with --resume RUN, or replace it with --force" in said


def test_a_folder_that_is_not_a_run_is_not_replaced(train: Train, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with untouched(tmp_path):
        said = complaint(train(tmp_path, "--force"))
    assert f"{tmp_path} exists and is not a run" in said


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta"])
def test_an_unknown_device(train: Train, finished: Run, device: str) -> None:
    with untouched(finished.path):
        said = complaint(train(finished.path, "--force", "--device", device))
    assert f"device {device!r} is not available here: use auto, cpu, cuda or mps" in said


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(finished.path, tmp_path / "copied")))


@pytest.mark.parametrize("content", [b"", b"\0" * 50, b"PK\x03\x04"])
def test_a_damaged_checkpoint(cli: Cli, copied: Run, data_dir: Path, content: bytes) -> None:
    copied.checkpoint_file.write_bytes(content)
    with untouched(copied.path):
        said = complaint(cli("train", "--resume", copied.path, "--data-dir", data_dir))
    assert str(copied.checkpoint_file) in said
    assert "missing or damaged: create it again" in said


def test_a_checkpoint_of_another_model(cli: Cli, copied: Run, trainer: Trainer) -> None:
    other = trainer("model.options.hidden=[9, 9]", "train.epochs=1", run="other")
    shutil.copy(other.checkpoint_file, copied.checkpoint_file)
    with untouched(copied.path):
        said = complaint(cli("train", "--resume", copied.path, "--data-dir", trainer.data_dir))
    assert str(copied.checkpoint_file) in said
    assert "another model's weights" in said
    assert "restore the run's checkpoint" in said


@pytest.mark.parametrize("file", ["model", "topology-start", "topology-end"])
def test_a_damaged_artifact(cli: Cli, copied: Run, file: str) -> None:
    path = copied.path / f"{file}.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert f"cannot read {path}" in complaint(cli("inspect", copied.path))


def test_a_damaged_result(cli: Cli, copied: Run) -> None:
    copied.result_file.write_text('{"format": 1,')
    assert f"cannot read {copied.result_file}" in complaint(cli("inspect", copied.path, "--json"))


def test_a_damaged_recipe_in_a_run(cli: Cli, copied: Run) -> None:
    copied.recipe_file.write_bytes(b"\xff\xfe")
    with untouched(copied.path):
        assert f"cannot read {copied.recipe_file}" in complaint(cli("train", "--resume", copied.path))


@pytest.mark.parametrize("words", [("inspect", "RUN"), ("train", "--resume", "RUN")])
def test_a_folder_that_is_not_a_run(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    with untouched(tmp_path):
        said = complaint(cli(*(str(tmp_path) if word == "RUN" else word for word in words)))
    assert f"{tmp_path} is not a run folder (no recipe.toml in it): make one with `rigl-compress train`" in said


def test_a_name_of_two_lines_is_said_in_one(cli: Cli, tmp_path: Path) -> None:
    assert f"error: {tmp_path / 'two lines'} does not exist" in complaint(cli("inspect", tmp_path / "two\nlines"))


def test_a_run_that_is_not_finished(cli: Cli, tmp_path: Path) -> None:
    Run.create(tmp_path / "run", tiny.recipe())
    said = complaint(cli("inspect", tmp_path / "run"))
    assert f"not finished: resume with `rigl-compress train --resume {tmp_path / 'run'}`" in said


@pytest.mark.parametrize("command", ["train", "flops", "sweep"])
def test_an_unknown_recipe(cli: Cli, command: str) -> None:
    said = complaint(cli(command, "--recipe", "mnist-rigl-autors"))
    assert "no recipe 'mnist-rigl-autors'" in said
    assert "did you mean 'mnist-rigl-authors'" in said


@pytest.mark.parametrize("content", [b"name = ", b"\xff\x00", b'name = "a"\nname = "b"', b"<html>"])
def test_a_recipe_that_is_not_toml(cli: Cli, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    assert str(path) in complaint(cli("train", "--recipe", path, "-o", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_missing_data(cli: Cli, recipe_file: Path, data_dir: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(data_dir, tmp_path / "data"))
    (mine / "mnist" / "train-images-idx3-ubyte").unlink()
    said = complaint(cli("train", "--recipe", recipe_file, "-o", tmp_path / "run", "--data-dir", mine))
    assert "has no train-images-idx3-ubyte" in said
    assert f"rigl-compress data fetch mnist --data-dir {mine}" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_damaged_data(train: Train, cli: Cli, recipe_file: Path, data_dir: Path, tmp_path: Path, file: str) -> None:
    mine = Path(shutil.copytree(data_dir, tmp_path / "data"))
    path = mine / "mnist" / file
    path.write_bytes(path.read_bytes()[:-1])
    said = complaint(cli("train", "--recipe", recipe_file, "-o", tmp_path / "run", "--data-dir", mine))
    assert f"{path} is damaged" in said
    assert "replace it, or delete it" in said
    assert not (tmp_path / "run").exists()


def test_help_is_not_suggested_for_an_option_of_another_command(cli: Cli) -> None:
    assert "Did you mean" not in complaint(cli("export", "a", "--model", "b"))
    assert "Did you mean '--help'" in complaint(cli("export", "a", "--hepl"))


def test_unknown_data_to_fetch(cli: Cli) -> None:
    assert "unknown data set 'mnits': did you mean 'mnist'" in complaint(cli("data", "fetch", "mnits"))


@pytest.mark.parametrize(
    ("words", "value", "cure"),
    [
        (["trian"], "no command 'trian'", "did you mean 'train'"),
        (["train"], "no recipe", "--recipe NAME"),
        (["train", "--recpie", "x"], "--recpie", "rigl-compress train --help"),
        (["train", "--recipe", "mnist-demo", "--seed", "x"], "'x'", "rigl-compress train --help"),
        (["train", "--recipe", "mnist-demo", "--threads", "0"], "0", "x>=1"),
        (["train", "--resume"], "'--resume' requires an argument", "rigl-compress train --help"),
        (["bench", "a.onnx", "--inputs", "no.npz"], "no.npz does not exist", "numpy.savez"),
        (["train", "--resume", "a", "--seed", "1"], "--resume RUN takes the recipe of the run", "and changes"),
        (["train", "--resume", "a", "-o", "b"], "--resume RUN takes the recipe of the run", "leave out --output"),
        (["inspect"], "RUN", "rigl-compress inspect --help"),
        (["data", "fech"], "fech", "rigl-compress data --help"),
        (["flops", "--recipe", "mnist-demo", "--convention", "macs"], "'macs'", "known: "),
        (["sweep", "--recipe", "mnist-demo", "--training-convention", "exact"], "'exact'", "nown: "),
        (["sweep", "--recipe", "mnist-demo", "--grid", "a"], "grid 'a'", "key=value,value"),
        (["sweep", "--recipe", "mnist-demo", "--grid", "train.epoch=1,2", "--dry-run"], "train.epoch", "'epochs'"),
    ],
)
def test_a_wrong_call(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], value: str, cure: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = complaint(cli(*words))
    assert value in said
    assert cure in said
    assert snapshot(tmp_path) == {}


def test_a_folder_that_cannot_be_made(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = complaint(train(tmp_path / "file" / "run"))
    assert str(tmp_path / "file") in said
    assert "check the path" in said


def test_a_picture_that_cannot_be_written(cli: Cli, finished: Run, tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    with untouched(tmp_path):
        assert "a.png" in complaint(cli("inspect", finished.path, "--png", tmp_path / "a.png"))


def test_the_traceback_is_there_for_who_asks(cli: Cli, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        cli("--traceback", "inspect", tmp_path)


# Ctrl-C


def test_an_interrupt_says_how_to_resume(
    train: Train, cli: Cli, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rigl_compress.pipeline.train.stage.train_epochs", interrupt)
        said = train(tmp_path / "run")
    assert said.code == 130
    assert f"resume with `rigl-compress train --resume {tmp_path / 'run'}`" in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert "Traceback" not in said.err
    assert cli("train", "--resume", tmp_path / "run", "--data-dir", data_dir).code == 0


def test_the_shipped_recipes_pass_a_dry_run(cli: Cli, tmp_path: Path) -> None:
    for name in json.loads(cli("list", "--json").out)["recipes"]:
        shown = cli("train", "--recipe", name, "-o", tmp_path / "run", "--dry-run")
        assert parse_recipe(shown.out, "printed") == load_recipe(name)
    assert not (tmp_path / "run").exists()


# The live display


def shown_while_training(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, width: int = 200, title: str = "tiny, seed 0"
) -> str:
    screen = io.StringIO()
    monkeypatch.setattr(
        _render, "_err", Console(file=screen, force_terminal=terminal, width=width, soft_wrap=True, highlight=False)
    )
    with _render.training(title) as listen:
        listen(Progress(29, 60, 2, 4, 0.981, 17, 0.2345, 6.0, 4.5))
        listen(Progress(30, 60, 2, 4, 0.981, 17, 0.1234, 5.0, 4.5))
    return screen.getvalue()


def test_on_a_terminal_the_run_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shown_while_training(monkeypatch, terminal=True)
    for fact in (
        "tiny, seed 0",
        "epoch 2/4",
        "loss 0.1234",
        "error 5.00 % (best 4.50 %)",
        "sparsity 98.1%",
        "changed 17",
    ):
        assert fact in screen
    assert "0:00" in screen, "the time"


def test_elsewhere_every_epoch_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """One, though the iterations within it are reported too."""
    assert shown_while_training(monkeypatch, terminal=False).splitlines() == [
        "tiny, seed 0: epoch 2/4 · error 5.00 % (best 4.50 %) · loss 0.1234 · sparsity 98.1% · changed 17"
    ]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_however_narrow_the_bar_and_the_time_left_are_there(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    screen = shown_while_training(monkeypatch, True, width, "mnist-rigl-small-augmented, seed 0")
    begin, _, rest = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", screen).rstrip().rpartition("mnist-rigl-small-augmented")
    shown = f"mnist-rigl-small-augmented{rest}"
    assert begin, "the bar before the first news"
    assert "━" * 5 in shown
    assert len(re.findall(r"\d:\d\d:\d\d|-:--:--", shown)) == 2, "the time that passed, and the time left"
    assert "epoch 2/4" in shown
    assert len(shown) <= width


def shown_while_comparing(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    screen = io.StringIO()
    monkeypatch.setattr(_render, "_err", Console(file=screen, force_terminal=terminal, width=200, highlight=False))
    one, other = trials_of(Experiment("c", (Row("RigL", "mnist-rigl"),), seeds=2), Path("out"))
    with _render.watching(2) as listeners:
        for trial in (one, other):
            listeners.started(trial)
        listeners.progressed(one, Progress(30, 60, 2, 4, 0.981, 17, 0.1234, 5.0, 4.5))
        listeners.progressed(one, Progress(31, 60, 2, 4, 0.981, 17, 0.1111, 5.0, 4.5))
        listeners.finished(Outcome(one, {"final_error": 2.0, "best_error": 1.0}))
        listeners.benched("batch 1", 1, 2)
    return screen.getvalue()


def test_on_a_terminal_every_run_of_a_comparison_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shown_while_comparing(monkeypatch, terminal=True)
    for fact in ("RigL, seed 1", "[1/2] RigL, seed 0: error 2.00 %, best 1.00 %"):
        assert fact in screen


def test_elsewhere_a_comparison_says_a_line_for_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_while_comparing(monkeypatch, terminal=False).splitlines() == [
        "RigL, seed 0: epoch 2/4 · error 5.00 % (best 4.50 %)",
        "[1/2] RigL, seed 0: error 2.00 %, best 1.00 %",
    ]
