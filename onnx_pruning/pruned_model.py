"""A model whose weights change layer by layer, while the original stays as it was."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from rigl_compress.exporters.protobuf_walk import parts_of_type
from rigl_compress.onnx_pruning.layer_surgery import PrunedLayer
from rigl_compress.onnx_pruning.prunable_layers import FoundLayers, PrunableLayer, find_prunable

Array = NDArray[Any]


def with_own_biases(model: onnx.ModelProto, found: FoundLayers) -> FoundLayers:
    """Add a bias to every layer that can have one, in place; outputs stay as they are."""
    uses = Counter(name for node in parts_of_type(model, onnx.NodeProto) for name in node.input)
    outside = {value.name for value in (*model.graph.input, *model.graph.output)}
    stored = {each.name: each for each in model.graph.initializer}
    for layer in found.layers:
        bias = layer.bias
        if bias is None or (bias.name and uses[bias.name] == 1 and bias.name in stored and bias.name not in outside):
            continue
        kind = numpy_helper.to_array(stored[layer.name]).dtype
        values = numpy_helper.to_array(stored[bias.name]) if bias.name in stored else np.zeros(bias.shape, kind)
        name = _free(f"{layer.name}.sparsify_bias", {*stored, *uses, *outside})
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        _set_input(model.graph.node[bias.node], bias.place, name)
    return find_prunable(model)


def _free(name: str, taken: set[str]) -> str:
    return name if name not in taken else _free(f"{name}_", taken)


def _set_input(node: onnx.NodeProto, place: int, name: str) -> None:
    while len(node.input) <= place:
        node.input.append("")
    node.input[place] = name


class PrunedModel:
    """The tensors of a model that were changed so far."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.source = model
        self.changed: dict[str, onnx.TensorProto] = {}
        self._stored = {each.name: each for each in model.graph.initializer}

    def original(self, name: str) -> Array:
        """Return a tensor as it was."""
        return numpy_helper.to_array(self._stored[name])

    def nonzeros(self, name: str) -> int:
        """Return how many values of a tensor are not zero now."""
        return int(np.count_nonzero(numpy_helper.to_array(self.changed.get(name, self._stored[name]))))

    def apply(self, layer: PrunableLayer, pruned: PrunedLayer) -> None:
        """Set the weight of a layer, and its bias."""
        self.changed.update(self.tensors(layer, pruned))

    def tensors(self, layer: PrunableLayer, pruned: PrunedLayer) -> dict[str, onnx.TensorProto]:
        """Return the tensors that a pruned layer has instead of its own."""
        weight = self.original(layer.name)
        found = {layer.name: layer.stored(pruned.blocks).astype(weight.dtype) + weight.dtype.type(0)}  # no -0.0
        if pruned.shift is not None and layer.bias is not None:
            bias = self.original(layer.bias.name)
            found[layer.bias.name] = (bias + pruned.shift.reshape(bias.shape)).astype(bias.dtype)
        return {name: numpy_helper.from_array(np.ascontiguousarray(each), name) for name, each in found.items()}

    def model(self, changed: Mapping[str, onnx.TensorProto] | None = None) -> onnx.ModelProto:
        """Return a copy of the model with the changed tensors."""
        found = onnx.ModelProto()
        found.CopyFrom(self.source)
        for each in found.graph.initializer:
            new = (self.changed if changed is None else changed).get(each.name)
            if new is not None:
                each.CopyFrom(new)
        return found
