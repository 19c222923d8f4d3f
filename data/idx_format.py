"""The idx format of MNIST: two zero bytes, a type code, the number of dimensions, their sizes, then the bytes.

Only unsigned bytes (code 0x08) are read: MNIST and its relatives have nothing else.
"""

import gzip
import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from rigl_compress.core.artifacts import write_bytes
from rigl_compress.core.errors import InputError
from rigl_compress.data.bounded_decompression import MOST, in_words, is_packed
from rigl_compress.data.data_files import damaged, read_content, read_start

_UNSIGNED_BYTE = 0x08
_LONGEST_HEADER = 4 + 4 * 255


def format_idx(values: Tensor) -> bytes:
    """Return the content of a file for a uint8 tensor.

    >>> format_idx(torch.tensor([[1, 2]], dtype=torch.uint8)).hex(" ", -4)
    '00000802 00000001 00000002 0102'
    """
    if values.dtype != torch.uint8 or not 1 <= values.ndim <= 255:
        raise InputError(f"idx holds uint8 of 1 to 255 dimensions: found {values.dtype} of {values.ndim}")
    header = struct.pack(f">HBB{values.ndim}I", 0, _UNSIGNED_BYTE, values.ndim, *values.shape)
    return header + values.cpu().contiguous().numpy().tobytes()


def parse_idx(content: bytes, path: Path) -> Tensor:
    """Return the uint8 tensor of a file's content; the path is for the error message.

    >>> parse_idx(bytes.fromhex("00000802 00000001 00000002 0102"), Path("a")).tolist()
    [[1, 2]]
    """
    shape = _shape(content, path)
    start = 4 + 4 * len(shape)
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise damaged(path, f"{len(content)} bytes", f"{expected} bytes, as its header says for shape {shape}")
    if expected == start:  # frombuffer refuses to look at nothing
        try:
            return torch.empty(shape, dtype=torch.uint8)
        except RuntimeError:  # beside the axis of nothing, others too large to be counted
            raise damaged(path, f"shape {shape}", "one that a tensor can have") from None
    # A copy as bytearray: tensors are writable, bytes are not.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(shape)


def read_idx(path: Path, ndim: int) -> Tensor:
    """The uint8 tensor in a plain or gzip'd idx file of so many dimensions; no more is read than its header says."""
    header = 4 + 4 * ndim
    shape = _shape(read_start(path, _LONGEST_HEADER), path)
    if len(shape) != ndim:
        raise damaged(path, f"idx of {len(shape)} dimensions", f"{ndim} dimensions")
    size = header + math.prod(shape)
    if size > MOST and is_packed(path):
        raise InputError(f"{path} unpacks to {in_words(size)}, at most {in_words(MOST)}: unpack it yourself")
    return parse_idx(read_content(path, size), path)


def write_idx(path: Path, values: Tensor) -> None:
    """Write a uint8 tensor, gzip'd if the name ends in .gz."""
    content = format_idx(values)
    # No time stamp: the same values give the same bytes.
    write_bytes(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _shape(content: bytes, path: Path) -> tuple[int, ...]:
    if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTE]) or not content[3]:
        raise damaged(path, f"starts with {content[:4].hex() or 'nothing'}", "idx of unsigned bytes, 000008 and a rank")
    ndim = content[3]
    if len(content) < 4 + 4 * ndim:
        raise damaged(path, f"{len(content)} bytes", f"a header of {4 + 4 * ndim} bytes")
    return struct.unpack_from(f">{ndim}I", content, 4)
