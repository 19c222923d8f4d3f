"""Hidden units and whole heads of transformers go, exactly, however attention is written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from exactness import answers, difference, masked, pruned_exactly, randomize, replayed, shapes
from hypothesis import given, settings
from hypothesis import strategies as st
from prunable_transformers import (
    ATTENTIONS,
    HEADS,
    HIDDEN,
    SIZE,
    WIDTH,
    Attending,
    VisionTransformer,
    by_free_view,
    by_permute,
    encoder,
    masks_of,
    rows,
    without,
)
from torch import Tensor, fx, nn

from rigl_compress.exporters.onnx_export import export_onnx
from rigl_compress.models.resized_attention import ResizedAttention
from rigl_compress.models.topology import Topology
from rigl_compress.pruning.dead_neurons import Pruned, prune_dead_neurons

SILENT, UNREAD, DEAD = [1], [2], [0, 3]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}


def example() -> Tensor:
    return torch.randn(2, 5, 6)


def check_finished(model: nn.Module, topology: Topology, pruned: Pruned, inputs: Any) -> None:
    """It can be replayed bit by bit from JSON, and nothing is left to remove."""
    again = replayed(masked(model, topology), pruned)
    assert difference(answers(again, inputs), answers(pruned.model, inputs)) == 0
    second = prune_dead_neurons(pruned.model, pruned.topology, inputs)
    assert not second.plan, str(second.plan)
    weights = dict(pruned.model.named_parameters())
    assert all(weights[name].shape == mask.shape for name, mask in pruned.topology.items())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_heads_and_hidden_units_go(name: str, dtype: torch.dtype) -> None:
    model = randomize(ATTENTIONS[name](), 0).to(dtype)
    topology = without(masks_of(model), SILENT, UNREAD, DEAD)
    pruned = pruned_exactly(model, topology, example().to(dtype), TOLERANCE[dtype])
    left: Any = pruned.model
    assert left.o.in_features == WIDTH - 2 * SIZE
    assert left.first.out_features == left.second.in_features == HIDDEN - len(DEAD)
    if hasattr(left, "qkv"):
        assert left.qkv.out_features == 3 * (WIDTH - 2 * SIZE)
    else:
        assert {layer.out_features for layer in (left.q, left.k, left.v)} == {WIDTH - 2 * SIZE}
    check_finished(model, topology, pruned, example().to(dtype))


def test_which_heads_go() -> None:
    model = randomize(Attending(by_permute), 0)
    pruned = pruned_exactly(model, without(masks_of(model), SILENT, UNREAD, DEAD), example())
    gone = {change.layer: change.removed_outputs for change in pruned.plan.changes}
    assert gone["qkv"] == tuple(part * WIDTH + row for part in range(3) for row in rows([1, 2]))
    assert pruned.plan.notes == ("LayerNorm reads all channels: in 2 places (norm1, norm2)",)


def test_a_constant_head_goes_into_the_bias() -> None:
    model = randomize(Attending(by_free_view), 0)
    topology = without(masks_of(model, 1.0), SILENT, [], [])
    pruned = pruned_exactly(model, topology, example())
    before: Any = masked(model, topology)
    after: Any = pruned.model
    expected = before.o.bias + before.o.weight[:, rows(SILENT)] @ before.v.bias[rows(SILENT)]
    torch.testing.assert_close(after.o.bias, expected)


def test_the_class_stays_where_no_size_is_written() -> None:
    model = randomize(Attending(by_free_view), 0)
    pruned = pruned_exactly(model, without(masks_of(model), SILENT, UNREAD, DEAD), example())
    assert type(pruned.model) is Attending
    written = randomize(Attending(by_permute), 0)
    other = pruned_exactly(written, without(masks_of(written), SILENT, UNREAD, DEAD), example())
    assert isinstance(other.model, fx.GraphModule)


def test_one_head_is_left_of_a_layer_without_any() -> None:
    model = randomize(Attending(by_permute), 0)
    topology = without(masks_of(model), [], list(range(HEADS)), [])
    pruned = pruned_exactly(model, topology, example())
    left: Any = pruned.model
    assert left.o.in_features == SIZE
    check_finished(model, topology, pruned, example())


def test_a_head_with_one_read_value_stays_whole() -> None:
    model = randomize(Attending(by_permute), 0)
    masks = dict(without(masks_of(model, 1.0), [], [0], []))
    masks["o.weight"][2, 1] = True
    left: Any = pruned_exactly(model, Topology.from_masks(masks), example()).model
    assert left.o.in_features == WIDTH


def bias_of_each_head(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) + self.future * torch.arange(HEADS).reshape(-1, 1, 1), -1) @ v


def rectified(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights without a sum of 1."""
    del self
    return torch.relu(q @ k.transpose(-2, -1)) @ v


