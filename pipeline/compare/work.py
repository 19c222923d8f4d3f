"""What is done for one run of a comparison: training, and then what makes files of the network."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rigl_compress.models.trust import code_is_trusted, named, only_named, trusting_code
from rigl_compress.pipeline.compare.cells import Cell
from rigl_compress.pipeline.run import RunConfig, stages_of
from rigl_compress.pipeline.stages import Stage, run_stages, up_to_date
from rigl_compress.pipeline.train.progress import Listener
from rigl_compress.pipeline.train.stage import Circumstances, train


@dataclass(frozen=True)
class Task:
    """What to do with a run: it goes to other processes, so it holds plain values only."""

    device: str = "auto"
    data_dir: Path | None = None
    train_only: bool = False
    trust_code: bool = field(default_factory=code_is_trusted)
    named: set[str] | None = field(default_factory=named)

    def __call__(self, cell: Cell, listener: Listener) -> dict[str, Any]:
        """Train what is not trained, go on with what was begun; then prune and export. Gives the result."""
        with trusting_code(self.trust_code), only_named(self.named):
            return self._work(cell, listener)

    def _work(self, cell: Cell, listener: Listener) -> dict[str, Any]:
        torch.set_num_threads(1)  # runs side by side use the cores better than threads within a run
        here = Circumstances(self.device, self.data_dir, listener)
        with cell.run.locked():
            if not cell.trained:
                train(cell.recipe, cell.path, here, resume=cell.run.recipe_file.exists())
            run_stages(self._stages(cell), cell.run.stages_file)
        return cell.run.result()

    def done(self, cell: Cell) -> bool:
        """Say whether nothing is left to do."""
        return cell.trained and all(up_to_date(stage, cell.run.stages_file) for stage in self._stages(cell))

    def _stages(self, cell: Cell) -> list[Stage]:
        stages = stages_of(RunConfig(cell.recipe, cell.path, cell.row.values))
        return [] if self.train_only else [stage for stage in stages if stage.name in ("prune", "export")]


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
