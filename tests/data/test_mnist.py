from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rigl_compress.core.errors import InputError
from rigl_compress.data.idx_format import format_idx, parse_idx
from rigl_compress.data.mnist import interleaved, read_idx_splits
from rigl_compress.data.mnist_5k import read_csv_splits

Write = Callable[..., Path]


def byte(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def images(n: int, side: int = 28) -> bytes:
    return format_idx(torch.zeros(n, side, side, dtype=torch.uint8))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_pixels_and_labels(tmp_path: Path, write_digits: Write, digits: dict[str, bytes], suffix: str) -> None:
    train, test = read_idx_splits(write_digits(tmp_path, suffix))
    assert (train.x.shape, test.x.shape) == ((20, 1, 28, 28), (10, 1, 28, 28))
    assert (train.x.dtype, train.y.dtype) == (torch.float32, torch.int64)
    raw = parse_idx(digits["train-images-idx3-ubyte"], tmp_path)
    assert torch.equal(train.x[:, 0] * 255, raw.float())
    assert test.y.tolist() == list(range(10))
    assert train.y.tolist() == [*range(10), *range(10)]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train-labels-idx1-ubyte", format_idx(byte(1, 2, 3)), "3 labels, expected 20, one for each image in train-im"),
        ("train-labels-idx1-ubyte", format_idx(byte(*[10] * 20)), "label 10, expected labels 0 to 9"),
        ("t10k-images-idx3-ubyte", images(10, side=27), r"shape (10, 27, 27), expected at least one image of 28 × 28"),
        ("t10k-images-idx3-ubyte", format_idx(byte(1, 2, 3)), "1 dimensions, expected 3"),
        ("t10k-labels-idx1-ubyte", images(10), "3 dimensions, expected 1"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, write_digits: Write, name: str, content: bytes, words: str) -> None:
    (write_digits(tmp_path) / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_idx_splits(tmp_path)
    assert words in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("option", ["rotate", "scale", "translate"])
def test_training_images_are_jiggled_and_test_images_never(tmp_path: Path, write_digits: Write, option: str) -> None:
    train, test = read_idx_splits(write_digits(tmp_path), **{option: 0.5})
    (drawn, labels), (seen, _) = (next(split.batches(10, torch.Generator().manual_seed(0))) for split in (train, test))
    assert not any(torch.equal(image, other) for image in drawn for other in train.x)
    assert all(any(torch.equal(image, other) for other in test.x) for image in seen)
    assert all(torch.equal(x, y) for (x, _), y in zip(train.in_order(20), [train.x], strict=True))
    assert labels.unique().numel() > 1


def test_an_empty_set_is_an_error(tmp_path: Path, write_digits: Write) -> None:
    write_digits(tmp_path, train=20, test=0)
    with pytest.raises(InputError, match="at least one image"):
        read_idx_splits(tmp_path)


def test_interleaved_deals_uneven_classes_in_turn() -> None:
    labels = torch.tensor([2, 2, 0, 0, 0, 1])
    assert labels[interleaved(labels)].tolist() == [0, 1, 2, 0, 2, 0]
    assert interleaved(labels).tolist() == [2, 5, 0, 3, 1, 4]


def csv(rows: list[tuple[int, int]]) -> str:
    """Lines of an image whose first pixel is the given value, and a label."""
    return "".join(f"{pixel},{'0,' * 783}{label}\n" for pixel, label in rows)


def test_the_embedded_digits_are_split_by_class(tmp_path: Path) -> None:
    rows = [(10 * label + i, label) for label in range(10) for i in range(10)]
    (tmp_path / "mnist_5k.csv").write_text(csv(rows))
    train, test = read_csv_splits(tmp_path)
    assert (train.y.bincount().tolist(), test.y.bincount().tolist()) == ([8] * 10, [2] * 10)
    firsts = (test.x[:, 0, 0, 0] * 255).round().int().tolist()
    assert sorted(firsts) == [10 * label + i for label in range(10) for i in (8, 9)]
    assert [first // 10 for first in firsts] == test.y.tolist()
    assert train.y[-10:].tolist() == list(range(10)), "the end, which hold_out takes, must be balanced"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "0 lines"),
        ("1,2,3\n" * 9, "3 columns"),
        (csv([(1, 10)] * 9), "labels to 10"),
        ("a,b\n" * 9, "could not convert"),
        (csv([(1, 1)] * 9 + [(300, 1)]), "300"),
        ("1,2\n" * 9 + "1\n", "columns changed"),
    ],
)
def test_a_damaged_table(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mnist_5k.csv").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        read_csv_splits(tmp_path)
    assert "mnist_5k.csv is damaged" in str(caught.value)
