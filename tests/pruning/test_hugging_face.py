"""Models of Hugging Face keep their class and lose hidden units and heads; built from configurations, offline."""

from pathlib import Path
from typing import Any

import pytest
import torch
from exactness import difference, masked, randomize, replayed, tensors
from prunable_transformers import HEADS, SIZE, WIDTH, masks_of, without
from torch import Tensor, nn

from rigl_compress.exporters.onnx_export import export_onnx
from rigl_compress.pruning.dead_neurons import prune_dead_neurons

transformers = pytest.importorskip("transformers")

TOKENS = {"vocab_size": 30, "max_position_embeddings": 12}
SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 20}
SILENT, UNREAD, DEAD = [1], [3], [0, 7]


def bert(kind: str = "BertModel", **options: Any) -> Any:
    return getattr(transformers, kind)(transformers.BertConfig(**TOKENS, **SIZES, **options))


def distilbert() -> Any:
    config = transformers.DistilBertConfig(**TOKENS, dim=WIDTH, n_layers=2, n_heads=HEADS, hidden_dim=20)
    return transformers.DistilBertModel(config)


def vit() -> Any:
    return transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **SIZES))


def sentence(padded: bool = True) -> dict[str, Tensor]:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0 if padded else 1
    return {"input_ids": torch.randint(1, 30, (2, 7)), "attention_mask": mask}


def positional() -> tuple[Tensor, ...]:
    return tuple(sentence().values())


MODELS: dict[str, tuple[Any, Any]] = {
    "bert": (bert, sentence),
    "bert-unpadded": (bert, lambda: sentence(padded=False)),
    "bert-positional": (bert, positional),
    "bert-eager": (lambda: bert(attn_implementation="eager"), sentence),
    "bert-gelu-new": (lambda: bert("BertForMaskedLM", hidden_act="gelu_new"), sentence),
    "distilbert": (distilbert, sentence),
    "vit": (vit, lambda: torch.randn(2, 3, 8, 8)),
    "vit-by-name": (vit, lambda: {"pixel_values": torch.randn(2, 3, 8, 8)}),
}


@torch.no_grad()
def outputs(model: nn.Module, example: Any) -> list[Tensor]:
    model.eval()
    answer = model(**example) if isinstance(example, dict) else answers_of(model, example)
    return tensors([part for part in answer.values() if part is not None])


def answers_of(model: nn.Module, example: Any) -> Any:
    return model(*example) if isinstance(example, tuple) else model(example)


def heads_of(model: nn.Module) -> set[int]:
    ends = ("query", "key", "value", "q_lin", "k_lin", "v_lin", "q_proj", "k_proj", "v_proj")
    layers: list[Any] = [layer for name, layer in model.named_modules() if name.endswith(ends)]
    assert layers
    return {layer.out_features // SIZE for layer in layers}


def hidden_of(model: nn.Module) -> set[int]:
    ends = ("intermediate.dense", "lin1", "fc1")
    layers: list[Any] = [layer for name, layer in model.named_modules() if name.endswith(ends)]
    assert layers
    return {layer.out_features for layer in layers}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_heads_and_hidden_units_go(name: str, dtype: torch.dtype) -> None:
    build, make = MODELS[name]
    model = randomize(build(), 0).to(dtype)
    example = converted(make(), dtype)
    topology = without(encoder_masks(model), SILENT, UNREAD, DEAD)
    before = masked(model, topology)
    pruned = prune_dead_neurons(before, topology, example)
    assert type(pruned.model) is type(model)
    assert heads_of(pruned.model) == {HEADS - 2}
    assert hidden_of(pruned.model) == {20 - len(DEAD)}
    for inputs in (example, converted(make(), dtype)):
        apart = difference(outputs(before, inputs), outputs(pruned.model, inputs))
        assert apart < (1e-5 if dtype == torch.float32 else 1e-9)
    again = replayed(before, pruned)
    assert difference(outputs(again, example), outputs(pruned.model, example)) == 0
    assert not prune_dead_neurons(pruned.model, pruned.topology, example).plan


def encoder_masks(model: nn.Module) -> dict[str, Tensor]:
    names = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return {name: mask for name, mask in masks_of(model).items() if name in names}


def converted(example: Any, dtype: torch.dtype) -> Any:
    if isinstance(example, dict):
        return {name: converted(value, dtype) for name, value in example.items()}
    return example.to(dtype) if isinstance(example, Tensor) and example.is_floating_point() else example


def test_layer_norms_are_one_line() -> None:
    model = randomize(bert(), 0)
    topology = without(encoder_masks(model), SILENT, UNREAD, DEAD)
    notes = prune_dead_neurons(masked(model, topology), topology, sentence()).report.notes
    names = "embeddings.LayerNorm, encoder.layer.0.attention.output.LayerNorm"
    assert notes == (f"LayerNorm reads all channels: in 5 places ({names}, …)",)


def test_heads_by_number_are_kept_and_said() -> None:
    """T5 writes the number of its heads into views, and adds a bias for each of them."""
    config = transformers.T5Config(vocab_size=30, d_model=WIDTH, d_kv=SIZE, d_ff=20, num_layers=1, num_heads=HEADS)
    model = randomize(transformers.T5EncoderModel(config), 0)
    masks = encoder_masks(model)
    masks["encoder.block.0.layer.1.DenseReluDense.wi.weight"][DEAD] = False
    masks["encoder.block.0.layer.0.SelfAttention.o.weight"][:, :SIZE] = False
    topology = without(masks, [], [], [])
    pruned = prune_dead_neurons(masked(model, topology), topology, {"input_ids": torch.randint(1, 30, (2, 7))})
    changed = {change.layer.rpartition(".")[2] for change in pruned.plan.changes}
    assert changed == {"wi", "wo"}
    assert any("mask for each head" in note for note in pruned.plan.notes)


@pytest.mark.parametrize(("groups", "unread", "left"), [(HEADS, [1], (3, 3)), (2, [0, 1], (2, 1)), (2, [1, 2], (4, 2))])
def test_rotated_and_grouped_heads(groups: int, unread: list[int], left: tuple[int, int]) -> None:
    """Queries that share keys and values go with them; positions are rotated by parts of heads."""
    config = transformers.LlamaConfig(vocab_size=30, num_key_value_heads=groups, use_cache=False, **SIZES)
    model = randomize(transformers.LlamaModel(config), 0)
    topology = without(encoder_masks(model), [], unread, [])
    before, example = masked(model, topology), {"input_ids": torch.randint(1, 30, (2, 7))}
    pruned = prune_dead_neurons(before, topology, example)
    assert difference(outputs(before, example), outputs(pruned.model, example)) < 1e-5
    attention: Any = pruned.model.layers[0].self_attn  # type: ignore[index, union-attr]
    assert (attention.q_proj.out_features // SIZE, attention.v_proj.out_features // SIZE) == left


@pytest.mark.slow
@pytest.mark.parametrize(("name", "call"), [("bert", positional), ("vit", lambda: torch.randn(2, 3, 8, 8))])
def test_what_is_left_is_exported(name: str, call: Any, tmp_path: Path) -> None:
    model = randomize(MODELS[name][0](), 0)
    topology, example = without(encoder_masks(model), SILENT, UNREAD, DEAD), call()
    pruned = prune_dead_neurons(masked(model, topology), topology, example)
    assert export_onnx(pruned.model, example, tmp_path / "small.onnx").difference < 1e-4
