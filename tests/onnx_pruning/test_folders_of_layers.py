"""The folder of layers that are done: what is not ours there is kept."""

from pathlib import Path

import numpy as np
import pytest

from rigl_compress.core.errors import InputError
from rigl_compress.onnx_pruning.layer_surgery import PrunedLayer
from rigl_compress.onnx_pruning.saved_layers import SavedLayers

SETTINGS = {"source": "a", "samples": "b", "sparsity": 0.5}
LAYER = PrunedLayer(np.ones((1, 2, 2), np.float32), None, 0.1)


@pytest.mark.parametrize("content", ["{}", "[1]", '{"theme": "dark"}', "damaged"])
@pytest.mark.parametrize("name", ["settings.json", "mine.json", "mine.safetensors", "notes.txt"])
def test_a_folder_of_someone_else_is_kept(tmp_path: Path, name: str, content: str) -> None:
    folder = tmp_path / "out.onnx.sparsify"
    folder.mkdir()
    (folder / name).write_text(content)
    with pytest.raises(InputError, match="holds other files"):
        SavedLayers.beside(tmp_path / "out.onnx", SETTINGS)
    assert (folder / name).read_text() == content


def test_a_file_beside_layers_of_ours_is_kept(tmp_path: Path) -> None:
    saved = SavedLayers.beside(tmp_path / "out.onnx", SETTINGS)
    saved.save("w", LAYER, "obs")
    (tmp_path / "out.onnx.sparsify" / "mine.json").write_text("{}")
    with pytest.raises(InputError, match="holds other files"):
        SavedLayers.beside(tmp_path / "out.onnx", {**SETTINGS, "sparsity": 0.6})
    saved.remove()
    assert [each.name for each in (tmp_path / "out.onnx.sparsify").iterdir()] == ["mine.json"]


def test_layers_of_other_settings_are_removed(tmp_path: Path) -> None:
    saved = SavedLayers.beside(tmp_path / "out.onnx", SETTINGS)
    saved.save("w", LAYER, "obs")
    saved.save_table("errors", {})
    assert SavedLayers.beside(tmp_path / "out.onnx", SETTINGS).count == 1
    other = SavedLayers.beside(tmp_path / "out.onnx", {**SETTINGS, "sparsity": 0.6})
    assert (other.count, other.load_table("errors")) == (0, None)
    other.remove()
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out.onnx.sparsify").mkdir()
    assert SavedLayers.beside(tmp_path / "out.onnx", SETTINGS).count == 0
