"""Losses of distillation: how far a student's outputs are from its teacher's, in float32 under autocast too."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rigl_compress.core.registry import Registry

# (outputs of the student, outputs of the teacher, temperature) → a mean over the batch
DistillationLoss = Callable[[Tensor, Tensor, float], Tensor]


def softened_kl(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL divergence of the class probabilities at a temperature, times its square (Hinton et al.).

    Classes are the last dimension; all other dimensions (samples, tokens) are averaged. The square keeps the size of
    the gradient independent of the temperature.

    >>> softened_kl(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]), 2.0).item()
    0.0
    """
    own, other = (F.log_softmax(each.float().flatten(0, -2) / temperature, dim=-1) for each in (student, teacher))
    return F.kl_div(own, other, reduction="batchmean", log_target=True) * temperature**2


def mean_square(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Mean squared difference, for outputs that are no classes.

    >>> mean_square(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]), 1.0).item()
    2.0
    """
    del temperature
    return F.mse_loss(student.float(), teacher.float())


def angle(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """One minus the mean cosine similarity along the last dimension, for embeddings that are compared by it.

    >>> angle(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]]), 1.0).item()
    1.0
    """
    del temperature
    return 1 - F.cosine_similarity(student.float(), teacher.float(), dim=-1).mean()


DISTILLATION_LOSSES: Registry[DistillationLoss] = Registry("distillation loss")
DISTILLATION_LOSSES.register("kl", softened_kl)
DISTILLATION_LOSSES.register("mse", mean_square)
DISTILLATION_LOSSES.register("cosine", angle)


def relative_square(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference over the mean square of the teacher: it means the same in every layer.

    >>> relative_square(torch.zeros(3), torch.full((3,), 7.0)).item()
    1.0
    """
    own, other = student.float(), teacher.float()
    return F.mse_loss(own, other) / other.square().mean().clamp_min(torch.finfo(other.dtype).tiny)


def first_tensor(outputs: Any) -> Tensor | None:
    """Return the outputs of a module as one tensor: of several the first that has dimensions, so not a loss.

    >>> first_tensor((torch.tensor(0.5), torch.ones(2, 3))).shape
    torch.Size([2, 3])
    """
    return next((each for each in _tensors(outputs) if each.dim()), None)


def _tensors(outputs: Any) -> Iterable[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    parts = outputs.values() if isinstance(outputs, Mapping) else outputs if isinstance(outputs, list | tuple) else ()
    return (tensor for part in parts for tensor in _tensors(part))
