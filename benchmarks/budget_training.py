"""Uniform, ERK and budget distributions at the same measured latency, on a network that RigL trains.

    python benchmarks/budget_training.py [--sparsity 0.91] [--seeds 3] [--epochs 3] [--work runs/budget-training]

A network of three convolutions on Fashion-MNIST. First a knob is searched for each distribution: the sparsity of ERK,
and the predicted speed-up of the budget, with which the network is as fast as with uniform sparsity. It takes networks
that were trained with other seeds: RigL's masks are not as fast as random ones. Then networks are trained, exported and
timed, all of them in turns with the dense one: the least CPU time of one image over the turns, one thread, the dense
network in ONNX Runtime. WORK/knobs.jsonl and WORK/trained.jsonl have a row for each; the same command goes on where it
was stopped.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import cos, pi
from pathlib import Path
from random import Random
from statistics import mean, stdev
from time import process_time, thread_time
from typing import Any, cast

import click
import torch
from sparsify_tables import rows_of
from torch import Tensor, nn
from torch.nn import functional as F

import rigl_compress as rc
from rigl_compress.data.load_dataset import load_dataset
from rigl_compress.exporters.ort_sessions import open_session, session_options
from rigl_compress.pipeline.markdown import markdown

Row = dict[str, Any]
CHANNELS, HIDDEN = (24, 48, 96), 256
BATCH, RATE, DECAY, INTERVAL = 128, 0.1, 5e-4, 25
ROUNDS, RUNS = 200, 10  # of a timing: turns, and runs of each network in a turn
CLOSE, TRIES, OTHER_SEEDS = 0.01, 6, (100, 101)  # of the search for a knob
KNOBS = {"erk": (0.86, 0.94), "budget": (2.4, 3.6)}  # between which it is


def network() -> nn.Module:
    """Return the network; it has 0.3 million weights."""
    first, second, third = CHANNELS
    layers = [*_conv(1, first, 2), *_conv(first, second), nn.MaxPool2d(2), *_conv(second, third), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(9 * third, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)]
    model: Any = nn.Sequential(*layers, *head)
    return cast("nn.Module", model.to(memory_format=torch.channels_last))


def _conv(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


@dataclass(frozen=True)
class Choice:
    """A distribution, and how far it goes: a sparsity, or a predicted speed-up."""

    distribution: str
    knob: float

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a sparsifier."""
        if self.distribution == "budget":
            return {"distribution": "budget", "budget": f"speedup={self.knob:.4f}"}
        return {"distribution": self.distribution, "sparsity": self.knob}

    def sparsifier(self, model: nn.Module, optimizer: torch.optim.Optimizer, **others: Any) -> rc.Sparsifier:
        """Return what keeps a model sparse."""
        return rc.Sparsifier(model, optimizer, example_input=torch.rand(1, 1, 28, 28), **self.settings, **others)


# Timing


def turns(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least seconds of each, in turns of random order: what else the machine does only adds to them."""
    found, order, draw = dict.fromkeys(runs, float("inf")), list(runs), Random(0)
    for _ in range(ROUNDS):
        draw.shuffle(order)
        for name in order:
            began = thread_time()
            for _ in range(RUNS):
                runs[name]()
            found[name] = min(found[name], (thread_time() - began) / RUNS)
    return found


def timed(work: Path, files: dict[str, Path]) -> dict[str, float]:
    """Return the share of the dense network's time that each file takes in our session."""
    dense = work / "dense.onnx"
    if not dense.exists():
        exported(network(), dense)
    sample = {"input": torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(0)).numpy()}
    sessions = {name: rc.InferenceSession(str(file), session_options(1)) for name, file in files.items()}
    click.echo(f"timing {len(files)} networks and the dense one")
    every = {"": open_session(dense, session_options(1)), **sessions}
    found = turns({name: partial(each.run, None, sample) for name, each in every.items()})
    return {name: found[name] / found[""] for name in files} | {"": found[""]}


def exported(model: nn.Module, path: Path) -> Path:
    """Export a network."""
    rc.export_onnx(model.eval(), torch.rand(1, 1, 28, 28), path, encoding="compact", overwrite=True)
    return path


def kept(table: Path, *rows: Row) -> None:
    """Add rows to a table."""
    with table.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


# Training


@dataclass(frozen=True)
class Data:
    """Images and classes to train on and to test with."""

    train: Any
    test: Any


def trained(choice: Choice, seed: int, data: Data, epochs: float) -> tuple[nn.Module, Row]:
    """Train by RigL; return the network, and its error in per cent."""
    torch.manual_seed(seed)
    model, steps, began = network(), int(epochs * (len(data.train) // BATCH)), process_time()
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=DECAY)
    sparse = choice.sparsifier(model, optimizer, method="rigl", interval=INTERVAL, total_steps=steps, seed=seed)
    for x, y in drawn(data.train, seed):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 + cos(pi * sparse.steps / steps)) / 2
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        if not sparse.step():
            optimizer.step()
        optimizer.zero_grad()
        if sparse.steps >= steps:
            break
    facts = {"error": error(model.eval(), data.test), "sparsity": sparse.sparsity}
    return model, facts | {"layers": densities(sparse.topology), "cpu_seconds": process_time() - began}


