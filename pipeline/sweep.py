"""A grid of runs: every combination of settings with every seed, in parallel, each in a folder of its own."""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from re import sub
from signal import SIG_IGN, SIGINT, signal
from statistics import mean, stdev
from threading import Thread
from typing import Any

import torch

from rigl_compress.models.artifacts import write_json
from rigl_compress.models.errors import InputError
from rigl_compress.models.lifeline import end_with_parent
from rigl_compress.pipeline.environment import command_line, environment
from rigl_compress.pipeline.lock import locked
from rigl_compress.pipeline.recipe import Recipe, load_recipe, whole_number_part
from rigl_compress.pipeline.train.check import check_names
from rigl_compress.pipeline.train.metrics import metric_of
from rigl_compress.pipeline.train.progress import say_nothing, silent
from rigl_compress.pipeline.train.stage import Circumstances, train
from rigl_compress.pipeline.workspace import Run


@dataclass(frozen=True)
class Cell:
    """One run of a grid: overrides of the recipe, and a seed."""

    settings: tuple[str, ...]
    seed: int

    @property
    def label(self) -> str:
        """The settings as people read them: the last part of each key is enough.

        >>> Cell(("learning_rate.peak=0.1", "sparsity.method=rigl"), 0).label
        'peak=0.1, method=rigl'
        """
        pairs = (setting.partition("=") for setting in self.settings)
        return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in pairs)

    @property
    def folder(self) -> str:
        """A folder name.

        >>> Cell(("sparsity.method=rigl", "train.epochs=5"), 1).folder
        'sparsity.method=rigl,train.epochs=5,seed=1'
        """
        return sub(r"[^\w.=,+-]", "_", ",".join([*self.settings, f"seed={self.seed}"]))

    def overrides(self, common: Sequence[str] = ()) -> list[str]:
        """Give the changes to the recipe. {seed} lets a sweep start from the runs of another.

        >>> Cell(("start.run=runs/first/seed={seed}",), 1).overrides()
        ['start.run=runs/first/seed=1', 'seed=1']
        """
        return [setting.replace("{seed}", str(self.seed)) for setting in (*common, *self.settings)] + [
            f"seed={self.seed}"
        ]


@dataclass(frozen=True)
class Outcome:
    """What came of a cell: a result, or the reason why there is none."""

    cell: Cell
    result: Mapping[str, Any] | None = None
    failure: str = ""


def grid_values(option: str) -> tuple[str, list[str]]:
    """Read one option of a grid: a key and the values it takes, lists in brackets.

    >>> grid_values("sparsity.method=rigl,set"), grid_values("learning_rate.drops=[60, 80],[90]")
    (('sparsity.method', ['rigl', 'set']), ('learning_rate.drops', ['[60, 80]', '[90]']))
    """
    key, equals, text = option.partition("=")
    if not equals or not key or not text:
        raise InputError(f"grid {option!r} is not of the form key=value,value, e.g. sparsity.method=rigl,set")
    try:
        return key, [_as_toml(value) for value in tomllib.loads(f"values = [{text}]")["values"]]
    except tomllib.TOMLDecodeError:
        return key, [whole_number_part(value) for value in text.split(",")]


def _as_toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def cells(grid: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    """List every combination, seed by seed, so that a sweep cut short has seen all settings.

    >>> [cell.folder for cell in cells(["a=1,2"], [0, 1])]
    ['a=1,seed=0', 'a=2,seed=0', 'a=1,seed=1', 'a=2,seed=1']
    """
    axes = [[f"{key}={value}" for value in values] for key, values in map(grid_values, grid)]
    every = (Cell(settings, seed) for seed in seeds for settings in product(*axes))
    return list(dict.fromkeys(every))  # a value named twice is run once


def sweep(
    source: str,
    overrides: Sequence[str],
    every: Sequence[Cell],
    out: Path,
    jobs: int,
    circumstances: Circumstances,
) -> list[Outcome]:
    """Run the cells, `jobs` at a time with one thread each. Finished runs are kept, unfinished ones go on."""
    recipes = plan(source, overrides, every, out)
    with locked(out):
        outcomes = _run_all(dict(zip(every, recipes, strict=True)), out, jobs, circumstances)
        ordered = [outcomes[cell] for cell in every]
        write_json(out / "sweep.json", sweep_json(source, overrides, ordered))
    return ordered


def _run_all(recipes: Mapping[Cell, Recipe], out: Path, jobs: int, circumstances: Circumstances) -> dict[Cell, Outcome]:
    quiet = replace(circumstances, listener=silent, say=say_nothing)
    outcomes: dict[Cell, Outcome] = {}
    context = get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin_worker, initargs=(theirs,))
    with theirs, ours, pool:
        try:
            waiting = {
                pool.submit(_one_run, recipe, out / cell.folder, quiet): cell for cell, recipe in recipes.items()
            }
            for done in as_completed(waiting):
                cell = waiting[done]
                outcomes[cell] = _outcome(cell, done)
                circumstances.say(f"[{len(outcomes)}/{len(recipes)}] {_line(outcomes[cell])}")
        except BaseException:  # Ctrl-C: the runs that wait are not begun, those that run end now
            ours.close()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes


