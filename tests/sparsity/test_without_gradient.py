"""Layers that do not learn, frozen or in a branch that is not used, keep their connections."""

import pytest
import torch
from small_training import Loop, batch, perceptron
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.core.errors import InputError
from rigl_compress.sparsity.gate_sites import sites_of
from rigl_compress.sparsity.methods import METHODS, never
from rigl_compress.sparsity.sparsifier import Sparsifier

CHANGING = [name for name, method in METHODS.items() if not method.dense and method.when is not never]
SAID = "2.weight had no gradient at a topology update"


@pytest.mark.filterwarnings(f"ignore:{SAID}")
@pytest.mark.parametrize("method", CHANGING)
def test_a_frozen_layer_keeps_its_topology(method: str) -> None:
    model = perceptron()
    model[2].weight.requires_grad_(False)  # type: ignore[union-attr]
    loop = Loop(model, method=method, interval=2)
    before, nonzeros = loop.sparse.topology, int((model[2].weight != 0).sum())  # type: ignore[arg-type]
    for _ in range(12):
        loop.step()
        assert loop.exact
        assert loop.sparse.topology["2.weight"].equal(before["2.weight"])
        assert int((model[2].weight != 0).sum()) == nonzeros  # type: ignore[arg-type]
    assert loop.sparse.topology["0.weight"].ne(before["0.weight"]).any()
    others = [
        sum(int(mask.sum()) for name, mask in each.items() if name != "2.weight")
        for each in (before, loop.sparse.topology)
    ]
    if METHODS[method].grow is not None:
        assert others[0] == others[1]


class Branched(nn.Module):
    """One of two branches is used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.spare, self.head = nn.Linear(12, 16), nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, spare: bool = False) -> Tensor:
        """Return the answers."""
        found: Tensor = self.head(F.relu(self.spare(x) if spare else self.used(x)))
        return found


@pytest.mark.filterwarnings("ignore:spare.weight had no gradient")
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("method", CHANGING)
def test_an_unused_branch_keeps_its_topology(method: str, to_none: bool) -> None:
    """Where gradients are zeroed instead of forgotten, those of the branch are zero."""
    model = Branched()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    sparse = Sparsifier(model, optimizer, method=method, sparsity=0.7, total_steps=40, interval=2)
    if not to_none:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    before = sparse.topology
    for index in range(30):
        x, y = batch(index)
        F.cross_entropy(model(x), y).backward()
        if not sparse.step():
            optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
    rule = METHODS[method]
    if not (rule.straight_through or rule.constrain) or to_none:  # these walk, or choose anew, whatever the gradient is
        assert sparse.topology["spare.weight"].equal(before["spare.weight"])
    assert sparse.topology["spare.weight"].sum() == before["spare.weight"].sum()
    assert sparse.topology["used.weight"].ne(before["used.weight"]).any()


def test_it_is_said_once() -> None:
    model = perceptron()
    model[2].weight.requires_grad_(False)  # type: ignore[union-attr]
    loop = Loop(model, interval=1)
    with pytest.warns(UserWarning, match=SAID) as said:
        loop.train(10)
    assert len(said) == 1


def test_a_step_before_the_backward_pass_is_an_error() -> None:
    loop = Loop()
    with pytest.raises(InputError, match=r"no layer has a gradient: call sparse\.step\(\) between backward"):
        loop.sparse.step()


def test_a_frozen_layer_has_no_gates() -> None:
    model = perceptron()
    model[2].weight.requires_grad_(False)  # type: ignore[union-attr]
    assert [site.name for site in sites_of(model)] == ["0.weight", "4.weight"]
    loop = Loop(model, method="l1-filter", sparsity=0.5, end=5).train(8)
    assert loop.sparse.topology["2.weight"].all()
    loop.sparse.finish()
    assert model[2].weight.all()  # type: ignore[operator]


def test_a_dense_layer_need_not_be_in_the_optimizer() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD([*model[2].parameters(), *model[4].parameters()], lr=0.1)
    with pytest.raises(InputError, match=r"does not hold 0\.weight: .*or leave these dense"):
        Sparsifier(model, optimizer, sparsity=0.5, total_steps=9)
    sparse = Sparsifier(model, optimizer, sparsity=0.5, total_steps=9, dense=("first",))
    assert sparse.topology["0.weight"].all()
