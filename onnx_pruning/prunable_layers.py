"""The layers of an ONNX model whose weights can be pruned, and why others are left as they are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.protobuf_walk import graphs_of
from rigl_compress.runtime.onnx_graph import Graph, attributes, has_input, is_standard

Array = NDArray[Any]
PRODUCTS = ("Gemm", "MatMul", "Conv")
SMALLEST = 256  # weights: fewer are not worth a zero
REPLACEABLE = "an input of the model, too: callers can replace it"
INTEGER_PRODUCTS = {"QLinearConv": 3, "QLinearMatMul": 3, "ConvInteger": 1, "MatMulInteger": 1}  # places of weights
_FLOATS = (np.float16, np.float32, np.float64)


@dataclass(frozen=True)
class Bias:
    """Where a layer's bias is: an input of a node. Without a name, the input is to be added."""

    node: int
    place: int
    name: str
    shape: tuple[int, ...]
    factor: float = 1.0


@dataclass(frozen=True)
class PrunableLayer:
    """A weight, and the nodes that multiply by it, by their places in the graph."""

    name: str  # of the weight
    operator: str
    uses: tuple[int, ...]
    shape: tuple[int, ...]
    groups: int = 1
    transposed: bool = False  # stored as [inputs, outputs]
    scale: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    bias: Bias | None = None
    zeros: int = 0  # that the weight has already: they stay

    @property
    def first(self) -> int:
        """The place of the first use."""
        return min(self.uses)

    @property
    def last(self) -> int:
        """The place of the last use."""
        return max(self.uses)

    @cached_property
    def size(self) -> int:
        """The number of weights."""
        return int(np.prod(self.shape))

    @property
    def most(self) -> int:
        """How many weights the layer can keep: those that are not zero."""
        return self.size - self.zeros

    def count_at(self, density: float) -> int:
        """Return the weights at a density: no more than the layer has."""
        return min(round(density * self.size), self.most)

    @property
    def rows(self) -> int:
        """Outputs of all groups."""
        return self.shape[1] if self.transposed else self.shape[0]

    @property
    def columns(self) -> int:
        """Inputs of one output."""
        return self.size // self.rows

    @property
    def depthwise(self) -> bool:
        """Whether every output reads one channel."""
        return self.groups > 1 and self.shape[1] == 1

    def blocks(self, weight: Array) -> Array:
        """Return the weight as [groups, outputs, inputs]."""
        matrix = weight.T if self.transposed else weight
        return np.ascontiguousarray(matrix).reshape(self.groups, self.rows // self.groups, self.columns)

    def stored(self, blocks: Array) -> Array:
        """Return blocks in the shape of the weight.

        >>> layer = PrunableLayer("w", "MatMul", (0,), (3, 2), transposed=True)
        >>> weight = np.arange(6).reshape(3, 2)
        >>> bool((layer.stored(layer.blocks(weight)) == weight).all())
        True
        """
        if self.transposed:
            return np.ascontiguousarray(blocks.reshape(self.rows, self.columns).T)
        return np.ascontiguousarray(blocks.reshape(self.shape))


@dataclass(frozen=True)
class FoundLayers:
    """The layers to prune in the order of the graph, and the weights that stay dense with their reasons."""

    layers: tuple[PrunableLayer, ...]
    dense: Mapping[str, str]

    def without(self, patterns: Sequence[str]) -> "FoundLayers":
        """Leave the layers dense whose names match a pattern."""
        named = {each.name: _pattern(each.name, patterns) for each in self.layers}
        kept = tuple(each for each in self.layers if not named[each.name])
        return FoundLayers(kept, {**self.dense, **{name: f"--dense {by}" for name, by in named.items() if by}})

    def check_some(self, source: object) -> None:
        """Raise `InputError` if there is no layer to prune, with the reasons."""
        if all(each.depthwise for each in self.layers):
            reasons = dict(self.dense) | {each.name: "reads one channel per output" for each in self.layers}
            shown = "; ".join(f"{name}: {reason}" for name, reason in [*reasons.items()][:3])
            more = f" and {len(reasons) - 3} more" if len(reasons) > 3 else ""
            cure = "; drop them from the inputs of the graph" if REPLACEABLE in reasons.values() else ""
            raise InputError(
                f"{source} has no weight that can be pruned{f' ({shown}{more})' if shown else ''}: expected Gemm, "
                f"MatMul or Conv with float weights{cure}"
            )


def _pattern(name: str, patterns: Sequence[str]) -> str:
    return next((each for each in patterns if fnmatchcase(name, each)), "")


def find_prunable(model: onnx.ModelProto) -> FoundLayers:
    """Find the layers of a plain model whose constants are initializers."""
    search = _Search(Graph(model))
    found = {name: search.layer(name, places) for name, places in search.products.items()}
    layers = [each for each in found.values() if isinstance(each, PrunableLayer)]
    dense = {name: each for name, each in found.items() if isinstance(each, str)}
    dense |= {**dict(search.others()), **dict(search.skipped())}
    return FoundLayers(tuple(sorted(layers, key=lambda each: each.first)), dense)


@dataclass(frozen=True)
class _Search:
    graph: Graph

    @cached_property
    def constants(self) -> dict[str, Array]:
        """Float constants of two and more axes by name, also those that callers can override."""
        tensors = {each.name: each for each in self.graph.model.graph.initializer if len(each.dims) > 1}
        arrays = {name: onnx.numpy_helper.to_array(each) for name, each in tensors.items()}
        return {name: each for name, each in arrays.items() if each.dtype in _FLOATS and each.size >= SMALLEST}

    @cached_property
    def products(self) -> dict[str, list[int]]:
        """The places of the products with each constant."""
        found: dict[str, list[int]] = {}
        for place, node in enumerate(self.graph.nodes):
            if is_standard(node, *PRODUCTS):
                for name in node.input[:2]:
                    if name in self.constants:
                        found.setdefault(name, []).append(place)
        return found

    def layer(self, name: str, places: Sequence[int]) -> PrunableLayer | str:
        """Return the layer of a weight, or why there is none."""
        reason = self._refusal(name, places)
        if reason:
            return reason
        parts = [self._one(name, place) for place in places]
        text = next((each for each in parts if isinstance(each, str)), "")
        layers = [each for each in parts if isinstance(each, PrunableLayer)]
        if text:
            return text
        if any(_kind(each) != _kind(layers[0]) for each in layers):
            return "read by operators of different kinds"
        found = replace(layers[0], zeros=int((self.constants[name] == 0).sum()))
        return replace(found, uses=tuple(places), bias=None) if len(places) > 1 else found

    def _refusal(self, name: str, places: Sequence[int]) -> str:
        graph = self.graph.model.graph
        if name in {each.name for each in graph.input}:
            return REPLACEABLE
        if name in {each.name for each in graph.output}:
            return "an output of the model, too"
        if name in self.graph.outputs:
            return "read in a sub-graph, too"
        if len(self.graph.consumers[name]) != len(places):
            return "read by other operators, too"
        if not np.isfinite(self.constants[name]).all():
            return "not finite"
        return ""

    def _one(self, name: str, place: int) -> PrunableLayer | str:
        node, shape = self.graph.nodes[place], self.constants[name].shape
        if node.input[1] != name:
            return "the left factor of a product"
        if node.op_type == "Conv":
            return self._conv(name, place)
        if len(shape) != 2:
            return "a batch of matrices"
        return self._gemm(name, place) if node.op_type == "Gemm" else self._matmul(name, place)

    def _conv(self, name: str, place: int) -> PrunableLayer | str:
        node, shape = self.graph.nodes[place], self.constants[name].shape
        settings = attributes(node)
        axes, groups = len(shape) - 2, settings.get("group", 1)
        if groups < 1 or shape[0] % groups or settings.get("kernel_shape", list(shape[2:])) != list(shape[2:]):
            return "its attributes do not fit its weight"
        window = {
            "strides": tuple(settings.get("strides", [1] * axes)),
            "dilations": tuple(settings.get("dilations", [1] * axes)),
            "pads": tuple(settings.get("pads", [0] * 2 * axes)),
            "auto_pad": settings.get("auto_pad", b"NOTSET").decode(),
        }
        bias = self._input_bias(place, 2, shape[0], 1.0) if has_input(node, 2) else Bias(place, 2, "", (shape[0],))
        return PrunableLayer(name, "Conv", (place,), shape, groups, settings=window, bias=bias)

    def _gemm(self, name: str, place: int) -> PrunableLayer | str:
        node, shape = self.graph.nodes[place], self.constants[name].shape
        settings = attributes(node)
        if settings.get("transA", 0):
            return "its inputs are transposed"
        transposed = not settings.get("transB", 0)
        rows, beta = shape[1] if transposed else shape[0], settings.get("beta", 1.0)
        bias = self._input_bias(place, 2, rows, beta) if has_input(node, 2) else Bias(place, 2, "", (rows,), beta)
        scale = settings.get("alpha", 1.0)
        return PrunableLayer(name, "Gemm", (place,), shape, 1, transposed, scale, bias=bias if beta else None)

    def _matmul(self, name: str, place: int) -> PrunableLayer:
        shape, output = self.constants[name].shape, self.graph.nodes[place].output[0]
        after = self.graph.only_consumer(output)
        bias = None
        if after is not None and is_standard(after, "Add"):
            other = 1 if after.input[0] == output else 0
            bias = self._input_bias(_place(self.graph, after), other, shape[1], 1.0)
        return PrunableLayer(name, "MatMul", (place,), shape, transposed=True, bias=bias)

    def _input_bias(self, node: int, place: int, rows: int, factor: float) -> Bias | None:
        """Return the bias at an input of a node, if it is a constant for each output along the last axis."""
        name = self.graph.nodes[node].input[place]
        found = self.graph.constant(name)
        if found is None or found.dtype not in _FLOATS or found.size != rows or found.shape[-1:] != (rows,):
            return None
        return Bias(node, place, name, found.shape, factor)

    def skipped(self) -> Iterator[tuple[str, str]]:
        """Yield weights that are not looked at: small ones, and integers."""
        stored = {each.name: each for each in self.graph.model.graph.initializer if len(each.dims) > 1}
        for node in self.graph.nodes:
            if is_standard(node, *PRODUCTS):
                maker = self.graph.producers.get(node.input[1])
                if maker is not None and is_standard(maker, "DequantizeLinear") and maker.input[0] in stored:
                    yield maker.input[0], "integers behind DequantizeLinear"
                elif node.input[1] in stored and node.input[1] not in self.constants:
                    yield node.input[1], _why_skipped(stored[node.input[1]])
            elif is_standard(node, *INTEGER_PRODUCTS) and node.input[INTEGER_PRODUCTS[node.op_type]] in stored:
                yield node.input[INTEGER_PRODUCTS[node.op_type]], f"integers, read by {node.op_type}"

    def others(self) -> Iterator[tuple[str, str]]:
        """Yield weights that no product reads, and those of sub-graphs."""
        for name in self.constants.keys() - self.products.keys():
            readers = sorted({node.op_type for node in self.graph.consumers.get(name, ())})
            yield name, f"read by {' and '.join(readers)}" if readers else "read in a sub-graph or not at all"
        for inner in list(graphs_of(self.graph.model.graph))[1:]:
            for tensor in inner.initializer:
                if len(tensor.dims) > 1 and np.prod(tensor.dims) >= SMALLEST:
                    yield tensor.name, "in a sub-graph"


def _place(graph: Graph, node: onnx.NodeProto) -> int:
    return next(place for place, each in enumerate(graph.nodes) if each is node)


def _kind(layer: PrunableLayer) -> tuple[Any, ...]:
    return layer.operator, layer.settings, layer.transposed, layer.scale


def _why_skipped(tensor: onnx.TensorProto) -> str:
    few = prod(tensor.dims) < SMALLEST
    return f"fewer than {SMALLEST} weights" if few else f"of type {onnx.TensorProto.DataType.Name(tensor.data_type)}"
