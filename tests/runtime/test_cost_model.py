"""The cost model: more zeros gain more, what cannot win is left alone, and instruction sets and threads count."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.runtime import cost_model
from rigl_compress.runtime.cost_model import Work, expected_speedup, predicted_time
from rigl_compress.runtime.cost_tables import COSTS, LANES, Split, coefficients, package_costs, thread_costs
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.kernels import INSTRUCTION_SETS, kernel_sets

LAYERS = {
    "spatial": {"rows": 256, "columns": 2304, "taps": 9, "pixels": 196},
    "pointwise": {"rows": 256, "columns": 1024, "pixels": 196},
    "batched": {"rows": 1024, "columns": 1024, "pixels": 64, "images": 0},
    "vector": {"rows": 1024, "columns": 1024, "images": 0},
}


def work(family: str, density: float) -> Work:
    sizes = LAYERS[family]
    weights = sizes["rows"] * sizes["columns"]
    return Work(weights=weights, nonzeros=round(density * weights), **sizes)


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The costs of the package for each instruction set, whatever this machine has."""
    name: str = request.param
    monkeypatch.setattr(cost_model, "instruction_set", lambda: name)
    monkeypatch.setattr(cost_model, "coefficients", lambda: package_costs(name)["families"])
    monkeypatch.setattr(cost_model, "thread_costs", lambda: thread_costs(name))
    return name


@pytest.mark.parametrize("family", LAYERS)
def test_families(family: str, instruction_set: str) -> None:
    assert work(family, 0.1).family == family
    assert expected_speedup(work(family, 0.05)) > 2
    assert expected_speedup(work(family, 1.0)) < 1
    assert set(coefficients()) == set(LAYERS)


@given(family=st.sampled_from(list(LAYERS)), densities=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_more_zeros_never_cost_more(family: str, densities: tuple[float, float]) -> None:
    assert expected_speedup(work(family, min(densities))) >= expected_speedup(work(family, max(densities)))


def test_costs_say_where_they_come_from() -> None:
    written = json.loads(COSTS.read_text(encoding="utf-8"))
    assert written["made_by"] == "python benchmarks/calibrate_costs.py"
    assert set(written["instruction_sets"]) == set(INSTRUCTION_SETS) == set(LANES)
    for costs in written["instruction_sets"].values():
        assert set(costs["machine"]) == {"date", "cpu"}
        found = [cost for sides in costs["families"].values() for side in sides.values() for cost in side.values()]
        assert min(found) >= 0 < max(found)


def test_wider_vectors_gain_less_over_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense operators are four times as fast with AVX-512 as with SSE, sparse ones are not."""
    gains = []
    for name in INSTRUCTION_SETS:
        monkeypatch.setattr(cost_model, "instruction_set", lambda name=name: name)
        monkeypatch.setattr(cost_model, "coefficients", lambda name=name: package_costs(name)["families"])
        gains.append(expected_speedup(work("spatial", 0.1)))
    assert gains == sorted(gains, reverse=True)


@pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
def test_the_kernels_in_use_choose_the_costs() -> None:
    code = "from rigl_compress.runtime.cost_tables import *; print(instruction_set(), coefficients()['vector'])"
    for name in kernel_sets():
        environment = {**os.environ, "RIGL_COMPRESS_KERNELS": name, "RIGL_COMPRESS_CONFIG": os.devnull}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == f"{name} {package_costs(name)['families']['vector']}"


@given(
    threads=st.integers(1, 64),
    products=st.floats(0, 1e9),
    split=st.builds(Split, st.floats(1, 1e6), st.floats(0.1, 1), st.floats(0, 1e5)),
)
def test_threads_share_the_work_but_not_the_call(threads: int, products: float, split: Split) -> None:
    costs, amounts = {"products": 1.0, "call": 100.0}, {"products": products, "call": 1.0}
    found = predicted_time(costs, amounts, threads, split)
    assert 100 + products / threads <= found * (1 + 1e-9)
    assert found <= (100 + products + split.start) * (1 + 1e-9)
    if products < 2 * split.work:
        assert found == pytest.approx(100 + products)


@pytest.mark.parametrize("family", LAYERS)
def test_threads(family: str, instruction_set: str) -> None:
    sizes = {**LAYERS[family], "rows": 4096}
    weights = sizes["rows"] * sizes["columns"]
    large = Work(weights=weights, nonzeros=weights // 10, **sizes)
    small = Work(**{**sizes, "rows": 32, "columns": 36}, weights=32 * 36, nonzeros=32)
    assert 0.6 < expected_speedup(large, 2) / expected_speedup(large, 1) < 1.4
    assert expected_speedup(small, 2) <= expected_speedup(small, 1)


def test_a_layer_of_few_microseconds_gains_less_with_two_threads(instruction_set: str) -> None:
    """The dense operator is split, the sparse one is too quick for it."""
    layer = Work(128, 128, 128 * 128, 128 * 128 // 20, pixels=784)
    assert expected_speedup(layer, 2) < expected_speedup(layer, 1)
