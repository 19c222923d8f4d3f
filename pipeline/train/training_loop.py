"""The training loop, to be read from top to bottom."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.core.random_generators import generator
from rigl_compress.data.dataset import DataSet
from rigl_compress.data.sharded_batches import sharded_batches
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.learning_rate import Rate
from rigl_compress.pipeline.metrics import METRICS, Metric, loss_of
from rigl_compress.pipeline.optimizers import set_learning_rate
from rigl_compress.pipeline.recipe import TrainConfig
from rigl_compress.pipeline.train.data_parallel import averaging, draw_own_noise, weighted
from rigl_compress.pipeline.train.losses import DivergedError, Losses, check_finite
from rigl_compress.pipeline.train.process_group import ALONE, World
from rigl_compress.pipeline.train.progress import Listener, Progress
from rigl_compress.pipeline.train.shared_evaluation import evaluate_together
from rigl_compress.sparsity.batch_norm_statistics import batch_norm_layers, recalibrate_batch_norm
from rigl_compress.sparsity.distillation import Distillation
from rigl_compress.sparsity.sparsifier import Sparsifier

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
    scaler: torch.amp.GradScaler  # disabled unless precision is float16
    distillation: Distillation | None = None  # the teacher, if there is one
    dense: nn.Module | None = None  # the teacher, if it is this network before anything was removed
    epochs_done: int = 0
    seen: dict[str, Any] = field(default_factory=dict)  # metrics of the last evaluation, and the best so far
    initial: SparseModel | None = None  # all initial weights, until they are saved
    notes: tuple[str, ...] = ()  # printed before training starts
    learned: bool = False  # whether the network was trained before
    recalibrated: int = 0  # topology updates at the last estimate of batch-norm statistics; -1: pruned, and none yet
    world: World = ALONE  # the processes that train together
    batches_done: int = 0  # of an epoch that a checkpoint within it had begun
    losses_so_far: Sequence[Sequence[float]] = ()  # of these batches
    after_step: Callable[[int, int, Losses, Losses], None] = lambda *_: None  # with (epoch, iteration, losses, …)

    @property
    def metric(self) -> Metric:
        """The metric of the data set."""
        return METRICS[self.data.metric]


def train_epochs(job: Job, end_of_epoch: Callable[[int, dict[str, Any]], None]) -> None:
    """Train from the current to the last epoch; `end_of_epoch` is called with (epochs done, metrics)."""
    config, scaler, autocast = job.config, job.scaler, _autocast(job)
    per_epoch = len(job.data.train) // config.batch
    for epoch in range(job.epochs_done, config.all_epochs):
        _begin_epoch(job)
        losses, taught = _losses(job)  # of the whole loss, of the teacher's part
        order = generator(job.seed, epoch, "order of the data")
        batches = sharded_batches(job.data.train, config.batch, order, job.world.shard(job.batches_done))
        for iteration, (x, y) in enumerate(batches, start=job.batches_done + 1):
            last = iteration % config.accumulate == 0  # of an optimizer step
            _seed_noise(job, epoch * per_epoch + iteration)
            with averaging(job.forward, last, job.sparse.updater.parameters.values()):
                with autocast():
                    loss = _loss(job, x, y, taught)
                losses.add(loss, job.sparse.steps, job.rate(job.sparse.steps))
                if iteration % TICK == 0 or (job.device.type == "cpu" and job.world.alone):  # else reading would wait
                    losses.read()
                    taught.read()
                scaler.scale(loss / config.accumulate).backward()  # type: ignore[no-untyped-call]
            if last:
                scaler.unscale_(job.optimizer)
                set_learning_rate(job.optimizer, job.rate(job.sparse.steps))
                if not job.sparse.step():  # True: a topology update took the place of the step
                    if config.clip_gradient:  # after the gradients of inactive connections were cleared
                        nn.utils.clip_grad_norm_(job.model.parameters(), config.clip_gradient)
                    scaler.step(job.optimizer)
                scaler.update()
                job.optimizer.zero_grad()
                if config.freeze_batch_norm:  # training is normalised by the statistics
                    _recalibrate(job)
                job.after_step(epoch, iteration, losses, taught)  # may save a checkpoint, or stop
            if iteration % TICK == 0 and iteration < per_epoch:  # the end of an epoch is reported after the evaluation
                job.listener(_progress(job, epoch, epoch * per_epoch + iteration, losses.mean, taught.mean))
        job.optimizer.zero_grad()  # batches that fill no whole step are dropped: a resumed run would not have them
        losses.end()
        taught.read()
        check_finite(job.model, job.sparse.steps)
        metrics = _metrics(job, epoch + 1, losses.mean, taught.mean)
        job.listener(_progress(job, epoch, (epoch + 1) * per_epoch, losses.mean, taught.mean))
        job.batches_done, job.losses_so_far = 0, ()
        end_of_epoch(epoch + 1, metrics)


def _losses(job: Job) -> tuple[Losses, Losses]:
    """Return the losses of an epoch: empty, or as they were at a checkpoint within it."""
    both = tuple(Losses(job.scaler.is_enabled(), job.world.mean) for _ in range(2))
    for losses, state in zip(both, job.losses_so_far, strict=False):
        losses.load(state)
    return both[0], both[1]


def _seed_noise(job: Job, iteration: int) -> None:
    """Let dropout differ between processes. Gates draw for all processes at once, from the same random state."""
    if job.sparse.method.gating is None:
        draw_own_noise(job.world, job.seed, iteration)


def _begin_epoch(job: Job) -> None:
    """Set all layers to training; batch norm keeps the statistics of the start if the recipe says so."""
    job.model.train()
    for layer in batch_norm_layers(job.model) if job.config.freeze_batch_norm else ():
        layer.eval()


def _loss(job: Job, x: Tensor, y: Tensor, taught: Losses) -> Tensor:
    """Return the loss of a batch; the teacher's part of it is also added to `taught`."""
    if job.config.channels_last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    answers = job.forward(x)
    loss = loss_of(answers, y, job.config.label_smoothing)
    if job.distillation is not None:
        part = job.distillation.from_teacher(answers, x)
        taught.add(weighted(part, y, job.config.batch, job.world), job.sparse.steps, job.rate(job.sparse.steps))
        loss = job.distillation.mix(loss, part)
    return weighted(loss, y, job.config.batch, job.world) + job.sparse.penalty()


