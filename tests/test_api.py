"""The public face: names, links, and what the wheel holds."""

import ast
import importlib.util
import subprocess
import sys
import zipfile
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import rigl_compress

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "rigl_compress"
CODE = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def test_all_is_what_completion_shows() -> None:
    assert sorted(rigl_compress.__all__) == dir(rigl_compress)
    assert len(set(rigl_compress.__all__)) == len(rigl_compress.__all__)


@pytest.mark.parametrize("name", rigl_compress.__all__)
def test_every_name_loads(name: str) -> None:
    assert getattr(rigl_compress, name) is not None


def test_names_are_loaded_from_where_they_are_defined() -> None:
    for name, home in rigl_compress._HOME.items():
        thing = getattr(import_module(home), name)
        assert getattr(thing, "__module__", home) == home


def test_what_type_checkers_see_is_what_is_loaded() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == rigl_compress._HOME
    assert {*seen, "__version__"} == set(rigl_compress.__all__)


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'rigl_compress' has no attribute 'Sparsfier'"):
        rigl_compress.Sparsfier  # noqa: B018


def test_importing_the_package_does_not_import_torch() -> None:
    script = "import sys, rigl_compress; dir(rigl_compress); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_the_version_has_one_source() -> None:
    assert rigl_compress.__version__ == version("rigl-compress")


def test_the_console_script() -> None:
    (script,) = entry_points(group="console_scripts", name="rigl-compress")
    assert script.value == "rigl_compress.cli.main:main"


def test_every_folder_of_the_package_is_a_link_to_the_root() -> None:
    folders = {path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {path.name for path in folders} == {*CODE, "recipes"} >= {"cli", "exporters", "models", "pipeline"}
    for path in folders:
        assert path.is_symlink(), path.name
        assert not path.readlink().is_absolute(), "a link into this machine's folders breaks elsewhere"
        assert path.resolve() == ROOT / path.name


def test_every_folder_of_code_is_a_package() -> None:
    files = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 40
    assert [path for path in files if not (path.parent / "__init__.py").exists()] == []


def test_the_installed_package_is_this_one() -> None:
    assert Path(rigl_compress.__file__).resolve() == (PACKAGE / "__init__.py").resolve()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("scikit_build_core") is None, reason="scikit-build-core is not installed")
def test_the_wheel_holds_every_module_and_recipe_and_no_tests(tmp_path: Path) -> None:
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT]
    subprocess.run([sys.executable, *map(str, command)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {f"rigl_compress/{path.relative_to(ROOT)}" for folder in CODE for path in (ROOT / folder).rglob("*.py")}
    recipes = {f"rigl_compress/{path.relative_to(ROOT)}" for path in (ROOT / "recipes").glob("*.toml")}
    assert recipes
    assert {name for name in names if name.endswith((".py", ".toml"))} == {
        *modules,
        *recipes,
        "rigl_compress/__init__.py",
        "rigl_compress/__main__.py",
    }
    assert "rigl_compress/py.typed" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"rigl_compress"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
