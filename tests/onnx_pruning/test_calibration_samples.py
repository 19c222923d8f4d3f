"""Calibration data from files and folders, and what is said about bad ones."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_layers import draw, model_of, perceptron

from rigl_compress.core.errors import InputError
from rigl_compress.onnx_pruning.calibration_samples import CalibrationConfig, read_calibration, samples_of


def read(path: Path | None, model: onnx.ModelProto | None = None, **settings: Any) -> Any:
    return read_calibration(model or perceptron(), CalibrationConfig(path, **settings))


def counts(found: Any) -> tuple[int, int]:
    return tuple(sum(map(samples_of, each)) for each in (found.batches, found.held_out))  # type: ignore[return-value]


def test_a_file_is_cut_into_batches_and_a_fifth_is_held_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=draw(100, 32))
    found = read(tmp_path / "a.npz")
    assert sum(counts(found)) == 100
    assert 15 <= counts(found)[1] <= 25
    used, held = ({row.tobytes() for batch in part for row in batch["x"]} for part in (found.batches, found.held_out))
    assert not used & held


def test_samples_are_limited(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=draw(100, 32))
    assert sum(counts(read(tmp_path / "a.npz", samples=30))) == 30
    assert counts(read(tmp_path / "a.npz", samples=2)) == (1, 1)


def test_folders_of_arrays(tmp_path: Path) -> None:
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", draw(32, seed=number))
    assert sum(counts(read(tmp_path))) == 5
    np.save(tmp_path / "batch.npy", draw(4, 32))
    assert sum(counts(read(tmp_path))) == 9


def test_a_fixed_batch_is_kept(tmp_path: Path) -> None:
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [[3, 32]], {"w": draw(32, 16)})
    np.savez(tmp_path / "a.npz", x=draw(10, 32))
    found = read(tmp_path / "a.npz", model)
    assert {batch["x"].shape for batch in (*found.batches, *found.held_out)} == {(3, 32)}


def test_scalars_are_those_of_all_samples(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "x1"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])]
    model = model_of(nodes, [["n", 32], []], {"w": draw(32, 16)})
    for count, expected in ((40, (32, 8)), (5, (4, 1))):  # several batches, and a single one
        np.savez(tmp_path / "a.npz", x=draw(count, 32), x1=np.array(2, np.float32))
        found = read(tmp_path / "a.npz", model)
        assert counts(found) == expected
        assert {batch["x1"].shape for batch in (*found.batches, *found.held_out)} == {()}
    assert sum(counts(read(tmp_path / "a.npz", model, samples=3))) == 3


@pytest.mark.parametrize("shapes", [[[4, 32], [4, 32]], [["n", 32], [2, "n"]]])
def test_a_single_batch_that_cannot_be_divided_is_used_twice(tmp_path: Path, shapes: list[list[int | str]]) -> None:
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], shapes, {"w": draw(32, 16)})
    np.savez(tmp_path / "a.npz", x=draw(4, 32), x1=draw(*(each if isinstance(each, int) else 4 for each in shapes[1])))
    found = read(tmp_path / "a.npz", model)
    assert len(found.batches[0]["x"]) == len(found.held_out[0]["x"]) == 4
    assert "there is one batch" in found.notes[0]


def test_without_data_there_are_random_inputs_and_a_warning() -> None:
    found = read(None)
    assert not found.real
    assert "magnitude" in found.notes[0]


def images(folder: Path, count: int = 6) -> Path:
    image = pytest.importorskip("PIL.Image")
    for number in range(count):
        (folder / "a").mkdir(exist_ok=True)
        image.fromarray(np.full((20, 30, 3), 40 * number, np.uint8)).save(folder / "a" / f"{number}.png")
    return folder


def test_images_in_both_layouts(tmp_path: Path) -> None:
    folder = images(tmp_path)
    weights = {"w": draw(16, 3, 3, 3)}
    first = model_of([helper.make_node("Conv", ["x", "w"], ["y"])], [["n", 3, 16, 16]], weights)
    found = read(folder, first, normalize="none")
    assert sum(counts(found)) == 6
    assert {batch["x"].shape[1:] for batch in found.batches} == {(3, 16, 16)}
    assert 0 <= min(batch["x"].min() for batch in found.batches) <= max(b["x"].max() for b in found.batches) <= 1
    last = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [["n", 16, 16, 3]], {"w": draw(3, 100)})
    assert {batch["x"].shape[1:] for batch in read(folder, last).batches} == {(16, 16, 3)}
    free = model_of([helper.make_node("Conv", ["x", "w"], ["y"])], [["n", 3, "h", "w"]], weights)
    with pytest.raises(InputError, match="--shape x=1,3,224,224"):
        read(folder, free)
    assert read(folder, free, shapes={"x": (1, 3, 12, 12)}).batches[0]["x"].shape[2:] == (12, 12)


BAD: dict[str, tuple[Any, str]] = {
    "type": ({"x": np.zeros((4, 32))}, "is float64, the model takes float32"),
    "shape": ({"x": draw(4, 31)}, r"has the shape \[4, 31\], the model takes \[n, 32\]"),
    "rank": ({"x": draw(4, 2, 32)}, "has the shape"),
    "name": ({"z": draw(4, 32)}, "no input 'z'"),
    "nan": ({"x": np.full((4, 32), np.nan, np.float32)}, "not finite"),
    "empty": ({"x": draw(0, 32)}, "has the shape"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays(case: str, tmp_path: Path) -> None:
    arrays, message = BAD[case]
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "a.npz")


def test_bad_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "none")
    with pytest.raises(InputError, match="no image"):
        read(tmp_path)
    (tmp_path / "a.npy").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"is not an \.npy file"):
        read(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(InputError, match=r"neither \.npz nor \.npy"):
        read(tmp_path / "a.txt")
