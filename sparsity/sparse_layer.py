"""A layer in training that holds its active connections alone, and the view of it that scores are functions of."""

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.core.errors import InputError
from rigl_compress.core.random_generators import generator
from rigl_compress.core.tensor_blocks import any_outside
from rigl_compress.models.sparse_modules import SparseModule, Wiring, make_dense
from rigl_compress.models.sparse_parameters import Part
from rigl_compress.models.training_kernels import matched
from rigl_compress.sparsity.inactive_weights import nonzero_error
from rigl_compress.sparsity.layer_state import Layer, LayerView
from rigl_compress.sparsity.product_gradient import gradient_of_rows

# Connections of a block: its gradient stays in the caches while the best of it are chosen.
BLOCK = 1 << 19


class SparseLayer(Layer):
    """One weight of active connections. Only the sparsifier changes it."""

    def __init__(self, name: str, module: SparseModule, part: Part, target: int) -> None:
        vars(self).update(name=name, part=part, target=target, memory={})
        self.module = module
        self.former: Tensor  # the positions, once the layer is dense again

    @property
    def wiring(self) -> Wiring:
        """The connections, until the layer is dense again."""
        return self.module.wiring

    @property
    def parameter(self) -> nn.Parameter:  # type: ignore[override]
        """The active values, in the order of the kernels."""
        return self.module._parameters["weight"]  # type: ignore[return-value]  # read several times in each step

    @property
    def positions(self) -> Tensor:
        """The flat positions of the active connections, ascending."""
        return self.wiring.positions

    @property
    def active(self) -> int:  # type: ignore[override]
        """The number of active connections."""
        return len(self.positions)

    @property
    def mask(self) -> Tensor:  # type: ignore[override]
        """The connections as a new dense mask."""
        mask = torch.zeros(self.wiring.size, dtype=torch.bool)
        return mask.index_fill_(0, self.positions, True).view(self.shape)

    @property
    def weight(self) -> Tensor:
        """The weights as a new dense tensor."""
        return self.wiring.dense(self.parameter.detach())

    @property
    def gradient(self) -> Tensor | None:
        """The gradient of the active values."""
        return self.parameter.grad

    @property
    def shape(self) -> torch.Size:
        """The shape of the dense weight."""
        return self.wiring.shape

    @property
    def masked(self) -> bool:
        """There is nothing to mask."""
        return False

    def follow_weight(self) -> None:
        """Check a weight that was loaded: it has to be zero at inactive connections."""
        loaded, self.module.loaded = self.module.loaded, None
        if loaded is not None and any_outside(loaded, self.mask):
            self.module.loaded = loaded
            raise nonzero_error([self.name], [loaded])

    def view(self, options: Mapping[str, float], seed: int, step: int, learning_rate: float = 0.0) -> LayerView:
        """Return what scores are functions of, with the random numbers of a step; methods with options stay masked."""
        del options, learning_rate
        return self.sparse_view(seed, step)

    def sparse_view(self, seed: int, step: int) -> "SparseLayerView":
        """Return the view of all connections, with the random numbers of a step."""
        return SparseLayerView(self, {}, generator(seed, step, self.name), (0, self.size))

    @torch.no_grad()
    def activate(self, positions: Tensor) -> None:
        """Make the connections at these positions active: their values are those that were loaded, or zero if new."""
        loaded, self.module.loaded = self.module.loaded, None
        now = positions.sort().values
        if loaded is None:
            self.move(now, matched(self.positions, now), [self.parameter.data])
        else:
            self._check_count(now)
            self.wiring.rewire(now)
            self.parameter.data = self.wiring.gather(loaded).to(self.parameter.dtype)

    def move(self, positions: Tensor, origins: Tensor, tensors: list[Tensor]) -> None:
        """Take other connections, by ascending flat positions; their values in tensors of active values move along.

        `origins` has the index of each one among the positions before, or -1: it is new, its values are zero.
        """
        self._check_count(positions)
        kept = [self.wiring.ascending(tensor) for tensor in tensors]
        self.wiring.rewire(positions)
        is_new = origins < 0
        for tensor, before in zip(tensors, kept, strict=True):
            tensor.copy_(self.wiring.packed(before[origins].masked_fill_(is_new, 0)))

    @torch.no_grad()
    def take(self, positions: Tensor, values: Tensor) -> None:
        """Take other connections, by ascending flat positions, with these values in the same order."""
        self._check_count(positions)
        self.wiring.rewire(positions)
        self.parameter.copy_(self.wiring.packed(values))

    def _check_count(self, positions: Tensor) -> None:
        if len(positions) != self.active:
            raise InputError(
                f"{self.name!r} has {self.active} connections, the saved masks have {len(positions)}: "
                "they belong to another run"
            )

    def gather_state(self, optimizer: Optimizer) -> None:
        """Take the active connections of optimizer state that was loaded in dense form."""
        state = optimizer.state.get(self.parameter, {})
        for key, value in state.items():
            if torch.is_tensor(value) and value.shape == self.shape:
                state[key] = self.wiring.gather(value)

    def finish(self, optimizer: Optimizer) -> None:
        """Turn the layer and its optimizer state into dense ones."""
        state = optimizer.state.get(self.parameter, {})
        for key, value in state.items():
            if torch.is_tensor(value) and value.shape == self.parameter.shape and value.dim():
                state[key] = self.wiring.dense(value)
        self.former = self.positions
        make_dense(self.module)


