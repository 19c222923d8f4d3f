"""Large layers are worked on one block at a time: with the same result, and without tensors of the layer's size."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rigl_compress.core import tensor_blocks
from rigl_compress.sparsity.methods import METHODS
from rigl_compress.sparsity.rewire import best, best_of_blocks
from rigl_compress.sparsity.sparsifier import Sparsifier

SMALL = 4096  # of a block in these tests


@contextmanager
def blocks_of(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_blocks, "BLOCK", size)
        yield


def trained(method: str, width: int = 200) -> tuple[Sparsifier, nn.Module]:
    """A few steps with updates between them."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(100, width), nn.Tanh(), nn.Linear(width, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparse = Sparsifier(model, optimizer, method=method, sparsity=0.9, total_steps=40, interval=3)
    generator = torch.Generator().manual_seed(2)
    for _ in range(12):
        model(torch.randn(16, 100, generator=generator)).square().mean().backward()
        if not sparse.step():
            optimizer.step()
        optimizer.zero_grad()
    return sparse, model


@pytest.mark.parametrize(
    "method", [name for name, each in METHODS.items() if not (each.gating or each.narrow or each.needs_topology)]
)
def test_blocks_change_nothing(method: str) -> None:
    expected, model = trained(method)
    with blocks_of(512):
        found, other = trained(method)
    assert found.updates == expected.updates
    assert found.topology == expected.topology
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(1, 20), st.data())
def test_the_best_of_blocks_are_the_best_of_all(scores: list[int], size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(scores)))
    whole = torch.tensor(scores, dtype=torch.float32)
    chosen = best_of_blocks([(at, whole[at : at + size]) for at in range(0, len(scores), size)], count)
    assert len(set(chosen.tolist())) == count
    assert whole[chosen].sort().values.tolist() == whole[best(whole, count)].sort().values.tolist()


class Largest(TorchDispatchMode):
    """Records the bytes of the largest new tensor, and of the largest input of a selection."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.selected = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {each.untyped_storage()._cdata for each in args if isinstance(each, Tensor)}
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple) else (result,):
            if isinstance(each, Tensor) and each.untyped_storage()._cdata not in inputs:
                self.bytes = max(self.bytes, each.untyped_storage().nbytes())
        if "topk" in str(func) or "sort" in str(func):
            self.selected = max(self.selected, args[0].numel())
        return result


@pytest.mark.parametrize("method", ["rigl", "set", "static"])
def test_a_large_layer_is_built_and_updated_within_one_boolean_per_connection(method: str) -> None:
    model = nn.Linear(1000, 400, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with blocks_of(SMALL), Largest() as building:
        sparse = Sparsifier(model, optimizer, method=method, sparsity=0.99, total_steps=10, interval=1)
    model(torch.randn(8, 1000)).square().sum().backward()
    with blocks_of(SMALL), Largest() as updating:
        if not sparse.step():
            optimizer.step()  # SET updates after it
        assert sparse.sparsity == 0.99
    assert building.bytes <= model.weight.numel()
    # The momentum of SGD begins as a copy of the gradient.
    assert updating.bytes <= model.weight.numel() * (4 if optimizer.state else 1)
    assert max(building.selected, updating.selected) <= SMALL + 2 * sparse.topology.active
