"""Texts as bytes: sequences of fixed length in which each byte is predicted from the preceding ones."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from rigl_compress.core.errors import InputError
from rigl_compress.data.bounded_decompression import MOST, in_words, is_packed
from rigl_compress.data.data_files import read_content
from rigl_compress.data.samples import Batches, check_batch_size

BYTES = 256
LENGTH = 512  # of the paper's sequences (Appendix on the character GRU)
_SUFFIXES = (".txt", ".txt.gz")


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences of a text: `corpus` is uint8 [bytes], `starts` are their positions. Each has `length` + 1 bytes.

    The inputs are all bytes of a sequence but the last, the targets all but the first. Sequences overlap by one byte:
    every byte is a target once; the state of a network is not carried over.

    >>> text = Sequences(torch.tensor([7, 8, 9, 10, 11], dtype=torch.uint8), torch.tensor([0, 2]), 2)
    >>> [[x.tolist(), y.tolist()] for x, y in text.in_order(2)]
    [[[[7, 8], [9, 10]], [[8, 9], [10, 11]]]]
    """

    corpus: Tensor
    starts: Tensor
    length: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The length of a sequence."""
        return (self.length,)

    @property
    def labels(self) -> tuple[int, int]:
        """Any byte may follow."""
        return 0, BYTES - 1

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, part: slice) -> "Sequences":
        return replace(self, starts=self.starts[part])

    def to(self, device: torch.device | str) -> "Sequences":
        """Return the same sequences on another device."""
        return replace(self, corpus=self.corpus.to(device), starts=self.starts.to(device))

    def batches(self, size: int, generator: torch.Generator) -> Batches:
        """Yield one epoch in a new order, drawn on the CPU so that it is the same on every device."""
        check_batch_size(size, len(self))
        order = torch.randperm(len(self), generator=generator).to(self.starts.device)
        whole = range(0, len(self) - len(self) % size, size)
        return (self._taken(self.starts[order[start : start + size]]) for start in whole)

    def in_order(self, size: int) -> Batches:
        """Yield all sequences in order."""
        return (self._taken(self.starts[start : start + size]) for start in range(0, len(self), size))

    def _taken(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        positions = starts[:, None] + torch.arange(self.length + 1, device=starts.device)
        stretches = self.corpus[positions].long()
        return stretches[:, :-1], stretches[:, 1:]


def sequences(texts: Iterable[bytes], length: int) -> Sequences:
    """Cut texts into sequences that do not cross the end of a text; the rest of each text is dropped.

    >>> len(sequences([b"abcde", b"f", b"ghi"], 2))
    3
    """
    starts, whole = [], bytearray()
    for text in texts:
        starts.append(len(whole) + length * torch.arange(max(0, (len(text) - 1) // length)))
        whole += text
    corpus = torch.frombuffer(whole, dtype=torch.uint8) if whole else torch.empty(0, dtype=torch.uint8)
    return Sequences(corpus, torch.cat(starts) if starts else torch.empty(0, dtype=torch.int64), length)


def text_files(path: Path) -> list[Path]:
    """Return the texts at a path: the file itself, or all .txt and .txt.gz files of a folder, sorted by name."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.name.endswith(_SUFFIXES) and file.is_file())


def holds_text(path: Path) -> bool:
    """Whether there is a text at the path: a file, or a folder with a .txt in it."""
    return bool(text_files(path))


def read_text(
    path: Path, length: int = LENGTH, validation: float = 0.05, limit: int = 0, test_limit: int = 0
) -> tuple[Sequences, Sequences]:
    """Return training and test sequences: whole files are held out for testing, or the end of a single file.

    `validation` is the share that is held out; `limit` and `test_limit` are the bytes that are used, 0 for all.
    """
    if not 0 < validation < 1:
        raise InputError(f"data.options.validation is {validation}, expected a share between 0 and 1, e.g. 0.05")
    texts = list(_contents(text_files(path)))
    train, test = _hold_out_files(texts, validation) if len(texts) > 1 else _hold_out_end(texts[0], validation)
    return both_splits(path, (limited(train, limit), limited(test, test_limit)), length)


def _contents(files: Iterable[Path]) -> Iterator[bytes]:
    """Yield the texts of files; compressed ones may unpack to `MOST` together."""
    packed = 0
    for file in files:
        content = read_content(file)
        packed += len(content) if is_packed(file) else 0
        if packed > MOST:
            raise InputError(f"{file.parent} has texts that unpack to more than {in_words(MOST)}: unpack them yourself")
        yield content


def _hold_out_files(texts: Sequence[bytes], share: float) -> tuple[list[bytes], list[bytes]]:
    """Hold out files at even distances, at least one, and leave at least one."""
    count = min(len(texts) - 1, max(1, round(share * len(texts))))
    held = {(2 * number + 1) * len(texts) // (2 * count) for number in range(count)}
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for number, text in enumerate(texts):
        parts[number in held].append(text)
    return parts


def _hold_out_end(text: bytes, share: float) -> tuple[list[bytes], list[bytes]]:
    cut = len(text) - round(share * len(text))
    return [text[:cut]], [text[cut:]]


def limited(texts: Iterable[bytes], limit: int) -> list[bytes]:
    """Return the first bytes of texts; 0 for all.

    >>> limited([b"abc", b"def", b"ghi"], 4)
    [b'abc', b'd']
    """
    if limit < 0:
        raise InputError(f"data.options has a limit of {limit} bytes, expected 0 for all, or more")
    kept, left = [], limit
    for text in texts:
        kept.append(text[:left] if limit else text)
        left = max(0, left - len(text))
    return [text for text in kept if text]


def both_splits(path: Path, texts: tuple[list[bytes], list[bytes]], length: int) -> tuple[Sequences, Sequences]:
    """Cut both splits into sequences; raise if one of them has none."""
    if length < 1:
        raise InputError(f"data.options.length is {length}, expected 1 or more bytes")
    for part, split in zip(("training", "testing"), texts, strict=True):
        longest = max(map(len, split), default=0)
        if longest <= length:
            raise InputError(
                f"{path} has no text for {part} longer than {longest} bytes, a sequence needs {length + 1}: "
                "add text, or lower data.options.length"
            )
    return sequences(texts[0], length), sequences(texts[1], length)
