"""Texts for character-level language models: WikiText-103 of the paper, a small one, and any text of one's own."""

from pathlib import Path
from typing import Literal

from rigl_compress.pipeline.train.data.archives import archive
from rigl_compress.pipeline.train.data.dataset import DataSpec
from rigl_compress.pipeline.train.data.files import DataFile, existing, read_content
from rigl_compress.pipeline.train.data.sources import web_file
from rigl_compress.pipeline.train.data.text import BYTES, LENGTH, Sequences, both, holds_text, limited, read_text

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
    """Training articles, and those to test on: the paper reports the loss on the validation articles."""
    train, other = (read_content(existing(folder, _WIKI[part])) for part in ("train", test))
    return both(folder, (limited([train], limit), limited([other], test_limit)), length)


def read_shakespeare(folder: Path, length: int = LENGTH, validation: float = 0.1) -> tuple[Sequences, Sequences]:
    """The plays, the last tenth of which is for testing."""
    return read_text(existing(folder, _SHAKESPEARE.name), length, validation)


def _shape(length: int = LENGTH, **_: object) -> tuple[int, ...]:
    return (length,)


WIKITEXT103 = DataSpec(
    name="wikitext103",
    title="WikiText-103, articles of Wikipedia as bytes",
    classes=BYTES,
    input_shape=_shape,
    counts=(0, 0),
    files=tuple(DataFile(name, 0, "") for name in _WIKI.values()),  # the archive is checked in their place
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
    counts=(0, 0),
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
    counts=(0, 0),
    files=(),
    read=read_text,
    holds=holds_text,
    hint="a text, or a folder with .txt files",
    metric="bpc",
)
