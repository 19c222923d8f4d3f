"""How `sparse_inference.py` times sessions: dense, ours and int8 in turn, and how far the two cores are apart."""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Process, RawArray
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from rigl_compress.exporters.ort_sessions import open_session, session_options
from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime.session import InferenceSession

Feeds = dict[str, Any]
# Seconds that each network runs before it is the other's turn: in use a network also finds its weights in the caches.
BURST = 0.05
# The threads of a session look for work for a while after it has run, and would take a core from the other.
REST = 0.15
PINGS, PINGING = 63, 0.25  # messages of a batch, seconds of all batches


def seconds(session: Any, inputs: Feeds, times: int, clock: Callable[[], float]) -> float:
    """Return the time of a run, as the mean of some."""
    start = clock()
    for _ in range(times):
        session.run(None, inputs)
    return (clock() - start) / times


@dataclass
class Result:
    """What one network gave at one sparsity with so many threads; each pass adds its rounds."""

    times: list[tuple[float, ...]]  # of a round: dense, ours, and int8 if there is one
    difference: float
    layers: int
    best: bool = False  # compare the best tenth of the rounds instead of each round
    pings: list[float] = field(default_factory=list)  # nanoseconds

    def ratios(self, which: int) -> tuple[float, float, float]:
        """Return the lower quartile, the median and the upper quartile of how much faster a session is than dense."""
        rounds = np.array(self.times)
        if self.best:
            best = np.quantile(rounds, 0.1, axis=0)
            return (float(best[0] / best[which]),) * 3
        low, ratio, high = np.quantile(rounds[:, 0] / rounds[:, which], [0.25, 0.5, 0.75])
        return float(low), float(ratio), float(high)

    def slowdown(self) -> tuple[float, float]:
        """Return an interval of 95 % for the median time of ours over dense, by drawing the rounds again."""
        rounds = np.array(self.times)
        paired = rounds[:, 1] / rounds[:, 0]
        drawn = np.random.default_rng(0).choice(paired, (2000, len(paired)))
        low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
        return float(low), float(high)

    def figures(self) -> dict[str, float]:
        """Return the medians and quartiles over all rounds."""
        low, ratio, high = self.ratios(1)
        rounds = np.array(self.times)
        found = {"ratio": ratio, "low": low, "high": high, "dense_ms": float(np.median(rounds[:, 0]) * 1e3)}
        found |= {"sparse_ms": float(np.median(rounds[:, 1]) * 1e3)}
        found |= dict(zip(("slowdown_low", "slowdown_high"), self.slowdown(), strict=True))
        found |= {"int8_ratio": self.ratios(2)[1]} if rounds.shape[1] > 2 else {}
        return found | ({"ping_ns": float(np.median(self.pings))} if self.pings else {})

    def row(self) -> str:
        """Return the cells of the table."""
        found = self.figures()
        spread = "" if self.best else f" [{found['low']:.2f}, {found['high']:.2f}]"
        int8 = f"{found['int8_ratio']:.2f}" if "int8_ratio" in found else "–"
        ping = f"{found['ping_ns']:.0f}" if "ping_ns" in found else ""
        interval = f"{found['slowdown_low']:.2f}–{found['slowdown_high']:.2f}"
        cells = (f"**{found['ratio']:.2f}**{spread}", int8, interval, f"{found['dense_ms']:.3g}", str(self.layers))
        return " | ".join((*cells, ping, f"{self.difference:.0e}"))


def compare(model: bytes, inputs: Feeds, threads: int, rounds: int, int8: bytes | None = None) -> Result:
    """Time a model dense, in our session, and in int8, in turn."""
    ours = InferenceSession(model, session_options(threads), cache=False)
    sessions = [open_session(model, session_options(threads)), ours]
    difference = largest_difference(ours.run(None, inputs), sessions[0].run(None, inputs))
    sessions += [open_session(int8, session_options(threads))] if int8 else []
    clock = time.thread_time if threads == 1 else time.perf_counter

    def turn(session: Any, count: int) -> float:
        if threads > 1:
            time.sleep(REST)
            seconds(session, inputs, 1, clock)
        return seconds(session, inputs, count, clock)

    counts = []
    for session in sessions:
        seconds(session, inputs, 2, clock)
        counts.append(max(1, int(BURST / max(seconds(session, inputs, 2, clock), 1e-6))))
    times, pings = [], []
    for _ in range(rounds):
        pings += [ping_pong()] if threads > 1 else []
        times.append(tuple(turn(session, count) for session, count in zip(sessions, counts, strict=True)))
    return Result(times, difference, len(ours.sparse_layers), best=threads > 1, pings=pings)


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    """A few batches by which activations are quantized."""

    def __init__(self, batches: list[Feeds]) -> None:
        self.left = iter(batches)

    def get_next(self) -> Feeds | None:
        return next(self.left, None)


def quantized(model: bytes, inputs: Feeds, static: bool) -> bytes | None:
    """Return a model in int8, as onnxruntime.quantization makes it; None if it cannot.

    Activations are quantized by two batches in advance (`static`), or in each run.
    """
    with TemporaryDirectory() as folder:
        source, prepared, target = (Path(folder) / f"{name}.onnx" for name in ("plain", "prepared", "int8"))
        source.write_bytes(model)
        try:
            quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
            if static:
                form = {"quant_format": QuantFormat.QDQ, "per_channel": True}
                kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
                quantize_static(str(prepared), str(target), _Samples([inputs] * 2), **form, **kinds)
            else:
                quantize_dynamic(str(prepared), str(target), weight_type=QuantType.QInt8)
            content = target.read_bytes()
            open_session(content, session_options(1)).run(None, inputs)
        except Exception as error:
            click.echo(f"no int8: {' '.join(str(error).split())[:100]}", err=True)
            return None
    return content


def _answer(turn: Any) -> None:
    """Answer every odd number with the next one, until a negative number comes."""
    seen = turn[0]
    while seen >= 0:
        if seen % 2:
            turn[0] = seen + 1
        seen = turn[0]


def ping_pong() -> float:
    """Return nanoseconds for a message to another process and back, by the best of some batches.

    Much of the time is the interpreter's: the figure tells one placement of the two cores from another.
    """
    turn = RawArray(ctypes.c_long, 1)
    other = Process(target=_answer, args=(turn,), daemon=True)
    other.start()
    number, best, end = 1, float("inf"), time.perf_counter() + PINGING
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(PINGS):
            turn[0] = number
            while turn[0] == number:
                pass
            number += 2
        best = min(best, (time.perf_counter() - start) / PINGS)
    turn[0] = -1
    other.join(1)
    other.kill()
    return best * 1e9


@click.command()
def main() -> None:
    """Print how long a message between the two cores takes."""
    click.echo(f"{ping_pong():.0f} ns")


if __name__ == "__main__":
    main()
