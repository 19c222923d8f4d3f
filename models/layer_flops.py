"""FLOPs of layers under the counting conventions, from numbers alone; no torch.

A layer is described by its weights and how often each of them is used, and a convention is a function of that. A
published FLOP figure means nothing without its convention, so every report has its name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.registry import Registry

FORMAT = 1

# (non-zero weights, positions of each, output channels) → FLOPs of a forward pass. Non-zeros may be fractional:
# published tables count (1 − s) · n, not a whole number of weights.
FlopConvention = Callable[[float, int, int], float]


def multiply_add(nonzeros: float, positions: int, channels: int) -> float:
    """Count a multiplication and an addition per use of a non-zero weight; biases and activations are free.

    >>> multiply_add(nonzeros=6309, positions=1, channels=10)
    12618
    """
    del channels
    return 2 * nonzeros * positions


def micronet(nonzeros: float, positions: int, channels: int) -> float:
    """Count as in the MicroNet challenge: also a bias and a ReLU on every output of every layer.

    A sum of n products takes n − 1 additions, the bias adds one and the ReLU another: per output, one more than the
    multiply-adds.

    >>> micronet(nonzeros=9408, positions=112 * 112, channels=64)
    236830720
    """
    return 2 * nonzeros * positions + channels * positions


FLOP_CONVENTIONS: Registry[FlopConvention] = Registry("FLOP convention")
FLOP_CONVENTIONS.register("multiply-add", multiply_add)
FLOP_CONVENTIONS.register("micronet", micronet)


@dataclass(frozen=True)
class LayerUse:
    """One use of one weight tensor in a forward pass, or a product of activations, which has no weights.

    `positions` is how often each weight is used: once per sample in a linear layer, at each position of the output in a
    convolution, at each step in a recurrent layer, never in an embedding, which is a lookup. `input_gradient` is
    whether training computes the gradient of the layer's input: false for layers that read the data. `products` are
    multiply-adds of activations with each other, as in attention: no weight takes part, so they are never sparse.
    """

    name: str
    kind: str
    parameter: str
    weights: int
    channels: int
    positions: int
    input_gradient: bool = True
    products: int = 0


@dataclass(frozen=True, kw_only=True)
class LayerCost(LayerUse):
    """A `LayerUse` with its non-zero weights and its FLOPs under a convention.

    `extra` is the part of the FLOPs that does not depend on the weights (bias and activation, products of activations);
    `sparse_flops` and `dense_flops` include it.
    """

    nonzeros: float
    dense_flops: float
    sparse_flops: float
    extra: float


def layer_cost(use: LayerUse, nonzeros: float, convention: str = "multiply-add") -> LayerCost:
    """Return the cost of a layer with so many active weights.

    >>> fc = LayerUse("fc1", "linear", "fc1.weight", weights=784 * 300, channels=300, positions=1)
    >>> cost = layer_cost(fc, nonzeros=2352)
    >>> cost.sparse_flops, cost.dense_flops, layer_cost(fc, 2352, "micronet").extra
    (4704, 470400, 300)
    """
    if not 0 <= nonzeros <= use.weights:
        raise InputError(f"{use.parameter!r} cannot have {nonzeros} non-zeros: expected 0 to its {use.weights} weights")
    flops = FLOP_CONVENTIONS[convention]
    free = flops(use.products, 1, 0)
    dense, sparse, extra = (free + flops(count, use.positions, use.channels) for count in (use.weights, nonzeros, 0))
    return LayerCost(**vars(use), nonzeros=nonzeros, dense_flops=dense, sparse_flops=sparse, extra=extra)


def at_positions(uses: Iterable[LayerUse], positions: Mapping[str, int]) -> tuple[LayerUse, ...]:
    """Return the uses with other positions, by layer name, for published counts that took other image sizes.

    >>> conv = LayerUse("conv1", "conv", "conv1.weight", weights=9408, channels=64, positions=112 * 112)
    >>> at_positions([conv], {"conv1": 115 * 115})[0].positions
    13225
    """
    known = tuple(uses)
    for name in positions:
        if name not in (names := [use.name for use in known]):
            raise InputError(f"positions name {name!r}, which is not a layer: {did_you_mean(name, names)}")
    return tuple(replace(use, positions=positions.get(use.name, use.positions)) for use in known)


@dataclass(frozen=True)
class FlopReport:
    """FLOPs of a forward pass by layer: of the active weights (`sparse`), and with all weights (`dense`).

    A module that is called twice has two rows: its FLOPs count twice, its weights once. `uncounted` names the modules
    that have parameters but no row: their type has no rule, or the forward pass did not call them.
    """

    convention: str
    layers: tuple[LayerCost, ...]
    uncounted: tuple[str, ...] = ()

    @property
    def dense(self) -> float:
        """FLOPs with every weight active."""
        return sum(layer.dense_flops for layer in self.layers)

    @property
    def sparse(self) -> float:
        """FLOPs of the active weights."""
        return sum(layer.sparse_flops for layer in self.layers)

    @property
    def ratio(self) -> float:
        """Sparse FLOPs as a share of the dense ones."""
        return self.sparse / self.dense if self.dense else 1.0

    @property
    def weights(self) -> int:
        """Number of weights, each counted once."""
        return sum({layer.parameter: layer.weights for layer in self.layers}.values())

    @property
    def nonzeros(self) -> float:
        """Number of active weights, each counted once."""
        return sum({layer.parameter: layer.nonzeros for layer in self.layers}.values())

    @property
    def density(self) -> float:
        """Share of the weights that are active."""
        return self.nonzeros / self.weights if self.weights else 1.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        layers = [asdict(layer) for layer in self.layers]
        return {"format": FORMAT, "convention": self.convention, "layers": layers, "uncounted": list(self.uncounted)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "FlopReport":
        """Rebuild a report from the values of `to_json`."""
        if content.get("format") != FORMAT:
            raise InputError(f"the FLOP report has format {content.get('format')!r}, this version reads {FORMAT}")
        layers = tuple(LayerCost(**layer) for layer in content["layers"])
        return cls(content["convention"], layers, tuple(content["uncounted"]))


def flop_report(
    uses: Sequence[LayerUse], nonzeros: Mapping[str, float], convention: str = "multiply-add"
) -> FlopReport:
    """Return the cost of a list of layers; a parameter that `nonzeros` does not name is dense.

    >>> sizes = [784, 300, 100, 10]
    >>> uses = [LayerUse(f"fc{a}", "linear", f"fc{a}.weight", a * b, b, 1) for a, b in zip(sizes, sizes[1:])]
    >>> report = flop_report(uses, {"fc784.weight": 2352, "fc300.weight": 3270})
    >>> report.dense, report.sparse, report.nonzeros
    (532400, 13244, 6622)
    """
    layers = tuple(layer_cost(use, nonzeros.get(use.parameter, use.weights), convention) for use in uses)
    return FlopReport(convention, layers)