def drawn(samples: Any, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of epoch after epoch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        for x, y in samples.batches(BATCH, generator):
            yield x.contiguous(memory_format=torch.channels_last), y


def densities(topology: rc.Topology) -> dict[str, float]:
    """Return the share of active connections of each layer."""
    return {name: float(topology[name].float().mean()) for name in topology}


@torch.no_grad()
def error(model: nn.Module, test: Any) -> float:
    """Return the share of wrong answers, in per cent."""
    wrong = sum(int((model(x).argmax(1) != y).sum()) for x, y in test.in_order(500))
    return 100 * wrong / len(test)


# The search


@dataclass(frozen=True)
class Search:
    """Looks for knobs with which trained networks are as fast as with uniform sparsity."""

    work: Path
    data: Data
    epochs: float

    def networks(self, choice: Choice) -> dict[str, Path]:
        """Return trained networks of other seeds; raises for a budget that cannot be met."""
        return {f"{choice.distribution}-{seed}": self._trained(choice, seed) for seed in OTHER_SEEDS}

    def _trained(self, choice: Choice, seed: int) -> Path:
        model, _ = trained(choice, seed, self.data, self.epochs)
        return exported(model, self.work / f"search-{choice.distribution}-{seed}.onnx")

    def knob(self, distribution: str, uniform: dict[str, Path]) -> Iterator[Row]:
        """Yield what was tried, by halves: a knob, and the time relative to that of uniform sparsity."""
        low, high = KNOBS[distribution]
        for _ in range(TRIES):
            knob = (low + high) / 2
            try:
                own = self.networks(Choice(distribution, knob))
            except rc.InputError:
                high = knob
                continue
            found = timed(self.work, {**uniform, **own})
            ratio = sum(found[name] for name in own) / sum(found[name] for name in uniform)
            row = {"distribution": distribution, "knob": knob, "ratio": ratio}
            click.echo(json.dumps(row))
            yield row
            if abs(ratio - 1) <= CLOSE:
                return
            low, high = (knob, high) if ratio > 1 else (low, knob)


def choices(search: Search, sparsity: float) -> list[Choice]:
    """Return the three distributions with knobs that make them as fast; searched once."""
    table, uniform = search.work / "knobs.jsonl", Choice("uniform", sparsity)
    asked, found = {"sparsity": sparsity, "epochs": search.epochs}, [uniform]
    known = {
        name: [row for row in rows_of(table) if row["distribution"] == name and asked.items() <= row.items()]
        for name in KNOBS
    }
    networks = {} if all(known.values()) else search.networks(uniform)
    for name, rows in known.items():
        if not rows:
            rows += [row | asked for row in search.knob(name, networks)]
            kept(table, *rows)
        found.append(Choice(name, min(rows, key=lambda row: abs(row["ratio"] - 1))["knob"]))
    return found


def train_all(found: Sequence[Choice], seeds: int, data: Data, epochs: float, work: Path) -> list[Row]:
    """Train what is missing; return all rows."""
    table = work / "trained.jsonl"
    done = {(row["distribution"], row["knob"], row["seed"]): row for row in rows_of(table) if row["epochs"] == epochs}
    for seed in range(seeds):
        for each in found:
            key = (each.distribution, each.knob, seed)
            if key in done:
                continue
            model, facts = trained(each, seed, data, epochs)
            file = exported(model, work / f"{each.distribution}-{seed}.onnx")
            named = {"distribution": key[0], "knob": key[1], "seed": seed, "epochs": epochs, "file": file.name}
            done[key] = named | facts
            kept(table, done[key])
            click.echo(json.dumps(done[key]))
    return [done[each.distribution, each.knob, seed] for each in found for seed in range(seeds)]


def tables(rows: Sequence[Row], work: Path) -> Iterator[str]:
    """Yield errors and measured times, and the density of each layer."""
    found = timed(work, {row["file"]: work / row["file"] for row in rows})
    yield f"The dense network takes {1e6 * found['']:.0f} µs in ONNX Runtime.\n"
    names = list(dict.fromkeys(row["distribution"] for row in rows))
    parts = {name: [row for row in rows if row["distribution"] == name] for name in names}
    columns = ["distribution", "error", "of each seed", "speed-up", "of each seed", "zeros"]
    yield markdown(columns, ([name, *_line(part, found)] for name, part in parts.items())) + "\n"
    layers = list(rows[0]["layers"] | rows[-1]["layers"])
    lines = ([name, *(f"{part[0]['layers'].get(each, 1.0):.1%}" for each in layers)] for name, part in parts.items())
    yield markdown(["weights left", *layers], lines)


def _line(rows: Sequence[Row], times: dict[str, float]) -> Iterator[str]:
    errors, faster = [row["error"] for row in rows], [1 / times[row["file"]] for row in rows]
    spread = f" ± {stdev(errors):.2f}" if len(errors) > 1 else ""
    yield from (f"{mean(errors):.2f}{spread} %", ", ".join(f"{each:.2f}" for each in errors))
    yield from (f"{mean(faster):.2f}", ", ".join(f"{each:.2f}" for each in faster))
    yield f"{mean(row['sparsity'] for row in rows):.1%}"


@click.command(help=__doc__)
@click.option("--sparsity", default=0.91, show_default=True, help="Of the uniform distribution.")
@click.option("--seeds", default=3, show_default=True)
@click.option("--epochs", default=3.0, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path("runs/budget-training"), show_default=True)
def main(sparsity: float, seeds: int, epochs: float, work: Path) -> None:
    torch.set_num_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    content = load_dataset("fashion-mnist")
    data = Data(content.train, content.test)
    found = choices(Search(work, data, epochs), sparsity)
    click.echo(", ".join(f"{each.distribution} {each.knob:.4g}" for each in found))
    rows = train_all(found, seeds, data, epochs, work)
    for part in tables(rows, work):
        click.echo(part)


if __name__ == "__main__":
    main()
