"""The state of a sparsifier in a file: it comes back as it was, and a damaged file is named."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import Loop

from rigl_compress.core.artifacts import save_artifact
from rigl_compress.core.errors import InputError
from rigl_compress.integrations.sparsifier_file import KIND, load_state, save_state

COUNTERS = {"steps": 1, "updates": 0, "changed": 0}
MASK = {"mask/0.weight": torch.ones(2, 2, dtype=torch.bool)}


@pytest.mark.parametrize("method", ["rigl", "snfs", "deepr", "dnw", "pruning"])
def test_what_is_written_is_read(method: str, tmp_path: Path) -> None:
    loop, twin = Loop(method=method).train(7), Loop(method=method)
    save_state(tmp_path / "state.safetensors", loop.sparse.state_dict())
    twin.model.load_state_dict(loop.model.state_dict())
    twin.optimizer.load_state_dict(deepcopy(loop.optimizer.state_dict()))  # it would share tensors
    twin.sparse.load_state_dict(load_state(tmp_path / "state.safetensors"))
    twin.done = loop.done
    loop.train(8)
    twin.train(8)
    assert twin.sparse.topology == loop.sparse.topology
    pairs = zip(twin.model.parameters(), loop.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("tensors", "content", "message"),
    [
        ({}, {}, "there are no masks; it is damaged"),
        ({"mask/0.weight": torch.ones(2)}, {}, "is torch.float32, expected torch.bool; it is damaged"),
        (MASK, {"counters": COUNTERS}, "it is damaged, restore it"),
        (MASK, {"counters": {**COUNTERS, "steps": "one"}, "updated_at": None, "pending": None}, "it is damaged"),
    ],
)
def test_damaged_files_are_named(tensors: Any, content: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    save_artifact(file, KIND, tensors, content)
    with pytest.raises(InputError, match=message) as error:
        load_state(file)
    assert str(file) in str(error.value)
