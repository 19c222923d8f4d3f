"""Distillation: a network learns from a frozen teacher, usually from itself before it was pruned."""

import sys
from collections.abc import Iterable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.sparsity.distillation_losses import DISTILLATION_LOSSES, first_tensor, relative_square


class Distillation:
    """Adds a teacher to the loss of your own loop.

    Make it before the `Sparsifier`: the teacher is a copy of the network as it is then, in evaluation mode and without
    gradients. In the loop, pass your loss, the outputs of your model, and what the model was called with:

    >>> from rigl_compress import Distillation, Sparsifier
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))  # with trained weights
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> distill = Distillation(model, weight=0.9, temperature=2.0)
    >>> sparse = Sparsifier(model, optimizer, method="pruning", sparsity=0.75, interval=1, total_steps=20)
    >>> for _ in range(20):
    ...     x, y = torch.randn(4, 8), torch.randint(0, 2, (4,))
    ...     outputs = model(x)
    ...     loss = distill(nn.functional.cross_entropy(outputs, y), outputs, x)
    ...     loss.backward()
    ...     if not sparse.step():
    ...         optimizer.step()
    ...     optimizer.zero_grad()

    `weight` is the share of the teacher in the sum, 0 to 1; with 1 your own loss may be None (no labels). `loss`:
    "kl" for classes or tokens (softened by `temperature`), "mse" or "cosine" for embeddings. `hidden` names submodules
    whose outputs are to be near the teacher's too: their mean squared error, relative to the teacher's mean square, is
    added with the factor `hidden_weight`; `student` is then the network that you train.
    """

    def __init__(
        self,
        teacher: nn.Module,
        *,
        weight: float = 0.5,
        temperature: float = 2.0,
        loss: str = "kl",
        hidden: Iterable[str] = (),
        hidden_weight: float = 1.0,
        student: nn.Module | None = None,
    ) -> None:
        """Copy and freeze the teacher, and listen to the hidden outputs of both networks."""
        check_shares(weight, temperature, hidden_weight)
        self.weight, self.temperature, self.hidden_weight = weight, temperature, hidden_weight
        self.compare = DISTILLATION_LOSSES[loss]
        self.hidden = tuple(hidden)
        if self.hidden and student is None:
            raise InputError("hidden outputs are compared with those of the network in training: set student=model")
        for network in (teacher, student or teacher):
            _check_names(network, self.hidden)
        self.teacher = deepcopy(teacher).eval().requires_grad_(False)
        self._own = _recorded(student, self.hidden) if student is not None else {}
        self._taught = _recorded(self.teacher, self.hidden)

    def __call__(self, loss: Tensor | float | None, outputs: Any, *inputs: Any, **named: Any) -> Tensor:
        """Return (1 − weight) · loss + weight · `from_teacher`, to be called after the model's forward pass."""
        return self.mix(loss, self.from_teacher(outputs, *inputs, **named))

    def mix(self, loss: Tensor | float | None, taught: Tensor) -> Tensor:
        """Add your loss and that of the teacher in their shares."""
        if loss is None and self.weight < 1:
            raise InputError(f"distillation has the weight {self.weight}, and there is no other loss: set weight=1")
        return self.weight * taught if loss is None else (1 - self.weight) * loss + self.weight * taught

    def from_teacher(self, outputs: Any, *inputs: Any, **named: Any) -> Tensor:
        """Return how far the outputs, and the hidden outputs, are from the teacher's for the same inputs."""
        with torch.no_grad():
            answers = _outputs(self.teacher(*inputs, **named), "the teacher")
        own = _outputs(outputs, "the network")
        _check_shapes("the output", own, answers)
        loss = self.compare(own, answers, self.temperature)
        return loss + self.hidden_weight * self._hidden_loss() if self.hidden else loss

    def _hidden_loss(self) -> Tensor:
        pairs = [(name, _take(self._own, name), _take(self._taught, name)) for name in self.hidden]
        for name, own, taught in pairs:
            _check_shapes(f"hidden output {name!r}", own, taught)
        return torch.stack([relative_square(own, taught) for _, own, taught in pairs]).mean()


def check_shares(weight: float, temperature: float, hidden_weight: float) -> None:
    """Raise for a share beyond 0 to 1, or a temperature or factor that is not positive."""
    if not 0 <= weight <= 1:
        raise InputError(f"weight of distillation is {weight}, expected the teacher's share of the loss, 0 to 1")
    if not 0 < temperature < float("inf"):
        raise InputError(f"temperature of distillation is {temperature}, expected above 0 (1: not softened)")
    if not 0 <= hidden_weight < float("inf"):
        raise InputError(f"hidden_weight of distillation is {hidden_weight}, expected a factor of 0 or more")


def _check_names(network: nn.Module, names: Iterable[str]) -> None:
    known = [name for name, _ in network.named_modules() if name]
    for name in names:
        if name not in known:
            raise InputError(f"{type(network).__name__} has no submodule {name!r}: {did_you_mean(name, known)}")


def _outputs(outputs: Any, of: str) -> Tensor:
    found = first_tensor(outputs)
    if found is None:
        raise InputError(f"{of} returns a {type(outputs).__name__} without a tensor: distillation compares tensors")
    return found


def _check_shapes(what: str, own: Tensor, taught: Tensor) -> None:
    if own.shape != taught.shape:
        raise InputError(
            f"{what} has shape {tuple(own.shape)}, that of the teacher {tuple(taught.shape)}: "
            "distillation needs a teacher with outputs of the same shape"
        )


def _recorded(network: nn.Module, names: Sequence[str]) -> dict[str, Tensor]:
    """Return a dictionary that holds the outputs of submodules after each forward pass."""
    found: dict[str, Tensor] = {}

    def listen(name: str, *call: Any) -> None:
        if (tensor := first_tensor(call[-1])) is not None:  # None while the network is traced
            found[name] = tensor

    for name in names:
        network.get_submodule(name).register_forward_hook(partial(listen, name))
    if names and "torch._dynamo" in sys.modules:  # code compiled for such a network before does not call the hooks
        torch.compiler.reset()
    return found


def _take(found: dict[str, Tensor], name: str) -> Tensor:
    """Return an output and forget it: it holds the memory of a whole backward pass."""
    if name not in found:
        raise InputError(
            f"submodule {name!r} has no output of this forward pass: name one that is called and returns a tensor, "
            "and call the student before the loss"
        )
    return found.pop(name)
