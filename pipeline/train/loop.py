"""The training loop, to be read from top to bottom."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.pipeline.recipe import TrainConfig
from rigl_compress.pipeline.train.data.dataset import DataSet
from rigl_compress.pipeline.train.learning_rate import Rate
from rigl_compress.pipeline.train.losses import DivergedError, Losses, check_finite
from rigl_compress.pipeline.train.metrics import METRICS, Metric, evaluate, loss_of
from rigl_compress.pipeline.train.optimizers import set_learning_rate
from rigl_compress.pipeline.train.progress import Listener, Progress
from rigl_compress.pipeline.train.randomness import generator
from rigl_compress.pipeline.train.sparsifier import Sparsifier

TICK = 100  # iterations between two reports
AT_ONCE = 4  # training batches that are evaluated at once: without gradients they take less memory than one in training


@dataclass
class Job:
    """Everything the loop works with."""

    model: nn.Module
    forward: Callable[[Tensor], Tensor]  # the model, possibly compiled
    optimizer: Optimizer
    sparse: Sparsifier
    rate: Rate
    data: DataSet
    config: TrainConfig
    seed: int
    device: torch.device
    listener: Listener
    scaler: torch.amp.GradScaler  # of half precision; elsewhere it does nothing
    epochs_done: int = 0
    seen: dict[str, Any] = field(default_factory=dict)  # what the last evaluation gave, and the best so far

    @property
    def metric(self) -> Metric:
        """What the data set is measured by."""
        return METRICS[self.data.metric]


def train_epochs(job: Job, end_of_epoch: Callable[[int, dict[str, Any]], None]) -> None:
    """Train from where the job stands to its last epoch; `end_of_epoch` gets (epochs done, metrics)."""
    config, scaler, autocast = job.config, job.scaler, _autocast(job)
    per_epoch = len(job.data.train) // config.batch
    for epoch in range(job.epochs_done, config.all_epochs):
        job.model.train()
        losses = Losses(scaled=scaler.is_enabled())
        batches = job.data.train.batches(config.batch, generator(job.seed, epoch, "order of the data"))
        for iteration, (x, y) in enumerate(batches, start=1):
            with autocast():
                loss = loss_of(job.forward(x), y, config.label_smoothing) + job.sparse.penalty()
            losses.add(loss, job.sparse.steps, job.rate(job.sparse.steps))
            if job.device.type == "cpu" or iteration % TICK == 0:  # reading waits for other devices
                losses.read()
            scaler.scale(loss / config.accumulate).backward()  # type: ignore[no-untyped-call]
            if iteration % config.accumulate == 0:
                scaler.unscale_(job.optimizer)
                set_learning_rate(job.optimizer, job.rate(job.sparse.steps))
                if not job.sparse.step():  # True: a topology update took the place of the step
                    if config.clip_gradient:  # now that the gradients of dead weights are gone
                        nn.utils.clip_grad_norm_(job.model.parameters(), config.clip_gradient)
                    scaler.step(job.optimizer)
                scaler.update()
                job.optimizer.zero_grad()
            if iteration % TICK == 0 and iteration < per_epoch:  # the end of an epoch is told once, evaluated
                job.listener(_progress(job, epoch, epoch * per_epoch + iteration, losses.mean))
        job.optimizer.zero_grad()  # batches that fill no whole step are left out: a resumed run could not know them
        losses.end()
        check_finite(job.model, job.sparse.steps)
        metrics = _metrics(job, epoch + 1, losses.mean)
        job.listener(_progress(job, epoch, (epoch + 1) * per_epoch, losses.mean))
        end_of_epoch(epoch + 1, metrics)


def _autocast(job: Job) -> Callable[[], torch.autocast]:
    kind = getattr(torch, job.config.precision)
    return lambda: torch.autocast(job.device.type, dtype=kind, enabled=kind is not torch.float32)


def _metrics(job: Job, epochs_done: int, loss: float | None) -> dict[str, Any]:
    if epochs_done % job.config.evaluate_every == 0 or epochs_done == job.config.all_epochs:
        name, value = job.data.metric, evaluate(job.metric, job.model, job.data.test, AT_ONCE * job.config.batch)
        if not isfinite(value):
            raise DivergedError(f"training diverged: the {job.metric.title} after epoch {epochs_done} is {value}")
        job.seen = {name: value, f"best_{name}": min(value, job.seen.get(f"best_{name}", value))}
    return {
        "epoch": epochs_done,
        "step": job.sparse.steps,
        "updates": job.sparse.updates,
        "learning_rate": job.rate(max(0, job.sparse.steps - 1)),
        "train_loss": loss,
        "changed": job.sparse.changed,
        **job.seen,
    }


def _progress(job: Job, epoch: int, iteration: int, loss: float | None) -> Progress:
    epochs = job.config.all_epochs
    iterations = epochs * (len(job.data.train) // job.config.batch)
    name = job.data.metric
    return Progress(
        iteration,
        iterations,
        epoch + 1,
        epochs,
        job.sparse.sparsity,
        job.sparse.changed,
        loss,
        metric=name,
        value=job.seen.get(name),
        best=job.seen.get(f"best_{name}"),
    )