def test_constant_values_do_not_stay_constant_if_weights_have_another_sum() -> None:
    model = randomize(Attending(by_free_view, rectified), 0)
    left: Any = pruned_exactly(model, without(masks_of(model), SILENT, UNREAD, []), example()).model
    assert left.o.in_features == WIDTH - SIZE


class Picked(nn.Module):
    """Reads one head by its number: the others are dead, but the number is written in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, WIDTH), nn.Linear(SIZE, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x).view(x.shape[0], 5, -1, SIZE)[:, :, 2])
        return result


def test_heads_that_are_picked_by_number_stay() -> None:
    model = randomize(Picked(), 0)
    pruned = pruned_exactly(model, Topology.from_masks(masks_of(model, 1.0)), example())
    assert not pruned.plan
    assert pruned.plan.notes == ("getitem_1: only whole rows of its channels can be removed",)


def test_what_is_not_followed_is_kept_and_said() -> None:
    model = randomize(Attending(by_free_view, bias_of_each_head), 0)
    pruned = pruned_exactly(model, without(masks_of(model), SILENT, [], DEAD), example())
    left: Any = pruned.model
    assert left.o.in_features == WIDTH
    assert left.first.out_features == HIDDEN - len(DEAD)
    assert len(pruned.plan.notes) > 1


# torch's own layers


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_torch_encoder(dtype: torch.dtype, norm_first: bool, activation: str) -> None:
    model = randomize(encoder(norm_first=norm_first, activation=activation), 0).to(dtype)
    topology = without(masks_of(model), SILENT, UNREAD, DEAD)
    inputs = torch.randn(2, 5, WIDTH, dtype=dtype)
    pruned = pruned_exactly(model, topology, inputs, TOLERANCE[dtype])
    assert type(pruned.model) is nn.TransformerEncoder
    for layer in pruned.model.layers:
        check_layer(layer)
    assert len([note for note in pruned.plan.notes if "LayerNorm" in note]) == 1
    assert "self_attn: heads 4 → 2" in str(pruned.plan)
    check_finished(model, topology, pruned, inputs)


def check_layer(layer: Any) -> None:
    assert isinstance(layer.self_attn, ResizedAttention)
    assert layer.self_attn.num_heads == HEADS - 2
    assert layer.self_attn.in_proj_weight.shape == (3 * (WIDTH - 2 * SIZE), WIDTH)
    assert layer.self_attn.out_proj.weight.shape == (WIDTH, WIDTH - 2 * SIZE)
    assert layer.linear1.out_features == HIDDEN - len(DEAD)


class Masked(nn.Module):
    """An encoder that hides the future, and padding."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        result: Tensor = self.encoder(x, src_key_padding_mask=padding)
        return result


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_padding_of_an_encoder() -> None:
    """In evaluation mode torch packs padded sequences as nested tensors, which every layer must take."""
    model = randomize(Masked(), 0)
    masks = dict(without(masks_of(model), SILENT, UNREAD, DEAD))
    for name in ("encoder.layers.0.self_attn.in_proj_weight", "encoder.layers.0.self_attn.out_proj.weight"):
        masks[name].fill_(True)  # the first layer keeps its heads
    topology = Topology.from_masks(masks)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    before = masked(model, topology)
    inputs = (torch.randn(2, 5, WIDTH), padding)
    pruned = prune_dead_neurons(before, topology, inputs)
    left: Any = pruned.model
    assert [layer.self_attn.num_heads for layer in left.encoder.layers] == [HEADS, HEADS - 2]
    assert difference(answers(before, inputs), answers(left, inputs)) < 1e-5


