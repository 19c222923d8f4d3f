"""Archives at web addresses: one download, checked by the md5 of the archive, from which the wanted files are taken."""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from rigl_compress.pipeline.train.data.files import DataFile, md5
from rigl_compress.pipeline.train.data.sources import Say, Source, SourceError, download

# CIFAR-10 has 170 MB, WikiText-103 190 MB: half an hour is enough at 100 kB/s.
SECONDS = 1800.0


def archive(url: str, checksum: str) -> Source:
    """A .zip, or a .tar however compressed, whose files lie in it under their own names in any folder.

    >>> archive("https://example.org/some.zip", "").title
    'https://example.org/some.zip'
    """

    def get(files: Sequence[DataFile], say: Say) -> Mapping[str, bytes]:
        content = download(url, say, SECONDS)
        if md5(content) != checksum:
            raise SourceError(f"md5 {md5(content)}, expected {checksum}")
        return unpack(content, {file.name for file in files})

    return Source(url, get)


def unpack(content: bytes, wanted: set[str]) -> dict[str, bytes]:
    """Take the wanted files from an archive, by their names without folders; nothing is written to disk."""
    members = _zip_members if zipfile.is_zipfile(io.BytesIO(content)) else _tar_members
    try:
        return dict(members(content, wanted))
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise SourceError(f"cannot be read: {error!r}") from error


def _zip_members(content: bytes, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        for path in packed.namelist():
            if (name := PurePosixPath(path).name) in wanted:
                yield name, packed.read(path)


def _tar_members(content: bytes, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        for member in packed:
            name = PurePosixPath(member.name).name
            if name in wanted and member.isfile() and (stream := packed.extractfile(member)):
                yield name, stream.read()
