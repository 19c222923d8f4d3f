"""A sparsifier that is built when a training framework has made its optimizer."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from rigl_compress.core.errors import InputError
from rigl_compress.models.topology import Topology
from rigl_compress.sparsity.sparsifier import Sparsifier
from rigl_compress.sparsity.sparsity_config import SparsityConfig


class LateSparsifier:
    """The settings of an automatic sparsifier, the state that it resumes from, and the sparsifier once it is built."""

    def __init__(self, config: SparsityConfig, seed: int, topology: Topology | str | None) -> None:
        _check_method(config)
        self._config, self._seed, self._topology = config, seed, topology
        self._model: nn.Module | None = None
        self._sparse: Sparsifier | None = None
        self._state: Mapping[str, Any] | None = None

    @property
    def started(self) -> bool:
        """Whether the training has started."""
        return self._sparse is not None

    @property
    def sparse(self) -> Sparsifier:
        """The sparsifier; raises before the training has started."""
        if self._sparse is None:
            raise InputError("there is no topology yet: the training has not started, call the trainer's fit or train")
        return self._sparse

    def start(self, model: nn.Module, optimizer: Optimizer, total_steps: int | None) -> None:
        """Build the sparsifier; with the state of a checkpoint, or of an earlier training of the same model."""
        state = self.state_dict() if self._state or self._model is model else None
        self._sparse = _built(lambda: self._new(model, optimizer, total_steps), model, state)
        self._model, self._state = model, None

    def _new(self, model: nn.Module, optimizer: Optimizer, total_steps: int | None) -> Sparsifier:
        return Sparsifier(
            *(model, optimizer, self._config),
            total_steps=total_steps,
            seed=self._seed,
            topology=self._topology,
            automatic=True,
        )

    def state_dict(self) -> Mapping[str, Any]:
        """Return everything needed to resume; nothing before the training has started."""
        return self._state or ({} if self._sparse is None else self._sparse.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint for the start of the training."""
        self._state = dict(state)


class SparseCallback:
    """What the callbacks of all frameworks offer; a subclass sets `_late`."""

    _late: LateSparsifier

    @property
    def sparse(self) -> Sparsifier:
        """The sparsifier, once the training has started."""
        return self._late.sparse

    @property
    def topology(self) -> Topology:
        """The active connections of the part that is sparse, as a copy."""
        return self.sparse.topology


def _check_method(config: SparsityConfig) -> None:
    if config.rule.gating is not None:
        raise InputError(
            f"method {config.method_name!r} trains gates beside the weights, which needs a loop made for it: "
            "choose a method for connections such as 'rigl' or 'pruning', or train with `rigl-compress train`"
        )


def _built(build: Callable[[], Sparsifier], model: nn.Module, state: Mapping[str, Any] | None) -> Sparsifier:
    """Build a sparsifier and load its state, if there is one: then the weights are those of the state already."""
    if not state:
        return build()
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    sparse = build()  # masks the weights by a topology of its own
    sparse.load_state_dict(state)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return sparse
