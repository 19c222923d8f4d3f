"""How much faster are sparse networks with our kernels than dense in the same ONNX Runtime?

    python benchmarks/sparse_inference.py [--only resnet-50] [--markdown docs/results/sparse-inference.md]
    python benchmarks/sparse_inference.py --low     at low sparsity, where dense kernels are as fast
    python benchmarks/sparse_inference.py --picture --threads 1 --json docs/results/speedup.json

Random masks; the first convolution and depthwise ones stay dense. Both sessions run in turn in the same process. A
ratio is the median over rounds of the two times of a round: CPU time of the thread with one thread, the clock on the
wall with two.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from torch import nn

from rigl_compress.core.provenance import command_line, environment
from rigl_compress.exporters.ort_sessions import open_session, session_options
from rigl_compress.exporters.torch_to_onnx import export_graph
from rigl_compress.exporters.verify import largest_difference
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_parameters import shapes_of, sparse_parameters
from rigl_compress.runtime.session import InferenceSession
from rigl_compress.sparsity.distributions import DISTRIBUTIONS

ABOUT = """# Sparse inference

Time of the dense network in ONNX Runtime over the time with our kernels, in the same run: above 1 is faster. Random
masks; the first convolution and depthwise ones are dense. In each round both run for 50 ms in turn; with two threads
after a pause in which the threads of the other become idle. In brackets: the quartiles over the rounds of all
passes. One thread: CPU time of the thread; two: wall-clock time. `difference`: of the outputs, relative to the
largest. Measured with
"""


class Recurrent(nn.Module):
    """One GRU of 512."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(512, 512, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, steps, 512] → [N, steps, 512]."""
        states: torch.Tensor = self.gru(x)[0]
        return states


class EncoderLayer(nn.Module):
    """A layer of BERT-base: attention with 12 heads over 768 features, and a perceptron of 3,072."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, tokens, width] → [N, tokens, width]."""
        query, key, value = (self.split(each(x)) for each in (self.query, self.key, self.value))
        shares = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).softmax(dim=-1)
        x = self.first(x + self.mix((shares @ value).transpose(1, 2).flatten(2)))
        return self.second(x + self.narrow(nn.functional.gelu(self.wide(x))))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """[N, tokens, width] → [N, heads, tokens, width / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def bert_base() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(EncoderLayer() for _ in range(12))), torch.randn(1, 128, 768)


def registered(name: str) -> Callable[[], tuple[nn.Module, torch.Tensor]]:
    return lambda: (ModelSpec(name).build(), ModelSpec(name).example())


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024)]
    return nn.Sequential(*layers), torch.rand(1, 1024)


@dataclass(frozen=True)
class Case:
    """A network, its batch, and the sparsities to try."""

    name: str
    build: Callable[[], tuple[nn.Module, torch.Tensor]]
    batch: int
    sparsities: tuple[float, ...]
    distribution: str = "uniform"

    @property
    def label(self) -> str:
        """What the table says."""
        return f"{self.name}, batch {self.batch}, {self.distribution}"


CASES = (
    Case("resnet-50", registered("resnet-50"), 1, (0.8, 0.9, 0.95, 0.98)),
    Case("resnet-50", registered("resnet-50"), 1, (0.8, 0.9, 0.95), "erk"),
    Case("mobilenet-v1", registered("mobilenet-v1"), 1, (0.8, 0.9, 0.95)),
    Case("wrn-22-2", registered("wrn-22-2"), 1, (0.8, 0.9, 0.95)),
    Case("mlp-1024-4096-4096-1024", perceptron, 64, (0.8, 0.9, 0.95, 0.98)),
    Case("mlp-1024-4096-4096-1024", perceptron, 1, (0.8, 0.9, 0.95, 0.98)),
    Case("lenet-300-100", registered("lenet-300-100"), 128, (0.8, 0.9, 0.95)),
    Case("gru-512, 32 steps", lambda: (Recurrent(), torch.rand(1, 32, 512)), 1, (0.8, 0.9, 0.95)),
)

# The picture of the README: one line per network.
PICTURE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
PICTURE_CASES = (
    Case("resnet-50", registered("resnet-50"), 1, PICTURE),
    Case("mobilenet-v1", registered("mobilenet-v1"), 1, PICTURE),
    Case("bert-base, 128 tokens", bert_base, 1, PICTURE),
)


# Sparsities at which dense kernels are as fast, or nearly: there the cost model should leave layers alone.
LOW = (0.0, 0.3, 0.5, 0.6, 0.7)


def masked(case: Case, sparsity: float, seed: int) -> tuple[nn.Module, torch.Tensor]:
    """Build a network and set weights to zero at random, then let its normalisation see the sizes of its signals."""
    torch.manual_seed(seed)
    model, example = case.build()
    parameters = sparse_parameters(model.eval())
    shapes = shapes_of(parameters)
    first = next(iter(shapes))
    kept = {name for name, shape in shapes.items() if len(shape) == 4 and (shape[1] == 1 or name == first)}
    kept = kept if case.distribution == "uniform" else set()
    densities = DISTRIBUTIONS[case.distribution].share(shapes, 1 - sparsity)
    for name, parameter in parameters.items():
        if name not in kept and densities[name] < 1:
            parameter.data.masked_fill_(torch.rand_like(parameter) >= densities[name], 0)
            parameter.data.mul_(densities[name] ** -0.5)
    return settled(model, example), example


def settled(model: nn.Module, example: torch.Tensor) -> nn.Module:
    """Set the statistics of normalisation from one batch: freshly drawn, deep networks let next to nothing through."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.rand(4, *example.shape[1:]))
    return model.eval()


