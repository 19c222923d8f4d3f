"""Fine-tuning: a teacher in the loop, batch-norm statistics re-estimated, resuming without the earlier run."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from tiny import StoppedError, Trainer, stop_at
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.core.errors import InputError
from rigl_compress.data.dataset import DataSet
from rigl_compress.models.model_registry import register_model
from rigl_compress.pipeline.metrics import METRICS, evaluate
from rigl_compress.pipeline.recipe import load_recipe
from rigl_compress.pipeline.train import training_loop as loop
from rigl_compress.pipeline.train.progress import Progress
from rigl_compress.pipeline.train.stage import train
from rigl_compress.pipeline.train.teacher import teacher_facts
from rigl_compress.pipeline.train.training_loop import Job, train_epochs
from rigl_compress.pipeline.workspace import Run
from rigl_compress.sparsity.batch_norm_statistics import batch_norm_layers
from rigl_compress.sparsity.distillation_losses import softened_kl

NORMALISED = ("model.name=normalised", "model.options={}")
PRUNING = ("sparsity.method=pruning", "sparsity.interval=2", "train.epochs=3")
MIDDLE = tiny.STEPS_PER_EPOCH + 7


def from_run(run: Run) -> tuple[str, ...]:
    return (f"start.run='{run.path}'", "start.weights=final")


@pytest.fixture
def normalised(registries: None) -> None:
    """A network with batch norm whose statistics follow slowly, and with dropout."""

    @register_model("normalised", input_shape=(1, 28, 28), classes=10)
    def build() -> nn.Module:
        first = [nn.Flatten(), nn.Linear(784, 24), nn.BatchNorm1d(24, momentum=0.01), nn.ReLU(), nn.Dropout(0.1)]
        return nn.Sequential(*first, nn.Linear(24, 16), nn.BatchNorm1d(16, momentum=0.01), nn.ReLU(), nn.Linear(16, 10))


@pytest.fixture
def dense(trainer: Trainer, normalised: None) -> Run:
    """A dense network to start from."""
    return trainer(*NORMALISED, "sparsity.method=dense", "train.recalibrate_batch_norm=15", run="dense")


def rows_of(job: Job) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    train_epochs(job, lambda _, metrics: rows.append(metrics))
    return rows


# Distillation


def test_the_teacher_is_the_network_before_it_was_pruned(trainer: Trainer, dense: Run, data: DataSet) -> None:
    job = tiny.job_of(data, *NORMALISED, *from_run(dense), "sparsity.method=static", "distill.weight=0.9")
    assert job.distillation is not None
    tiny.assert_same_tensors(job.distillation.teacher.state_dict(), dense.model().weights)
    rows_of(job)
    assert job.sparse.sparsity == pytest.approx(0.8, abs=0.01)
    tiny.assert_same_tensors(job.distillation.teacher.state_dict(), dense.model().weights)
    assert not job.distillation.teacher.training


def test_the_losses_of_an_epoch_by_hand(dense: Run, data: DataSet) -> None:
    """One batch an epoch and one epoch: what is written is the loss of the very first forward pass."""
    small = replace(data, train=data.train[:40])
    settings = ("train.epochs=1", "train.batch=40", "sparsity.method=static", "sparsity.end=0")
    job = tiny.job_of(small, *NORMALISED, *from_run(dense), *settings, "distill.weight=0.3", "distill.temperature=3.0")
    seen: list[tuple[Tensor, Tensor]] = []
    answer = job.forward
    job.forward = lambda x: seen.append((x, answer(x))) or seen[-1][1]  # type: ignore[func-returns-value]
    row = rows_of(job)[0]
    (x, outputs), y = seen[0], torch.cat([y for _, y in small.train.in_order(40)])
    order = [int((data.train[:40].x == image).flatten(1).all(1).nonzero()[0]) for image in x]
    taught = softened_kl(outputs, dense.model().build()(x), 3.0)
    assert row["distillation_loss"] == pytest.approx(taught.item(), rel=1e-5)
    expected = 0.7 * F.cross_entropy(outputs, y[order]) + 0.3 * taught
    assert row["train_loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert taught > 0.01


def test_the_metrics_and_the_progress_have_it(trainer: Trainer, dense: Run) -> None:
    seen: list[Progress] = []
    run = trainer(*NORMALISED, *PRUNING, *from_run(dense), "distill.weight=0.5", listener=seen.append)
    rows = list(run.metrics())
    assert [row["distillation_loss"] for row in rows] == [now.distillation for now in seen if now.ends_epoch]
    curve = {"epoch", "learning_rate", "train_loss", "error", "changed", "sparsity", "updates"}
    assert all(row.keys() >= {*curve, "distillation_loss"} for row in rows)


def test_without_a_teacher_nothing_is_written_about_one(trainer: Trainer) -> None:
    seen: list[Progress] = []
    run = trainer("train.epochs=1", listener=seen.append)
    assert "distillation_loss" not in next(run.metrics())
    assert seen[-1].distillation is None
    assert not run.teacher_file.exists()


def test_accumulated_batches_are_one_large_one(dense: Run, data: DataSet) -> None:
    """Without batch norm's own batches: in the first step, the gradient of four is that of one four times as large."""
    found = []
    for batch, accumulate in ((10, 4), (40, 1)):
        small = replace(data, train=data.train[:40])
        settings = (f"train.batch={batch}", f"train.accumulate={accumulate}", "train.epochs=1", "sparsity.method=dense")
        job = tiny.job_of(small, *NORMALISED, *from_run(dense), *settings, "distill.weight=0.8", "distill.hidden=['5']")
        for layer in batch_norm_layers(job.model):  # as in evaluation: one batch is not four
            layer.train = lambda mode=True: nn.Identity()  # type: ignore[method-assign, assignment]
            layer.training = False
        job.model[4].p = 0.0  # type: ignore[index, assignment]
        rows_of(job)
        found.append([parameter.detach().clone() for parameter in job.model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("setting", ["train.precision=bfloat16", "train.precision=float16", "train.accumulate=3"])
def test_it_trains_in_every_way(trainer: Trainer, dense: Run, setting: str) -> None:
    settings = (*NORMALISED, *PRUNING, *from_run(dense), "distill.weight=0.9", "distill.hidden=['1', '5']")
    run = trainer(*settings, "train.recalibrate_batch_norm=15", setting)
    losses = [row["distillation_loss"] for row in run.metrics()]
    assert all(0 < loss < 20 for loss in losses)
    assert run.result()["final_error"] < 60
    assert run.model().topology.sparsity == pytest.approx(0.8, abs=0.01)


def test_an_earlier_run_as_the_teacher(trainer: Trainer, dense: Run, data: DataSet) -> None:
    settings = (*PRUNING, f"distill.run='{dense.path}'", "distill.weight=0.9")
    job = tiny.job_of(data, *settings)  # a fresh network of another kind
    assert job.distillation is not None
    tiny.assert_same_tensors(job.distillation.teacher.state_dict(), dense.model().weights)
    run = trainer(*settings, run="taught")
    tiny.assert_same_model(dense.model(), type(dense.model()).load(run.teacher_file))
    assert teacher_facts(run.recipe()) == {"teacher": dense.model_file.stat().st_mtime_ns}
    assert teacher_facts(dense.recipe()) == {}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("distill.weight=0.5",), "random initialisation teaches nothing; set weights to start from"),
        (("start.run='dense'", "start.weights=fresh", "distill.weight=0.5"), "random initialisation teaches nothing"),
        (("distill.weight=2",), "weight of distillation is 2.0, expected the teacher's share of the loss"),
        (("distill.loss=kll",), "distill.loss is 'kll', expected one of auto, kl, mse, cosine"),
        (("distill.wieght=0.5",), "did you mean 'weight'"),
        (("distill.run='bad'",), "distill.run is 'bad', the folder of this run: choose another"),
        (("distill.run='nowhere'",), "nowhere does not exist: pass a run folder"),
        (("start.run='dense'", "start.weights=final", "distill.hidden=['fc9']"), "has no submodule 'fc9'"),
        (("train.recalibrate_batch_norm=-1",), "recalibrate_batch_norm is -1, expected a number of batches"),
    ],
)
def test_what_cannot_be_distilled(
    trainer: Trainer, dense: Run, settings: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trainer.root)
    with pytest.raises(InputError, match=said):
        trainer(*NORMALISED, *settings, run="bad")
    assert not (trainer.root / "bad").exists()


