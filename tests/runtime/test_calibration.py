"""Costs measured on this machine are stored, preferred, and ignored where they do not fit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import Cli

from rigl_compress.runtime import calibration, user_costs
from rigl_compress.runtime.calibration import Extent, calibrated, fit_family
from rigl_compress.runtime.cost_model import Work, expected_speedup
from rigl_compress.runtime.cost_tables import LANES, coefficients, instruction_set, package_costs
from rigl_compress.runtime.kernel_library import unavailable_reason

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
TINY = Extent((0.05, 0.4), 8, (1,), (8,))
PACKAGE = package_costs(instruction_set())["families"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(user_costs.FOLDER, str(tmp_path / "config"))
    coefficients.cache_clear()
    yield tmp_path / "config" / "costs.json"
    coefficients.cache_clear()


def slower_kernels(factor: float) -> dict[str, Any]:
    return {
        family: {**sides, "sparse": {name: factor * cost for name, cost in sides["sparse"].items()}}
        for family, sides in PACKAGE.items()
    }


def test_own_costs_are_preferred(config: Path) -> None:
    work = Work(512, 512, 512 * 512, 512 * 26, pixels=64, images=0)
    before = expected_speedup(work)
    user_costs.write_costs(slower_kernels(10), "2026-01-01")
    coefficients.cache_clear()
    assert expected_speedup(work) == pytest.approx(before / 10)


def other_machine(content: dict[str, Any]) -> None:
    content["machine"]["cpu"] = "another"


def less(content: dict[str, Any]) -> None:
    del content["families"]["vector"]["sparse"]["call"]


def negative(content: dict[str, Any]) -> None:
    content["families"]["vector"]["dense"]["call"] = -1


def text(content: dict[str, Any]) -> None:
    content["families"]["vector"] = "fast"


def future(content: dict[str, Any]) -> None:
    content["format"] = 99


@pytest.mark.parametrize("change", [other_machine, less, negative, text, future, None])
def test_costs_that_do_not_fit_are_ignored(config: Path, change: Any, caplog: pytest.LogCaptureFixture) -> None:
    user_costs.write_costs(slower_kernels(10), "2026-01-01")
    content = json.loads(config.read_text())
    if change is not None:
        change(content)
    config.write_text("{" if change is None else json.dumps(content))
    assert coefficients() == PACKAGE
    assert "is not used" in caplog.text


def test_measured_costs_have_the_form_of_the_package(config: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    families, summaries = calibrated(TINY, lambda *given: seen.append(given))
    assert user_costs._alike(families, PACKAGE)
    assert set(summaries) == set(PACKAGE)
    assert [done for _, done, _ in seen] == list(range(seen[0][2]))


def test_fitting_finds_the_costs_that_times_were_made_from() -> None:
    works = [
        Work(r, c, r * c, int(r * c * d), pixels=p, images=0)
        for r, c, p in ((64, 64, 8), (512, 256, 16))
        for d in (0.1, 0.5)
    ]
    costs = PACKAGE["batched"]
    amounts = {"dense": [work.dense() for work in works], "sparse": [work.sparse(LANES["avx2"]) for work in works]}
    seconds = {
        side: [1e-9 * sum(costs[side][name] * amount for name, amount in row.items()) for row in rows]
        for side, rows in amounts.items()
    }
    fitted, _ = fit_family(list(zip(works, seconds["dense"], seconds["sparse"], strict=True)))
    for work, dense in zip(works, seconds["dense"], strict=True):
        assert 1e-9 * sum(fitted["dense"][name] * amount for name, amount in work.dense().items()) == pytest.approx(
            dense, rel=0.01
        )


def test_the_command(config: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "QUICK", TINY)
    dry = json.loads(cli("calibrate", "--dry-run", "--json").out)
    assert dry["stored"] is None
    assert not config.exists()
    done = cli("calibrate")
    assert f"stored in {config}" in done.out.replace("\n", "")
    assert coefficients() == json.loads(config.read_text())["families"]
    assert json.loads(cli("calibrate", "--reset", "--json").out) == {"removed": str(config)}
    assert coefficients() == PACKAGE
    assert "no costs" in cli("calibrate", "--reset").out
    assert cli("calibrate", "--reset", "--dry-run").code == 2