def _begin_worker(lifeline: Connection) -> None:
    """Let a worker end with the process that started it, or when that one closes its end of the line."""
    signal(SIGINT, SIG_IGN)  # Ctrl-C reaches every process of the terminal: the first one ends the others
    end_with_parent()
    Thread(target=_end_at_hang_up, args=(lifeline,), daemon=True).start()


def _end_at_hang_up(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


def plan(source: str, overrides: Sequence[str], every: Sequence[Cell], out: Path) -> list[Recipe]:
    """Give the recipes of the cells. What is wrong with any, or in the way, is an error before the first run."""
    recipes = [load_recipe(source, cell.overrides(overrides)) for cell in every]
    for recipe in recipes:
        check_names(recipe)
    for cell, recipe in zip(every, recipes, strict=True):
        run = Run(out / cell.folder)
        if run.recipe_file.exists() and run.recipe() != recipe:
            raise InputError(
                f"{run.path} holds a run of another recipe: choose another folder with --out, or remove it"
            )
    return recipes


def state(folder: Path) -> str:
    """Say what there is to do in the folder of a run."""
    run = Run(folder)
    if run.result_file.exists():
        return "trained"
    return "goes on from its checkpoint" if run.checkpoint_file.exists() else "to be trained"


def _one_run(recipe: Recipe, folder: Path, circumstances: Circumstances) -> dict[str, Any]:
    torch.set_num_threads(1)  # runs side by side use the cores better than threads within a run
    run = Run(folder)
    with run.locked():
        if not run.result_file.exists():
            train(recipe, folder, circumstances, resume=run.recipe_file.exists())
    return run.result()


def _outcome(cell: Cell, done: "Future[dict[str, Any]]") -> Outcome:
    try:
        return Outcome(cell, done.result())
    except Exception as error:  # one failed run does not lose the others; its reason is in the table
        return Outcome(cell, failure=f"{type(error).__name__}: {error}".splitlines()[0])


def _line(outcome: Outcome) -> str:
    name = f"{outcome.cell.label or 'recipe'}, seed {outcome.cell.seed}"
    if outcome.result is None:
        return f"{name}: failed, {outcome.failure}"
    metric = metric_of(outcome.result)
    final, best = map(metric.show, metric.final_and_best(outcome.result))
    return f"{name}: {final} ({best})"


def sweep_json(source: str, overrides: Sequence[str], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Give all outcomes as plain data, with the command that makes them."""
    runs = [
        {"settings": list(o.cell.settings), "seed": o.cell.seed, "result": o.result, "failure": o.failure}
        for o in outcomes
    ]
    facts = {"command": command_line(), "recipe": source, "overrides": list(overrides), "environment": environment()}
    return {"format": 1, **facts, "runs": runs}


COSTS = ("sparsity", "alive", "KFLOPs", "bytes", "train GFLOPs")


def columns(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Name the columns of `rows`; runs of one sweep can be on different tasks, whose metrics are then all named.

    >>> columns([Outcome(Cell((), 0), {"metric": "bpc"})])[:4]
    ('settings', 'seeds', 'bits per character, final', 'bits per character, best')
    """
    results = [outcome.result for outcome in outcomes if outcome.result is not None] or [{}]
    headings = dict.fromkeys(metric_of(result).heading for result in results)
    return ("settings", "seeds", *(f"{' or '.join(headings)}, {which}" for which in ("final", "best")), *COSTS)


def rows(outcomes: Sequence[Outcome], convention: str = "exact-schedule") -> Iterator[tuple[str, ...]]:
    """Give the table of a sweep: mean ± standard deviation over the seeds of each setting."""
    for settings in dict.fromkeys(outcome.cell.settings for outcome in outcomes):
        group = [outcome for outcome in outcomes if outcome.cell.settings == settings]
        results = [outcome.result for outcome in group if outcome.result is not None]
        label = group[0].cell.label or "recipe"
        if not results:
            yield (label, "failed", group[0].failure, *([""] * (1 + len(COSTS))))
            continue
        alive = [result["alive"] for result in results if result.get("alive")]
        yield (
            label,
            str(len(results)) + (f" ({len(group) - len(results)} failed)" if len(results) < len(group) else ""),
            *_spreads(results),
            f"{mean(result['sparsity'] for result in results):.3f}",
            alive[0]["architecture"] if alive else "",
            spread([each["kflops"] for each in alive], 1),
            spread([each["bitmask_bytes"] for each in alive], 0),
            spread([result["training_gflops"][convention] for result in results if result["training_gflops"]], 1),
        )


def _spreads(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the final and the best values of runs on one task."""
    metric = metric_of(results[0])
    both = zip(*(metric.final_and_best(result) for result in results), strict=True)
    return [spread(values, metric.digits) for values in both]


def spread(values: Sequence[float], digits: int) -> str:
    """Write mean ± sample standard deviation.

    >>> spread([1.0, 2.0, 3.0], 2), spread([1.5], 1), spread([], 1)
    ('2.00 ± 1.00', '1.5', '')
    """
    if not values:
        return ""
    middle = f"{mean(values):,.{digits}f}"
    return f"{middle} ± {stdev(values):,.{digits}f}" if len(values) > 1 else middle
