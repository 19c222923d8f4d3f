"""The stage `bench`: models → what they cost, how long they take, and where, side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.exporters.costs import graph_costs, holdings, stored_arrays
from rigl_compress.exporters.onnx_file import load_model
from rigl_compress.exporters.pixels import pixel_counts
from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.selection import PRUNED_SHAPES
from rigl_compress.exporters.sparsify import metadata_of
from rigl_compress.exporters.verify import VerificationError
from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.pipeline.bench.backends import Backend, Setup, usable_backend
from rigl_compress.pipeline.bench.footprint import footprints
from rigl_compress.pipeline.bench.inputs import Wishes, draw_inputs, model_inputs, one_sample
from rigl_compress.pipeline.bench.profile import ProfileRow, profile
from rigl_compress.pipeline.bench.pruned_shapes import with_pruned_shapes
from rigl_compress.pipeline.bench.report import BenchedModel, Candidate, CompressionReport, Failure, Timing
from rigl_compress.pipeline.bench.sources import Source
from rigl_compress.pipeline.bench.timing import TimingPlan, measure
from rigl_compress.pipeline.environment import command_line, environment
from rigl_compress.runtime.rewrite import sparse_outputs

Array = NDArray[Any]
Listener = Callable[[str, int, int], None]


@dataclass(frozen=True)
class BenchConfig:
    """What to measure, and how. Without batches the inputs decide, which is a batch of 1 if nobody says otherwise."""

    backends: tuple[str, ...] = ("onnxruntime",)
    batches: tuple[int, ...] = ()
    threads: tuple[int, ...] = (1,)
    wishes: Wishes = field(default_factory=Wishes)
    plan: TimingPlan = field(default_factory=TimingPlan)
    providers: tuple[str, ...] = ()
    baseline: str = ""
    profile: bool = False
    footprint: bool = True


@dataclass(frozen=True)
class Prepared:
    """A source with its model in memory."""

    source: Source
    model: onnx.ModelProto


def bench(sources: Sequence[Source], config: BenchConfig, listener: Listener = lambda *_: None) -> CompressionReport:
    """Benchmark models side by side. What a candidate cannot do is in the report, and the others lose nothing by it."""
    backends = [usable_backend(name) for name in config.backends]
    baseline = _baseline(sources, config.baseline)
    prepared = [Prepared(source, _loaded(source.path)) for source in sources]
    for each in prepared:  # what is wrong with inputs is said before anything takes its time
        for batch in config.batches or (None,):
            inputs_for(each, batch, config.wishes)
    models = [benched_model(each, config.wishes) for each in prepared]
    timings, failures = _timed(prepared, backends, config, listener)
    if not timings:
        reasons = "; ".join(dict.fromkeys(f"{each.candidate.label}: {each.reason}" for each in failures))
        raise InputError(f"nothing could be timed ({reasons}): check the models and give inputs that fit with --input")
    if config.footprint:
        listener("opening in fresh processes", 0, 1)
        models = _with_footprints(models, prepared, config)
    return CompressionReport(
        baseline=baseline,
        models=tuple(models),
        timings=tuple(timings),
        failures=tuple(failures),
        profiles=_profiles(prepared, config) if config.profile else {},
        command=command_line(),
        environment=environment(),
    )


def _loaded(path: Path) -> onnx.ModelProto:
    model = load_model(path)
    if sparse_outputs(model):
        raise InputError(
            f"{path} was written with --target sparse-runtime, and its zeros cannot be counted any more: "
            "bench what it was made from with --backend rigl, which runs the same operators"
        )
    return model


def _baseline(sources: Sequence[Source], wanted: str) -> str:
    labels = [source.label for source in sources]
    if not wanted:
        first, *others = (source for source in sources if not source.added)
        return first.label if others else first.trained or first.label  # of a run alone, what it gained by pruning
    matching = [source.label for source in sources if wanted in (source.label, str(source.path), source.given)]
    if not matching:
        raise InputError(f"no model {wanted!r} to be the baseline: {did_you_mean(wanted, labels)}")
    return matching[0]


def inputs_for(each: Prepared, batch: int | None, wishes: Wishes) -> dict[str, Array]:
    """Draw the inputs of a model; what does not fit is said with its name."""
    try:
        return draw_inputs(each.model, batch, wishes)
    except InputError as error:
        raise InputError(f"{each.source.label}: {error}") from None


def benched_model(each: Prepared, wishes: Wishes) -> BenchedModel:
    """Give what a model costs per sample and what it holds."""
    plain = restore(each.model)
    arrays = dict(stored_arrays(plain))
    try:
        costs = graph_costs(plain, _one_sample(each, wishes))
    except VerificationError:  # it does not run; timing it will say why
        costs = holdings(list(arrays.values()))
    pixels = pixel_counts(plain, arrays)
    facts = {key: value for key, value in metadata_of(each.model).items() if key != "tensors"}
    return BenchedModel(
        each.source.label,
        each.source.given,
        each.source.path.stat().st_size,
        with_pruned_shapes(costs, arrays, facts.get(PRUNED_SHAPES)),
        facts,
        pixels=() if pixels is None else tuple(tuple(int(count) for count in row) for row in pixels),
        trained=each.source.trained,
        added=each.source.added,
    )


def _one_sample(each: Prepared, wishes: Wishes) -> dict[str, Array]:
    return one_sample(each.model, inputs_for(each, None, wishes))


def _timed(
    prepared: Sequence[Prepared], backends: Sequence[Backend], config: BenchConfig, listener: Listener
) -> tuple[list[Timing], list[Failure]]:
    timings, failures = [], []
    cells = [(batch, threads) for batch in config.batches or (None,) for threads in config.threads]
    for batch, threads in cells:
        openers = {}
        for each in prepared:
            inputs = inputs_for(each, batch, config.wishes)
            setup = Setup(inputs, threads, config.providers)
            for backend in backends:
                candidate = Candidate(each.source.label, backend.name, batch or _batch_of(each, inputs), threads)
                openers[candidate] = partial(_opened, backend, each.source, setup)
        title = f"batch {next(iter(openers)).batch}, {threads} thread{'s' if threads > 1 else ''}"
        course = measure(openers, config.plan, partial(listener, title))
        timings += [Timing(key, tuple(map(tuple, course.samples[key]))) for key in openers if key in course.samples]
        failures += [Failure(key, course.failures[key]) for key in openers if key in course.failures]
    return timings, failures


def _opened(backend: Backend, source: Source, setup: Setup) -> Callable[[], object]:
    return backend.open(source, setup).run


def _batch_of(each: Prepared, inputs: Mapping[str, Array]) -> int:
    lengths = [inputs[axes.name].shape[0] for axes in model_inputs(each.model) if axes.batched]
    return lengths[0] if lengths else 1


def _with_footprints(
    models: Sequence[BenchedModel], prepared: Sequence[Prepared], config: BenchConfig
) -> list[BenchedModel]:
    with TemporaryDirectory() as folder:
        files = {}
        for number, each in enumerate(prepared):
            files[each.source.label] = Path(folder) / f"{number}.npz"
            arrays: dict[str, Any] = inputs_for(each, None, config.wishes)
            np.savez(files[each.source.label], **arrays)
        found = footprints({each.source.label: each.source.path for each in prepared}, files, config.threads[0])
    return [replace(model, footprint=found.get(model.label)) for model in models]


def _profiles(prepared: Sequence[Prepared], config: BenchConfig) -> dict[str, tuple[ProfileRow, ...]]:
    found = {}
    for each in prepared:
        inputs = inputs_for(each, config.batches[0] if config.batches else None, config.wishes)
        try:
            found[each.source.label] = profile(each.source.path, inputs, config.threads[0])
        except VerificationError:
            continue  # it does not run, which is among the failures
    return found
