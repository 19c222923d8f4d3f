"""Train the same recipes in one, two and three processes, and compare weights and masks.

    python benchmarks/distributed.py [--processes 2 --processes 3] [--method rigl …] [--steps 300] [--markdown FILE]

Every method is trained with SGD and AdamW, with and without accumulation, on the same global batch, by real processes
(gloo). Prints the largest difference of a weight from the run in one process, and whether all masks are the same, bit
by bit. Exits with 1 where a weight differs by more than 1e-5, or a mask at all.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import torch

from rigl_compress.core.provenance import command_line, environment
from rigl_compress.data.dataset import DataSet
from rigl_compress.data.samples import Split
from rigl_compress.pipeline.markdown import markdown as markdown_table
from rigl_compress.pipeline.recipe import DataConfig, Recipe, parse_recipe
from rigl_compress.pipeline.train.process_group import Launched, connect, current_world, disconnect
from rigl_compress.pipeline.train.progress import ignore_progress
from rigl_compress.pipeline.train.stage import RunEnvironment, build_job, model_spec, train
from rigl_compress.pipeline.train.training_loop import train_epochs
from rigl_compress.sparsity.methods import METHODS

BATCH, SAMPLES, FEATURES, CLASSES = 24, 720, 12, 4
LARGEST = 1e-5
RATES = {"sgd": 0.05, "adamw": 0.003}
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A method with an optimizer and an accumulation."""

    method: str
    optimizer: str
    accumulate: int

    def recipe(self, steps: int, earlier: str) -> Recipe:
        """Ten updates within the first three quarters of the steps."""
        epochs = steps * self.accumulate * BATCH // SAMPLES
        settings = [f"sparsity.method={self.method}", "sparsity.sparsity=0.7", f"sparsity.interval={steps * 3 // 40}"]
        settings += [f"train.accumulate={self.accumulate}", f"train.epochs={epochs}", f"train.batch={BATCH}"]
        settings += [f"train.evaluate_every={epochs}", "model.name=mlp"]
        settings += ["model.options.hidden=[20, 16]", f"model.options.inputs={FEATURES}"]
        settings += [f"optimizer.name={self.optimizer}", f"learning_rate.peak={RATES[self.optimizer]}"]
        if METHODS[self.method].needs_topology:
            settings += [f"start.run={earlier}", "start.topology=end", "start.weights=initial"]
        if METHODS[self.method].gating is not None:
            settings += [f"sparsity.end={steps * 3 // 4}"]
        return parse_recipe('name = "distributed"', "distributed.toml", settings)


def cases(methods: Sequence[str]) -> Iterator[Case]:
    for method in methods:
        for optimizer in RATES:
            for accumulate in (1, 2):
                yield Case(method, optimizer, accumulate)


