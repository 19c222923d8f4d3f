"""Files of weights from anywhere: safetensors, torch's own, and folders of them. To read one runs no code."""

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rigl_compress.core.artifacts import check_regular, read_json
from rigl_compress.core.errors import InputError, one_line

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
EXPECTED = "a .safetensors, .pt or .pth file, or a folder with model.safetensors in it"
_INDEX = "model.safetensors.index.json"
_IN_FOLDERS = ("model.safetensors", _INDEX, "pytorch_model.bin")
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights")
_PREFIXES = ("module.", "_orig_mod.")  # of DataParallel and torch.compile
_OURS = "rigl_compress"  # the header of files of this package
_MOST_WRAPPERS = 4
_MOST_NAMES = 3


@dataclass(frozen=True)
class WeightFile:
    """The weights of a file by name, and what was taken off to get at them."""

    path: Path
    tensors: Mapping[str, Tensor]
    notes: tuple[str, ...] = field(default=())


def read_weights(path: Path) -> WeightFile:
    """Read the weights of a file or a folder. Tensors take no more memory than the file has bytes."""
    if not path.exists():
        raise InputError(f"{path} does not exist: pass {EXPECTED}")
    if path.is_dir():
        return read_weights(_file_in(path))
    check_regular(path)
    if path.name.endswith(".index.json"):
        return _without_wrapping(path, _sharded(path), [])
    if path.suffix == ".safetensors":
        return _without_wrapping(path, _safetensors(path), [])
    if path.suffix in TORCH_SUFFIXES:
        return _unwrapped(path, _torch_content(path))
    raise InputError(f"{path} does not have the name of a file of weights: pass {EXPECTED}")


def _file_in(folder: Path) -> Path:
    found = next((folder / name for name in _IN_FOLDERS if (folder / name).exists()), None)
    if found is None:
        raise InputError(f"{folder} has no weights in it, expected {', '.join(_IN_FOLDERS)}: pass the file itself")
    return found


# safetensors


def _safetensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; its tensors are mapped into memory, and their sizes checked by the library."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            kind = _kind(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (OSError, SafetensorError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise InputError(f"cannot read {path} ({one_line(error)}): the file is damaged, fetch it again") from None
    if kind not in (None, "sparse-model"):
        raise InputError(f"{path} holds a {kind!r} of rigl-compress, not weights: pass model.safetensors of the run")
    return tensors if kind is None else _of_sparse_model(tensors)


def _kind(metadata: Mapping[str, str]) -> str | None:
    header = json.loads(metadata.get(_OURS, "{}"))
    return header.get("kind") if isinstance(header, dict) else None


def _of_sparse_model(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("weight:"): each for name, each in tensors.items() if name.startswith("weight:")}


def _sharded(index: Path) -> dict[str, Tensor]:
    """Read the files that an index lists, all of them beside it."""
    content = read_json(index)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise InputError(f"{index} has no weight_map of names and files: fetch it again")
    files = dict.fromkeys(listed.values())
    if outside := next((name for name in files if Path(name).name != name), None):
        raise InputError(f"{index} names {outside!r}, expected files beside it: fetch it again")
    return {name: tensor for file in files for name, tensor in _safetensors(index.parent / file).items()}


# torch's own files


def _torch_content(path: Path) -> Any:
    _check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the age of the format
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise anything
        raise _unloadable(path, error) from None


def _unloadable(path: Path, error: Exception) -> InputError:
    if refused := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return InputError(
            f"{path} holds a {refused[1]} beside weights, which could run code and is not loaded: save the weights "
            "alone, torch.save(model.state_dict(), …) or safetensors"
        )
    return InputError(
        f"cannot read {path} ({one_line(error)}): pass what torch.save(model.state_dict(), …) wrote, or safetensors"
    )


def _check_archive(path: Path) -> None:
    """Raise for an archive that unpacks to more than it has: torch does not compress."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":  # torch's older format: each storage is as long as the file says
            return
    try:
        with ZipFile(path) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
    except (BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"cannot read {path} ({one_line(error)}): the file is damaged, fetch it again") from None
    if unpacked > path.stat().st_size:
        raise InputError(f"{path} unpacks to {unpacked:,} bytes, more than it has: torch.save does not compress")


def _unwrapped(path: Path, content: Any) -> WeightFile:
    """Take the weights out of the dictionaries that training scripts put around them."""
    taken = []
    for _ in range(_MOST_WRAPPERS):
        inner = next((key for key in _WRAPPERS if _is_table(content) and _is_table(content.get(key))), None)
        if inner is None:
            break
        content = content[inner]
        taken.append(inner)
    if not _is_table(content):
        raise InputError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors: save one")
    notes = [f"the weights are its {'.'.join(map(repr, taken))}"] if taken else []
    return _without_wrapping(path, content, notes)


def _is_table(content: Any) -> bool:
    return isinstance(content, Mapping)


def _without_wrapping(path: Path, content: Mapping[Any, Any], notes: list[str]) -> WeightFile:
    """Keep the tensors of a dictionary, without a prefix that all names have."""
    tensors = {name: each for name, each in content.items() if isinstance(name, str) and isinstance(each, Tensor)}
    if not tensors:
        raise InputError(f"{path} holds no tensor among {len(content)} entries: pass {EXPECTED}")
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise InputError(f"{path}: {name!r} is a sparse or quantized tensor, expected a plain one: convert it")
    if others := [str(name) for name in content if name not in tensors]:
        more = f" and {len(others) - _MOST_NAMES} more" if len(others) > _MOST_NAMES else ""
        notes = [*notes, f"{', '.join(others[:_MOST_NAMES])}{more} left out, no tensors"]
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
            notes = [*notes, f"names without their prefix {prefix!r}"]
    return WeightFile(path, tensors, tuple(notes))
