"""What a run writes while it trains: metrics after each epoch, checkpoints there and within epochs. Rank 0 writes."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from rigl_compress.core.errors import StoppedError
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.sparsity_account import topology_changes
from rigl_compress.pipeline.train.checkpoint import save_checkpoint
from rigl_compress.pipeline.train.checkpoint_moments import Moments
from rigl_compress.pipeline.train.losses import Losses, check_finite
from rigl_compress.pipeline.train.metric_logging import MetricLoggers
from rigl_compress.pipeline.train.training_loop import Job
from rigl_compress.pipeline.workspace import Run


@dataclass
class RunRecorder:
    """Writes metrics and checkpoints of a job into its run folder."""

    run: Run
    job: Job
    loggers: MetricLoggers
    moments: Moments
    began: float  # when training would have begun, had it never been stopped
    topology: Topology  # at the begin of the epoch
    saved: str = ""  # where the latest checkpoint is, in words

    def end_of_epoch(self, epochs_done: int, metrics: dict[str, Any]) -> None:
        """Write the metrics of an epoch, and a checkpoint where one is due."""
        job, before, self.topology = self.job, self.topology, self.job.sparse.topology
        changes = topology_changes(before, self.topology)
        row = {**metrics, **changes, "sparsity": job.sparse.sparsity, "seconds": round(self.seconds, 2)}
        if not job.world.first:
            return
        self.run.add_metrics(row)
        self.loggers(row["step"], row)
        if epochs_done % job.config.checkpoint_every == 0:
            self._save({"epochs_done": epochs_done})
            self.saved = f"of epoch {epochs_done}"

    def after_step(self, epoch: int, iteration: int, losses: Losses, taught: Losses) -> None:
        """Write a checkpoint within an epoch where one is due; after a signal, stop."""
        due = self.moments.after_step()
        if not due:
            return
        losses.read()  # a run that diverged leaves no checkpoint
        taught.read()
        check_finite(self.job.model, self.job.sparse.steps)
        if self.job.world.first:
            done = {"epochs_done": epoch, "batches_done": iteration, "losses": [losses.state, taught.state]}
            self._save({**done, "begin": self.topology})
            self.saved = f"of epoch {epoch + 1}, batch {iteration}"
        if due == "stop":
            where = f"{self.run.path} has the checkpoint {self.saved}"
            raise StoppedError(f"stopped by SIGTERM; {where}: resume with resume=True")

    @property
    def seconds(self) -> float:
        """The seconds of training so far."""
        return perf_counter() - self.began

    def _save(self, where: dict[str, Any]) -> None:
        job = self.job
        progress = {"seen": job.seen, "seconds": self.seconds, "scaler": job.scaler.state_dict()}
        progress |= {"recalibrated": job.recalibrated, **where}
        save_checkpoint(self.run.checkpoint_file, job.model, job.optimizer, job.sparse, progress)
