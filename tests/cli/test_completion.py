"""Shell completion: commands, options, and names from the registries."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny import Cli

from rigl_compress.cli import _catalog, _name_cache
from rigl_compress.cli._option_types import recipe_settings
from rigl_compress.data.dataset_registry import DATASETS
from rigl_compress.experiments.spec import shipped_comparisons
from rigl_compress.exporters.sparsify import encoding_names
from rigl_compress.models.model_registry import MODELS
from rigl_compress.pipeline.bench.backends import BACKENDS
from rigl_compress.pipeline.recipe import load_recipe, shipped_recipes
from rigl_compress.sparsity.methods import METHODS

Complete = Callable[[str], list[str]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def complete(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Return what fish offers at the end of a line: complete("train --rec")."""

    def call(line: str) -> list[str]:
        *words, last = f"rigl-compress {line}".split(" ")
        monkeypatch.setenv("_RIGL_COMPRESS_COMPLETE", "fish_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", last)
        done = cli()
        assert (done.code, done.err) == (0, "")
        return [row.partition(",")[2].partition("\t")[0] for row in done.out.splitlines() if row.startswith("plain,")]

    return call


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tr", ["train"]),
        ("data f", ["fetch"]),
        ("train --resu", ["--resume"]),
        ("run --from pr", ["prune"]),
        ("export --values fp", ["fp32", "fp16"]),
        ("export --target s", ["sparse-runtime"]),
        ("train --device c", ["cpu", "cuda"]),
        ("train --set sparsity.meth", ["sparsity.method="]),
        ("trian --re", []),
    ],
)
def test_what_is_offered(line: str, offered: list[str], complete: Complete) -> None:
    assert complete(line) == offered


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("train --recipe ", {**shipped_recipes(), **shipped_comparisons()}),
        ("flops --model ", MODELS),
        ("train --data ", DATASETS),
        ("data fetch ", DATASETS),
        ("bench a.onnx --backend ", BACKENDS),
        ("export runs/a --encoding ", encoding_names()),
    ],
)
def test_names_come_from_the_registries(line: str, names: dict[str, object], complete: Complete) -> None:
    assert complete(line) == list(names)


def test_methods_are_completed_after_the_key(complete: Complete) -> None:
    assert complete("train --set sparsity.method=") == [f"sparsity.method={name}" for name in METHODS]
    assert complete("train --set sparsity.method=sn") == [
        f"sparsity.method={name}" for name in METHODS if name.startswith("sn")
    ]
    assert next(iter(recipe_settings("sparsity.method=rigl,s"))) == f"sparsity.method=rigl,{next(iter(METHODS))}"
    assert complete("train --set train.epochs=") == []


def test_the_keys_are_those_of_a_recipe() -> None:
    for key in _catalog.recipe_keys():
        with pytest.raises(ValueError, match="is") as caught:
            load_recipe("mnist-rigl", [f"{key}=[[]]"])  # fits no key
        assert "unknown key" not in str(caught.value)


def test_names_are_kept_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _name_cache.all_names()
    with monkeypatch.context() as patch:
        patch.setattr(_catalog, "everything", dict)
        assert _name_cache.all_names() == first, "from the file"
        extension = EntryPoint("mine", "package.module:METHOD", "rigl_compress.methods")
        installed = SimpleNamespace(version="1", entry_points=[extension])
        patch.setattr(_name_cache, "distributions", lambda: [installed])
        assert _name_cache.all_names().keys() == {"recipe keys"}, "read again"


@pytest.mark.parametrize("content", ["", "[]", '{"fingerprint": 1}', "{"])
def test_a_damaged_cache_is_replaced(content: str) -> None:
    _name_cache.cache_file().parent.mkdir(parents=True, exist_ok=True)
    _name_cache.cache_file().write_text(content)
    assert "mnist-rigl" in _name_cache.all_names()["recipes"]
    assert json.loads(_name_cache.cache_file().read_text())["names"]["recipes"]


def test_nothing_is_printed_where_names_cannot_be_loaded(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, dict[str, str]]:
        raise RuntimeError("an extension that cannot be imported")

    monkeypatch.setattr(_catalog, "everything", broken)
    assert complete("train --model ") == []


def test_completion_from_the_cache_does_not_import_torch() -> None:
    _name_cache.all_names()
    script = """
import sys
from rigl_compress.cli._name_cache import all_names
assert "rigl" in all_names()["methods"]
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes() -> None:
    """With the script of the how-to."""
    script = """
eval "$(_RIGL_COMPRESS_COMPLETE=bash_source rigl-compress)" 2>/dev/null
COMP_WORDS=(rigl-compress lan) COMP_CWORD=1
_rigl_compress_completion rigl-compress
echo "${COMPREPLY[@]}"
"""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={"PATH": path}, timeout=60)
    assert done.stdout == "landscape\n", done.stderr
