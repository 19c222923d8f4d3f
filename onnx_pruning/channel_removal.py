"""Dead channels of an ONNX graph, removed without changing its outputs.

A channel is dead if nothing reads it with a weight that is not zero, or if it is constant: then what readers make of it
is added to their biases. Operators that are not followed keep the channels that they read.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from rigl_compress.onnx_pruning.channel_walk import ChannelWalk, Product
from rigl_compress.onnx_pruning.constant_channels import Constants, constant_channels, is_padded
from rigl_compress.onnx_pruning.prunable_layers import find_prunable
from rigl_compress.runtime.onnx_graph import Graph, attributes, has_input

Array = NDArray[Any]
ROUNDS = 20  # what is removed may leave more behind


@dataclass(frozen=True)
class ChannelRemoval:
    """A model without its dead channels, how many each weight lost, and operators that kept some."""

    model: onnx.ModelProto
    removed: Mapping[str, int]
    kept: Mapping[str, int]

    @property
    def lines(self) -> list[str]:
        """What to tell about it."""
        found = []
        if self.removed:
            found.append(f"{sum(self.removed.values()):,} dead channels of {len(self.removed)} layers were removed")
        if self.kept:
            readers = ", ".join(f"{name} ({count:,})" for name, count in sorted(self.kept.items()))
            found.append(f"dead channels were kept, as these read them: {readers}")
        return found


def remove_dead_channels(model: onnx.ModelProto) -> ChannelRemoval:
    """Return the model without dead channels; the given one is not changed."""
    removed: Counter[str] = Counter()
    for _ in range(ROUNDS):
        walk = ChannelWalk(Graph(_inferred(model))).run()
        constants = constant_channels(walk)
        dead, kept = _dead(walk, constants)
        if not dead:
            break
        model, lost = _Surgery(walk, constants, dead).run()
        removed.update(lost)
    return ChannelRemoval(model, dict(removed), kept)


def kept_for_type(model: onnx.ModelProto) -> str:
    """Return what to say about dead channels of weights that are not of 32 bits: these are not followed."""
    kinds = (onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    stored = {each.name: each for each in model.graph.initializer if each.data_type in kinds}
    layers = [each for each in find_prunable(model).layers if each.name in stored] if stored else []
    dead = [~each.blocks(numpy_helper.to_array(stored[each.name])).any(2) for each in layers]
    counts = [int(each.sum()) for each in dead if each.any()]
    found = f"{sum(counts):,} of {len(counts)} layers"
    return f"dead channels were kept, as only weights of float32 are followed: {found}" if counts else ""


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model)


def _dead(walk: ChannelWalk, constants: Constants) -> tuple[set[int], dict[str, int]]:
    """Return the classes that can be removed, and how many more would be, by the operator that keeps them."""
    classes = walk.classes
    every = {root for value in classes.members for root in classes.roots(value)}
    varying = {
        root
        for value, known in constants.items()
        for root, each in zip(classes.roots(value), known, strict=True)
        if np.isnan(each)
    }
    held = varying | _not_folded(walk, constants)
    idle = every - (classes.marked(classes.needed) & held)
    pinned = {classes.root(channel): reason for channel, reason in classes.pinned.items()}
    dead = idle - pinned.keys()
    for value in classes.members:  # a value has a channel at least
        roots = classes.roots(value)
        if roots and dead.issuperset(roots):
            dead.discard(roots[0])
    kept = Counter(pinned[root] for root in idle - varying if root in pinned)
    kept.pop("an output", None)
    return dead, dict(kept)


def _not_folded(walk: ChannelWalk, constants: Constants) -> set[int]:
    """Return the classes of constants that a reader cannot add to its bias."""
    found: set[int] = set()
    for product in walk.products:
        node = walk.graph.nodes[product.node]
        x = node.input[0]
        if x not in constants or (product.bias >= 0 and not is_padded(node)):
            continue
        weight = np.moveaxis(_array(walk, product.weight), product.columns, 0)
        read = weight.reshape(len(weight), -1).any(1) & (constants[x] != 0)
        found.update(root for root, each in zip(walk.classes.roots(x), read, strict=True) if each)
    return found


def _array(walk: ChannelWalk, name: str) -> Array:
    found = walk.graph.constant(name)
    assert found is not None
    return found


class _Surgery:
    """Cuts the channels of some classes out of a copy of a model."""

    def __init__(self, walk: ChannelWalk, constants: Constants, dead: set[int]) -> None:
        self.walk, self.constants, self.dead = walk, constants, dead
        self.model = onnx.ModelProto()
        self.model.CopyFrom(walk.graph.model)
        self.new: dict[str, Array] = {}
        self.taken = {each.name for each in self.model.graph.initializer} | {*walk.graph.producers}

    def run(self) -> tuple[onnx.ModelProto, dict[str, int]]:
        """Cut, and return how many channels each weight lost."""
        lost = {product.weight: self._product(product) for product in self.walk.products}
        for place, slot, axis in self.walk.parameters:
            node = self.model.graph.node[place]
            array = _array(self.walk, node.input[slot])
            kept = self._kept(node.output[0])
            if not kept.all():
                self._set(node, slot, np.compress(kept, array, axis))
        for place in self.walk.depthwise:
            node = self.model.graph.node[place]
            _set_attribute(node, "group", int(self._kept(node.output[0]).sum()))
        for place in self.walk.flattened:
            self._flatten(place)
        self._store()
        return self.model, {name: count for name, count in lost.items() if count}

    def _kept(self, value: str) -> Array:
        return np.array([root not in self.dead for root in self.walk.classes.roots(value)])

    def _product(self, product: Product) -> int:
        node = self.model.graph.node[product.node]
        weight = _array(self.walk, product.weight)
        rows, x = self._kept(node.output[0]), node.input[0]
        columns = self._kept(x) if x in self.walk.classes.members else np.ones(weight.shape[product.columns], bool)
        if rows.all() and columns.all():
            return 0
        folded = np.zeros(len(rows)) if columns.all() else self._folded(product, weight, ~columns)
        if has_input(node, 2) or folded.any():
            self._bias(node, folded, rows)
        small = np.compress(columns, np.compress(rows, weight, product.rows), product.columns)
        self._set(node, 1, small)
        return int((~rows).sum())

    def _folded(self, product: Product, weight: Array, gone: Array) -> Array:
        """Return what the constants among removed channels add to each output."""
        node = self.walk.graph.nodes[product.node]
        values = np.nan_to_num(self.constants[node.input[0]][gone])
        order = [product.rows, product.columns, *(each for each in range(weight.ndim) if each > 1)]
        matrix = np.compress(gone, weight, product.columns).astype(np.float64).transpose(order)
        return np.asarray(matrix.reshape(*matrix.shape[:2], -1).sum(2) @ values)

    def _bias(self, node: onnx.NodeProto, folded: Array, rows: Array) -> None:
        settings = attributes(node) if node.op_type == "Gemm" else {}
        scale = settings.get("alpha", 1.0) / (settings.get("beta", 1.0) if has_input(node, 2) else 1.0)
        bias = _array(self.walk, node.input[2]).reshape(-1) if has_input(node, 2) else np.zeros(len(rows))
        if node.op_type == "Gemm" and not has_input(node, 2):
            _set_attribute(node, "beta", 1.0)
        self._set(node, 2, (bias + scale * folded)[rows].astype(np.float32))

    def _flatten(self, place: int) -> None:
        node = self.model.graph.node[place]
        flat = helper.make_node("Flatten", [node.input[0]], list(node.output), node.name, axis=1)
        node.CopyFrom(flat)

    def _set(self, node: onnx.NodeProto, slot: int, array: Array) -> None:
        """Set the constant of a node: under its name if the node is its only reader."""
        name = node.input[slot] if len(node.input) > slot else ""
        shared = len(self.walk.graph.consumers.get(name, ())) != 1 or name in self.walk.graph.outputs
        if not name or shared or not self.walk.graph.is_initializer(name):
            name = self._free(f"{name or node.output[0]}.kept")
            node.input.extend([""] * (slot + 1 - len(node.input)))
            node.input[slot] = name
        self.new[name] = np.ascontiguousarray(array)

    def _free(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _store(self) -> None:
        """Write constants, drop those that nothing reads, and shapes that no longer hold."""
        graph = self.model.graph
        outside = {value.name for value in (*graph.input, *graph.output)} | self.walk.graph.outputs
        read = {name for node in graph.node for name in node.input} | outside
        old = [each for each in graph.initializer if each.name in read and each.name not in self.new]
        del graph.initializer[:], graph.value_info[:]
        graph.initializer.extend(old)
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in self.new.items())


def _set_attribute(node: onnx.NodeProto, name: str, value: float) -> None:
    rest = [each for each in node.attribute if each.name != name]
    del node.attribute[:]
    node.attribute.extend([*rest, helper.make_attribute(name, value)])
