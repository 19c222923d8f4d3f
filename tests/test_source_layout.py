"""The source keeps its shape: short functions, names that stand once, and lists of its folders that agree."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKS = ROOT / "src" / "rigl_compress"
FOLDERS = {path.name for path in LINKS.iterdir() if (path / "__init__.py").exists()}
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
SHARED_NAMES = {"__init__.py", "stage.py"}


def functions() -> Iterator[ast.FunctionDef]:
    for file in FILES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def body_lines(function: ast.FunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_have_a_few_lines() -> None:
    lengths = sorted(map(body_lines, functions()))
    assert lengths[len(lengths) // 2] <= 5
    assert lengths[len(lengths) * 9 // 10] <= 12


def test_files_are_short_and_each_name_stands_once() -> None:
    assert {str(file): count for file in FILES if (count := len(file.read_text().splitlines())) > 300} == {}
    native = [path for path in (ROOT / "native").iterdir() if path.suffix in (".cpp", ".h")]
    names = Counter(path.name for path in (*FILES, *native))
    assert {name for name, count in names.items() if count > 1} <= SHARED_NAMES


def linted() -> set[str]:
    contract = next(each for each in PROJECT["importlinter"]["contracts"] if each["id"] == "layers")
    return {name.strip().removeprefix("rigl_compress.") for layer in contract["layers"] for name in layer.split("|")}


def without_rich() -> set[str]:
    contract = next(each for each in PROJECT["importlinter"]["contracts"] if each["id"] == "rich")
    return {name.removeprefix("rigl_compress.") for name in contract["source_modules"]}


def guarded() -> set[str]:
    found = re.search(r"foreach\(folder ([\w ]+)\)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
    return set(found[1].split()) if found else set()


def documented() -> set[str]:
    text = (ROOT / "docs/reference/architecture.md").read_text(encoding="utf-8").partition("## Folders")[2]
    return set(re.findall(r"^\| `(\w+)/` \|", text, flags=re.MULTILINE)) & {*FOLDERS, "data"}


@pytest.mark.parametrize(
    "listed",
    [
        {name.removeprefix("/") for name in PROJECT["scikit-build"]["sdist"]["exclude"]}
        - {"docs", "benchmarks", "fuzz", ".ci"},
        {Path(name).name for name in PROJECT["ruff"]["extend-exclude"]},
        set(PROJECT["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]),
        set(PROJECT["pyright"]["include"]) - {"tests"},
        linted(),
        without_rich(),
        guarded(),
        documented(),
    ],
    ids=["sdist", "ruff", "bare imports", "pyright", "layers", "rich", "CMake", "architecture"],
)
def test_every_list_of_folders_is_complete(listed: set[str]) -> None:
    assert listed == FOLDERS