def _autocast(job: Job) -> Callable[[], torch.autocast]:
    kind = getattr(torch, job.config.precision)
    return lambda: torch.autocast(job.device.type, dtype=kind, enabled=kind is not torch.float32)


def _recalibrate(job: Job, *, last: bool = False) -> None:
    """Re-estimate batch-norm statistics if the topology changed since the last time, and at the end."""
    if job.config.recalibrate_batch_norm and (last or job.sparse.updates > job.recalibrated):
        order = generator(job.seed, job.sparse.steps, "batch-norm statistics")
        batches = islice(job.data.train.batches(job.config.batch, order), job.config.recalibrate_batch_norm)
        recalibrate_batch_norm(job.model, batches, job.dense if job.config.freeze_batch_norm else None)
        job.recalibrated = job.sparse.updates


def _metrics(job: Job, epochs_done: int, loss: float | None, taught: float | None) -> dict[str, Any]:
    last = epochs_done == job.config.all_epochs
    if epochs_done % job.config.evaluate_every == 0 or last:
        _recalibrate(job, last=last)
        name, size = job.data.metric, AT_ONCE * job.config.batch
        value = evaluate_together(job.world, job.metric, job.model, job.data.test, size)
        if not isfinite(value):
            raise DivergedError(f"training diverged: the {job.metric.title} after epoch {epochs_done} is {value}")
        job.seen = {name: value, f"best_{name}": min(value, job.seen.get(f"best_{name}", value))}
    return {
        "epoch": epochs_done,
        "step": job.sparse.steps,
        "updates": job.sparse.updates,
        "learning_rate": job.rate(max(0, job.sparse.steps - 1)),
        "train_loss": loss,
        **({} if job.distillation is None else {"distillation_loss": taught}),
        "changed": job.sparse.changed,
        **job.seen,
    }


def _progress(job: Job, epoch: int, iteration: int, loss: float | None, taught: float | None) -> Progress:
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
        distillation=taught,
    )
