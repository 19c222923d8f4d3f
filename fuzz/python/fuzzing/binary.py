"""Mutations of plain bytes, for formats without a structure worth knowing and for the insides of those with one."""

from random import Random

EDGES = (0, 1, -1, 2, 7, 8, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1)
LARGEST = 1 << 20  # inputs do not grow beyond this


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """Change bytes in one to four ways."""
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(_WAYS)(data, rng)
    return data[:LARGEST]


def _flip(data: bytes, rng: Random) -> bytes:
    if not data:
        return b"\0"
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def _overwrite(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.randbytes(rng.randint(1, 8)) + data[place + rng.randint(0, 8) :]


def _number(data: bytes, rng: Random) -> bytes:
    """Write an edge case of an integer over what stands there, in either byte order."""
    width = rng.choice((1, 2, 4, 8))
    number = (rng.choice(EDGES) % (1 << (8 * width))).to_bytes(width, rng.choice(("little", "big")))
    place = rng.randrange(len(data) + 1)
    return data[:place] + number + data[place + width :]


def _cut(data: bytes, rng: Random) -> bytes:
    begin, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:begin] if rng.random() < 0.5 else data[:begin] + data[end:]


def _repeat(data: bytes, rng: Random) -> bytes:
    begin, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:end] + data[begin:end] + data[end:]


_WAYS = (_flip, _flip, _overwrite, _number, _cut, _repeat)
