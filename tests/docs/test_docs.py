"""What the documentation shows, works."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import Cli

from rigl_compress.cli.main import cli
from rigl_compress.pipeline.workspace import Run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture
def fresh(tmp_path: Path, data_dir: Path, registries: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder with little data at hand. What a page registers or imports is gone after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RIGL_COMPRESS_DATA", str(data_dir))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


# Other packages warn of what they do themselves.
FOREIGN = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore:.*treespec, LeafSpec:FutureWarning",
    "ignore:.*does not have many workers:UserWarning",
    "ignore:.*smaller than the logging interval:UserWarning",
)


def marked(page: Path) -> Any:
    return pytest.param(page, id=page.stem, marks=[FOREIGN] if page.stem == "integrations" else [])


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if blocks(page, "python")])
def test_python_runs(page: Path, fresh: Path) -> None:
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)


# What makes a command quick; all else is as the page has it.
_SHORT = ("--set", "train.epochs=1")
QUICK = {
    "train": _SHORT,
    "run": (*_SHORT, "--threads", "1"),
    "sweep": (*_SHORT, "--seeds", "1", "--jobs", "1"),
    "compare": (*_SHORT, "--seeds", "1", "--jobs", "1", "--train-only"),
    "bench": ("--openings", "1", "--rounds", "2"),
    "landscape": ("--points", "2", "--steps", "2", "--samples", "20"),
    "data": (),
}
SHELL_PAGES = [
    page for page in PAGES if "results" not in page.parts and "rigl-compress " in "".join(blocks(page, "sh"))
]


def steps(page: Path) -> list[tuple[str, str, str]]:
    """The blocks of a page in order: what is said to the test before it, the language, the text."""
    found = re.findall(
        r"(?:<!-- test: ([^>]*) -->\n)?```(sh|python)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return [(note, language, text) for note, language, text in found]


def call(line: str, note: str) -> list[str]:
    """The words of a command, made quick: a dry run where the page says so, and for what is fetched."""
    words = shlex.split(line, comments=True)[1:]
    if note.startswith("dry run") or words[:2] == ["data", "fetch"]:
        return [*words, "--dry-run"]
    rows = ["--only", "RigL", "--only", "RigL+"] if words[0] == "compare" and "--grid" not in words else []
    settled = (words[0] == "train" and "--resume" in words) or (words[0] == "run" and "--recipe" not in words)
    held_out = ["--set", "data.holdout=100"] if "--search" in words else []  # of the few samples of tests
    return words if settled else [*words, *rows, *held_out, *QUICK.get(words[0], ())]


@pytest.mark.slow
@pytest.mark.usefixtures("in_threads", "registries")
@pytest.mark.parametrize("page", [marked(page) for page in SHELL_PAGES])
def test_the_commands_of_a_page_work_one_after_the_other(page: Path, fresh: Path, cli: Cli) -> None:
    """In an empty folder, with what the page's Python writes; nothing may be missing that no line makes."""
    names: dict[str, object] = {}
    for note, language, text in steps(page):
        if file := re.match(r"# (\w+\.py)\n", text):
            (fresh / file[1]).write_text(text, encoding="utf-8")
        if language == "python":
            exec(compile(text, str(page), "exec"), names)
        else:
            for line in text.replace("\\\n", " ").splitlines():
                if line.startswith("rigl-compress "):
                    done = cli(*call(line, note))
                    assert done.code == 0 or ("--assert" in line and done.code == 1), f"{line}\n{done.err}"


def paper_commands() -> list[str]:
    page = ROOT / "docs" / "reference" / "paper.md"
    return sorted(set(re.findall(r"`(rigl-compress [^`]+)`", page.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "line", [line for line in paper_commands() if line.split()[1] in ("train", "sweep", "compare")]
)
def test_the_paper_s_runs_are_recipes(line: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli(*shlex.split(line)[1:], "--dry-run")
    assert done.code == 0, done.err


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(
        r"`(rigl-compress [^`]+)`", (ROOT / "docs" / "reference" / "paper.md").read_text(encoding="utf-8")
    )
    return sorted({shlex.join(shlex.split(line, comments=True)) for line in lines if line.startswith("rigl-compress ")})


@pytest.mark.parametrize("line", commands())
def test_commands_parse(line: str) -> None:
    context = cli.make_context("rigl-compress", [*shlex.split(line)[1:]])
    with context:
        name, command, arguments = cli.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        command.make_context(name, arguments, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_your_own_model_in_ten_lines(cli: Cli, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "howto" / "your-own-model.md"
    code = next(block for block in blocks(page, "python") if block.startswith("# mynet.py"))
    assert len([line for line in code.splitlines()[1:] if line.strip()]) <= 10
    (tmp_path / "mynet.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    train, prune, export = blocks(page, "sh")[0].splitlines()
    quick = ["--data-dir", data_dir, "--set", "train.epochs=1", "--set", "train.batch=20", "--set", "sparsity.end=5"]
    try:
        for line, more in ((train, quick), (prune, []), (export, [])):
            done = cli(*shlex.split(line)[1:], *more)
            assert done.code == 0, done.err
    finally:
        sys.modules.pop("mynet", None)
    model = Run.open(tmp_path / "runs" / "mine").model()
    assert model.spec.name == "mynet:small_net"
    assert dict(model.spec.options) == {"width": 0.5, "classes": 10}
    assert model.spec.shape == (1, 28, 28)
    assert (tmp_path / "mine.onnx").exists()


def test_your_own_data_in_ten_lines(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "howto" / "data.md"
    code = next(block for block in blocks(page, "python") if block.startswith("# blobs.py"))
    assert len([line for line in code.splitlines()[1:] if line.strip()]) <= 10
    (tmp_path / "blobs.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    line = next(line for block in blocks(page, "sh") for line in block.splitlines() if "--data blobs:load" in line)
    quick = ["--set", "train.epochs=2", "--set", "train.batch=20", "--set", "sparsity.end=50", "--device", "cpu"]
    try:
        done = cli(*shlex.split(line)[1:], *quick)
    finally:
        sys.modules.pop("blobs", None)
    assert done.code == 0, done.err
    result = Run.open(tmp_path / "runs" / "blobs").result()
    assert result["data"] == "made by blobs.py"
    assert result["final_error"] < 60, "chance is 90"


def test_a_method_outside_of_the_package_is_trained_to_a_saved_model(fresh: Path, cli: Cli) -> None:
    page = ROOT / "docs" / "howto" / "add-a-method.md"
    code = next(block for block in blocks(page, "python") if block.startswith("# busy.py"))
    (fresh / "busy.py").write_text(code, encoding="utf-8")
    train, prune, export, _ = next(block for block in blocks(page, "sh") if "busy:BUSY" in block).splitlines()
    quick = [
        "--set",
        "train.epochs=1",
        "--set",
        "train.batch=20",
        "--set",
        "sparsity.end=5",
        "--set",
        "sparsity.interval=2",
    ]
    for line, more in ((train, quick), (prune, []), (export, [])):
        done = cli(*shlex.split(line)[1:], *more)
        assert done.code == 0, done.err
    run = Run.open(fresh / "runs" / "busy")
    assert run.model().topology.sparsity > 0.5
    result = run.result()
    assert (result["method"], result["not_counted"]) == ("busy:BUSY", {})
    assert result["updates"] > 0
