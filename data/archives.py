"""Archives at web addresses: one download, checked by the md5 of the archive, from which the wanted files are taken."""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from lzma import LZMAError
from pathlib import PurePosixPath

from rigl_compress.data.bounded_decompression import check_packing, read_most
from rigl_compress.data.bounded_tars import opened_tar
from rigl_compress.data.data_files import DataFile, md5
from rigl_compress.data.download_sources import Log, Source, SourceError, download

# CIFAR-10 has 170 MB, WikiText-103 190 MB: half an hour is enough at 100 kB/s.
SECONDS = 1800.0
# RuntimeError: of an encrypted member, or one that is packed in a way that zipfile does not know.
_DAMAGE = (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, ValueError, RuntimeError)
MOST_PACKED = 256 * 2**20
MOST_MEMBER = 2**30  # WikiText-103 has 541 MB


def archive(url: str, checksum: str, most: int = MOST_PACKED) -> Source:
    """Return the source of a .zip or a compressed .tar of at most `most` bytes, with the files in any of its folders.

    >>> archive("https://example.org/some.zip", "").title
    'https://example.org/some.zip'
    """

    def get(files: Sequence[DataFile], log: Log) -> Mapping[str, bytes]:
        content = download(url, log, SECONDS, most)
        if md5(content) != checksum:
            raise SourceError(f"md5 {md5(content)}, expected {checksum}")
        return unpack(content, {file.name: file.size or MOST_MEMBER for file in files})

    return Source(url, get)


def unpack(content: bytes, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """Return the wanted files of an archive, by their names without folders; nothing is written to disk.

    `wanted` has the largest size of each, in bytes. Links, devices and folders are skipped.
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
                check_packing(info)
                with packed.open(info) as stream:
                    yield name, read_most(stream, wanted[name])


def _tar_members(content: bytes, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    with opened_tar(io.BytesIO(content)) as files:
        for entry, stream in files:
            if (name := PurePosixPath(entry.name).name) in wanted:
                yield name, read_most(stream, wanted[name])
