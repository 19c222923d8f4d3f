import gzip
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.core.errors import InputError
from rigl_compress.data.byte_sequences import Sequences, sequences
from rigl_compress.data.load_dataset import dataset_status, fetch_dataset, load_dataset


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pairs(text: Sequences) -> list[tuple[bytes, bytes]]:
    return [(bytes(x.tolist()), bytes(y.tolist())) for xs, ys in text.in_order(2) for x, y in zip(xs, ys, strict=True)]


@given(st.lists(st.binary(max_size=40), max_size=4), st.integers(1, 12))
def test_every_byte_follows_the_one_before_it_once_and_no_sequence_leaves_its_text(
    texts: list[bytes], length: int
) -> None:
    expected = []
    for text in texts:
        count = max(0, (len(text) - 1) // length)
        expected += [
            (text[i * length : (i + 1) * length], text[i * length + 1 : (i + 1) * length + 1]) for i in range(count)
        ]
    assert pairs(sequences(texts, length)) == expected


def test_an_epoch_has_each_sequence_once_in_an_order_of_the_seed() -> None:
    text = sequences([bytes(range(201))], 10)
    first, again, other = (
        torch.cat([x[:, 0] for x, _ in text.batches(4, seeded(seed))]).tolist() for seed in (0, 0, 1)
    )
    assert first == again != other
    assert sorted(first) == list(range(0, 200, 10))
    assert [len(x) for x, _ in text.batches(6, seeded(0))] == [6, 6, 6], "what fills no batch is dropped"


def test_tokens_are_whole_numbers_on_the_device_of_the_text() -> None:
    text = sequences([b"some words"], 3)
    x, y = next(text.batches(2, seeded(0)))
    assert (x.dtype, y.dtype, x.shape) == (torch.int64, torch.int64, (2, 3))
    x, _ = next(text.to("meta").batches(2, seeded(0)))
    assert x.device.type == "meta"
    with pytest.raises(InputError, match="batch size 4 does not fit: choose 1 to 3"):
        text.batches(4, seeded(0))


def test_hold_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(200)))
    found = load_dataset("text", tmp_path, options={"length": 9, "validation": 0.1})
    held = found.hold_out(3)
    assert (len(found.train), len(held.train), len(held.test)) == (19, 16, 3)
    assert pairs(held.test) == pairs(found.train)[-3:]


# Where texts come from


def text(seed: int, size: int = 100) -> bytes:
    return bytes(torch.randint(97, 123, (size,), generator=seeded(seed)).tolist())


def whole(part: Sequences) -> bytes:
    return bytes(part.corpus.tolist())


def test_one_file_is_split_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(text(0))
    found = load_dataset("text", path, options={"length": 4, "validation": 0.2})
    assert (whole(found.train), whole(found.test)) == (text(0)[:80], text(0)[80:])
    assert (found.metric, found.classes, found.input_shape) == ("bpc", 256, (4,))
    assert found.source == f"text: any text as bytes: a file, or a folder of .txt files, in {path} (--data-dir)"


def test_of_a_folder_whole_files_are_held_out_evenly(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for number in range(10):
        (tmp_path / "deep" / f"{number}.txt").write_bytes(text(number))
    (tmp_path / "notes.md").write_bytes(b"no text for this")
    found = load_dataset("text", tmp_path, options={"length": 4, "validation": 0.2})
    assert whole(found.test) == text(2) + text(7)
    assert whole(found.train) == b"".join(text(number) for number in (0, 1, 3, 4, 5, 6, 8, 9))


@pytest.mark.parametrize(("share", "held"), [(0.001, [1]), (0.999, [0, 2])])
def test_both_splits_have_a_file(tmp_path: Path, share: float, held: list[int]) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_bytes(text(number))
    found = load_dataset("text", tmp_path, options={"length": 4, "validation": share})
    assert whole(found.test) == b"".join(text(number) for number in held)


def test_gzip_and_limits(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text(0)))
    (tmp_path / "b.txt").write_bytes(text(1))
    found = load_dataset("text", tmp_path, options={"length": 4, "limit": 50, "test_limit": 9})
    assert (whole(found.train), whole(found.test)) == (text(0)[:50], text(1)[:9])


def test_only_a_named_folder_holds_any_text(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "licence.txt").write_bytes(text(0))
    monkeypatch.setenv("RIGL_COMPRESS_DATA", str(tmp_path / "all"))
    assert not dataset_status("text").present
    with pytest.raises(InputError, match=r"name a text, or a folder with \.txt files,? with --data-dir"):
        load_dataset("text")
    with pytest.raises(InputError, match="has no source on the network"):
        fetch_dataset("text")
    (tmp_path / "all" / "text").mkdir()
    (tmp_path / "all" / "text" / "a.txt").write_bytes(text(1))
    assert dataset_status("text").folder == tmp_path / "all" / "text"


def test_wikitext(tmp_path: Path) -> None:
    for seed, part in enumerate(("train", "valid", "test")):
        (tmp_path / f"wiki.{part}.tokens").write_bytes(text(seed))
    found = load_dataset("wikitext103", tmp_path, options={"length": 4})
    assert (whole(found.train), whole(found.test)) == (text(0), text(1))
    assert "md5" not in found.source
    found = load_dataset("wikitext103", tmp_path, options={"length": 4, "test": "test", "limit": 30})
    assert (whole(found.train), whole(found.test)) == (text(0)[:30], text(2))
    with pytest.raises(InputError, match=r"data\.options\.test is 'tests', expected one of valid, test"):
        load_dataset("wikitext103", tmp_path, options={"test": "tests"})


# Bad input


@pytest.mark.parametrize(
    ("size", "options", "words"),
    [
        (100, {"length": 95}, "has no text for training longer than 95 bytes, a sequence needs 96: add text, or lower"),
        (100, {"length": 10}, "has no text for testing longer than 5 bytes, a sequence needs 11"),
        (0, {}, "has no text for training longer than 0 bytes, a sequence needs 513"),
        (100, {"length": 0}, "data.options.length is 0, expected 1 or more bytes"),
        (100, {"validation": 1.0}, "data.options.validation is 1.0, expected a share between 0 and 1"),
        (100, {"limit": -1}, "a limit of -1 bytes"),
        (100, {"lenght": 5}, "data set 'text' has no option 'lenght': did you mean 'length'"),
        (100, {"length": "5"}, "data.options.length is '5', expected a whole number"),
    ],
)
def test_bad_options(tmp_path: Path, size: int, options: dict[str, Any], words: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(text(0, size))
    with pytest.raises(InputError, match=words) as caught:
        load_dataset("text", path, options=options)
    assert "\n" not in str(caught.value)
