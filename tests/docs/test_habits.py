"""Files that tools and people read beside the source: they agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


def loaded(name: str) -> dict[str, object]:
    return dict(yaml.safe_load((ROOT / name).read_text(encoding="utf-8")))


def test_the_citation_is_of_this_version() -> None:
    citation = loaded("CITATION.cff")
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]


def test_hooks_fetch_nothing() -> None:
    (repo,) = loaded(".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in repo["hooks"]}
    assert {"ruff", "mypy", "clang-format"} <= tools


@pytest.mark.parametrize(
    "file", [*WORKFLOWS, ROOT / ".ci" / "run", ROOT / "CONTRIBUTING.md"], ids=lambda file: file.name
)
def test_targets_that_are_called_exist(file: Path) -> None:
    called = re.findall(r"(?:run: |^|`)make ([a-z][\w-]*)", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert called
    assert set(called) <= TARGETS


def test_ci_covers_the_versions_that_are_promised() -> None:
    matrix = loaded(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    promised = [text.rpartition(" ")[2] for text in PROJECT["project"]["classifiers"] if ":: Python :: 3." in text]
    assert matrix["python"] == promised
    assert PROJECT["project"]["requires-python"] == f">={promised[0]}"
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos"}


def test_coverage_counts_every_folder_of_the_source() -> None:
    linked = {path.name for path in (ROOT / "src" / "rigl_compress").iterdir() if (path / "__init__.py").exists()}
    assert set(PROJECT["tool"]["coverage"]["run"]["source_dirs"]) == {*linked, "src/rigl_compress"}
    assert PROJECT["tool"]["coverage"]["report"]["fail_under"] >= 92


def test_ci_prints_coverage_and_builds_the_site() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    steps = [line.partition(" ||")[0] for line in lines]
    assert steps.index("make coverage") > steps.index("make test")
    assert "make check" in steps
    assert re.search(r"^check:.*\bdocs\b", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
