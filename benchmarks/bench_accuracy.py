"""How far the benchmark can be believed: against a loop written by hand, and on models that are the same.

    python benchmarks/bench_accuracy.py [--repetitions 100] [--markdown docs/results/bench.md]

Two questions. Do the timings agree with what anyone would measure with `session.run` and a clock, in the same minute?
And how often are two copies of one file called different, which they never are? Networks are those of the paper's
MNIST comparison and a small residual network, 90 % sparse, with random weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import onnxruntime as ort
import torch

from rigl_compress.core.artifacts import write_text
from rigl_compress.core.provenance import environment
from rigl_compress.exporters.onnx_export import export_onnx
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.pipeline.bench.backends import Setup, usable_backend
from rigl_compress.pipeline.bench.bench_report import CompressionReport
from rigl_compress.pipeline.bench.bench_sources import Source, opened_sources
from rigl_compress.pipeline.bench.stage import BenchConfig, bench
from rigl_compress.pipeline.bench.timing import TimingPlan, measure
from rigl_compress.pipeline.bench.timing_statistics import differs, percentile, ratio_estimate
from rigl_compress.pipeline.markdown import markdown

NETWORKS = ("lenet-300-100", "lenet-5", "resnet-20")
FURTHEST, MOST_ALARMS = 0.05, 0.05
SAME = TimingPlan(openings=5, rounds=20, seconds=2.0)


@dataclass(frozen=True)
class Agreement:
    """Medians in seconds: of `bench`, of a loop by hand with bound inputs, and of one with plain `run`.

    `ratio` and `interval` are of `bench` to the bound loop, over the same rounds.
    """

    network: str
    ours: float
    bound: float
    plain: float
    ratio: float
    interval: tuple[float, float]

    @property
    def agrees(self) -> bool:
        """Whether the two differ by no more than the tolerance."""
        return abs(self.ratio - 1) <= FURTHEST


def exported(network: str, folder: Path) -> Path:
    torch.manual_seed(0)
    spec = ModelSpec(network)
    model = spec.build()
    with torch.no_grad():
        for parameter in sparse_parameters(model).values():
            parameter.mul_(torch.rand_like(parameter) < 0.1)
    return export_onnx(model, spec.example(), folder / f"{network}.onnx").path


def plain_by_hand(path: Path) -> Callable[[], object]:
    """What anyone would write first: a session with one thread, inputs as arrays, `run`."""
    session, inputs = _session(path), _inputs(path)
    return lambda: session.run(None, inputs)


def bound_by_hand(path: Path) -> Callable[[], object]:
    """What one writes to time the model alone: inputs and outputs are bound before."""
    session = _session(path)
    binding = session.io_binding()
    for name, array in _inputs(path).items():
        binding.bind_cpu_input(name, array)
    for each in session.get_outputs():
        binding.bind_output(each.name)
    return lambda: session.run_with_iobinding(binding)


def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _inputs(path: Path) -> dict[str, Any]:
    (described,) = _session(path).get_inputs()
    shape = [axis if isinstance(axis, int) else 1 for axis in described.shape]
    return {described.name: np.random.default_rng(0).random(shape, dtype=np.float32)}


def agreement(network: str, path: Path) -> Agreement:
    """Time all three in turns."""
    backend, setup = usable_backend("onnxruntime"), Setup(_inputs(path))
    candidates = {
        "ours": lambda: backend.open(Source(network, path), setup).run,
        "bound": lambda: bound_by_hand(path),
        "plain": lambda: plain_by_hand(path),
    }
    course = measure(candidates, TimingPlan(openings=9, rounds=40, seconds=20))
    ratio = ratio_estimate(course.samples["ours"], course.samples["bound"])
    middle = {key: percentile(samples, 0.5) for key, samples in course.samples.items()}
    return Agreement(network, **middle, ratio=ratio.value, interval=(ratio.low, ratio.high))


def alarms(path: Path, repetitions: int) -> list[CompressionReport]:
    """Bench a file against its copy, again and again."""
    with TemporaryDirectory() as folder:
        twin = Path(folder) / "twin.onnx"
        copyfile(path, twin)
        found = []
        for number in range(repetitions):
            plan = TimingPlan(SAME.openings, SAME.rounds, SAME.warmup, SAME.seconds, SAME.sample, seed=number)
            with opened_sources([path, twin]) as sources:
                found.append(bench(sources, BenchConfig(plan=plan, footprint=False)))
    return found


def is_alarm(report: CompressionReport) -> bool:
    ratio = report.ratio(report.timings[1])
    return ratio is not None and differs(ratio)


def page(agreements: list[Agreement], false: dict[str, int], repetitions: int, command: str) -> str:
    facts = environment()
    rows = [
        (
            each.network,
            f"{each.ours * 1e6:.1f} µs",
            f"{each.bound * 1e6:.1f} µs",
            f"{each.plain * 1e6:.1f} µs",
            f"{each.ratio:.3f} ({each.interval[0]:.3f} to {each.interval[1]:.3f})",
            "yes" if each.agrees else "**no**",
        )
        for each in agreements
    ]
    columns = ("network", "bench", "by hand, bound", "by hand, `run`", "bench / bound", f"within {FURTHEST:.0%}")
    counts = [(name, f"{count} of {repetitions}") for name, count in false.items()]
    return "\n\n".join(
        [
            "# Accuracy of `rigl-compress bench`",
            f"Made by `{command}` on {facts['date'][:10]}: {facts['cpu']}, {facts['cores']} cores, load "
            f"{', '.join(map(str, facts['load']))}, onnxruntime {facts['versions']['onnxruntime']}.",
            "**Against loops written by hand**, one thread, batch 1, all in turns in the same rounds; medians:",
            markdown(columns, rows),
            "`bench` binds inputs and outputs once, as the first loop does; `run` hands them over in each call.",
            "**False alarms**: how often a file and its copy were called different. "
            f"Each time {SAME.openings} openings of up to {SAME.rounds} rounds.",
            markdown(("network", "called different"), counts),
        ]
    )


@click.command()
@click.option("--repetitions", default=100, show_default=True)
@click.option("--markdown", "target", type=click.Path(path_type=Path), help="Also write the page into this file.")
def main(repetitions: int, target: Path | None) -> None:
    with TemporaryDirectory() as folder:
        paths = {network: exported(network, Path(folder)) for network in NETWORKS}
        agreements = [agreement(network, path) for network, path in paths.items()]
        for each in agreements:
            click.echo(each)
        false = {name: sum(map(is_alarm, alarms(paths[name], repetitions))) for name in ("lenet-300-100", "resnet-20")}
    text = page(agreements, false, repetitions, f"python benchmarks/bench_accuracy.py --repetitions {repetitions}")
    click.echo(text)
    if target:
        write_text(target, text + "\n")
    if any(not each.agrees for each in agreements) or any(n > MOST_ALARMS * repetitions for n in false.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
