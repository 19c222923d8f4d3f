"""The settings of distillation: the `[distill]` table of a recipe."""

from dataclasses import dataclass
from typing import Literal

from rigl_compress.sparsity.distillation import check_shares


@dataclass(frozen=True)
class DistillConfig:
    """What a network learns from a teacher: by default from itself as it starts, before anything is removed."""

    weight: float = 0.5  # the teacher's share of the loss, 0 to 1
    temperature: float = 2.0
    loss: Literal["auto", "kl", "mse", "cosine"] = "auto"
    hidden: tuple[str, ...] = ()  # submodules whose outputs are to be near the teacher's
    hidden_weight: float = 1.0
    run: str | None = None  # the teacher is the network of this run; None: the network that training starts from

    def __post_init__(self) -> None:
        check_shares(self.weight, self.temperature, self.hidden_weight)

    def loss_for(self, classes: int) -> str:
        """Return the name of the loss: with "auto", KL divergence for networks with an output per class.

        >>> DistillConfig().loss_for(classes=10), DistillConfig().loss_for(classes=0)
        ('kl', 'mse')
        """
        return ("kl" if classes else "mse") if self.loss == "auto" else self.loss
