"""Densities that meet a budget. Predicted times are corrected by measuring: only zeros matter for the time, so that
the network is timed with its smallest weights removed, before any layer is fitted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from rigl_compress.core.errors import InputError
from rigl_compress.onnx_pruning.density_allocation import densities
from rigl_compress.onnx_pruning.layer_costs import byte_costs, flop_costs, time_costs
from rigl_compress.onnx_pruning.layer_errors import LayerErrors
from rigl_compress.onnx_pruning.one_shot_pruning import Listener, prune_by_magnitude
from rigl_compress.onnx_pruning.prunable_layers import PrunableLayer
from rigl_compress.onnx_pruning.pruned_file import PrunedFile
from rigl_compress.onnx_pruning.pruned_model import PrunedModel
from rigl_compress.pipeline.bench.backends import Setup, usable_backend
from rigl_compress.pipeline.bench.bench_sources import Source
from rigl_compress.pipeline.bench.timing import TimingPlan, measure
from rigl_compress.pipeline.bench.timing_statistics import percentile
from rigl_compress.sparsity.budget_solver import Candidate, Choice, choose, without_idle_zeros
from rigl_compress.sparsity.budgets import TIMES, Budget, Cost

Array = NDArray[Any]
TRIES = 7
CORRECTIONS = 4
CLOSE = 0.03  # of the wished time
REACHABLE = 1.01  # of the smallest file that was tried: fitting chooses other zeros
QUIET = 0.2  # of the runs of a trial: the others may have waited for other work of the machine
TRIAL = TimingPlan(openings=1, rounds=40, seconds=3.0)
Measure = Callable[[Choice], float]


@dataclass(frozen=True)
class Found:
    """Densities within a budget, what they cost, and what was tried: predicted for the layers, and measured."""

    choice: Choice
    cost: float
    tried: tuple[tuple[float, float], ...] = ()
    speedup: float | None = None  # against the original, of a budget of time


def candidates_of(
    layers: Sequence[PrunableLayer], errors: Mapping[str, LayerErrors], costs: Mapping[str, Cost]
) -> dict[str, list[Candidate]]:
    """Return the candidates of every layer; of those that cost the same the densest."""
    return {
        each.name: without_idle_zeros(
            [
                Candidate(one, costs[each.name](min(one, each.most / each.size)), errors[each.name].at(one))
                for one in densities()
            ]
        )
        for each in layers
    }


def within(
    candidates: Mapping[str, Sequence[Candidate]], budget: Budget, rest: float, measured: Measure | None = None
) -> Found:
    """Return the choice within a budget of bytes or FLOPs, of which `rest` is not the layers'."""
    tried: list[tuple[Choice, float]] = []
    for _ in range(1 if measured is None else CORRECTIONS):
        choice = choose(candidates, budget.value - rest)
        found = choice.cost + rest if measured is None else measured(choice)
        tried.append((choice, found))
        rest = found - choice.cost
        if budget.value * (1 - CLOSE / 3) <= found <= budget.value:
            break
    fitting = [each for each in tried if each[1] <= budget.value]
    if not fitting:
        closest = min(found for _, found in tried) * (1.0 if measured is None else REACHABLE)
        raise InputError(f"the budget {budget} cannot be met: the closest is {budget.kind}={ceil(closest)}")
    choice, found = max(fitting, key=lambda each: each[1])
    return Found(choice, found, tuple((each.cost, found) for each, found in tried))


def within_time(
    candidates: Mapping[str, Sequence[Candidate]], budget: Budget, dense: float, measured: Measure
) -> Found:
    """Return the choice whose measured time is nearest to the wished one, and not above it by more than a little.

    The more of the predicted time of its layers a network may take, the longer it takes: a line through what was
    measured says what to try next.
    """
    wished = _wished_time(budget, dense)
    if wished >= dense:
        return Found(choose(candidates, float("inf")), dense)
    whole = sum(each[0].cost for each in candidates.values())
    least = sum(min(one.cost for one in each) for each in candidates.values()) / whole
    share, known = max(least, wished / dense), {1.0: dense}
    best: tuple[float, Choice] | None = None
    for _ in range(TRIES):
        choice = choose(candidates, share * whole)
        known[share] = time = measured(choice)
        if best is None or abs(time / wished - 1) < abs(best[0] / wished - 1):
            best = time, choice
        if abs(time / wished - 1) <= CLOSE or (time > wished and share <= least * 1.001):
            break
        share = _next_share(known, wished, least)
    assert best is not None
    if best[0] > 1.1 * wished:
        closest = _time_text(budget.kind, dense, best[0])
        raise InputError(f"the budget {budget} cannot be met on this machine: the closest is {closest}")
    return Found(best[1], best[0], tuple(sorted(known.items())))


def _wished_time(budget: Budget, dense: float) -> float:
    return dense / budget.value if budget.kind == "speedup" else budget.value


