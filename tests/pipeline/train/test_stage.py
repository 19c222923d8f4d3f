"""The stage `train`: what it leaves in a run folder, and what runs can start from."""

import json
from pathlib import Path

import pytest
import tiny
import torch
from tiny import Trainer, untouched
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.data.load_dataset import load_dataset
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.models.topology import connections
from rigl_compress.pipeline.metrics import METRICS, evaluate
from rigl_compress.pipeline.train.device_choice import find_device
from rigl_compress.pipeline.train.input_check import check_input
from rigl_compress.pipeline.train.small_dense import parameter_count
from rigl_compress.pipeline.workspace import Run
from rigl_compress.sparsity.methods import METHODS

CONNECTIONS = [
    name for name, method in METHODS.items() if method.gating is None and not (method.needs_topology or method.narrow)
]
FILES = {
    "recipe.toml",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "initial.safetensors",
    "model.safetensors",
    "topology-start.safetensors",
    "topology-end.safetensors",
    "removals.json",
    "result.json",
}


def test_the_run_folder(trainer: Trainer) -> None:
    run = trainer()
    assert {path.name for path in run.path.iterdir()} == FILES
    assert run.recipe() == tiny.recipe()


def test_metrics_have_a_line_per_epoch(trainer: Trainer) -> None:
    rows = [json.loads(line) for line in trainer().metrics_file.read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    keys = {
        "epoch",
        "step",
        "updates",
        "learning_rate",
        "train_loss",
        "changed",
        "dropped",
        "grown",
        "error",
        "best_error",
        "sparsity",
        "seconds",
    }
    assert all(row.keys() == keys for row in rows)


def test_the_result(trainer: Trainer) -> None:
    run = trainer()
    result = run.result()
    assert result.keys() >= {
        "format", "metric", "final_error", "best_error", "data", "seconds", "method", "sparsity", "steps", "updates",
        "inference_flops", "training_gflops", "pruned", "command", "seed", "recipe", "environment",
    }  # fmt: skip
    assert {"date", "cpu", "cores", "python", "versions", "threads", "device"} <= result["environment"].keys()
    last = list(run.metrics())[-1]
    assert (result["final_error"], result["best_error"], result["steps"]) == (
        last["error"],
        last["best_error"],
        last["step"],
    )
    assert result["sparsity"] == run.model().topology.sparsity
    assert str(trainer.data_dir) in result["data"]


def test_the_model_is_the_one_that_was_tested(trainer: Trainer) -> None:
    run = trainer()
    data = load_dataset("mnist", trainer.data_dir, fetch=False)
    assert evaluate(METRICS["error"], run.model().build(), data.test, batch=1000) == run.result()["final_error"]


def test_topologies_at_begin_and_end(trainer: Trainer) -> None:
    run = trainer()
    begin, end = run.topology("start"), run.topology("end")
    assert end == run.model().topology
    assert [layer.active for layer in begin.layers] == [layer.active for layer in end.layers]
    assert 0 < end.changed(begin) < end.active
    for name, mask in end.items():
        assert not run.model().weights[name][~mask].any()


def test_a_topology_that_does_not_change_stays(trainer: Trainer) -> None:
    run = trainer("sparsity.method=static", "train.epochs=1")
    assert run.topology("start") == run.topology("end")


def test_begin_holds_all_initial_weights(trainer: Trainer) -> None:
    run = trainer("init.weights=glorot-uniform", "train.epochs=1")
    begin = SparseModel.load(run.initial_file)
    assert begin.topology.sparsity == 0
    assert all((begin.weights[name] != 0).all() for name in begin.topology)
    torch.manual_seed(0)
    model = run.model().spec.build()
    for weight in sparse_parameters(model).values():
        torch.nn.init.xavier_uniform_(weight)
    for name, weight in sparse_parameters(model).items():
        assert torch.equal(begin.weights[name], weight)


def test_the_seed_decides(trainer: Trainer) -> None:
    one, again, other = (
        trainer(f"seed={seed}", "train.epochs=2", run=run) for run, seed in zip("abc", (0, 0, 1), strict=True)
    )
    tiny.assert_same_model(one.model(), again.model())
    assert tiny.metrics_of(one) == tiny.metrics_of(again)
    assert one.model().topology != other.model().topology


@pytest.mark.parametrize("method", CONNECTIONS)
def test_every_method_reaches_the_sparsity_asked_for(trainer: Trainer, method: str) -> None:
    run = trainer(f"sparsity.method={method}", "train.epochs=2")
    model = run.model()
    densities = run.recipe().sparsity.densities(model.build())
    asked = {layer.name: connections(densities[layer.name], layer.total) for layer in model.topology.layers}
    found = {layer.name: layer.active for layer in model.topology.layers}
    if method in ("dsr", "snfs-redistribute"):  # connections wander between the layers
        assert sum(found.values()) == sum(asked.values())
    else:
        assert found == asked
    assert model.topology.sparsity == pytest.approx(0.0 if method == "dense" else 0.8, abs=0.002)
    assert run.result()["method"] == method
    assert 0 <= run.result()["final_error"] <= 100


def test_single_layers_have_the_sparsity_given_to_them(trainer: Trainer) -> None:
    run = trainer("sparsity.layers={fc1 = 0.9, fc2 = 0.5, fc3 = 0.0}", "train.epochs=1")
    assert [layer.active for layer in run.topology("end").layers] == [1882, 192, 160]  # of 18816, 384, 160


def test_small_dense_has_as_many_parameters_as_the_share_asked_for(trainer: Trainer) -> None:
    run = trainer("sparsity.method=small-dense", "sparsity.sparsity=0.7", "train.epochs=1")
    full = parameter_count(tiny.recipe().model)
    count = sum(weight.numel() for weight in run.model().weights.values())
    assert 0.6 * 0.3 * full < count <= 0.3 * full
    assert run.model().topology.sparsity == 0


def test_holding_out_tests_on_training_samples(trainer: Trainer) -> None:
    run = trainer("data.holdout=60", "train.epochs=1")
    assert run.model().step == (tiny.TRAIN - 60) // tiny.BATCH - run.result()["updates"]
    data = load_dataset("mnist", trainer.data_dir, fetch=False)
    held_out = data.train[tiny.TRAIN - 60 :]
    assert evaluate(METRICS["error"], run.model().build(), held_out, batch=60) == run.result()["final_error"]
    assert "tested on the last 60 training samples, held out" in run.result()["data"]


def test_the_classes_come_from_the_data(trainer: Trainer) -> None:
    assert trainer("train.epochs=1").model().spec.options["classes"] == 10


# Starting from an earlier run


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_a_lottery_ticket_is_the_end_topology_with_the_initial_weights(trainer: Trainer, power: float) -> None:
    earlier = trainer(f"init.sparse_power={power}", "init.scale=1.5", run="earlier")
    start = [f"start.run='{earlier.path}'", "start.weights=initial", "start.topology=end"]
    ticket = trainer(
        "sparsity.method=lottery", "train.epochs=1", f"init.sparse_power={power}", "seed=7", *start, run="ticket"
    )
    assert ticket.topology("start") == ticket.topology("end") == earlier.topology("end")
    initial, began = SparseModel.load(earlier.initial_file), SparseModel.load(ticket.initial_file)
    tiny.assert_same_tensors(began.weights, initial.weights)


def test_a_lottery_ticket_is_masked_before_the_first_step(trainer: Trainer) -> None:
    """At a rate of next to nothing the trained weights still are the initial ones, masked."""
    earlier = trainer(run="earlier")
    start = [f"start.run='{earlier.path}'", "start.weights=initial", "start.topology=end"]
    ticket = trainer("sparsity.method=lottery", "learning_rate.peak=1e-30", *start, run="ticket").model()
    initial = SparseModel.load(earlier.initial_file)
    for name, mask in earlier.topology("end").items():
        assert torch.equal(ticket.weights[name], initial.weights[name] * mask)


def test_final_weights_go_on_where_the_earlier_run_ended(trainer: Trainer) -> None:
    earlier = trainer(run="earlier")
    start = [f"start.run='{earlier.path}'", "start.weights=final", "start.topology=end"]
    later = trainer("sparsity.method=static", "learning_rate.peak=1e-30", "train.epochs=1", *start, run="later")
    assert later.result()["final_error"] == earlier.result()["final_error"]
    assert later.topology("end") == earlier.topology("end")


def test_rigl_plus_trains_what_was_alive(trainer: Trainer) -> None:
    earlier = trainer("sparsity.sparsity=0.97", run="earlier")
    plus = trainer("sparsity.sparsity=0.5", f"start.run='{earlier.path}'", "start.architecture=pruned", run="plus")
    sizes = [int(size) for size in earlier.result()["pruned"]["architecture"].split("-")]
    assert sizes[0] < 784
    shapes = [tuple(mask.shape) for mask in plus.topology("end").values()]
    assert shapes == [(sizes[1], sizes[0]), (sizes[2], sizes[1]), (10, sizes[2])]
    used = earlier.topology("end")["fc1.weight"].any(dim=0).nonzero().flatten().tolist()
    assert set(plus.model().weights["fc1.index"].tolist()) <= set(used)
    assert plus.model().topology.sparsity == pytest.approx(0.5, abs=0.01)


# Refused before anything is written


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sparsity.end=61"], "updates end at step 61, but the run has only 60 steps: lower sparsity.end (T_end)"),
        (["sparsity.begin=61"], "updates begin at step 61, but the run has only 60 steps: lower sparsity.begin"),
        (["sparsity.interval=0"], "interval (ΔT) is 0, expected 1 or more"),
        (["sparsity.fraction=1.5"], "fraction (α) is 1.5, expected a share between 0 and 1"),
        (["sparsity.decay=sine"], "unknown decay 'sine'"),
        (["sparsity.method=riggl"], "unknown method 'riggl': did you mean 'rigl'"),
        (["sparsity.variants=['up']"], "unknown variant 'up'"),
        (["sparsity.options.momentum=0.5"], "method 'rigl' has no option 'momentum': it has none"),
        (["sparsity.layers.fc9=0.5"], "layer 'fc9' matches nothing: did you mean 'fc"),
        (["sparsity.dense=['conv*']"], "layer 'conv*' matches nothing"),
        (["sparsity.method=lottery"], 'method "lottery" needs an earlier run'),
        (["sparsity.budget=include", "sparsity.layers.fc1=0.0"], 'or use budget = "exclude"'),
        (["model.name=mpl"], "unknown model 'mpl': did you mean 'mlp'"),
        (["model.options.hiden=[3]"], "model 'mlp' has no option 'hiden': did you mean 'hidden'"),
        (["model.options.hidden=3"], "model 'mlp' cannot be built with hidden = 3"),
        (["model.options.classes=7"], "has 7 outputs, mnist has 10 classes"),
        (["model.options.inputs=100"], "model 'mlp' does not take inputs of shape (1, 28, 28)"),
        (["init.weights=glorot"], "unknown initializer 'glorot'"),
        (["optimizer.name=sdg"], "unknown optimizer 'sdg': did you mean 'sgd'"),
        (["optimizer.momentum=-1"], "optimizer 'sgd': Invalid momentum value: -1.0"),
        (["data.name=minst"], "unknown data set 'minst': did you mean 'mnist'"),
        (["data.holdout=300"], "cannot hold out 300 of 300 training samples"),
        (["train.batch=301"], "train.batch × train.accumulate is 301, but there are only 300 training samples"),
        (["start.run=nowhere", "start.weights=final"], "nowhere does not exist: pass a run folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained(trainer: Trainer, overrides: list[str], message: str) -> None:
    assert message in trainer.refused(*overrides)


class OfTexts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        samples, _ = x.shape
        return torch.zeros(samples, 10)


def test_a_network_that_unpacks_other_shapes(trainer: Trainer) -> None:
    data = load_dataset("mnist", trainer.data_dir)
    with pytest.raises(InputError, match=r"model 'own' does not take inputs of shape \(1, 28, 28\): .*unpack"):
        check_input(OfTexts(), data, ModelSpec("own"))


def test_a_start_from_another_model(trainer: Trainer) -> None:
    earlier = trainer("train.epochs=1", run="earlier")
    start = f"start.run='{earlier.path}'"
    message = trainer.refused(start, "start.weights=initial", "model.options.hidden=[5, 5]")
    assert "initial.safetensors: the weights do not fit the model (5 of another shape: fc1.weight is 24×784," in message
    assert "another model" in trainer.refused(start, "start.topology=end", "model.options.hidden=[5, 5]")


def test_a_start_from_a_run_that_is_not_finished(trainer: Trainer) -> None:
    earlier = Run.create(trainer.root / "earlier", tiny.recipe())
    message = trainer.refused(f"start.run='{earlier.path}'", "start.weights=final")
    assert message.endswith(f"is not finished: resume with `rigl-compress train --resume {earlier.path}`")


def test_a_start_from_itself(trainer: Trainer) -> None:
    run = trainer("train.epochs=1")
    with untouched(trainer.root), pytest.raises(InputError, match="the folder of this run"):
        trainer("train.epochs=1", f"start.run='{run.path}'", "start.weights=initial", overwrite=True)


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_in_use(trainer: Trainer, force: bool) -> None:
    (trainer.root / "run").mkdir()
    (trainer.root / "run" / "thesis.tex").write_text("years of work")
    with untouched(trainer.root), pytest.raises(InputError, match="run exists"):
        trainer("train.epochs=1", overwrite=force)


# Devices


def test_auto_is_what_the_machine_has() -> None:
    assert find_device("auto").type in ("cpu", "cuda", "mps")


@pytest.mark.parametrize("name", ["gpu", "", "meta", "cuda:99", "cpu0", "vulkan"])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(InputError) as caught:
        find_device(name)
    assert str(caught.value) == f"device {name!r} is not available here: use auto, cpu, cuda or mps"


def test_the_data_is_found_by_the_folder_given(trainer: Trainer, tmp_path: Path) -> None:
    tiny.write_mnist(tmp_path / "other" / "mnist", train=100, test=50)
    run = Trainer(tmp_path, tmp_path / "other")("train.epochs=1")
    assert str(tmp_path / "other") in run.result()["data"]


def test_an_existing_folder_is_refused_before_data_are_fetched(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer("train.epochs=1")
    monkeypatch.setattr("rigl_compress.pipeline.train.stage.load_dataset", lambda *_, **__: pytest.fail("fetched"))
    with pytest.raises(InputError, match="exists: choose another folder"):
        trainer("train.epochs=1")
