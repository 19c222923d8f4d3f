"""The time of a file and of what was made of it, in ONNX Runtime and in our session."""

from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.onnx_file import load_model
from rigl_compress.onnx_pruning.sparsify_config import SparsifyConfig
from rigl_compress.onnx_pruning.sparsify_report import Latency
from rigl_compress.pipeline.bench.backends import Setup, usable_backend
from rigl_compress.pipeline.bench.bench_sources import Source
from rigl_compress.pipeline.bench.model_inputs import one_sample
from rigl_compress.pipeline.bench.timing import measure
from rigl_compress.pipeline.bench.timing_statistics import percentile
from rigl_compress.runtime.sparse_runtime_export import TARGET

Array = NDArray[Any]


def measured_latencies(
    source: Path, path: Path, inputs: dict[str, Array], config: SparsifyConfig
) -> tuple[tuple[Latency, ...], tuple[str, ...]]:
    """Time both files on one sample, in turns; return the medians, and what could not be timed."""
    if config.timing is None:
        return (), ()
    sample = one_sample(load_model(source), inputs)
    wanted = [("original", "onnxruntime", source), ("pruned", "onnxruntime", path), ("pruned", "sparse", path)]
    openers, notes = {}, []
    for file, runtime, where in wanted:
        if config.target == TARGET and (file, runtime) == ("pruned", "onnxruntime"):
            continue  # it does not know the operators
        try:
            backend = usable_backend(runtime)
        except InputError as error:
            notes.append(str(error))
            continue
        openers[file, runtime] = partial(_opened, backend, Source(file, where), Setup(sample, config.threads))
    found = measure(openers, config.timing)
    notes += [f"{file} in {runtime} was not timed: {reason}" for (file, runtime), reason in found.failures.items()]
    return tuple(Latency(*key, percentile(found.samples[key], 0.5)) for key in openers if key in found.samples), tuple(
        notes
    )


def _opened(backend: Any, source: Source, setup: Setup) -> Any:
    return backend.open(source, setup).run
