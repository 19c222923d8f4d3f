"""What the tests of training share."""

from pathlib import Path

import pytest

from rigl_compress.data.dataset import DataSet
from rigl_compress.data.load_dataset import load_dataset


@pytest.fixture(scope="module")
def data(data_dir: Path) -> DataSet:
    return load_dataset("mnist", data_dir, fetch=False)
