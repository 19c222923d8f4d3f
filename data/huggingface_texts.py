"""Texts in folders of the library `datasets` as tokens, for classification."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.core.optional_packages import optional_package
from rigl_compress.core.trust import code_is_trusted
from rigl_compress.data.dataset import DataSpec
from rigl_compress.data.download_sources import Log
from rigl_compress.data.huggingface_tables import Table, holds_tables, read_tables
from rigl_compress.data.samples import Split

LENGTH = 128
MOST_TOKENS = 2**29  # 2 GiB
_AT_ONCE = 1000  # texts
_FLAGS = ("attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Tokens:
    """Stored tokens to int64; how texts become tokens, for programs that feed the network."""

    tokenizer: str
    length: int
    padding: int

    @property
    def facts(self) -> dict[str, Any]:
        """What a program must do with a text before the network sees it."""
        return {"tokenizer": self.tokenizer, "length": self.length, "padding": self.padding}

    def __call__(self, batch: Tensor) -> Tensor:
        """Return a batch as the network takes it."""
        return batch.long()


def read_hf_texts(
    folder: Path,
    log: Log,
    tokenizer: str = "",
    length: int = LENGTH,
    text: str = "text",
    pair: str = "",
    label: str = "label",
    train: str = "",
    test: str = "",
) -> tuple[Split, Split]:
    """Return training and test texts as tokens [N, length]; with a column `pair` [N, 3, length], see `tokens`."""
    if not tokenizer:
        raise InputError("data set 'hf-texts' needs a tokenizer: set data.options.tokenizer to the folder of the model")
    if not 2 <= length <= 2**16:
        raise InputError(f"data.options.length is {length}, expected a number of tokens from 2 to 65,536")
    parts = read_tables(folder, (train, test), label, log)
    if (count := sum(map(len, parts)) * length * (3 if pair else 1)) > MOST_TOKENS:
        raise InputError(f"{folder} has {count:,} tokens, at most {MOST_TOKENS:,}: lower data.options.length")
    encode = _Encoder(_tokenizer(tokenizer), length)
    first, second = (encode.split(part, text, pair, tokenizer) for part in parts)
    if encode.cut:
        log(f"{encode.cut} of {sum(map(len, parts))} texts have more than {length} tokens and are cut off there")
    return first, second


def _tokenizer(name: str) -> Any:
    transformers = optional_package("transformers", "huggingface", f"the tokenizer {name}")
    if Path(name).is_dir() and not any(Path(name).glob("*token*")) and not any(Path(name).glob("vocab*")):
        raise InputError(f"the folder {name} has no tokenizer (data.options.tokenizer): save it there, or name another")
    try:
        found = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=code_is_trusted())
    except Exception as error:  # the library raises anything: no such folder, no network, damaged files
        reason = first_line(error).rstrip(".")
        raise InputError(f"no tokenizer at {name} (data.options.tokenizer): {reason}") from error
    if found.pad_token_id is None:
        raise InputError(f"the tokenizer {name} has no padding token: set its pad_token, and save it again")
    return found


class _Encoder:
    """Turns texts into tokens of one length, and counts those that are cut off."""

    def __init__(self, tokenizer: Any, length: int) -> None:
        self._tokenizer, self._length, self.cut = tokenizer, length, 0

    def split(self, table: Table, text: str, pair: str, name: str) -> Split:
        """Return the tokens of a table."""
        columns = [_texts(table, column) for column in (text, pair) if column]
        parts = [self._tokens(columns, start) for start in range(0, len(table), _AT_ONCE)]
        return Split(torch.cat(parts), table.classes, Tokens(str(name), self._length, self._tokenizer.pad_token_id))

    def _tokens(self, columns: list[list[str]], start: int) -> Tensor:
        texts = [column[start : start + _AT_ONCE] for column in columns]
        plain = self._tokenizer(*texts, truncation=False, verbose=False)["input_ids"]
        self.cut += sum(len(tokens) > self._length for tokens in plain)
        size = {"truncation": True, "max_length": self._length, "padding": "max_length"}
        pairs = len(columns) > 1
        return _stacked(self._tokenizer(*texts, **size, return_token_type_ids=pairs), pairs)


def _stacked(found: Mapping[str, Any], pairs: bool) -> Tensor:
    """Return tokens alone, whose mask follows from padding; of pairs, masks and segments too."""
    ids = torch.tensor(found["input_ids"], dtype=torch.int32)
    if not pairs:
        return ids
    return torch.stack([ids, *(torch.tensor(found[name], dtype=torch.int32) for name in _FLAGS)], dim=1)


def _texts(table: Table, column: str) -> list[str]:
    values = list(table.column(column))
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise InputError(f"the column {column!r} (data.options.text) holds {wrong[0]!r}, expected texts")
    return values


def _shape(length: int = LENGTH, pair: str = "", **_: object) -> tuple[int, ...]:
    return (3, length) if pair else (length,)


HF_TEXTS = DataSpec(
    name="hf-texts",
    title="texts with classes in a folder of Hugging Face datasets",
    input_shape=_shape,
    read=read_hf_texts,
    holds=holds_tables,
    hint="a folder that save_to_disk wrote, or with arrow, parquet, CSV or JSON files",
)
