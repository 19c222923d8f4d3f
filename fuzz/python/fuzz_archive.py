"""Archives that data sets are fetched in: .zip, and .tar however compressed."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path
from random import Random

from fuzzing.binary import mutate_bytes
from fuzzing.outcomes import Reader, attempt
from fuzzing.standalone import main

WANTED = dict.fromkeys(("a.bin", "b.bin", "package.json"), 1 << 16)  # with the most bytes that they may have


def mutate(data: bytes, rng: Random) -> bytes:
    """Change bytes, or pack members with other names, kinds and sizes."""
    return mutate_bytes(data, rng) if rng.random() < 0.9 else rng.choice((_zip, _tar))(rng)


def _zip(rng: Random) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(
        packed, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    ) as file:
        for name in rng.sample(("a.bin", "x/b.bin", "../a.bin", "/b.bin", "package.json"), k=2):
            file.writestr(zipfile.ZipInfo(name), bytes(rng.choice((0, 3, 5000, 10**5))))
    return packed.getvalue()


def _tar(rng: Random) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as file:
        for name in rng.sample(("a.bin", "x/b.bin", "../a.bin", "/b.bin"), k=2):
            member = tarfile.TarInfo(name)
            member.type = rng.choice(
                (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
            )
            member.linkname = rng.choice(("", "a.bin", "../../etc/passwd"))
            content = bytes(rng.choice((0, 3, 5000))) if member.isreg() else b""
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return rng.choice((bytes, bz2.compress, lzma.compress, _gzip))(packed.getvalue())


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)  # the same bytes every time


def consume(data: bytes, folder: Path) -> None:
    """Take the wanted files from an archive."""
    del folder
    attempt("unpack", lambda: _unpack(data))


def _unpack(data: bytes) -> None:
    from rigl_compress.data.archives import unpack
    from rigl_compress.data.download_sources import SourceError

    try:
        unpack(data, WANTED)
    except SourceError:  # the next source is asked, and the reason is shown
        return


READER = Reader("archive", consume, mutate, share=8)

if __name__ == "__main__":
    main(READER)
