"""The documentation site: complete, and true to the names in the source."""

import re
from pathlib import Path

import pytest

import rigl_compress

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = (
    "benchmarks|cli|core|docs|experiments|exporters|fuzz|integrations|models|native|"
    "onnx_pruning|pipeline|pruning|recipes|runtime|sparsity|tests"
)
# Records keep the names of their time.
NAMED = [
    page for page in [ROOT / "README.md", *ROOT.glob("*.md"), *DOCS.rglob("*.md")] if page.parent.name != "decisions"
]
DRAWINGS = sorted((DOCS / "reference" / "drawings").glob("*.svg"))


def test_the_api_page_has_every_public_name() -> None:
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: rigl_compress\.(\w+)$", page, flags=re.MULTILINE) + re.findall(
        r"^### `(\w+)`$", page, re.M
    )
    assert sorted(shown) == sorted(rigl_compress.__all__)


def test_the_navigation_has_every_page() -> None:
    listed = re.findall(r"([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_nothing_of_the_site_is_fetched() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in config
    assert "://" not in config


def named_paths(text: str) -> set[str]:
    """Find the files and folders that a text names.

    >>> sorted(named_paths("`cli/run.py` calls `pipeline/bench/backends`; see core/"))
    ['cli/run.py', 'pipeline/bench/backends']
    """
    return {found.rstrip("/.") for found in re.findall(rf"(?<![\w/.\]-])(?:{FOLDERS})/[\w./-]*\w", text)}


@pytest.mark.parametrize("page", [*NAMED, *DRAWINGS], ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text(encoding="utf-8"))  # links have a test of their own
    assert sorted(name for name in named_paths(text) if not (ROOT / name).exists()) == []


def test_the_folders_of_the_source_are_explained() -> None:
    page = (DOCS / "reference" / "architecture.md").read_text(encoding="utf-8")
    source = {path.name for path in (ROOT / "src" / "rigl_compress").iterdir() if path.is_symlink()}
    assert {*source, "native"} <= set(re.findall(r"^\| `(\w+)/` \|", page, flags=re.MULTILINE))


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.stem)
def test_drawings_are_shown_and_need_nothing_else(drawing: Path) -> None:
    text = drawing.read_text(encoding="utf-8")
    assert "<title>" in text
    assert "<image" not in text
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert any(drawing.name in page.read_text(encoding="utf-8") for page in NAMED)
