"""The stage `prune` and its command: files only on success, the same answers, and RigL+ for any network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Cli, Trainer, untouched
from torch import Tensor, nn

from rigl_compress.models.model_registry import MODELS, register_model
from rigl_compress.models.prune_plan import LayerChange, PrunePlan
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.prune import stage
from rigl_compress.pipeline.prune.stage import keep_removals, prune, prune_run, pruned_model, pruned_spec
from rigl_compress.pipeline.workspace import Run
from rigl_compress.pruning.removal import Removal


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
    monkeypatch.setattr(MODELS, "_items", dict(MODELS))

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
    pruned = run.result()["pruned"]
    assert report["architecture"].endswith(pruned["architecture"])
    assert report["after"]["bitmask_bytes"] == pruned["bitmask_bytes"]
    assert report["after"]["flops"] == 1000 * pruned["kflops"]


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
        *("layer", "inputs", "outputs", "removed_inputs", "removed_outputs", "selects", "new_bias", "heads"),
    ]


def test_a_dry_run_writes_nothing(cli: Cli, run: Run) -> None:
    with untouched(run.path):
        done = cli("prune", run.path, "--dry-run")
    assert done.code == 0
    assert "nothing written" in done.out
    assert not run.pruned_file.exists()


def test_nothing_is_written_unless_everything_succeeds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("environment", "pruned_model", "write_json"):
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
    pruned = prune(small)
    assert not pruned.plan
    again = pruned_model(small, pruned)
    assert again.build().state_dict().keys() == small.build().state_dict().keys()


# The removals that training keeps


def test_kept_removals_give_the_network_that_an_analysis_gives(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.removals_file.rename(run.path / "aside.json")
    analysed = prune_run(run)
    expected = run.pruned_file.read_bytes()
    (run.path / "aside.json").rename(run.removals_file)
    monkeypatch.setattr(stage, "prune_dead_neurons", fail)
    repeated = prune_run(run)
    assert run.pruned_file.read_bytes() == expected
    assert {key: repeated[key] for key in ("report", "plan")} == {key: analysed[key] for key in ("report", "plan")}


def test_removals_of_other_weights_are_not_repeated(trainer: Trainer, run: Run) -> None:
    other = trainer("sparsity.sparsity=0.97", "train.epochs=1", "seed=1", run="other")
    expected = prune_run(run)["plan"]
    run.removals_file.write_bytes(other.removals_file.read_bytes())
    assert prune_run(run)["plan"] == expected
    check_same_answers(run)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["removals"][0]["plan"]["changes"][0].update(layer="fc9"),
        lambda content: content["removals"][0]["plan"]["changes"][1].update(removed_inputs=[0, 1, 2]),
        lambda content: content["removals"][0]["folds"].append({"layer": "fc1", "inputs": [1], "factors": []}),
        lambda content: content["removals"][0].update(folds=7),
        lambda content: content.update(removals=[7]),
        lambda content: content.pop("removals"),
    ],
)
def test_damaged_removals_are_found_anew(run: Run, change: Callable[[dict[str, Any]], None]) -> None:
    expected = prune_run(run)["plan"]
    content = json.loads(run.removals_file.read_text())
    change(content)
    run.removals_file.write_text(json.dumps(content))
    assert prune_run(run)["plan"] == expected
    check_same_answers(run)


def test_a_removal_that_would_change_the_outputs_is_not_repeated(run: Run) -> None:
    """Its hash is right and its sizes fit: only the comparison of the outputs shows it."""
    expected = prune_run(run)["plan"]
    changes = [LayerChange("fc1", 784, 24, removed_outputs=(0, 1)), LayerChange("fc2", 24, 16, removed_inputs=(0, 1))]
    keep_removals(run, [Removal(PrunePlan(tuple(changes), inputs=1))])
    assert prune_run(run)["plan"] == expected
    check_same_answers(run)


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
    assert ("train --resume" if content == "recipe" else "rigl-compress train") in done.err


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
    start = (f"start.run='{earlier.path}'", "start.architecture=pruned")
    plus = trainer(*start, "sparsity.sparsity=0.5", "train.epochs=2", run="plus")
    spec = pruned_spec(earlier)
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
    start = (f"start.run='{earlier.path}'", "start.architecture=pruned", "sparsity.sparsity=0.5")
    whole = trainer(*start, "train.epochs=2", run="whole")
    again = trainer(*start, "train.epochs=2", run="whole", resume=True)
    assert again.model().spec == whole.model().spec
