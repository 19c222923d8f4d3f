"""Sparse training with Lightning: a callback for `lightning.pytorch` and `pytorch_lightning`."""

import sys
from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any

from torch import nn
from torch.optim import Optimizer

from rigl_compress.core.errors import InputError
from rigl_compress.core.optional_packages import optional_package
from rigl_compress.integrations.late_sparsifier import LateSparsifier, SparseCallback
from rigl_compress.models.topology import Topology
from rigl_compress.sparsity.optimizer_gradients import has_gradients, innermost
from rigl_compress.sparsity.sparsifier import config_from
from rigl_compress.sparsity.sparsity_config import SparsityConfig

# The two packages have the same code; a trainer of either calls the callbacks of both.
_loaded = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
_Callback: Any = optional_package("pytorch_lightning" if _loaded else "lightning.pytorch", "lightning").Callback


class SparseTraining(SparseCallback, _Callback):  # type: ignore[misc]
    """Keeps the network of a LightningModule sparse while `Trainer.fit` trains it.

    Works with automatic and manual optimization, accumulated and clipped gradients (inactive connections do not count
    in their norm) and mixed precision. The state is part of Lightning's checkpoints.
    """

    def __init__(
        self,
        config: SparsityConfig | None = None,
        *,
        module: str = "",
        optimizer: int | None = None,
        total_steps: int | None = None,
        seed: int = 0,
        topology: Topology | str | None = None,
        **settings: Any,
    ) -> None:
        """Take the settings of `Sparsifier`; `topology="magnitude"` begins at the largest weights of a trained network.

        `module` is the name of the part to make sparse, such as "net" or "generator"; by default all of the module.
        `optimizer` is the index of the one that trains it, where there are several. `total_steps` are by default
        those that the trainer estimates.
        """
        super().__init__()
        self._module, self._optimizer, self._total_steps = module, optimizer, total_steps
        self._late = LateSparsifier(config_from(config, settings), seed, topology)
        self._logged: int | None = None  # the update whose figures were logged last

    # Checkpoints

    @property
    def state_key(self) -> str:
        """The name of the state in a checkpoint: several parts have one each."""
        return str(self._generate_state_key(module=self._module))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to resume."""
        return dict(self._late.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the state of a checkpoint; it is loaded when the optimizers are there."""
        self._late.load_state_dict(state_dict)

    # What the trainer calls

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Build the sparsifier: the optimizers are there, and the weights are those of the checkpoint."""
        model, optimizer = _part(pl_module, self._module), _chosen(trainer.optimizers, self._optimizer)
        self._late.start(model, optimizer, self._total_steps or _estimated_steps(trainer))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Optimizer) -> None:
        """Mask the gradients before they are clipped, or update the topology.

        Gradients that a fused optimizer is going to unscale are left to the sparsifier's own hook.
        """
        del pl_module
        ours = innermost(optimizer) is self.sparse.optimizer
        if ours and not _unscales_itself(trainer, optimizer) and has_gradients(optimizer):
            self.sparse.step()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Log the sparsity, and how many connections changed, after every update."""
        del trainer
        if self.sparse.updated_at != self._logged:
            self._logged = self.sparse.updated_at
            figures = {"sparsity": self.sparse.sparsity, "changed": float(self.sparse.changed)}
            prefix = f"{self._module}/" if self._module else ""
            pl_module.log_dict({f"{prefix}{name}": value for name, value in figures.items()}, on_epoch=False)


def _part(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError:
        known = ", ".join(each for each, _ in module.named_children())
        raise InputError(f"module {name!r} is not a part of {type(module).__name__}, which has {known}") from None


def _chosen(optimizers: Sequence[Optimizer], index: int | None) -> Optimizer:
    if index is None and len(optimizers) != 1:
        raise InputError(f"there are {len(optimizers)} optimizers: say which one trains the sparse part, optimizer=0")
    if not -len(optimizers) <= (index or 0) < len(optimizers):
        raise InputError(f"optimizer is {index}, but there are only {len(optimizers)}: the first one is 0")
    return optimizers[index or 0]


def _estimated_steps(trainer: Any) -> int | None:
    steps = trainer.estimated_stepping_batches
    return None if isinf(steps) else int(steps)


def _unscales_itself(trainer: Any, optimizer: Optimizer) -> bool:
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False)
