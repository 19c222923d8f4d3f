"""The training loop."""

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from rigl_compress.data.dataset import DataSet, Split
from rigl_compress.pipeline.metrics import METRICS, evaluate
from rigl_compress.pipeline.train import training_loop as loop
from rigl_compress.pipeline.train.progress import Progress
from rigl_compress.pipeline.train.training_loop import Job, train_epochs


def run(job: Job) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    train_epochs(job, lambda epochs, metrics: rows.append({"done": epochs, **metrics}))
    return rows


def weights(job: Job) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in job.model.parameters()]


def test_it_learns(data: DataSet) -> None:
    rows = run(tiny.job_of(data, "sparsity.method=static", "train.epochs=8"))
    assert rows[-1]["error"] < 10
    assert rows[-1]["train_loss"] < rows[0]["train_loss"] / 2
    assert [row["done"] for row in rows] == [row["epoch"] for row in rows] == list(range(1, 9))


def test_the_metrics_of_an_epoch(data: DataSet) -> None:
    row = run(tiny.job_of(data, "train.epochs=1"))[0]
    expected = {"done", "epoch", "step", "updates", "learning_rate", "train_loss", "changed", "error", "best_error"}
    assert row.keys() == expected


def test_an_update_takes_the_place_of_a_step_and_the_rate_does_not_advance(data: DataSet) -> None:
    job = tiny.job_of(data, "sparsity.interval=4", "sparsity.end=12", "learning_rate.shape=linear")
    rates: list[float] = []
    job.optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    rows = run(job)
    iterations = tiny.EPOCHS * tiny.STEPS_PER_EPOCH
    assert job.sparse.updates == 4  # at steps 0, 4, 8, 12
    assert rows[-1]["step"] == len(rates) == iterations - 4
    assert rates == [job.rate(step) for step in range(len(rates))]


@pytest.mark.parametrize("method", ["set", "snfs", "pruning", "dnw", "deepr"])
def test_other_methods_take_every_step(data: DataSet, method: str) -> None:
    job = tiny.job_of(data, f"sparsity.method={method}", "train.epochs=2")
    assert run(job)[-1]["step"] == 2 * tiny.STEPS_PER_EPOCH
    assert job.sparse.updates > 0


def test_best_is_the_least_error_seen(data: DataSet) -> None:
    rows = run(tiny.job_of(data, "train.epochs=6"))
    errors = [row["error"] for row in rows]
    assert [row["best_error"] for row in rows] == [min(errors[: count + 1]) for count in range(6)]


def test_evaluation_every_so_many_epochs_and_at_the_end(data: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Split] = []
    monkeypatch.setattr(loop, "evaluate_together", lambda *given: float(seen.append(given[3]) or len(seen)))
    rows = run(tiny.job_of(data, "train.epochs=5", "train.evaluate_every=2"))
    assert [row.get("error") for row in rows] == [None, 1, 1, 2, 3]
    assert all(split is data.test for split in seen)


# The order of the data


def first_batches(data: DataSet, *overrides: str) -> list[Tensor]:
    job, seen = tiny.job_of(data, *overrides), []

    def spy(x: Tensor) -> Tensor:
        seen.append(x)
        return job.model(x)

    job.forward = spy
    run(job)
    return seen


def test_every_epoch_has_its_own_order_decided_by_the_seed(data: DataSet) -> None:
    one, again, other = (first_batches(data, "train.epochs=2", f"seed={seed}") for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], other[0])
    first, second = one[: tiny.STEPS_PER_EPOCH], one[tiny.STEPS_PER_EPOCH :]
    assert not torch.equal(first[0], second[0])
    sums = [torch.cat(epoch).sum(dim=(1, 2, 3)).sort().values for epoch in (first, second)]
    assert torch.equal(*sums), "every sample once in an epoch"


# Options


