"""The work of one trial: train, then prune and export."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rigl_compress.core.trust import code_is_trusted, named, only_named, trusting_code
from rigl_compress.experiments.trials import Trial
from rigl_compress.pipeline.run_pipeline import RunConfig, stages_of
from rigl_compress.pipeline.stage_cache import Stage, run_stages, up_to_date
from rigl_compress.pipeline.train.device_choice import find_device
from rigl_compress.pipeline.train.progress import Listener
from rigl_compress.pipeline.train.stage import RunEnvironment, train


@dataclass(frozen=True)
class Task:
    """The stages to run for a trial, and where. It is sent to other processes, so it holds plain values only."""

    device: str = "auto"
    data_dir: Path | None = None
    train_only: bool = False
    engine: str = "local"  # or ray[:ADDRESS]
    trust_code: bool = field(default_factory=code_is_trusted)
    named: set[str] | None = field(default_factory=named)

    def __call__(self, trial: Trial, listener: Listener) -> dict[str, Any]:
        """Run what is left of a trial, from its checkpoint if there is one, and return its result."""
        with trusting_code(self.trust_code), only_named(self.named):
            return self._run(trial, listener)

    def _run(self, trial: Trial, listener: Listener) -> dict[str, Any]:
        torch.set_num_threads(1)  # runs side by side use the cores better than threads within a run
        run_environment = RunEnvironment(self.device, self.data_dir, listener)
        with trial.run.locked():
            if not trial.trained:
                train(trial.recipe, trial.path, run_environment, resume=trial.run.recipe_file.exists())
            run_stages(self._stages(trial), trial.run.stages_file)
        return trial.run.result()

    def done(self, trial: Trial) -> bool:
        """Check whether nothing is left to run."""
        return trial.trained and all(up_to_date(stage, trial.run.stages_file) for stage in self._stages(trial))

    def _stages(self, trial: Trial) -> list[Stage]:
        stages = stages_of(RunConfig(trial.recipe, trial.path, trial.row.values))
        return [] if self.train_only else [stage for stage in stages if stage.name in ("prune", "export")]


def default_jobs(device: str) -> int:
    """Return the number of trials that run at a time: one per core, or one if all would share an accelerator.

    >>> default_jobs("cpu") == cores()
    True
    """
    return cores() if find_device(device).type == "cpu" else 1


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