def test_decoder() -> None:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True)
    model = randomize(nn.TransformerDecoder(layer, 1), 0)
    inputs = (torch.randn(2, 5, WIDTH), torch.randn(2, 7, WIDTH))
    left: Any = pruned_exactly(model, without(masks_of(model), SILENT, UNREAD, DEAD), inputs).model
    assert left.layers[0].multihead_attn.num_heads == left.layers[0].self_attn.num_heads == HEADS - 2


class Attention(nn.Module):
    """One call of torch's attention, and what it is called with."""

    def __init__(self, call: dict[str, Any], **options: Any) -> None:
        super().__init__()
        self.call = call
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, **options)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self.attention(x, y, y, **self.call)[0]
        return result


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "packed": ({}, {}, (5, 2, WIDTH), (7, 2, WIDTH)),
    "batch-first": ({}, {"batch_first": True}, (2, 5, WIDTH), (2, 7, WIDTH)),
    "no-bias": ({}, {"bias": False}, (5, 2, WIDTH), (7, 2, WIDTH)),
    "other-widths": ({}, {"kdim": 9, "vdim": 9}, (5, 2, WIDTH), (7, 2, 9)),
    "without-batch": ({}, {}, (5, WIDTH), (7, WIDTH)),
    "mask": ({"attn_mask": torch.ones(5, 7).triu(2).bool()}, {}, (5, 2, WIDTH), (7, 2, WIDTH)),
    "mask-per-head": ({"attn_mask": torch.randn(2 * HEADS, 5, 7)}, {}, (5, 2, WIDTH), (7, 2, WIDTH)),
    "no-weights": ({"need_weights": False}, {}, (5, 2, WIDTH), (7, 2, WIDTH)),
    "padding": (
        {"key_padding_mask": torch.arange(7).expand(2, 7) > torch.tensor([[6], [3]])},
        {},
        (5, 2, WIDTH),
        (7, 2, WIDTH),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_attention(name: str) -> None:
    call, options, *sizes = FORMS[name]
    model = randomize(Attention(call, **options), 0)
    inputs = tuple(torch.randn(size) for size in sizes)
    topology = without(masks_of(model), SILENT, UNREAD, [])
    pruned = pruned_exactly(model, topology, inputs)
    left: Any = pruned.model
    assert left.attention.num_heads == HEADS - 2
    assert list(left.state_dict()) == list(model.state_dict())
    check_finished(model, topology, pruned, inputs)


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_keys_of_its_own_keep_attention_whole(options: dict[str, Any]) -> None:
    model = randomize(Attention({}, **options), 0)
    pruned = pruned_exactly(
        model, without(masks_of(model), SILENT, UNREAD, []), (torch.randn(5, 2, WIDTH), torch.randn(7, 2, WIDTH))
    )
    assert not pruned.plan
    assert pruned.plan.notes == ("attention: has keys and values of its own (add_bias_kv, add_zero_attn)",)


def test_attention_weights_that_are_read_keep_it_whole() -> None:
    class Read(Attention):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            return self.attention(x, y, y)

    model = randomize(Read({}), 0)
    inputs = (torch.randn(5, 2, WIDTH), torch.randn(7, 2, WIDTH))
    pruned = pruned_exactly(model, without(masks_of(model), SILENT, UNREAD, []), inputs)
    assert pruned.plan.notes == ("attention: its attention weights are read",)


def test_attention_weights_that_are_only_unpacked() -> None:
    class Unpacked(Attention):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            outputs, _ = self.attention(x, y, y)
            return outputs

    model = randomize(Unpacked({}), 0)
    inputs = (torch.randn(5, 2, WIDTH), torch.randn(7, 2, WIDTH))
    left: Any = pruned_exactly(model, without(masks_of(model), SILENT, UNREAD, []), inputs).model
    assert left.attention.num_heads == HEADS - 2


class Shared(Attention):
    """The output projection is used a second time."""

    def __init__(self) -> None:
        super().__init__({})
        self.again = nn.Linear(WIDTH, WIDTH)
        self.again.weight = self.attention.out_proj.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self.again(super().forward(x, y))
        return result


def test_a_projection_that_is_shared_keeps_attention_whole() -> None:
    model = randomize(Shared(), 0)
    topology = without(masks_of(model), SILENT, UNREAD, [])
    pruned = pruned_exactly(model, topology, (torch.randn(5, 2, WIDTH), torch.randn(7, 2, WIDTH)))
    assert not pruned.plan
    assert "attention: its output projection is computed, or shares its weights" in pruned.plan.notes


def test_a_layer_without_bias_gains_one_for_constant_heads() -> None:
    """Only values that read constants are constant without a bias."""
    model = nn.Sequential(nn.Linear(3, WIDTH), encoder(1, bias=False))
    randomize(model, 0)
    topology = without({**masks_of(model), "0.weight": torch.zeros(WIDTH, 3, dtype=torch.bool)}, [], UNREAD, [])
    pruned = pruned_exactly(model, topology, torch.randn(2, 5, 3))
    left: Any = pruned.model
    assert left[1].layers[0].self_attn.num_heads == 1
    assert left[1].layers[0].self_attn.out_proj.bias.abs().sum() > 0
    check_finished(model, topology, pruned, torch.randn(2, 5, 3))


def test_vision_transformer() -> None:
    model = randomize(VisionTransformer(), 0)
    topology = without(masks_of(model), SILENT, UNREAD, DEAD)
    left: Any = pruned_exactly(model, topology, torch.randn(2, 3, 8, 8)).model
    assert type(left) is VisionTransformer
    for layer in left.encoder.layers:
        check_layer(layer)


EXPORTED = {"vision": (VisionTransformer, (2, 3, 8, 8)), **{name: (ATTENTIONS[name], (2, 5, 6)) for name in ATTENTIONS}}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_what_is_left_is_exported(name: str, tmp_path: Path) -> None:
    """The export compares the outputs itself, for a batch of another size too."""
    build, size = EXPORTED[name]
    model = randomize(build(), 0)
    pruned = pruned_exactly(model, without(masks_of(model), SILENT, UNREAD, DEAD), torch.randn(size))
    assert export_onnx(pruned.model, torch.randn(size), tmp_path / "small.onnx", encoding="compact").difference < 1e-5


def test_a_pruned_encoder_trains() -> None:
    model = randomize(encoder(), 0)
    left = pruned_exactly(model, without(masks_of(model), SILENT, UNREAD, DEAD), torch.randn(2, 5, WIDTH)).model.train()
    left(torch.randn(2, 5, WIDTH)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in left.parameters())


heads = st.lists(st.integers(0, HEADS - 1), unique=True)
units = st.lists(st.integers(0, HIDDEN - 1), unique=True)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(["encoder", *ATTENTIONS]), heads, heads, units, st.integers(0, 99))
def test_any_dead_heads_and_units(name: str, silent: list[int], unread: list[int], dead: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    model = randomize(encoder(1) if name == "encoder" else ATTENTIONS[name](), seed).double()
    topology = without(masks_of(model, 0.9), silent, unread, dead)
    inputs = (torch.randn(2, 5, WIDTH) if name == "encoder" else example()).double()
    left: Any = pruned_exactly(model, topology, inputs, 1e-9).model
    kept, hidden = max(1, HEADS - len({*silent, *unread})), max(1, HIDDEN - len(dead))
    layer = left.layers[0] if name == "encoder" else left
    columns = layer.self_attn.out_proj if name == "encoder" else layer.o
    assert columns.weight.shape[1] == kept * SIZE
    assert (layer.linear1 if name == "encoder" else layer.first).weight.shape[0] == hidden
    assert shapes(left)