def test_accumulated_batches_are_one_larger_batch(data: DataSet) -> None:
    common = ("train.epochs=1", "sparsity.method=static")
    whole, halves = tiny.job_of(data, *common), tiny.job_of(data, *common, "train.batch=10", "train.accumulate=2")
    run(whole)
    run(halves)
    assert whole.sparse.steps == halves.sparse.steps
    for one, other in zip(weights(whole), weights(halves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_batches_that_fill_no_step_are_left_out(data: DataSet) -> None:
    job = tiny.job_of(data, "train.accumulate=4", "train.epochs=2", "sparsity.method=static")
    rows: list[list[Any]] = []
    train_epochs(job, lambda *_: rows.append([parameter.grad for parameter in job.model.parameters()]))
    assert job.sparse.steps == 2 * (tiny.STEPS_PER_EPOCH // 4)
    assert all(gradient is None for gradients in rows for gradient in gradients)


def test_clipping_bounds_the_gradient_of_living_weights(data: DataSet) -> None:
    norms: list[float] = []

    def look(optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        norms.append(float(torch.cat([gradient.flatten() for gradient in gradients if gradient is not None]).norm()))

    job = tiny.job_of(data, "train.clip_gradient=0.01", "train.epochs=1")
    job.optimizer.register_step_pre_hook(look)
    run(job)
    assert norms == pytest.approx([0.01] * len(norms), rel=1e-2)


def test_label_smoothing_raises_the_loss_of_sure_answers(data: DataSet) -> None:
    plain, smooth = (
        run(tiny.job_of(data, "sparsity.method=dense", f"train.label_smoothing={share}"))[-1]["train_loss"]
        for share in (0.0, 0.2)
    )
    assert smooth > plain + 0.3


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_learns_and_keeps_full_weights(data: DataSet, precision: str) -> None:
    job = tiny.job_of(data, f"train.precision={precision}", "sparsity.method=set", "train.epochs=8")
    inner: set[torch.dtype] = set()
    layer = next(module for module in job.model.modules() if isinstance(module, nn.Linear))
    layer.register_forward_hook(lambda module, inputs, output: inner.add(output.dtype))
    rows = run(job)
    assert getattr(torch, precision) in inner
    assert {parameter.dtype for parameter in job.model.parameters()} == {torch.float32}
    assert rows[-1]["error"] < 40
    assert job.sparse.topology.sparsity == pytest.approx(job.sparse.sparsity)


def test_a_compiled_model_is_what_computes(data: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def compile_(model: nn.Module) -> Any:
        return lambda x: calls.append(len(x)) or model(x)

    monkeypatch.setattr(torch, "compile", compile_)
    run(tiny.job_of(data, "train.compile=true", "train.epochs=1"))
    assert calls == [tiny.BATCH] * tiny.STEPS_PER_EPOCH


# What it says


def test_a_listener_hears_of_every_epoch_however_short(data: DataSet) -> None:
    heard: list[Progress] = []
    job = tiny.job_of(data)
    job.listener = heard.append
    rows = run(job)
    assert [now.epoch for now in heard] == [1, 2, 3, 4]
    assert [now.iteration for now in heard] == [15, 30, 45, 60]
    assert {now.iterations for now in heard} == {60}
    assert [(now.loss, now.value, now.best) for now in heard] == [
        (row["train_loss"], row["error"], row["best_error"]) for row in rows
    ]
    assert heard[-1].sparsity == job.sparse.sparsity


def test_and_of_every_so_many_iterations(data: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "TICK", 5)
    heard: list[Progress] = []
    job = tiny.job_of(data, "train.epochs=2")
    job.listener = heard.append
    run(job)
    assert sorted({now.iteration for now in heard}) == [5, 10, 15, 20, 25, 30]
    assert heard[0].value is None
    assert all(now.loss is not None and now.loss > 0 for now in heard)


# The error


class Threshold(nn.Module):
    """Answers class 1 where the input is positive; in training mode always class 0."""

    def forward(self, x: Tensor) -> Tensor:
        positive = (x[:, 0] > 0).float() * (0.0 if self.training else 1.0)
        return torch.stack([torch.full_like(positive, 0.5), positive], dim=1)


@pytest.mark.parametrize("batch", [1, 3, 4, 100])
@pytest.mark.parametrize("training", [True, False])
def test_error_is_the_share_of_wrong_answers_in_evaluation_mode(batch: int, training: bool) -> None:
    split = Split(torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]), torch.tensor([1, 1, 0, 1]))
    model = Threshold().train(training)
    assert evaluate(METRICS["error"], model, split, batch) == 25.0
    assert model.training == training