def _check_gain(costs: Mapping[str, Cost], budget: Budget, dense: float) -> None:
    """Raise `InputError` for a time that is not met, and that zeros do not change."""
    gains = any(cost(one) < cost(1.0) for cost in costs.values() for one in densities())
    if not gains and _wished_time(budget, dense) < dense:
        raise InputError(
            f"the budget {budget} cannot be met: no layer of the file gains from zeros in rc.InferenceSession, so that "
            f"the closest is {_time_text(budget.kind, dense, dense)}; choose a size, FLOPs or a sparsity"
        )


def _time_text(kind: str, dense: float, time: float) -> str:
    return f"speedup={dense / time:.2f}" if kind == "speedup" else f"latency={1e3 * time:.3g}ms"


def _next_share(known: Mapping[float, float], wished: float, least: float) -> float:
    """Return where a line meets the wished time: between the nearest on either side, or beyond the two fastest.

    >>> round(_next_share({1.0: 10.0, 0.5: 6.0}, 8.0, 0.1), 2), round(_next_share({1.0: 10.0, 0.5: 6.0}, 4.0, 0.1), 2)
    (0.75, 0.25)
    """
    above = min((share for share, time in known.items() if time > wished), default=1.0)
    below = max((share for share, time in known.items() if time <= wished and share < above), default=None)
    other = below if below is not None else min((each for each in known if each > above), default=above)
    slope = (known[above] - known[other]) / (above - other) if above != other else 0.0
    low, high = (least if below is None else below), above
    met = above - (known[above] - wished) / slope if slope > 0 else low
    if below is None:
        return min(max(met, low), low + 0.8 * (high - low))
    return min(max(met, low + 0.1 * (high - low)), high - 0.1 * (high - low))


@dataclass(frozen=True)
class TrialTimer:
    """Times a model with its smallest weights removed, beside the original."""

    pruned: PrunedModel
    layers: Sequence[PrunableLayer]
    sample: dict[str, Array]
    threads: int
    listener: Listener

    def written(self, file: PrunedFile) -> Measure:
        """Return a function that returns the bytes of the file of a choice."""
        fitted = file.config.chosen_method == "obs"
        return lambda choice: float(file.size(self._biased(self._removed(choice)) if fitted else self._removed(choice)))

    def _biased(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Fill the biases that fitting will change, in place: those of zeros take fewer bytes."""
        names = {each.bias.name for each in self.layers if each.bias is not None}
        for tensor in model.graph.initializer:
            if tensor.name in names:
                tensor.CopyFrom(numpy_helper.from_array(np.ones_like(numpy_helper.to_array(tensor)), tensor.name))
        return model

    def dense(self) -> float:
        """Return the time of the original in ONNX Runtime."""
        return self._timed({"dense": ("onnxruntime", self.pruned.source)})["dense"]

    def relative(self, dense: float) -> Measure:
        """Return a function that times a choice, in turns with the original: other work on the machine slows both."""

        def timed(choice: Choice) -> float:
            self.listener("timing", 0, 1)
            model = self._removed(choice)
            found = self._timed({"dense": ("onnxruntime", self.pruned.source), "sparse": ("sparse", model)})
            return dense * found["sparse"] / found["dense"]

        return timed

    def _removed(self, choice: Choice) -> onnx.ModelProto:
        counts = {each.name: each.count_at(choice.densities.get(each.name, 1.0)) for each in self.layers}
        trial = PrunedModel(self.pruned.source)
        prune_by_magnitude(trial, self.layers, counts)
        return trial.model()

    def _timed(self, models: Mapping[str, tuple[str, onnx.ModelProto]]) -> dict[str, float]:
        with TemporaryDirectory() as folder:
            openers = {}
            for name, (runtime, model) in models.items():
                path = Path(folder) / f"{name}.onnx"
                path.write_bytes(model.SerializeToString())
                openers[name] = self._opener(runtime, Source(name, path))
            found = measure(openers, TRIAL)
        if found.failures:
            raise InputError(f"the model could not be timed: {next(iter(found.failures.values()))}")
        return {name: percentile(samples, QUIET) for name, samples in found.samples.items()}

    def _opener(self, runtime: str, source: Source) -> Callable[[], Any]:
        backend, setup = usable_backend(runtime), Setup(self.sample, self.threads)
        return lambda: backend.open(source, setup).run


def budgeted(
    budget: Budget, timer: TrialTimer, errors: Callable[[], Mapping[str, LayerErrors]], file: PrunedFile
) -> Found:
    """Return the densities of layers that meet a budget with the least error; errors are measured if one can be met."""
    model, layers = timer.pruned.source, [each for each in timer.layers if not each.depthwise]
    if budget.kind in TIMES:
        costs = time_costs(model, layers, timer.sample)
        dense = timer.dense()
        _check_gain(costs, budget, dense)
        found = within_time(candidates_of(layers, errors(), costs), budget, dense, timer.relative(dense))
        return replace(found, speedup=dense / found.cost)
    if budget.kind == "flops":
        costs, rest = flop_costs(model, layers, timer.sample)
        return within(candidates_of(layers, errors(), costs), budget, rest)
    costs = byte_costs(layers)
    rest = model.ByteSize() - sum(costs[each.name](1.0) for each in layers)
    return within(candidates_of(layers, errors(), costs), budget, rest, timer.written(file))
