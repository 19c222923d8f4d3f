"""A small network in a loop of one's own, for tests of the sparsifier."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from rigl_compress.models.topology import Topology
from rigl_compress.sparsity.sparsifier import Sparsifier


def perceptron(bias: bool = True) -> nn.Sequential:
    """Three layers, always the same."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 20, bias=bias),
        nn.ReLU(),
        nn.Linear(20, 16, bias=bias),
        nn.ReLU(),
        nn.Linear(16, 4, bias=bias),
    )


def batch(index: int) -> tuple[Tensor, Tensor]:
    """Samples whose class is their largest of four numbers."""
    x = torch.randn(32, 12, generator=torch.Generator().manual_seed(index))
    return x, x[:, :4].argmax(dim=1)


def sgd(model: nn.Module) -> Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def exact(model: nn.Module, topology: Topology) -> bool:
    """Whether every inactive connection is zero."""
    parameters = dict(model.named_parameters())
    return all(not parameters[name][~mask].any() for name, mask in topology.items())


def equal(one: nn.Module, other: nn.Module) -> bool:
    """Whether two networks have the same numbers, bit by bit."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def take_step(sparse: Sparsifier, optimizer: Optimizer, loss: Tensor) -> float:
    """Take a step as a loop of one's own does, and return the loss."""
    loss.backward()  # type: ignore[no-untyped-call]
    if not sparse.step():
        optimizer.step()
    optimizer.zero_grad()
    return loss.item()


class Loop:
    """A model with its optimizer and sparsifier, trained step by step; an infinite factor overflows the gradients."""

    def __init__(
        self, model: nn.Module | None = None, make: Callable[[nn.Module], Optimizer] = sgd, **settings: object
    ) -> None:
        self.model = perceptron() if model is None else model
        self.optimizer = make(self.model)
        chosen = {"sparsity": 0.7, "total_steps": 60, "interval": 5, **settings}
        self.sparse = Sparsifier(self.model, self.optimizer, **chosen)  # type: ignore[arg-type]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
        self.done = 0

    def loss(self, factor: float = 1.0) -> Tensor:
        """The loss on the next batch."""
        x, y = batch(self.done)
        self.done += 1
        return F.cross_entropy(self.model(x), y) * factor

    def step(self, factor: float = 1.0) -> bool:
        """Take one step as under mixed precision; says whether it was an update."""
        self.scaler.scale(self.loss(factor)).backward()  # type: ignore[no-untyped-call]
        self.scaler.unscale_(self.optimizer)
        updated = self.sparse.step()
        if not updated:
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return updated

    def train(self, count: int) -> "Loop":
        """Take so many steps."""
        for _ in range(count):
            self.step()
        return self

    @property
    def nonzeros(self) -> int:
        """The weights that are not zero, as they stand in the model."""
        parameters = dict(self.model.named_parameters())
        return sum(int((parameters[name] != 0).sum()) for name in self.sparse.topology)

    @property
    def exact(self) -> bool:
        """Whether every inactive connection is zero."""
        return exact(self.model, self.sparse.topology)
