"""Sparse training with the Trainer of Hugging Face transformers: a callback."""

from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from rigl_compress.core.errors import InputError
from rigl_compress.core.optional_packages import optional_package
from rigl_compress.integrations.late_sparsifier import LateSparsifier, SparseCallback
from rigl_compress.integrations.sparsifier_file import load_state, save_state
from rigl_compress.models.topology import Topology
from rigl_compress.sparsity.sparsifier import config_from
from rigl_compress.sparsity.sparsity_config import SparsityConfig

FILE = "sparsifier.safetensors"  # in the folder of a checkpoint
_TrainerCallback: Any = optional_package("transformers", "huggingface").TrainerCallback


class SparseTraining(SparseCallback, _TrainerCallback):  # type: ignore[misc]
    """Keeps the model of a `transformers.Trainer` sparse while it is trained.

    Works with accumulated gradients, mixed precision and `resume_from_checkpoint`. The Trainer clips gradients before
    a callback sees them: inactive connections count in their norm.
    """

    def __init__(
        self,
        config: SparsityConfig | None = None,
        *,
        resume_from: str | Path | None = None,
        seed: int = 0,
        topology: Topology | str | None = None,
        **settings: Any,
    ) -> None:
        """Take the settings of `Sparsifier`; the number of steps is the Trainer's.

        `topology="magnitude"` begins at the largest weights of a trained network.
        `resume_from` is the checkpoint that `Trainer.train` resumes from, if it is not in its `output_dir`.
        """
        self._resume_from = resume_from
        self._late = LateSparsifier(config_from(config, settings), seed, topology)

    # What the Trainer calls

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, optimizer: Optimizer, **_: Any
    ) -> None:
        """Build the sparsifier: the optimizer is there, and the weights are those of the checkpoint."""
        del control
        if state.global_step:
            folder = Path(self._resume_from or _checkpoint(args, state))
            self._late.load_state_dict(load_state(_existing(folder / FILE)))
        self._late.start(model, optimizer, state.max_steps)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the state beside the Trainer's own."""
        del control
        if state.is_world_process_zero:
            save_state(_checkpoint(args, state) / FILE, self.sparse.state_dict())

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Add the sparsity, and how many connections the last update changed, to the history of a training."""
        del args, control
        if not self._late.started:  # an evaluation before it
            return
        figures = {"sparsity": self.sparse.sparsity, "changed": self.sparse.changed}
        for entry in (logs, state.log_history[-1] if state.log_history else None):
            if entry is not None:
                entry.update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Return to the topology of the best checkpoint, where the Trainer returned to its weights."""
        del control
        if args.load_best_model_at_end and state.best_model_checkpoint:
            self.sparse.load_state_dict(load_state(_existing(Path(state.best_model_checkpoint) / FILE)))


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _existing(file: Path) -> Path:
    if not file.exists():
        raise InputError(
            f"{file} is missing, which holds the topology of the checkpoint: pass the folder that has it as "
            "SparseTraining(resume_from=…), or train from the start"
        )
    return file