# Seconds that each network runs before it is the other's turn: in use a network also finds its weights in the caches.
BURST = 0.05
# The threads of a session look for work for a while after it has run, and would take a core from the other.
REST = 0.15


def seconds(session: object, inputs: dict[str, object], times: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(times):
        session.run(None, inputs)  # type: ignore[attr-defined]
    return (clock() - start) / times


@dataclass
class Result:
    """What one network gave at one sparsity with so many threads; each pass adds its rounds."""

    times: list[tuple[float, float]]  # of a round: dense, ours
    difference: float
    layers: int

    def figures(self) -> dict[str, float]:
        """Return the medians and quartiles over all rounds."""
        dense, ours = np.array(self.times).T
        low, ratio, high = np.quantile(dense / ours, [0.25, 0.5, 0.75])
        milliseconds = {"dense_ms": float(np.median(dense) * 1e3), "sparse_ms": float(np.median(ours) * 1e3)}
        return {"ratio": ratio, "low": low, "high": high, **milliseconds}

    def row(self) -> str:
        """Return the cells of the table."""
        found = self.figures()
        ratio = f"**{found['ratio']:.2f}** [{found['low']:.2f}, {found['high']:.2f}]"
        return f"{ratio} | {found['dense_ms']:.3g} | {self.layers} | {self.difference:.0e}"


def compare(model: bytes, inputs: dict[str, object], threads: int, rounds: int) -> Result:
    ours = InferenceSession(model, session_options(threads))
    theirs = open_session(model, session_options(threads))
    difference = largest_difference(ours.run(None, inputs), theirs.run(None, inputs))
    clock = time.thread_time if threads == 1 else time.perf_counter

    def turn(session: object, count: int) -> float:
        if threads > 1:
            time.sleep(REST)
            seconds(session, inputs, 1, clock)
        return seconds(session, inputs, count, clock)

    counts = []
    for session in (theirs, ours):
        seconds(session, inputs, 2, clock)
        counts.append(max(1, int(BURST / max(seconds(session, inputs, 2, clock), 1e-6))))
    times = [(turn(theirs, counts[0]), turn(ours, counts[1])) for _ in range(rounds)]
    return Result(times, difference, len(ours.sparse_layers))


Key = tuple[str, float, int]


def measure(case: Case, sparsity: float, threads: tuple[int, ...], rounds: int, seed: int) -> dict[Key, Result]:
    model, example = masked(case, sparsity, seed)
    plain = export_graph(model, example).SerializeToString()
    shape = (case.batch, *example.shape[1:])
    inputs: dict[str, object] = {"input": np.random.default_rng(seed).random(shape, dtype=np.float32)}
    return {(case.label, sparsity, number): compare(plain, inputs, number, rounds) for number in threads}


def line(key: Key, result: Result) -> str:
    label, sparsity, threads = key
    return f"| {label} | {sparsity:.0%} | {threads} | {result.row()} |"


def as_json(results: dict[Key, Result]) -> dict[str, object]:
    """Return the figures of every row, with the command and the machine."""
    rows = [
        {"network": label, "sparsity": sparsity, "threads": threads, **result.figures()}
        | {"sparse_layers": result.layers, "difference": result.difference}
        for (label, sparsity, threads), result in results.items()
    ]
    return {"format": 1, "command": command_line(), "environment": environment(), "rows": rows}


HEAD = """| network | sparsity | threads | ratio | dense ms | sparse layers | difference |
|---|---|---|---|---|---|---|"""


@click.command()
@click.option("--only", default="", help="Networks whose name contains this.")
@click.option("--threads", multiple=True, type=int, default=(1, 2), show_default=True)
@click.option("--rounds", default=7, show_default=True, help="In each pass.")
@click.option("--passes", default=3, show_default=True, help="Over all networks: noise comes and goes.")
@click.option("--seed", default=0, show_default=True)
@click.option("--low", is_flag=True, help="Low sparsities instead: 0, 30, 50, 60 and 70 %.")
@click.option("--picture", is_flag=True, help="The networks and sparsities of the README's picture instead.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the figures into this file.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the table into this file.")
def main(
    only: str,
    threads: tuple[int, ...],
    rounds: int,
    passes: int,
    seed: int,
    low: bool,
    picture: bool,
    json_file: Path | None,
    markdown: Path | None,
) -> None:
    """Print a row for each network, sparsity and number of threads, as it stands after each pass."""
    torch.set_num_threads(1)
    results: dict[Key, Result] = {}
    for number in range(1, passes + 1):
        click.echo(f"pass {number} of {passes}\n\n{HEAD}")
        for case in (case for case in (PICTURE_CASES if picture else CASES) if only in case.label):
            for sparsity in LOW if low else case.sparsities:
                for key, found in measure(case, sparsity, threads, rounds, seed).items():
                    results.setdefault(key, Result([], found.difference, found.layers)).times.extend(found.times)
                    click.echo(line(key, results[key]))
            if json_file:  # after each network: what was measured is kept if the rest is interrupted
                json_file.write_text(json.dumps(as_json(results), indent=1) + "\n", encoding="utf-8")
    if markdown:
        facts = environment()
        given = " ".join(f"--threads {number}" for number in threads) + " --low" * low
        command = f"`python benchmarks/sparse_inference.py {given} --rounds {rounds} --passes {passes} --seed {seed}`"
        where = f"{facts['cpu']}, {facts['cores']} cores, onnxruntime {facts['versions']['onnxruntime']}"
        rows = "\n".join(line(*each) for each in results.items())
        made = f"{command} on {facts['date'][:10]}: {where}."
        markdown.write_text(f"{ABOUT}{made}\n\n{HEAD}\n{rows}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
