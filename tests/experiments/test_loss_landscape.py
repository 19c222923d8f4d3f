"""The loss between two networks: exact at its ends and on the line, lower on curves that were trained."""

import json
from pathlib import Path

import pytest
import torch
from tiny import Cli, Trainer
from torch import nn

from rigl_compress.cli.landscape import _CURVES
from rigl_compress.core.errors import InputError
from rigl_compress.data.samples import Split
from rigl_compress.experiments.loss_landscape import (
    CURVES,
    LandscapeConfig,
    bezier,
    control_points,
    loss_at,
    train_curve,
)
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.workspace import Run

SMALL = {"options": {"hidden": [12], "inputs": 6, "classes": 3}}


@pytest.fixture
def ends() -> tuple[SparseModel, SparseModel]:
    """Two networks of random weights, each with half of the connections."""
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        spec = ModelSpec("mlp", SMALL["options"])
        model = spec.build()
        masks = {name: torch.rand(p.shape) < 0.5 for name, p in model.named_parameters() if p.dim() == 2}
        topology = Topology.from_masks(masks)
        topology.apply_to(model)
        found.append(SparseModel.capture(spec, model, topology, 0, {}))
    return found[0], found[1]


@pytest.fixture
def samples() -> Split:
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return Split(x, x[:, :3].argmax(1))


def plain_loss(model: nn.Module, samples: Split) -> float:
    (x, y) = next(samples.in_order(64))
    return float(nn.functional.cross_entropy(model(x), y).detach())


def test_the_ends_are_the_networks_and_the_middle_of_the_line_their_mean(
    ends: tuple[SparseModel, SparseModel], samples: Split
) -> None:
    model = ends[0].build()
    points = control_points(model, ends, 0)
    for end, t in zip(ends, (0, 1), strict=True):
        assert loss_at(model, bezier(points, t), samples, 64) == pytest.approx(plain_loss(end.build(), samples))
    middle = ends[0].build()
    middle.load_state_dict({name: (ends[0].weights[name] + ends[1].weights[name]) / 2 for name in ends[0].weights})
    assert loss_at(model, bezier(points, 0.5), samples, 16) == pytest.approx(plain_loss(middle, samples), rel=1e-5)


@pytest.mark.parametrize("inner", [1, 2])
def test_a_new_curve_is_the_line(ends: tuple[SparseModel, SparseModel], inner: int) -> None:
    model = ends[0].build()
    line, curve = control_points(model, ends, 0), control_points(model, ends, inner)
    for t in (0.0, 0.3, 1.0):
        for name, value in bezier(line, t).items():
            assert torch.allclose(value, bezier(curve, t)[name], atol=1e-6)


def test_a_trained_curve_is_lower_and_keeps_to_the_connections(
    ends: tuple[SparseModel, SparseModel], samples: Split
) -> None:
    model = ends[0].build()
    points = control_points(model, ends, 1)
    before = loss_at(model, bezier(points, 0.5), samples, 64)
    union = {name: ends[0].topology[name] | ends[1].topology[name] for name in ends[0].topology}
    config, seen = LandscapeConfig(steps=60, rate=0.03, batch=32), []
    train_curve(model, points, union, samples, config, lambda step, of: seen.append((step, of)))
    assert loss_at(model, bezier(points, 0.5), samples, 64) < 0.7 * before
    assert all(not points[1][name][~mask].any() for name, mask in union.items())
    assert seen[-1] == (60, 60)
    train_curve(model, points, {}, samples, config, lambda *_: None)
    assert any(points[1][name][~mask].any() for name, mask in union.items())  # dense space has no bounds


@pytest.fixture
def runs(trainer: Trainer) -> tuple[Run, Run]:
    one = trainer("sparsity.method=pruning", "train.epochs=1", run="pruning")
    return one, trainer("sparsity.method=static", "train.epochs=1", run="static")


def test_the_command_shows_every_curve(runs: tuple[Run, Run], cli: Cli, tmp_path: Path) -> None:
    options = ["--points", 3, "--steps", 5, "--samples", 50, "--data-dir", runs[0].path.parent / "data"]
    png = tmp_path / "landscape.png"
    done = cli("landscape", runs[0].path, runs[1].path, *options, "--png", png)
    assert done.code == 0, done.err
    assert all(name in done.out for name in CURVES)
    assert tuple(CURVES) == _CURVES
    assert png.stat().st_size > 5_000
    found = json.loads(cli("landscape", runs[0].path, runs[1].path, *options, "--json", "--between", "linear").out)
    assert found["positions"] == [0.0, 0.5, 1.0]
    assert list(found["losses"]) == ["linear"]
    again = cli("landscape", runs[1].path, runs[0].path, *options, "--json", "--between", "linear")
    assert json.loads(again.out)["losses"]["linear"] == pytest.approx(found["losses"]["linear"][::-1])


def test_the_picture_tells_runs_of_one_name_apart(
    trainer: Trainer, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [trainer(f"sparsity.method={each}", "train.epochs=1", run=f"{each}/seed=0") for each in ("set", "static")]
    labels: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "rigl_compress.experiments.loss_landscape.landscape_picture", lambda *words: labels.append(words[2])
    )
    options = ["--points", 2, "--between", "linear", "--samples", 20, "--data-dir", trainer.data_dir]
    assert cli("landscape", *(run.path for run in runs), *options, "--png", tmp_path / "a.png").code == 0
    assert labels == [("set/seed=0", "static/seed=0")]
    same = cli("landscape", runs[0].path, runs[0].path, *options)
    assert "are the same run" in same.err


def test_networks_of_two_kinds_are_refused(trainer: Trainer, cli: Cli) -> None:
    one = trainer("train.epochs=1", run="one")
    other = trainer("train.epochs=1", "model.options={ hidden = [8] }", run="other")
    done = cli("landscape", one.path, other.path)
    assert done.code == 2
    assert "expected the same model" in done.err


@pytest.mark.parametrize(("setting", "value"), [("points", 1), ("steps", 0), ("samples", 0)])
def test_too_little_of_anything_is_refused(setting: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{setting} is {value}, expected"):
        LandscapeConfig(**{setting: value})


def test_an_unknown_curve_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'cubic'"):
        LandscapeConfig(("cubik",))
