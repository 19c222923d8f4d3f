"""The stage `bench`: models → what they cost, how long they take, and where, side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.provenance import command_line, environment
from rigl_compress.exporters.input_pixel_counts import pixel_counts
from rigl_compress.exporters.input_selection import PRUNED_SHAPES
from rigl_compress.exporters.onnx_costs import graph_costs, stored_arrays, stored_costs
from rigl_compress.exporters.onnx_file import load_model
from rigl_compress.exporters.ort_sessions import SessionError
from rigl_compress.exporters.random_inputs import model_inputs
from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.sparsify import metadata_of
from rigl_compress.pipeline.bench.backends import Backend, Setup, usable_backend
from rigl_compress.pipeline.bench.bench_report import BenchedModel, Candidate, CompressionReport, Failure, Timing
from rigl_compress.pipeline.bench.bench_sources import Source
from rigl_compress.pipeline.bench.footprint import footprints
from rigl_compress.pipeline.bench.layer_times import layer_times
from rigl_compress.pipeline.bench.model_inputs import InputSpec, draw_inputs, one_sample
from rigl_compress.pipeline.bench.operator_profile import profile
from rigl_compress.pipeline.bench.pruned_shapes import with_pruned_shapes
from rigl_compress.pipeline.bench.timing import TimingPlan, measure
from rigl_compress.runtime.rewrite import sparse_outputs

Array = NDArray[Any]
Row = TypeVar("Row")
Listener = Callable[[str, int, int], None]


@dataclass(frozen=True)
class BenchConfig:
    """What to measure, and how. Without `batches`, the inputs decide; a batch of 1 by default."""

    backends: tuple[str, ...] = ("onnxruntime",)
    batches: tuple[int, ...] = ()
    threads: tuple[int, ...] = (1,)
    input_spec: InputSpec = field(default_factory=InputSpec)
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
    """Benchmark models side by side. A candidate that fails is listed in the report; the others are timed."""
    backends = [usable_backend(name) for name in config.backends]
    baseline = _baseline(sources, config.baseline)
    prepared = [Prepared(source, _loaded(source.path)) for source in sources]
    for each in prepared:  # bad inputs are an error before anything is timed
        for batch in config.batches or (None,):
            inputs_for(each, batch, config.input_spec)
    models = [benched_model(each, config.input_spec) for each in prepared]
    timings, failures = _timed(prepared, backends, config, listener)
    if not timings:
        reasons = "; ".join(dict.fromkeys(f"{each.candidate.label}: {each.reason}" for each in failures))
        raise InputError(f"nothing could be timed ({reasons}): check the models and pass inputs that fit with --inputs")
    if config.footprint:
        listener("opening in fresh processes", 0, 1)
        models = _with_footprints(models, prepared, config)
    return CompressionReport(
        baseline=baseline,
        models=tuple(models),
        timings=tuple(timings),
        failures=tuple(failures),
        profiles=_profiles(prepared, config, profile) if config.profile else {},
        layers=_profiles(prepared, config, layer_times) if config.profile and "sparse" in config.backends else {},
        command=command_line(),
        environment=environment(),
    )


def _loaded(path: Path) -> onnx.ModelProto:
    model = load_model(path)
    if sparse_outputs(model):
        raise InputError(
            f"{path} was written with --target sparse-runtime, and its zeros cannot be counted: "
            "bench its source with --backend sparse, which runs the same operators"
        )
    return model


def _baseline(sources: Sequence[Source], wanted: str) -> str:
    labels = [source.label for source in sources]
    if not wanted:
        first, *others = (source for source in sources if not source.added)
        return first.label if others else first.trained or first.label  # for a single run: as trained
    matching = [source.label for source in sources if wanted in (source.label, str(source.path), source.given)]
    if not matching:
        raise InputError(f"no model {wanted!r} for the baseline: {did_you_mean(wanted, labels)}")
    return matching[0]


def inputs_for(each: Prepared, batch: int | None, input_spec: InputSpec) -> dict[str, Array]:
    """Draw the inputs of a model; an error names the model."""
    try:
        return draw_inputs(each.model, batch, input_spec)
    except InputError as error:
        raise InputError(f"{each.source.label}: {error}") from None


def benched_model(each: Prepared, input_spec: InputSpec) -> BenchedModel:
    """Return the costs of a model per sample, and its metadata."""
    plain = restore(each.model)
    arrays = dict(stored_arrays(plain))
    try:
        costs = graph_costs(plain, _one_sample(each, input_spec))
    except SessionError:  # it does not run: timing reports the reason
        costs = stored_costs(list(arrays.values()))
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


def _one_sample(each: Prepared, input_spec: InputSpec) -> dict[str, Array]:
    return one_sample(each.model, inputs_for(each, None, input_spec))


def _timed(
    prepared: Sequence[Prepared], backends: Sequence[Backend], config: BenchConfig, listener: Listener
) -> tuple[list[Timing], list[Failure]]:
    timings, failures = [], []
    cells = [(batch, threads) for batch in config.batches or (None,) for threads in config.threads]
    for batch, threads in cells:
        openers = {}
        for each in prepared:
            inputs = inputs_for(each, batch, config.input_spec)
            setup = Setup(inputs, threads, config.providers)
            for backend in backends:
                candidate = Candidate(each.source.label, backend.name, batch or _batch_of(each, inputs), threads)
                openers[candidate] = partial(_opened, backend, each.source, setup)
        title = f"batch {next(iter(openers)).batch}, {threads} thread{'s' if threads > 1 else ''}"
        measured = measure(openers, config.plan, partial(listener, title))
        timings += [Timing(key, tuple(map(tuple, measured.samples[key]))) for key in openers if key in measured.samples]
        failures += [Failure(key, measured.failures[key]) for key in openers if key in measured.failures]
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
            arrays: dict[str, Any] = inputs_for(each, None, config.input_spec)
            np.savez(files[each.source.label], **arrays)
        found = footprints({each.source.label: each.source.path for each in prepared}, files, config.threads[0])
    return [replace(model, footprint=found.get(model.label)) for model in models]


def _profiles(
    prepared: Sequence[Prepared], config: BenchConfig, look: Callable[..., tuple[Row, ...]]
) -> dict[str, tuple[Row, ...]]:
    found = {}
    for each in prepared:
        inputs = inputs_for(each, config.batches[0] if config.batches else None, config.input_spec)
        try:
            found[each.source.label] = look(each.source.path, inputs, config.threads[0])
        except SessionError:
            continue  # it does not run: it is among the failures
    return found
