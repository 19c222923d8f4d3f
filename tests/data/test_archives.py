import io
import tarfile
import zipfile
from typing import Any

import pytest

from rigl_compress.data.archives import archive
from rigl_compress.data.data_files import DataFile, md5
from rigl_compress.data.download_sources import SourceError

CONTENTS = {"folder/a.bin": b"aaa", "folder/deep/b.bin": b"bbb", "folder/readme": b"no"}
WANTED = [DataFile("a.bin", 3, md5(b"aaa")), DataFile("b.bin", 3, "")]


def quiet(_: str) -> None:
    pass


def tarred() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as packed:
        for name, content in CONTENTS.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def zipped() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for name, content in CONTENTS.items():
            packed.writestr(name, content)
    return stream.getvalue()


@pytest.mark.parametrize("make", [tarred, zipped])
def test_the_wanted_files_are_taken_from_any_folder(web: Any, make: Any) -> None:
    content = make()
    web.pages = {"/some.archive": content}
    source = archive(f"{web.url}/some.archive", md5(content))
    assert source.get(WANTED, quiet) == {"a.bin": b"aaa", "b.bin": b"bbb"}
    assert source.get(WANTED[:1], quiet) == {"a.bin": b"aaa"}


def test_another_archive_is_refused(web: Any) -> None:
    web.pages = {"/some.zip": zipped()}
    with pytest.raises(SourceError, match=r"md5 .*, expected 0123"):
        archive(f"{web.url}/some.zip", "0123").get(WANTED, quiet)


@pytest.mark.parametrize("content", [b"no archive", tarred()[:-40]])
def test_damage_is_the_sources_fault(web: Any, content: bytes) -> None:
    web.pages = {"/some.tar.gz": content}
    with pytest.raises(SourceError, match="cannot be read"):
        archive(f"{web.url}/some.tar.gz", md5(content)).get(WANTED, quiet)


def test_an_archive_that_is_not_there(web: Any) -> None:
    with pytest.raises(SourceError, match="404"):
        archive(f"{web.url}/gone.zip", "").get(WANTED, quiet)
