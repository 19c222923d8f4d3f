"""The stage `prune` and its command: files only on success, the same answers, and RigL+ for any network."""

import json
from pathlib import Path

import pytest
import torch
from tiny import Cli, Trainer, untouched
from torch import Tensor, nn

from rigl_compress.models.networks import MODELS, all_models, register_model
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.prune import stage
from rigl_compress.pipeline.prune.stage import living, prune_run, pruned_model
from rigl_compress.pipeline.workspace import Run


class TinyConv(nn.Module):
    """A convolutional network for 28×28 images whose code has a size written out."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, width, 5, stride=3), nn.Conv2d(width, width, 3, padding=1)
        self.bn, self.pool = nn.BatchNorm2d(width), nn.MaxPool2d(4)
        self.fc1, self.fc2 = nn.Linear(4 * width, 16), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.bn(self.conv2(torch.relu(self.conv1(x))))))
        result: Tensor = self.fc2(torch.relu(self.fc1(x.view(-1, self.fc1.in_features))))
        return result


@pytest.fixture
def _tiny_conv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "_items", dict(all_models()._items))

    @register_model("tiny-conv", input_shape=(1, 28, 28), classes=10)
    def tiny_conv(classes: int = 10, width: int = 12) -> nn.Module:
        return TinyConv(classes, width)


CONV = ("model.name=tiny-conv", "model.options={width = 12}", "sparsity.sparsity=0.95", "train.epochs=1")


@pytest.fixture
def run(trainer: Trainer) -> Run:
    return trainer("sparsity.sparsity=0.97", "train.epochs=1")


def images(seed: int = 0) -> Tensor:
    return torch.rand(8, 1, 28, 28, generator=torch.Generator().manual_seed(seed))


def check_same_answers(run: Run) -> SparseModel:
    """What is on the disk computes what the trained network computes."""
    before, after = run.model(), SparseModel.load(run.pruned_file)
    with torch.no_grad():
        expected, got = before.build()(images()), after.build()(images())
    assert (expected - got).abs().max() < 1e-5 * expected.abs().max()
    assert (after.step, dict(after.metrics)) == (before.step, dict(before.metrics))
    assert list(after.topology) == list(before.topology)
    return after


def test_the_pruned_network_is_saved_and_computes_the_same(cli: Cli, run: Run) -> None:
    done = cli("prune", run.path)
    assert (done.code, done.err) == (0, "")
    small = check_same_answers(run)
    assert small.weights["fc1.weight"].shape[1] < 784
    content = json.loads(run.prune_file.read_text())
    assert content["plan"] == small.spec.plan
    assert content["report"]["architecture"] in done.out
    assert f"fc1: inputs 784 → {small.weights['fc1.weight'].shape[1]}" in done.out
    assert str(run.pruned_file) in done.out.replace("\n", "")


def test_what_the_report_says_is_what_training_said(run: Run) -> None:
    report = prune_run(run)["report"]
    alive = run.result()["alive"]
    assert report["architecture"].endswith(alive["architecture"])
    assert report["after"]["bitmask_bytes"] == alive["bitmask_bytes"]
    assert report["after"]["flops"] == 1000 * alive["kflops"]


def test_json(cli: Cli, run: Run) -> None:
    done = cli("prune", run.path, "--json")
    content = json.loads(done.out)
    assert content == json.loads(run.prune_file.read_text())
    assert list(content) == ["format", "report", "plan", "command", "environment"]
    assert list(content["report"]) == [
        *("format", "architecture", "before", "after", "difference", "relative_difference", "notes"),
    ]
    for size in ("before", "after"):
        assert list(content["report"][size]) == ["parameters", "nonzeros", "flops", "dense_flops", "bitmask_bytes"]
    assert list(content["plan"]) == ["format", "changes", "sizes", "notes", "inputs"]
    assert list(content["plan"]["changes"][0]) == [
        *("layer", "inputs", "outputs", "removed_inputs", "removed_outputs", "selects", "new_bias"),
    ]


def test_a_dry_run_writes_nothing(cli: Cli, run: Run) -> None:
    with untouched(run.path):
        done = cli("prune", run.path, "--dry-run")
    assert done.code == 0
    assert "nothing was written" in done.out
    assert not run.pruned_file.exists()


def test_nothing_is_written_unless_everything_succeeds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("environment", "prune_dead_neurons", "write_json"):
        with monkeypatch.context() as patch:
            patch.setattr(stage, name, fail)
            with untouched(run.path), pytest.raises(RuntimeError):
                prune_run(run)


def fail(*_: object) -> None:
    raise RuntimeError("disk on fire")


def test_pruning_twice_gives_the_same(cli: Cli, run: Run) -> None:
    prune_run(run)
    first = run.pruned_file.read_bytes()
    assert cli("prune", run.path).code == 0
    assert run.pruned_file.read_bytes() == first


def test_a_pruned_network_has_nothing_left_to_prune(run: Run) -> None:
    prune_run(run)
    small = SparseModel.load(run.pruned_file)
    again, pruned = pruned_model(small)
    assert not pruned.plan
    assert again.build().state_dict().keys() == small.build().state_dict().keys()


@pytest.mark.parametrize("content", ["nothing", "recipe"])
def test_no_run_or_not_finished(cli: Cli, tmp_path: Path, run: Run, content: str) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    if content == "recipe":
        (folder / "recipe.toml").write_bytes(run.recipe_file.read_bytes())
    with untouched(folder):
        done = cli("prune", folder)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.strip().splitlines()) == 1
    assert ("train --run" if content == "recipe" else "rigl-compress train") in done.err


# Networks other than perceptrons


@pytest.mark.usefixtures("_tiny_conv")
def test_a_convolutional_network_with_sizes_in_its_code(cli: Cli, trainer: Trainer) -> None:
    run = trainer(*CONV)
    done = cli("prune", run.path, "--json")
    assert done.code == 0
    plan = json.loads(done.out)["plan"]
    small = check_same_answers(run)
    features = small.weights["fc1.weight"].shape[1]
    assert 4 <= features < 48
    assert plan["sizes"] == [["view 1", [0, features]]]


@pytest.mark.usefixtures("_tiny_conv")
def test_rigl_plus_trains_what_is_left_of_a_convolutional_network(cli: Cli, trainer: Trainer) -> None:
    earlier = trainer(*CONV, run="earlier")
    start = (f"start.run='{earlier.path}'", "start.architecture=alive")
    plus = trainer(*start, "sparsity.sparsity=0.5", "train.epochs=2", run="plus")
    spec = living(earlier.model())
    assert plus.model().spec == spec
    assert {name: weight.shape for name, weight in plus.model().weights.items()} == {
        name: tensor.shape for name, tensor in spec.build().state_dict().items()
    }
    assert plus.model().topology.sparsity == pytest.approx(0.5, abs=0.02)
    assert cli("prune", plus.path).code == 0
    check_same_answers(plus)


@pytest.mark.usefixtures("_tiny_conv")
def test_rigl_plus_resumes(trainer: Trainer) -> None:
    """What is rebuilt from the plan is the same at every start."""
    earlier = trainer(*CONV, run="earlier")
    start = (f"start.run='{earlier.path}'", "start.architecture=alive", "sparsity.sparsity=0.5")
    whole = trainer(*start, "train.epochs=2", run="whole")
    again = trainer(*start, "train.epochs=2", run="whole", resume=True)
    assert again.model().spec == whole.model().spec