def numbers() -> DataSet:
    """Noisy numbers, whose class is the largest of the first four: never learnt to the end."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES + BATCH, FEATURES, generator=source)
    y = (x[:, :CLASSES] + torch.randn(len(x), CLASSES, generator=source)).argmax(1)
    train, test = (Split(x[part], y[part]) for part in (slice(SAMPLES), slice(SAMPLES, None)))
    return DataSet("numbers", "drawn", CLASSES, (FEATURES,), train, test)


def trained(case: Case, steps: int, earlier: str) -> dict[str, Weights]:
    torch.manual_seed(0)
    recipe, data = case.recipe(steps, earlier), numbers()
    job = build_job(recipe, model_spec(recipe, data), data, torch.device("cpu"), ignore_progress)
    train_epochs(job, lambda *_: None)
    return {"weights": {**job.model.state_dict(), **job.sparse.updater.parameters}, "masks": dict(job.sparse.topology)}


def work(methods: Sequence[str], steps: int, folder: Path) -> None:
    """Train all cases in this process, one of several or alone."""
    launched = Launched.found()
    if launched is not None:
        connect(launched, "cpu", 120.0)
    found = {str(case): trained(case, steps, str(folder / "earlier")) for case in cases(methods)}
    world = current_world()
    if world.first:
        torch.save(found, folder / f"{world.count}.pt")
    if launched is not None:
        disconnect()


def start(count: int, methods: Sequence[str], steps: int, folder: Path) -> dict[str, dict[str, Weights]]:
    """Train all cases in so many processes."""
    names = [word for method in methods for word in ("--method", method)]
    command = [sys.executable, __file__, "--work", str(folder), "--steps", str(steps), *names]
    together = {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": str(_free_port())}
    processes = [
        subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), **together})
        for rank in range(count)
    ]
    if codes := [code for process in processes if (code := process.wait())]:
        raise SystemExit(f"{count} processes ended with {codes}")
    found: dict[str, dict[str, Weights]] = torch.load(folder / f"{count}.pt", weights_only=False)
    return found


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def difference(one: dict[str, Weights], other: dict[str, Weights]) -> tuple[float, bool]:
    pairs = [
        (one["weights"][name].detach().float(), other["weights"][name].detach().float()) for name in one["weights"]
    ]
    masks = all(torch.equal(mask, other["masks"][name]) for name, mask in one["masks"].items())
    return max(float((a - b).abs().max()) for a, b in pairs), masks


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--processes", multiple=True, type=int, default=(2, 3), show_default=True, help="Numbers of processes.")
@click.option("--method", "methods", multiple=True, help="Only this method.")
@click.option("--steps", default=300, show_default=True, help="Optimizer steps, a multiple of 30.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the table into this file.")
@click.option("--work", "folder", type=click.Path(path_type=Path), hidden=True)
def main(
    processes: tuple[int, ...], methods: tuple[str, ...], steps: int, markdown: Path | None, folder: Path | None
) -> None:
    methods = methods or tuple(METHODS)
    if folder is not None:
        work(methods, steps, folder)
        return
    begin = perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        _earlier(Path(temporary) / "earlier", steps)
        found = {count: start(count, methods, steps, Path(temporary)) for count in (1, *processes)}
    rows, failed = table(found, list(cases(methods)))
    text = _report(rows, processes, perf_counter() - begin)
    click.echo(text)
    if markdown:
        markdown.write_text(text, encoding="utf-8")
    if failed:
        raise SystemExit(1)


def _earlier(path: Path, steps: int) -> None:
    """Train the run whose topology the lottery starts from."""
    os.environ["RIGL_COMPRESS_STATE"] = str(path.parent / "state")
    sys.path.insert(0, str(Path(__file__).parent))
    recipe = Case("static", "sgd", 1).recipe(steps, "")
    name = "distributed:numbers"
    train(replace(recipe, data=DataConfig(name)), path, RunEnvironment("cpu", named={name}))


def table(found: dict[int, Any], every: Sequence[Case]) -> tuple[list[tuple[str, ...]], bool]:
    rows, failed = [], False
    for case in every:
        cells = [case.method, case.optimizer, str(case.accumulate)]
        for count in list(found)[1:]:
            largest, masks = difference(found[1][str(case)], found[count][str(case)])
            failed |= largest > LARGEST or not masks
            cells += [f"{largest:.1e}", "same" if masks else "**differ**"]
        rows.append(tuple(cells))
    return rows, failed


def _report(rows: Sequence[tuple[str, ...]], processes: Sequence[int], seconds: float) -> str:
    here = environment()
    heads = [head for count in processes for head in (f"{count} processes: weights", "masks")]
    text = markdown_table(("method", "optimizer", "accumulate", *heads), rows)
    machine = f"{here['cpu']}, {here['cores']} cores, {here['system']}, torch {torch.__version__}"
    return f"{text}\n\n`{command_line()}`, {here['date']}, {machine}, {seconds:.0f} s\n"


if __name__ == "__main__":
    main()
