"""The file of the compiled kernels, for inference and for training."""

import os
import struct
from importlib.util import find_spec
from pathlib import Path

NAME = "rigl_kernels.so"
# The section table is at the end of an ELF file: the header has its offset, the size of an entry and their number.
_ELF = struct.Struct("<40xQ10xHH")


def library_path() -> Path | None:
    """Return the path of the library; None if the package was installed without a compiler.

    The environment variable RIGL_COMPRESS_LIBRARY overrides it.
    """
    if given := os.environ.get("RIGL_COMPRESS_LIBRARY"):
        return Path(given)
    package = find_spec("rigl_compress")
    folders = () if package is None else package.submodule_search_locations or ()
    paths = (Path(folder) / NAME for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def is_truncated(path: Path) -> bool:
    """Check whether the end of a library is missing: it would load, and crash the process later."""
    with path.open("rb") as file:
        header = file.read(_ELF.size)
    if len(header) < _ELF.size or not header.startswith(b"\x7fELF\x02\x01"):  # the loader reports anything else
        return False
    *_, start, size, count = _ELF.unpack(header)
    return bool(start + size * count > path.stat().st_size)
