"""The plan: printable, replayable, composable, and for one network only."""

import json

import pytest
import torch
from exactness import shapes
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.model_registry import MODELS, ModelSpec, register_model
from rigl_compress.models.prune_plan import LayerChange, PrunePlan
from rigl_compress.models.sparse_parameters import dense_by_default


def test_it_says_what_it_will_do() -> None:
    plan = PrunePlan(
        (
            LayerChange("fc1", 4, 3, removed_inputs=(0,), removed_outputs=(1, 2), selects=True),
            LayerChange("bn", 0, 3, removed_outputs=(1, 2)),
            LayerChange("fc2", 3, 2, removed_inputs=(1, 2), new_bias=True),
        ),
        notes=("softmax: softmax is not supported",),
    )
    assert str(plan).splitlines() == [
        "fc1: inputs 4 → 3, outputs 3 → 1, selects its inputs",
        "bn: outputs 3 → 1",
        "fc2: inputs 3 → 1, gains a bias",
        "kept: softmax: softmax is not supported",
    ]
    assert str(PrunePlan()) == "nothing to remove"
    assert plan
    assert not PrunePlan(notes=("kept",))


def test_it_never_empties_a_layer() -> None:
    with pytest.raises(InputError, match="leaves fc without outputs"):
        PrunePlan((LayerChange("fc", 4, 2, removed_outputs=(0, 1)),))


@st.composite
def removals(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Some positions, never all."""
    return tuple(sorted(draw(st.sets(st.integers(0, size - 1), max_size=size - 1))))


@st.composite
def two_changes(draw: st.DrawFn) -> tuple[LayerChange, LayerChange]:
    """One change of a layer after the other."""
    inputs, outputs = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    first = LayerChange("0", inputs, outputs, draw(removals(inputs)), draw(removals(outputs)))
    left = inputs - len(first.removed_inputs), outputs - len(first.removed_outputs)
    return first, LayerChange("0", *left, draw(removals(left[0])), draw(removals(left[1])))


@given(two_changes())
def test_two_plans_are_one(changes: tuple[LayerChange, LayerChange]) -> None:
    first, second = (PrunePlan((change,)) for change in changes)
    layer = nn.Sequential(nn.Linear(changes[0].inputs, changes[0].outputs))
    one_by_one, at_once = second.reshape(first.reshape(layer)), first.then(second).reshape(layer)
    assert torch.equal(one_by_one[0].weight, at_once[0].weight)  # type: ignore[index, arg-type]
    assert torch.equal(one_by_one[0].bias, at_once[0].bias)  # type: ignore[index, arg-type]


@given(two_changes(), st.booleans(), st.booleans())
def test_json_and_back(changes: tuple[LayerChange, LayerChange], selects: bool, new_bias: bool) -> None:
    change = LayerChange("a.b", 9, 9, (1, 2), (3,), selects, new_bias)
    plan = PrunePlan((*changes, change), (("view 1", (0, 12)),), ("op: kept",), 2)
    assert PrunePlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_plan_of_another_format() -> None:
    with pytest.raises(InputError, match="has format 7, this version reads 1"):
        PrunePlan.from_json({**PrunePlan().to_json(), "format": 7})


def test_a_plan_for_another_network() -> None:
    plan = PrunePlan((LayerChange("0", 4, 3, removed_outputs=(1,)),))
    with pytest.raises(InputError, match=r"for 0 with 4 inputs and 3 outputs, the network's has \(5, 3\)"):
        plan.reshape(nn.Sequential(nn.Linear(5, 3)))
    with pytest.raises(InputError, match="changes 0, which is not in the network"):
        plan.reshape(nn.ModuleDict({"fc": nn.Linear(4, 3)}))
    with pytest.raises(InputError, match="a layer of type ReLU cannot be resized"):
        plan.reshape(nn.Sequential(nn.ReLU()))


def test_the_model_is_copied() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    before = shapes(model)
    small = PrunePlan((LayerChange("0", 4, 3, removed_outputs=(1,)), LayerChange("1", 3, 2, (1,)))).reshape(model)
    assert shapes(model) == before
    assert torch.equal(small[0].weight, model[0].weight[[0, 2]])  # type: ignore[index, arg-type]
    small[1].weight.data.zero_()  # type: ignore[index, union-attr, operator]
    assert model[1].weight.any()


class Written(nn.Module):
    """Sizes in the code, parameters and buffers of its own, and a layer that it does not call."""

    dense_layers = ("out",)

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.unused = nn.Linear(2, 2)
        self.fc = nn.Linear(4, 6)
        self.register_buffer("shift", torch.zeros(1))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.fc(x).view(-1, 6).chunk(2, dim=1)
        result: Tensor = self.out(one + other) * self.scale + self.shift + self.scratch
        return result


PLAN = PrunePlan(
    (LayerChange("fc", 4, 6, removed_outputs=(1, 4)), LayerChange("out", 3, 2, (1,))),
    (("view 1", (0, 4)), ("split 2", (2, 2))),
)


def test_sizes_in_the_code_are_written_anew() -> None:
    model = Written().eval()
    small = PLAN.reshape(model)
    assert list(shapes(small)) == list(shapes(model))
    assert [name for name, _ in small.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert not small.training
    assert dense_by_default(small) == ("out",)
    h = model.fc(x := torch.randn(5, 4))
    expected = model.out((h[:, :3] + h[:, 3:]) * torch.tensor([1, 0, 1]))
    assert torch.allclose(small(x), expected, atol=1e-6)
    again = PrunePlan((), (("view 1", (0, 4)), ("split 2", (2, 2)))).reshape(small)  # a graph can be traced again
    assert torch.equal(again(x), small(x))


def test_a_registered_network_is_rebuilt_from_name_options_and_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "_items", dict(MODELS))
    register_model("written", input_shape=(4,), classes=2)(Written)
    spec = ModelSpec("written").pruned(PLAN)
    again = ModelSpec(**json.loads(json.dumps(spec.to_json())))
    assert shapes(again.build()) == shapes(PLAN.reshape(Written()))
    with torch.device("meta"):
        assert shapes(again.build()) == shapes(PLAN.reshape(Written()))
