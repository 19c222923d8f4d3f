"""A package that does not import is one sentence, an `InputError` and an `ImportError`."""

import sys
from pathlib import Path

import pytest

from rigl_compress import InputError
from rigl_compress.core.optional_packages import optional_package


@pytest.mark.parametrize("what", ["", "model 'some:net'"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("raise RuntimeError('operator does not exist\\nsecond line')", "RuntimeError: operator does not exist"),
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
    ],
)
def test_a_broken_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, reason: str, what: str
) -> None:
    (tmp_path / "broken_package.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=f"importing broken_package failed .{reason}.: install a version") as caught:
        optional_package("broken_package", "things", what)
    assert isinstance(caught.value, ImportError)
    assert str(caught.value).startswith(f"{what}: importing" if what else "importing")


@pytest.mark.parametrize("what", ["", "model 'some:net'"])
def test_a_missing_package(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setitem(sys.modules, "absent", None)
    with pytest.raises(InputError, match=r"absent.*pip install .*rigl-compress\[things\]") as caught:
        optional_package("absent.part", "things", what)
    assert isinstance(caught.value, ImportError)
    assert str(caught.value).startswith(f"{what} needs" if what else "absent is not")
