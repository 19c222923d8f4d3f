"""The cost model: more zeros gain more, and what cannot win is left alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.runtime.cost_model import COSTS, Work, coefficients, expected_speedup

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


@pytest.mark.parametrize("family", LAYERS)
def test_families(family: str) -> None:
    assert work(family, 0.1).family == family
    assert expected_speedup(work(family, 0.05)) > 3
    assert expected_speedup(work(family, 1.0)) < 1
    assert set(coefficients()) == set(LAYERS)


@given(family=st.sampled_from(list(LAYERS)), densities=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_more_zeros_never_cost_more(family: str, densities: tuple[float, float]) -> None:
    assert expected_speedup(work(family, min(densities))) >= expected_speedup(work(family, max(densities)))


def test_prices_say_where_they_come_from() -> None:
    written = json.loads(COSTS.read_text(encoding="utf-8"))
    assert written["made_by"] == "python benchmarks/calibrate_costs.py"
    prices = [price for sides in written["families"].values() for side in sides.values() for price in side.values()]
    assert min(prices) >= 0 < max(prices)
