"""Texts for language models of bytes: WikiText-103 of the paper, a small one, and any text of the user."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from rigl_compress.data.archives import archive
from rigl_compress.data.byte_sequences import (
    BYTES,
    LENGTH,
    Sequences,
    both_splits,
    holds_text,
    limited,
    read_text,
)
from rigl_compress.data.data_files import DataFile, existing, read_content
from rigl_compress.data.dataset import DataSpec
from rigl_compress.data.download_sources import web_file
from rigl_compress.data.masked_bytes import MASK, SHARE, MaskedSequences

_SHAKESPEARE = DataFile(
    "tiny-shakespeare.txt",
    1_115_394,
    "6fb458f1232090904fb40fe944165e91",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
_WIKI = {part: f"wiki.{part}.tokens" for part in ("train", "valid", "test")}
_WIKI_MD5 = "9ddaacaf6af0710eda8c456decff7832"


def read_wikitext(
    folder: Path,
    length: int = LENGTH,
    test: Literal["valid", "test"] = "valid",
    limit: int = 0,
    test_limit: int = 0,
) -> tuple[Sequences, Sequences]:
    """Return training and test articles: the paper reports the loss on the validation articles."""
    train, other = (read_content(existing(folder, _WIKI[part])) for part in ("train", test))
    return both_splits(folder, (limited([train], limit), limited([other], test_limit)), length)


def read_shakespeare(folder: Path, length: int = LENGTH, validation: float = 0.1) -> tuple[Sequences, Sequences]:
    """Return the plays, with the last tenth for testing."""
    return read_text(existing(folder, _SHAKESPEARE.name), length, validation)


def read_masked_text(
    path: Path, length: int = LENGTH, validation: float = 0.05, limit: int = 0, test_limit: int = 0, mask: float = SHARE
) -> tuple[MaskedSequences, MaskedSequences]:
    """Return the sequences of `read_text` with a share of their bytes to be guessed."""
    train, test = read_text(path, length, validation, limit, test_limit)
    return MaskedSequences(train, mask), MaskedSequences(test, mask)


def _shape(length: int = LENGTH, **_: object) -> tuple[int, ...]:
    return (length,)


WIKITEXT103 = DataSpec(
    name="wikitext103",
    title="WikiText-103, articles of Wikipedia as bytes",
    classes=BYTES,
    input_shape=_shape,
    files=tuple(DataFile(name, 0, "") for name in _WIKI.values()),  # the checksum of the archive is checked instead
    read=read_wikitext,
    sources=(
        archive("https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip", _WIKI_MD5),
        archive("https://wikitext.smerity.com/wikitext-103-v1.zip", _WIKI_MD5),
    ),
    metric="bpc",
)

TINY_SHAKESPEARE = DataSpec(
    name="tiny-shakespeare",
    title="1.1 MB of Shakespeare's plays as bytes",
    classes=BYTES,
    input_shape=_shape,
    files=(_SHAKESPEARE,),
    read=read_shakespeare,
    sources=(web_file("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"),),
    metric="bpc",
)

TEXT = DataSpec(
    name="text",
    title="any text as bytes: a file, or a folder of .txt files",
    classes=BYTES,
    input_shape=_shape,
    read=read_text,
    holds=holds_text,
    hint="a text, or a folder with .txt files",
    metric="bpc",
)

MASKED_TEXT = replace(
    TEXT,
    name="masked-text",
    title="any text as bytes, some of them masked: a file, or a folder of .txt files",
    classes=MASK + 1,
    read=read_masked_text,
    metric="masked_bits",
)
