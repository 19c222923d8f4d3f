"""The layers that are done, in a folder beside the output: an interrupted run goes on where it stopped."""

import re
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from rigl_compress.core.artifacts import load_artifact, read_json, save_artifact, write_json
from rigl_compress.core.errors import InputError
from rigl_compress.core.temporary_files import is_temporary
from rigl_compress.onnx_pruning.layer_surgery import PrunedLayer

_KIND = "pruned layer"
_SETTINGS = "settings.json"
ERRORS, COUNTS = "errors", "counts"
_LAYER = re.compile(r"[0-9a-f]{16}\.safetensors")
_OF_ERRORS = ("source", "samples", "dense")  # the settings that the errors of layers depend on


@dataclass(frozen=True)
class SavedLayers:
    """Layers by name; without a folder nothing is kept."""

    folder: Path | None = None

    @classmethod
    def beside(cls, output: Path, settings: dict[str, Any]) -> "SavedLayers":
        """Open the folder of an output; what other settings left there is removed, but errors that are still right."""
        cls.check(output)
        found = cls(_folder_of(output))
        if found._settings() != settings:
            errors = found._errors_for(settings)
            found.remove()
            write_json(_folder_of(output) / _SETTINGS, settings)
            if errors is not None:
                found.save_table(ERRORS, errors)
        return found

    @classmethod
    def check(cls, output: Path) -> None:
        """Raise `InputError` if the folder of an output is there, and was not made by us."""
        folder = _folder_of(output)
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise InputError(f"{folder} is not a folder, layers that are done are kept there: remove it")
        if folder.is_dir() and not _is_ours(folder):
            raise InputError(f"{folder} holds other files, layers that are done are kept there: move it")

    def _errors_for(self, settings: dict[str, Any]) -> Any:
        """Return the errors of layers that were measured, if these settings change none of them."""
        earlier = self._settings()
        known = isinstance(earlier, dict) and all(
            key in earlier and earlier[key] == settings.get(key) for key in _OF_ERRORS
        )
        return self.load_table(ERRORS) if known else None

    @classmethod
    def are_beside(cls, output: Path, settings: dict[str, Any] | None = None) -> bool:
        """Whether an interrupted run left layers beside an output; with these settings, if they are given."""
        folder = _folder_of(output)
        return folder.is_dir() and (settings is None or cls(folder)._settings() == settings)

    def _settings(self) -> Any:
        if self.folder is None:
            return None
        try:
            return read_json(self.folder / _SETTINGS)
        except InputError:
            return None

    def _file(self, name: str) -> Path | None:
        label = sha256(name.encode()).hexdigest()[:16]  # names of weights are no names of files
        return None if self.folder is None else self.folder / f"{label}.safetensors"

    def load(self, name: str) -> tuple[PrunedLayer, str] | None:
        """Return a layer that is done."""
        file = self._file(name)
        if file is None or not file.is_file():
            return None
        tensors, content = load_artifact(file, _KIND)
        shift = tensors["shift"].numpy() if "shift" in tensors else None
        error = content.get("error")
        found = PrunedLayer(tensors["blocks"].numpy(), shift, float("nan") if error is None else float(error))
        return found, str(content["how"])

    def save(self, name: str, layer: PrunedLayer, how: str) -> None:
        """Keep a layer."""
        file = self._file(name)
        if file is not None:
            arrays = {"blocks": layer.blocks} | ({} if layer.shift is None else {"shift": layer.shift})
            tensors = {key: torch.from_numpy(value) for key, value in arrays.items()}
            save_artifact(file, _KIND, tensors, {"error": layer.error, "how": how})

    def load_table(self, name: str) -> Any:
        """Return a table that was kept, or None."""
        file = None if self.folder is None else self.folder / f"{name}.json"
        return read_json(file) if file is not None and file.is_file() else None

    def save_table(self, name: str, content: Any) -> None:
        """Keep a table of plain values."""
        if self.folder is not None:
            write_json(self.folder / f"{name}.json", content)

    def forget(self) -> None:
        """Remove layers and their counts, but not what was measured: they are to be pruned further."""
        if self.folder is not None:
            for each in (*self.folder.glob("*.safetensors"), self.folder / f"{COUNTS}.json"):
                each.unlink(missing_ok=True)

    @property
    def count(self) -> int:
        """How many layers are done."""
        return 0 if self.folder is None else len(list(self.folder.glob("*.safetensors")))

    def remove(self) -> None:
        """Remove what was kept, the settings last, and the folder, unless something else was put there."""
        if self.folder is not None and self.folder.is_dir():
            for each in sorted(filter(_is_kept, self.folder.iterdir()), key=lambda path: path.name == _SETTINGS):
                each.unlink()
            with suppress(OSError):
                self.folder.rmdir()


def _folder_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.sparsify")


def _is_ours(folder: Path) -> bool:
    """Whether a folder is empty, or has settings of ours and files of our names only."""
    found = list(folder.iterdir())
    settings = SavedLayers(folder)._settings() if all(map(_is_kept, found)) else None
    return all(map(is_temporary, found)) or (isinstance(settings, dict) and settings.keys() >= {"source", "samples"})


def _is_kept(file: Path) -> bool:
    known = file.name == _SETTINGS or (file.stem in (ERRORS, COUNTS) and file.suffix == ".json")
    return not file.is_dir() and (known or is_temporary(file) or bool(_LAYER.fullmatch(file.name)))
