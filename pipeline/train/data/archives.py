"""Archives at web addresses: one download, checked by the md5 of the archive, from which the wanted files are taken."""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from lzma import LZMAError
from pathlib import PurePosixPath

from rigl_compress.pipeline.train.data.files import DataFile, md5
from rigl_compress.pipeline.train.data.sources import Say, Source, SourceError, download
from rigl_compress.pipeline.train.data.unpacking import read_most

# CIFAR-10 has 170 MB, WikiText-103 190 MB: half an hour is enough at 100 kB/s.
SECONDS = 1800.0
# RuntimeError: of an encrypted member, or one that is packed in a way that zipfile does not know.
_DAMAGE = (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, ValueError, RuntimeError)
MOST_PACKED = 256 * 2**20
MOST_MEMBER = 2**30  # WikiText-103 has 541 MB


def archive(url: str, checksum: str, most: int = MOST_PACKED) -> Source:
    """A .zip, or a .tar however compressed, whose files lie in it under their own names in any folder.

    It is of at most so many bytes.

    >>> archive("https://example.org/some.zip", "").title
    'https://example.org/some.zip'
    """

    def get(files: Sequence[DataFile], say: Say) -> Mapping[str, bytes]:
        content = download(url, say, SECONDS, most)
        if md5(content) != checksum:
            raise SourceError(f"md5 {md5(content)}, expected {checksum}")
        return unpack(content, {file.name: file.size or MOST_MEMBER for file in files})

    return Source(url, get)


def unpack(content: bytes, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """Take the wanted files from an archive, by their names without folders; nothing is written to disk.

    `wanted` has the most bytes that each may have. Links, devices and folders are no files.
    """
    members = _zip_members if zipfile.is_zipfile(io.BytesIO(content)) else _tar_members
    try:
        return dict(members(content, wanted))
    except _DAMAGE as error:
        raise SourceError(f"cannot be read: {error!r}") from error


def _zip_members(content: bytes, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        for info in packed.infolist():
            if (name := PurePosixPath(info.filename).name) in wanted:
                with packed.open(info) as stream:
                    yield name, read_most(stream, wanted[name])


def _tar_members(content: bytes, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        for member in packed:
            name = PurePosixPath(member.name).name
            if name in wanted and member.isfile() and (stream := packed.extractfile(member)):
                yield name, read_most(stream, wanted[name])
