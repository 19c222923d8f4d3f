"""What the documentation shows, works."""

import re
import shlex
from pathlib import Path

import pytest

from rigl_compress.cli.main import cli
from rigl_compress.pipeline.train.costs import COSTS
from rigl_compress.pipeline.train.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rigl_compress.models.networks import MODELS

    monkeypatch.chdir(tmp_path)
    # What a page registers is gone after it.
    for registry in (METHODS, MODELS, COSTS):
        monkeypatch.setattr(registry, "_items", dict(registry._items))  # type: ignore[attr-defined]
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    return sorted({line.partition("  #")[0].strip() for line in lines if line.startswith("rigl-compress ")})


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
