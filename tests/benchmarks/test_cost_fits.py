"""The fits behind runtime/costs.json find the costs that times were made from."""

import importlib
from pathlib import Path
from types import ModuleType

import click
import pytest

from rigl_compress.runtime.cost_model import Work, predicted_time
from rigl_compress.runtime.cost_tables import LANES, Split, package_costs

COSTS = package_costs("avx2")


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("cost_fits")


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("limit_instructions")


def works(family: str) -> list[Work]:
    sizes: dict[str, dict[str, int]] = {
        "pointwise": {"pixels": 196},
        "spatial": {"pixels": 196, "taps": 9},
        "batched": {"pixels": 32, "images": 0},
        "vector": {"images": 0},
    }
    shapes = ((64, 576), (256, 1152), (1024, 2304))
    return [
        Work(rows, columns, rows * columns, round(density * rows * columns), **sizes[family])
        for rows, columns in shapes
        for density in (0.05, 0.1, 0.4)
    ]


def measured(family: str, kernel: dict[str, float], fits: ModuleType) -> list[dict[str, object]]:
    """Times of a kernel that takes exactly its costs, and two microseconds for a call."""
    rows = []
    for work in works(family):
        amounts = fits.kernel_work(work, kernel)
        seconds = 1e-9 * (2000 + sum(kernel[name] * amounts[name] for name in kernel))
        rows.append({"work": work.__dict__, "dense": 1e-5, "sparse": seconds})
    return rows


def test_costs_of_kernels(fits: ModuleType) -> None:
    conv = {"products": 0.05, "columns": 0.07, "rows": 0.2}
    batched = {"products": 0.02, "columns": 0.3, "rows": 0.32}
    vector = {"products": 0.4}
    found = fits.kernel_costs(
        {
            **{family: measured(family, conv, fits) for family in ("pointwise", "spatial")},
            **{"batched": measured("batched", batched, fits), "vector": measured("vector", vector, fits)},
            "layer_norm": [{"elements": n, "call": 1.0, "seconds": 1e-9 * (0.3 * n + 500)} for n in (1e3, 1e4, 1e5)],
        },
        "avx2",
    )
    for kernel, costs in (("conv", conv), ("batched", batched), ("vector", vector), ("layer_norm", {"elements": 0.3})):
        assert found[kernel] == pytest.approx(costs, rel=0.02)
    assert found["vector_windows"] == found["vector"]
    assert found["plan"]["row"] == pytest.approx(8.0, abs=0.5)
    assert "depthwise" not in found


def test_vectors_looked_up_have_their_own_cost(fits: ModuleType) -> None:
    rows = measured("vector", {"products": 0.1}, fits)
    large = Work(4096, 1024, 4096 * 1024, 2**21, images=0)
    larger = Work(4096, 1024, 4096 * 1024, 2**22, images=0)
    rows += [{"work": each.__dict__, "sparse": 1e-9 * (2000 + 0.3 * each.nonzeros)} for each in (large, larger)]
    found = fits.kernel_costs({"vector": rows}, "avx512")
    assert found["vector_windows"]["products"] == pytest.approx(0.1, rel=0.02)
    assert found["vector"]["products"] == pytest.approx(0.3, rel=0.02)


def test_work_per_thread(fits: ModuleType) -> None:
    """Two networks of different speed prefer 10 µs by a tenth; a third is as fast with any."""
    times = {5_000.0: 1.1, 10_000.0: 1.0, 20_000.0: 1.1}
    rows = [
        {"network": name, "work_per_thread": work, "seconds": scale * seconds}
        for name, scale in (("a", 1.0), ("b", 50.0))
        for work, seconds in times.items()
    ]
    level = [{"network": "c", "work_per_thread": work, "seconds": 1.0} for work in times]
    assert fits.best_work([*rows, *level]) == 10_000.0
    assert fits.best_work(level) == 20_000.0


def test_splits(fits: ModuleType) -> None:
    true = Split(work=20_000.0, share=0.8, start=5_000.0)
    costs = COSTS["families"]["spatial"]["dense"]
    gains = []
    for work in works("spatial"):
        one, two = (predicted_time(costs, work.dense(), threads, true) for threads in (1, 2))
        gains.append((costs, work.dense(), one / two))
    found = fits.best_split(gains, (20_000.0,))
    assert fits.gain_error(gains, found) == pytest.approx(0, abs=1e-9)


def test_threads_of_dense_and_sparse_operators(fits: ModuleType) -> None:
    splits = {"dense": Split(10_000.0, 0.9, 4_000.0), "sparse": Split(1.0, 0.7, 9_000.0)}
    chains = []
    for family in COSTS["families"]:
        for work in works(family):
            amounts = {"dense": work.dense(), "sparse": work.sparse(LANES["avx2"])}
            row: dict[str, float] = {}
            for side, threads in ((side, threads) for side in amounts for threads in (1, 2)):
                costs = COSTS["families"][family][side]
                row[f"{side}_{threads}"] = predicted_time(costs, amounts[side], threads, splits[side])
            chains.append(fits.Chain(work, LANES["avx2"], COSTS, row))
    found = fits.thread_costs(chains, 5_000.0, 2_000.0)
    assert found["sparse"] == {"share": 0.7, "start": 9_000.0}
    assert (found["dense"]["share"], found["dense"]["start"]) == (0.9, 4_000.0)


def test_older_instructions(limits: ModuleType) -> None:
    code = b"\x90" + limits.QUESTION + b"\xc3"
    assert limits.answered(code, 7) == b"\x90\x31\xc9\xb8\x07\0\0\0\xc3"
    with pytest.raises(click.ClickException, match="in another way"):
        limits.answered(b"\x90", 7)
