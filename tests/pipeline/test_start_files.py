"""What a run depends on beside its recipe: the files that its network starts from."""

from pathlib import Path

from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.pipeline.recipe import Recipe, StartConfig
from rigl_compress.pipeline.run_pipeline import start_files


def test_files_of_weights_and_of_a_folder_of_transformers(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    files = [tmp_path / "config.json", tmp_path / "model.safetensors"]
    assert start_files(Recipe("net", model=ModelSpec(f"hf:{tmp_path}"))) == files
    assert start_files(Recipe("net", start=StartConfig(weights=str(files[1])))) == [files[1]]
    assert start_files(Recipe("net", start=StartConfig(weights=str(tmp_path)))) == [tmp_path, *files]
    assert start_files(Recipe("net", model=ModelSpec("hf:somebody/net"))) == []
