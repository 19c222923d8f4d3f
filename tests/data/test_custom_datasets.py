import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rigl_compress.core.errors import InputError
from rigl_compress.data.dataset import DataSet
from rigl_compress.data.dataset_registry import register_dataset
from rigl_compress.data.load_dataset import dataset_status, fetch_dataset, load_dataset, outline
from rigl_compress.data.samples import Split

MODULE = """
import torch
from rigl_compress import DataSet, Split

def blobs(samples: int = 100, folder=None, log=print) -> DataSet:
    log(f"from {folder}")
    y = torch.arange(samples) % 4
    x = torch.nn.functional.one_hot(y, 4).float()
    return DataSet("blobs", "made up", 4, (4,), train=Split(x, y), test=Split(x, y))

def nothing():
    return None

def failing():
    return 1 + "a"

def needing(folder, size):
    return None

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blobs_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    installed = [each for each in sys.path if "site-packages" in each or Path(each).name.startswith(("python", "lib-"))]
    monkeypatch.setattr("sys.path", ["/nowhere", *installed])  # without the current folder


def test_a_function_in_the_current_folder_makes_the_data(tmp_path: Path) -> None:
    said: list[str] = []
    found = load_dataset("blobs_of_mine:blobs", tmp_path / "mine", log=said.append, options={"samples": 12})
    assert (found.name, found.source, len(found.train)) == ("blobs", "made up", 12)
    assert said == [f"from {tmp_path / 'mine'}"]


def test_its_outline_for_flops() -> None:
    assert outline("blobs_of_mine:blobs", {"samples": 20}) == ((4,), 20)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("no_such_module:f", {}, "data set 'no_such_module:f': no module 'no_such_module'"),
        (":f", {}, "is not of the form package.module:NAME"),
        ("blobs_of_mine:blob", {}, "blobs_of_mine has no 'blob': did you mean 'blobs'"),
        ("blobs_of_mine:number", {}, "is a int, expected a function that returns a rigl_compress.DataSet"),
        ("blobs_of_mine:nothing", {}, "returns a NoneType, expected a rigl_compress.DataSet"),
        ("blobs_of_mine:nothing", {"samples": 3}, "has no option 'samples': it has none"),
        ("blobs_of_mine:failing", {}, "cannot be made: TypeError: unsupported operand"),
        ("blobs_of_mine:needing", {}, "cannot be made: TypeError: .*missing 1 required positional argument: 'size'"),
        ("blobs_of_mine:blobs", {"sample": 3}, "has no option 'sample': did you mean 'samples'"),
        ("blobs_of_mine:blobs", {"samples": "many"}, "data.options.samples is 'many', expected a whole number"),
    ],
)
def test_bad_input(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_dataset(name, options=options)


def test_a_registered_function_is_a_data_set_by_name(registries: None, tmp_path: Path) -> None:
    @register_dataset("my-blobs")
    def blobs(samples: int = 8) -> DataSet:
        """Blobs by name."""
        y = torch.arange(samples) % 4
        split = Split(torch.nn.functional.one_hot(y, 4).float(), y)
        return DataSet("blobs", "made up", 4, (4,), train=split, test=split)

    assert len(load_dataset("my-blobs", options={"samples": 12}).train) == 12
    assert outline("my-blobs", {}) == ((4,), 8)
    status = dataset_status("my-blobs", tmp_path)
    assert (status.present, status.title) == (True, "Blobs by name.")
    assert str(status).startswith("made by ")
    with pytest.raises(InputError, match=r"data set 'my-blobs' is made by .*: it has no files to fetch or look for"):
        fetch_dataset("my-blobs")
