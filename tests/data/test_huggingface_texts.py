"""Texts in folders of Hugging Face datasets."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, disable_progress_bars
from tiny_huggingface import LENGTH, WORDS, reviews, write_tokenizer

from rigl_compress.core.errors import InputError
from rigl_compress.data import huggingface_tables
from rigl_compress.data.load_dataset import load_dataset, outline


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disable_progress_bars()
    monkeypatch.setattr(huggingface_tables, "cache_folder", lambda: tmp_path / "cache")


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return str(write_tokenizer(tmp_path / "tokenizer"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    DatasetDict(train=Dataset.from_list(reviews(40)), validation=Dataset.from_list(reviews(6))).save_to_disk(
        tmp_path / "texts"
    )
    return tmp_path / "texts"


def load(folder: Path, tokenizer: str, log: Any = None, **options: Any) -> Any:
    return load_dataset("hf-texts", folder, log=log, options={"tokenizer": tokenizer, "length": LENGTH, **options})


def words_of(row: torch.Tensor) -> str:
    return " ".join(WORDS[number] for number in row.tolist())


def test_a_folder_of_save_to_disk(folder: Path, tokenizer: str) -> None:
    said: list[str] = []
    found = load(folder, tokenizer, said.append)
    assert (found.classes, found.input_shape, len(found.train), len(found.test)) == (2, (LENGTH,), 40, 6)
    x, y = next(found.train.in_order(2))
    assert (x.dtype, y.tolist()) == (torch.int64, [0, 1])
    assert words_of(x[0]) == "[CLS] the film is very bad [SEP] [PAD]"
    assert said == [f"tested on the split 'validation' of {folder}"]
    assert found.preprocessing == {"tokenizer": tokenizer, "length": LENGTH, "padding": 0}
    assert outline("hf-texts", {"tokenizer": tokenizer, "length": 5}) == ((5,), 0)


def test_what_is_cut_off_is_said_once(folder: Path, tokenizer: str) -> None:
    said: list[str] = []
    x, _ = next(load(folder, tokenizer, said.append, length=4).train.in_order(1))
    assert words_of(x[0]) == "[CLS] the film [SEP]"
    assert said[1:] == ["46 of 46 texts have more than 4 tokens and are cut off there"]


def test_pairs_have_masks_and_segments(folder: Path, tokenizer: str) -> None:
    found = load(folder, tokenizer, text="other", pair="other")
    assert found.input_shape == (3, LENGTH)
    tokens, mask, segments = next(found.train.in_order(1))[0][0]
    assert words_of(tokens) == "[CLS] the book [SEP] the book [SEP] [PAD]"
    assert mask.tolist() == [1, 1, 1, 1, 1, 1, 1, 0]
    assert segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_files_by_split(tmp_path: Path, tokenizer: str, suffix: str) -> None:
    (tmp_path / "files" / "data").mkdir(parents=True)
    for name, count in (("train-00000-of-00002", 10), ("train-00001-of-00002", 4), ("test", 6)):
        rows = [{**row, "label": ["neg", "pos"][row["label"]]} for row in reviews(count)]
        getattr(Dataset.from_list(rows), f"to_{suffix}")(tmp_path / "files" / "data" / f"{name}.{suffix}")
    found = load(tmp_path / "files", tokenizer)
    assert (len(found.train), len(found.test), found.classes) == (14, 6, 2)
    assert next(found.train.in_order(4))[1].tolist() == [0, 1, 0, 1], "names of classes, sorted"


def test_without_a_split_for_testing_a_tenth_is_held_out(tmp_path: Path, tokenizer: str) -> None:
    rows = sorted(reviews(40), key=lambda row: row["label"])
    Dataset.from_list(rows).cast_column("label", ClassLabel(names=["neg", "pos"])).save_to_disk(tmp_path / "one")
    said: list[str] = []
    found = load(tmp_path / "one", tokenizer, said.append)
    assert (len(found.train), len(found.test)) == (36, 4)
    assert said == [f"{tmp_path / 'one'} has no split for testing: every 10th sample is held out for it"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokenizer": ""}, "needs a tokenizer: set data.options.tokenizer to the folder of the model"),
        ({"tokenizer": "."}, r"the folder \. has no tokenizer"),
        ({"text": "txt"}, "no column 'txt': did you mean 'text'"),
        ({"label": "class"}, "no column 'class'"),
        ({"label": "text", "train": "trian"}, r"no split 'trian' \(data.options.train\): did you mean 'train'"),
        ({"test": "test"}, r"no split 'test' \(data.options.test\)"),
        ({"text": "label"}, r"holds 0, expected texts"),
        ({"length": 1}, "data.options.length is 1, expected a number of tokens"),
        ({"lenght": 1}, "data set 'hf-texts' has no option 'lenght': did you mean 'length'"),
    ],
)
def test_bad_input(
    folder: Path, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(InputError, match=words) as caught:
        load(folder, **{"tokenizer": tokenizer, **options})
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_padding(folder: Path, tmp_path: Path) -> None:
    tokenizer = str(write_tokenizer(tmp_path / "without", pad_token=None))
    with pytest.raises(InputError, match="has no padding token: set its pad_token"):
        load(folder, tokenizer)


def test_damaged_tables_are_one_sentence(folder: Path, tokenizer: str) -> None:
    next((folder / "train").glob("*.arrow")).write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read by the library datasets") as caught:
        load(folder, tokenizer)
    assert "\n" not in str(caught.value)


def test_a_folder_of_nothing(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"hf-texts was not found .*--data-dir takes a folder that save_to_disk wrote"):
        load(tmp_path / "empty", tokenizer)