def test_a_function_that_loads_trained_weights_is_a_teacher(
    data: DataSet, registries: None, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = nn.Linear(784, 10)

    @register_model("pretrained", input_shape=(1, 28, 28), classes=10)
    def build() -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        model[1].load_state_dict(trained.state_dict())
        print("weights loaded")
        return model

    job = tiny.job_of(data, "model.name=pretrained", "model.options={}", "distill.weight=0.5")
    assert job.distillation is not None
    assert capsys.readouterr().err.count("weights loaded") == 1


# Batch norm


def test_statistics_are_estimated_after_updates_and_at_the_end(
    dense: Run, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    at: list[int] = []
    estimate = loop.recalibrate_batch_norm
    settings = ("sparsity.method=pruning", "sparsity.interval=2", "sparsity.end=20", "train.epochs=5")
    job = tiny.job_of(data, *NORMALISED, *from_run(dense), *settings, "train.recalibrate_batch_norm=7")

    def counted(model: nn.Module, batches: Any, reference: nn.Module | None) -> int:
        assert reference is None
        given = list(batches)
        assert len(given) == 7
        at.append(job.sparse.steps // tiny.STEPS_PER_EPOCH)
        return estimate(model, given)

    monkeypatch.setattr(loop, "recalibrate_batch_norm", counted)
    rows = rows_of(job)
    assert at == [1, 2, 5]  # updates at steps 0 to 20 are in the first two epochs
    assert rows[-1]["error"] == evaluate(METRICS["error"], job.model, data.test, 100)
    order = loop.generator(job.seed, job.sparse.steps, "batch-norm statistics")
    first = batch_norm_layers(job.model)[0]
    inputs = [job.model[:2](x) for x, _ in list(data.train.batches(tiny.BATCH, order))[:7]]  # type: ignore[index]
    torch.testing.assert_close(first.running_mean, torch.stack([each.mean(0) for each in inputs]).mean(0))


def test_a_pruned_network_needs_it(trainer: Trainer, dense: Run) -> None:
    """Statistics that follow slowly are those of the dense network: the error shows it, the loss does not."""
    settings = (
        *NORMALISED,
        *from_run(dense),
        "sparsity.method=pruning",
        "sparsity.sparsity=0.95",
        "sparsity.interval=1",
    )
    short = (*settings, "train.epochs=1", "learning_rate.peak=1e-4")
    stale = trainer(*short, run="stale").result()["final_error"]
    fresh = trainer(*short, "train.recalibrate_batch_norm=15", run="fresh").result()["final_error"]
    assert dense.result()["final_error"] < 5
    assert fresh + 15 < stale


def test_it_does_not_touch_the_training(trainer: Trainer, dense: Run) -> None:
    settings = (*NORMALISED, *PRUNING, *from_run(dense))
    runs = [trainer(*settings, f"train.recalibrate_batch_norm={number}", run=f"{number}") for number in (0, 3)]
    weights = [{name: t for name, t in run.model().weights.items() if "running" not in name} for run in runs]
    for name in weights[0].keys() - {"2.num_batches_tracked", "6.num_batches_tracked"}:
        assert torch.equal(weights[0][name], weights[1][name]), name


def test_frozen_statistics_are_used_and_kept(trainer: Trainer, dense: Run, data: DataSet) -> None:
    """The student begins where its teacher is: the first loss is 0, as it is not with statistics of single batches."""
    settings = (*NORMALISED, *PRUNING, *from_run(dense), "train.freeze_batch_norm=true", "distill.weight=1.0")
    job = tiny.job_of(data, *settings)
    job.model[4].p = 0.0  # type: ignore[index, assignment]
    losses: list[Tensor] = []
    assert job.distillation is not None
    from_teacher = job.distillation.from_teacher
    job.distillation.from_teacher = lambda *call: losses.append(from_teacher(*call)) or losses[-1]  # type: ignore
    rows = rows_of(job)
    assert losses[0].item() < 1e-6 < losses[-1].item()
    before, after = dense.model().weights, job.model.state_dict()
    statistics = [name for name in before if "running" in name]
    assert len(statistics) == 4
    assert all(torch.equal(before[name], after[name]) for name in statistics)
    assert not torch.equal(before["2.weight"], after["2.weight"])
    assert rows[-1]["error"] < 30


def test_frozen_statistics_are_estimated_at_every_update(
    dense: Run, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    at: list[int] = []
    settings = (*NORMALISED, *from_run(dense), "sparsity.method=pruning", "sparsity.interval=10", "sparsity.end=20")
    frozen = ("train.freeze_batch_norm=true", "train.recalibrate_batch_norm=3", "distill.weight=0.5")
    job = tiny.job_of(data, *settings, *frozen)

    def counted(model: nn.Module, batches: Any, reference: nn.Module | None) -> None:
        assert job.distillation is not None
        assert reference is job.distillation.teacher
        at.append(job.sparse.steps)

    monkeypatch.setattr(loop, "recalibrate_batch_norm", counted)
    rows_of(job)
    assert at == [1, 11, 21, 60]  # after the steps of the three updates, and at the end
    at.clear()
    pruned = (
        "start.topology=obs",
        "sparsity.method=static",
        "sparsity.dense=['first']",
        "train.epochs=2",
        "learning_rate.peak=1e-3",
    )
    job = tiny.job_of(data, *NORMALISED, *from_run(dense), *pruned, *frozen)
    rows_of(job)
    assert at == [1, 30]  # once for the start, which was pruned


def test_frozen_statistics_are_corrected_by_what_pruning_changed(trainer: Trainer, dense: Run, data: DataSet) -> None:
    settings = (*NORMALISED, *from_run(dense), "train.freeze_batch_norm=true", "train.recalibrate_batch_norm=3")
    unpruned = tiny.job_of(data, *settings, "sparsity.method=dense", "distill.weight=0.5", "learning_rate.peak=1e-30")
    rows_of(unpruned)
    for name, before in dense.model().weights.items():
        if "running" in name:
            torch.testing.assert_close(unpruned.model.state_dict()[name], before, rtol=1e-3, atol=1e-4)
    pruned = tiny.job_of(data, *settings, *PRUNING, "distill.weight=0.5")
    assert rows_of(pruned)[-1]["error"] < 30
    assert not torch.equal(pruned.model.state_dict()["2.running_var"], dense.model().weights["2.running_var"])


def said_by(trainer: Trainer, *overrides: str) -> list[str]:
    said: list[str] = []
    train(tiny.recipe("train.epochs=1", *overrides), trainer.root / "talking", replace(trainer.here(), log=said.append))
    return [line for line in said if "batch" in line and not line.startswith("initial weights")]


def test_what_is_said_about_batch_norm(trainer: Trainer, dense: Run) -> None:
    assert said_by(trainer, "train.recalibrate_batch_norm=3") == [
        "train.recalibrate_batch_norm is 3, but the network has no batch norm: nothing to re-estimate"
    ]
    shutil.rmtree(trainer.root / "talking")
    (line,) = said_by(trainer, *NORMALISED, *from_run(dense))
    assert "not re-estimated after the topology changes" in line
    shutil.rmtree(trainer.root / "talking")
    assert said_by(trainer, *NORMALISED) == []
    shutil.rmtree(trainer.root / "talking")
    assert said_by(trainer, "train.freeze_batch_norm=true") == [
        "train.freeze_batch_norm has no effect: the network has no batch norm"
    ]


# Resuming


@pytest.fixture
def every_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "TICK", 1)


@pytest.mark.usefixtures("every_iteration")
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        lambda dense: (*from_run(dense), "distill.hidden=['1', '5']"),
        lambda dense: (*from_run(dense), "train.freeze_batch_norm=true", "train.evaluate_every=2"),
        lambda dense: (*from_run(dense), "start.topology=end", "sparsity.method=rigl"),
        lambda dense: (f"distill.run='{dense.path}'", "train.evaluate_every=2"),
    ],
)
def test_a_resumed_run_is_the_same(
    trainer: Trainer, dense: Run, more: Callable[[Run], tuple[str, ...]], gone: bool
) -> None:
    """Bit by bit, also where the run that it started from has gone."""
    settings = (*NORMALISED, *PRUNING, "distill.weight=0.7", "train.recalibrate_batch_norm=5", *more(dense))
    whole = trainer(*settings, run="whole")
    with pytest.raises(StoppedError):
        trainer(*settings, run="stopped", listener=stop_at(MIDDLE))
    if gone:
        shutil.rmtree(dense.path)
    resumed = trainer(*settings, run="stopped", resume=True)
    tiny.assert_same_model(resumed.model(), whole.model())
    assert tiny.metrics_of(resumed) == tiny.metrics_of(whole)
    assert resumed.recipe() == whole.recipe()


@pytest.mark.usefixtures("every_iteration")
def test_a_resumed_run_estimates_as_often(trainer: Trainer, dense: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """All updates are before the checkpoint, and so is the estimate that follows them."""
    settings = (*NORMALISED, *PRUNING, *from_run(dense), "sparsity.end=10", "train.recalibrate_batch_norm=5")
    with pytest.raises(StoppedError):
        trainer(*settings, run="stopped", listener=stop_at(MIDDLE))
    estimates: list[nn.Module] = []
    monkeypatch.setattr(loop, "recalibrate_batch_norm", lambda model, *_: estimates.append(model))
    trainer(*settings, run="stopped", resume=True)
    assert len(estimates) == 1  # at the end


# The shipped recipe


def test_the_recipe_for_fine_tuning() -> None:
    recipe = load_recipe("finetune-sparse")
    assert recipe.sparsity.method == "pruning"
    assert recipe.sparsity.dense == ("first", "last")
    assert recipe.distill is not None
    assert recipe.train.recalibrate_batch_norm > 0
    assert recipe.data.name == "image-folder"


def test_the_recipe_prunes_a_trained_network(trainer: Trainer, dense: Run) -> None:
    settings = ("data.name=mnist", "data.options={}", *NORMALISED, *from_run(dense), "train.epochs=4", "train.batch=20")
    settings += ("sparsity.dense=['last']",)  # a perceptron has most of its weights in the first layer
    train(load_recipe("finetune-sparse", settings), trainer.root / "sparse", trainer.here())
    result = Run.open(trainer.root / "sparse").result()
    assert result["sparsity"] > 0.7
    assert result["final_error"] < 15
