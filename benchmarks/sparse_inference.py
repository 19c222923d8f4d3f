"""How much faster are sparse networks with our kernels than dense, and than int8, in the same ONNX Runtime?

    python benchmarks/sparse_inference.py [--only resnet-50] [--markdown docs/results/sparse-inference.md]
    python benchmarks/sparse_inference.py --low     at low sparsity, where dense kernels are as fast
    python benchmarks/sparse_inference.py --picture --threads 1 --json docs/results/speedup.json

Random masks; the first convolution and depthwise ones stay dense. All sessions run in turn in the same process. With
one thread a ratio is the median over rounds of the two times of a round, by CPU time of the thread. With two threads it
compares the best tenth of the rounds, by the clock on the wall: the cores of a virtual machine change places.
"""

import json
from pathlib import Path

import click
import numpy as np
import torch
from inference_networks import CASES, PICTURE_CASES, Case, masked
from inference_timing import Result, compare, quantized

from rigl_compress.core.provenance import command_line, environment
from rigl_compress.exporters.torch_to_onnx import export_graph

ABOUT = """# Sparse inference

Time of the dense network in ONNX Runtime over the time with our kernels, in the same run: above 1 is faster. Random
masks; the first convolution and depthwise ones are dense. In each round all run for 50 ms in turn; with two threads
after a pause in which the threads of the others become idle. In brackets: the quartiles over the rounds of all
passes. One thread: CPU time of the thread; two: wall-clock time, the best tenth of the rounds of each. `int8`: the same
for the dense network in int8 (`onnxruntime.quantization`, static for convolutional networks, else dynamic).
`ours / dense`: an interval of 95 % for the median of the paired times. `ping`: nanoseconds of a message between two
processes and back. `difference`: of the outputs, relative to the largest. Measured with
"""
# Sparsities at which dense kernels are as fast, or nearly: there the cost model should leave layers alone.
LOW = (0.0, 0.3, 0.5, 0.6, 0.7)
_DYNAMIC = ("bert", "vit", "mlp", "lenet", "gru", "lstm")  # quantized with dynamic activations


Key = tuple[str, float, int]


def measure(
    case: Case, sparsity: float, threads: tuple[int, ...], rounds: int, seed: int, *, int8: bool
) -> dict[Key, Result]:
    """Compare a network at one sparsity, with each number of threads."""
    model, example = masked(case, sparsity, seed)
    plain = export_graph(model, example).SerializeToString()
    shape = (case.batch, *example.shape[1:])
    inputs: dict[str, object] = {"input": np.random.default_rng(seed).random(shape, dtype=np.float32)}
    narrow = quantized(plain, inputs, not case.name.startswith(_DYNAMIC)) if int8 else None
    return {(case.label, sparsity, number): compare(plain, inputs, number, rounds, narrow) for number in threads}


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


HEAD = """| network | sparsity | threads | ratio | int8 | ours / dense | dense ms | sparse layers | ping | difference |
|---|---|---|---|---|---|---|---|---|---|"""


def _slower(results: dict[Key, Result]) -> str:
    """Say which networks are slower than dense by more than 2 %, with all of the interval."""
    slow = [f"{key[0]} at {key[1]:.0%}, {key[2]} threads" for key, each in results.items() if each.slowdown()[0] > 1.02]
    return f"slower than dense by more than 2 %: {', '.join(slow) or 'none'} ({len(results)} rows)"


@click.command()
@click.option("--only", default="", help="Networks whose name contains this.")
@click.option("--threads", multiple=True, type=int, default=(1, 2), show_default=True)
@click.option("--rounds", default=7, show_default=True, help="In each pass.")
@click.option("--passes", default=3, show_default=True, help="Over all networks: noise comes and goes.")
@click.option("--seed", default=0, show_default=True)
@click.option("--low", is_flag=True, help="Low sparsities instead: 0, 30, 50, 60 and 70 %.")
@click.option("--int8/--no-int8", default=True, show_default=True, help="Also time the dense network in int8.")
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
    int8: bool,
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
                for key, found in measure(case, sparsity, threads, rounds, seed, int8=int8).items():
                    kept = results.setdefault(key, Result([], found.difference, found.layers, found.best))
                    kept.times.extend(found.times)
                    kept.pings.extend(found.pings)
                    click.echo(line(key, results[key]))
            if json_file:  # after each network: what was measured is kept if the rest is interrupted
                json_file.write_text(json.dumps(as_json(results), indent=1) + "\n", encoding="utf-8")
    if low:
        click.echo(_slower(results))
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