class SparseLayerView(LayerView):
    """A range of the connections of a sparse layer; dense tensors are made for what a score reads, as it reads it."""

    def __init__(
        self, layer: SparseLayer, options: Mapping[str, float], random: torch.Generator | None, bounds: tuple[int, int]
    ) -> None:
        vars(self).update(layer=layer, options=options, random=random, bounds=bounds, memory={})

    layer: SparseLayer
    bounds: tuple[int, int]

    @cached_property
    def weight(self) -> Tensor:
        """The weights of the range."""
        return self._spread(self.layer.wiring.ascending(self.layer.parameter.detach()))

    @cached_property
    def gradient(self) -> Tensor:
        """The gradient of all connections of the range, active or not."""
        row = self.layer.size // max(1, self.layer.shape[0])
        first, last = self.bounds[0] // row, -(-self.bounds[1] // row)
        gradient = gradient_of_rows(self.layer.module, first, last).view(-1)
        return gradient[self.bounds[0] - first * row : self.bounds[1] - first * row]

    @cached_property
    def mask(self) -> Tensor:
        """The mask of the range."""
        return self._spread(torch.ones(self.layer.active, dtype=torch.bool))

    def _spread(self, values: Tensor) -> Tensor:
        start, end = self.bounds
        first, last = torch.searchsorted(self.layer.positions, torch.tensor([start, end])).tolist()
        found = values.new_zeros(end - start)
        found[self.layer.positions[first:last] - start] = values[first:last]
        return found

    def blocks(self) -> list[tuple[int, int]]:
        """Return blocks of whole rows."""
        row = self.layer.size // max(1, self.layer.shape[0])
        step = max(1, BLOCK // max(1, row)) * row
        return [(start, min(start + step, self.bounds[1])) for start in range(*self.bounds, step)]

    def block(self, start: int, end: int) -> LayerView:
        """Return the view of a part of the range; random numbers are drawn in order."""
        return SparseLayerView(self.layer, self.options, self.random, (start, end))

    def at(self, positions: Tensor) -> LayerView:
        """Return the view of all active connections."""
        del positions
        layer, gradient = self.layer, self.layer.gradient
        values = layer.wiring.ascending(layer.parameter.detach())
        return LayerView(
            weight=values,
            gradient=torch.zeros_like(values) if gradient is None else layer.wiring.ascending(gradient),
            mask=torch.ones(len(values), dtype=torch.bool),
            memory={},
            options=self.options,
            random=None,
        )

    def has_gradient(self) -> Tensor:
        """Whether any active connection has a gradient."""
        gradient = self.layer.gradient
        return torch.tensor(False) if gradient is None else gradient.any()

    def uniform(self) -> Tensor:
        """Draw a number of [0, 1) for each connection of the range."""
        return torch.rand(self.bounds[1] - self.bounds[0], generator=self.random)
