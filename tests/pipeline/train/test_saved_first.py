"""A finished training is saved before anything else is done with it; what cannot be counted is said."""

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from tiny import Trainer
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.pipeline.recipe_flops import recipe_flops
from rigl_compress.pipeline.train import stage
from rigl_compress.pipeline.train import training_summary as summary
from rigl_compress.pipeline.workspace import Run
from rigl_compress.sparsity.methods import METHODS


class StochasticDepth(nn.Module):
    """Reads a tensor's value when it is built and when it runs, as networks with stochastic depth do."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.5, 3)]
        self.layers = nn.ModuleList(nn.Linear(784, 784) for _ in self.rates)
        self.head = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for rate, layer in zip(self.rates, self.layers, strict=True):
            if not self.training or torch.rand(()).item() >= rate:
                x = x + layer(x).relu()
        return self.head(x)


class FromFile(nn.Module):
    """Loads weights when it is built: on the meta device torch warns once a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(784, 10)
        self.load_state_dict({"head.weight": torch.ones(10, 784), "head.bias": torch.zeros(10)})

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


@pytest.fixture(params=[StochasticDepth, FromFile])
def own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The reference of a network that cannot be built on the meta device."""
    monkeypatch.setitem(sys.modules, "networks_of_mine", SimpleNamespace(Net=request.param))
    return "networks_of_mine:Net"


def test_people_s_networks_are_trained_and_counted_without_meta(trainer: Trainer, own: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here = stage.RunEnvironment("cpu", trainer.data_dir, log=lambda _: None)  # a layer may be left out at an update
        stage.train(tiny.recipe("model={}", f"model.name={own}", "train.epochs=1"), trainer.root / "run", here)
    run = Run.open(trainer.root / "run")
    result = run.result()
    assert run.model().spec.name == own
    assert result["inference_flops"]["dense"] > 0
    assert result["not_counted"] == {}


def test_people_s_networks_are_counted_without_meta(own: str) -> None:
    assert recipe_flops(tiny.recipe("model={}", f"model.name={own}")).dense >= 2 * 7840


def test_our_networks_are_counted_without_memory() -> None:
    model, example = ModelSpec("resnet-50").outline()
    assert {parameter.device.type for parameter in model.parameters()} == {example.device.type} == {"meta"}


# What cannot be counted


def test_a_method_without_a_cost_does_not_lose_the_training(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS._items, "mine", replace(METHODS["set"], name="mine", cost=None))
    run = trainer("sparsity.method=mine", "train.epochs=1")
    result = run.result()
    assert result["training_gflops"] is None
    assert "method 'mine' has no training cost" in result["not_counted"]["training_gflops"]
    assert result["inference_flops"]["sparse"] > 0
    run.model().build()


@pytest.mark.parametrize("part", ["inference_flops", "pruned"])
def test_whatever_fails_is_said_and_the_rest_is_there(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no luck\ntoday")

    monkeypatch.setattr(*{"inference_flops": (summary, "count_flops"), "pruned": (stage, "prune")}[part], fails)
    said: list[str] = []
    here = stage.RunEnvironment("cpu", trainer.data_dir, log=said.append)
    stage.train(tiny.recipe("train.epochs=1"), trainer.root / "run", here)
    result = Run.open(trainer.root / "run").result()
    assert result[part] is None
    assert result["not_counted"][part] == "RuntimeError: no luck"
    assert [line for line in said if f"{part} was not counted: RuntimeError: no luck" in line]


def test_the_model_is_saved_before_it_is_looked_at(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, "summarize", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer()
    run = Run.open(trainer.root / "run")
    run.model().build()
    assert run.topology("end") == run.model().topology


def test_the_command_line_shows_what_was_not_counted(
    cli: tiny.Cli, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise InputError("it has no neurons")

    monkeypatch.setattr(stage, "prune", fails)
    monkeypatch.setattr(summary, "count_flops", fails)
    (tmp_path / "tiny.toml").write_text(tiny.RECIPE)
    words = f"train --recipe {tmp_path / 'tiny.toml'} -o {tmp_path / 'run'} --data-dir {data_dir}"
    said = cli(*words.split(), "--set", "train.epochs=1")
    assert said.code == 0, said.err
    assert "inference_flops was not counted: it has no neurons" in said.err
    assert "inference FLOPs" in said.out
    assert "not counted" in said.out
