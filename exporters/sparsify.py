"""The last step of an export, at the level of protobuf: each weight of an ONNX model in the encoding that suits it.

Nothing that optimizes graphs may come after it: such tools know no sparse initializers, and some drop them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.exporters.choice import cost_of, smallest_choice
from rigl_compress.exporters.encodings import ENCODINGS, Encoded, joined
from rigl_compress.exporters.indices import NAME as STEPS
from rigl_compress.exporters.indices import encode_indices
from rigl_compress.exporters.messages import parts_of_type
from rigl_compress.exporters.onnx_file import OLDEST_OPSET, delete, opset_of
from rigl_compress.exporters.signs import NAME as SIGNED
from rigl_compress.exporters.signs import negative_zeros, without_signs
from rigl_compress.exporters.tensors import array_of
from rigl_compress.exporters.values import VALUES, Narrow, Values
from rigl_compress.models.errors import InputError
from rigl_compress.models.registry import Registry

Array = NDArray[Any]
COMPACT = "compact"
METADATA = "rigl_compress"  # the key of our JSON among the model's metadata
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_QUANTIZED = (TensorProto.INT8, TensorProto.UINT8)  # weights of quantized models: bitmask and gap8 shrink these too
# Where a weight is multiplied or looked up, -0.0 is as good as 0.0, and fewer bits are a matter of accuracy alone.
_WEIGHT_OPERATORS = {"Conv", "ConvTranspose", "Gemm", "MatMul", "GRU", "LSTM", "RNN", "Gather"}

# What each choice tries for a tensor; the smallest wins, so a tensor that is not sparse enough stays dense.
CHOICES: Registry[tuple[str, ...]] = Registry("encoding")
for _name in ENCODINGS:
    CHOICES.register(_name, ("dense",) if _name == "dense" else ("dense", _name))
CHOICES.register(COMPACT, tuple(ENCODINGS))


def sparsify(plain: onnx.ModelProto, encoding: str, values: str) -> onnx.ModelProto:
    """Give a copy of a plain model with its weights encoded."""
    tries, kind = CHOICES[encoding], VALUES[values]
    model = onnx.ModelProto()
    model.CopyFrom(plain)
    weights, signs = weights_of(model.graph), opset_of(model) >= OLDEST_OPSET

    def ways(tensor: TensorProto, tried: Sequence[str]) -> dict[str, Encoded]:
        return ways_of(tensor, tried, kind if tensor.name in weights else VALUES["fp32"], signs=signs)

    tensors = {tensor.name: tensor for tensor in _encodable(model)}
    costs = {
        name: {label: cost_of(name, label, parts) for label, parts in ways(tensor, tries).items()}
        for name, tensor in tensors.items()
    }
    chosen = smallest_choice(costs, tries, lossy=kind.name != "fp32")
    # Again, the chosen ones alone: to keep all of them would take several times the memory of the model.
    encoded = {
        name: (label, ways(tensors[name], _bases(label))[label]) for name, label in chosen.items() if label != "dense"
    }
    if any(parts.nodes for _, parts in encoded.values()):
        _check_opset(model)
    _replace(model, {name: parts for name, (_, parts) in encoded.items()})
    # A sparse initializer speaks for itself; how operators rebuild a tensor is written down for the way back.
    write_metadata(model, {"tensors": {name: label for name, (label, parts) in encoded.items() if parts.nodes}})
    return model


def _bases(label: str) -> tuple[str, ...]:
    """Give the encoding of a label; steps come with gap8."""
    return ("gap8",) if label == STEPS else (label.partition("+")[0],)


def _check_opset(model: onnx.ModelProto) -> None:
    if opset_of(model) < OLDEST_OPSET:
        raise InputError(
            f"the model uses opset {opset_of(model)}, all encodings but sparse need {OLDEST_OPSET}: choose sparse with "
            "fp32, export it again with a newer one, or convert it with onnx.version_converter"
        )


def lift_constants(model: onnx.ModelProto) -> None:
    """Make initializers of Constant operators that hold a tensor, so that weights stand in one place."""
    for node in model.graph.node:
        tensor = _constant(node)
        if tensor is not None:
            model.graph.initializer.add().CopyFrom(tensor)
            model.graph.initializer[-1].name = node.output[0]
    delete(model.graph.node, lambda node: _constant(node) is not None)


def _constant(node: onnx.NodeProto) -> TensorProto | None:
    """Give the tensor of a Constant operator; numbers without a shape are not worth a look."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    return next((each.t for each in node.attribute if each.name == "value" and each.t.dims), None)


def clear_negative_zeros(model: onnx.ModelProto) -> None:
    """Make 0.0 of -0.0 in weights: masks leave -0.0 in the place of negative weights, and folded normalisation too.

    For networks that are exported, and for fewer bits; what comes from a file keeps all of its bits.
    """
    weights = weights_of(model.graph)
    for tensor in _encodable(model):
        if tensor.name in weights and tensor.data_type in _FLOATS:
            array = array_of(tensor)
            if negative_zeros(array).any():
                tensor.CopyFrom(numpy_helper.from_array(np.where(array == 0, array.dtype.type(0), array), tensor.name))


def _encodable(model: onnx.ModelProto) -> list[TensorProto]:
    """Give the initializers that may be replaced: not those that a caller can override, being inputs too."""
    inputs = {value.name for value in model.graph.input} if model.ir_version >= 4 else set()
    outputs = {value.name for value in model.graph.output}
    return [tensor for tensor in model.graph.initializer if tensor.name not in inputs | outputs and tensor.dims]


def weights_of(graph: onnx.GraphProto) -> set[str]:
    """Give the names of tensors that are used as weights and as nothing else."""
    uses: dict[str, set[str]] = {}
    for node in parts_of_type(graph, onnx.NodeProto):
        for name in node.input:
            uses.setdefault(name, set()).add(node.op_type)
    return {name for name, operators in uses.items() if operators <= _WEIGHT_OPERATORS}


def ways_of(tensor: TensorProto, tries: Sequence[str], values: Values, *, signs: bool = True) -> dict[str, Encoded]:
    """Encode a tensor in every way that is allowed: with all its bits, and in fewer where the value type can.

    With `signs`, -0.0 may also stand apart, in bits of its own.

    >>> tensor = numpy_helper.from_array(np.diag(np.ones(100, dtype=np.float32)), "w")
    >>> [*ways_of(tensor, ("dense", "sparse"), VALUES["fp16"])]
    ['dense', 'sparse', 'dense+fp16', 'sparse+fp16']
    """
    name, array = tensor.name, array_of(tensor)
    if tensor.data_type not in (*_FLOATS, *_QUANTIZED) or not array.size:
        steps = encode_indices(name, array) if "gap8" in tries else None
        return {"dense": Encoded(initializers=(tensor,)), **({} if steps is None else {STEPS: steps})}
    found = {each: ENCODINGS[each].encode(name, array) for each in tries}
    narrow = values.narrow(name, array) if array.dtype == np.float32 and array.ndim > 1 else None
    signed = without_signs(name, array) if signs else None
    found |= {} if signed is None else _layered(name, signed, tries, SIGNED)
    return found | ({} if narrow is None else _layered(name, narrow, tries, values.name))


def _layered(name: str, inner: Narrow, tries: Sequence[str], label: str) -> dict[str, Encoded]:
    """Encode a tensor of which others make the one that is wanted."""
    encoded = {each: ENCODINGS[each].encode(f"{name}/{inner.part}", inner.array) for each in tries}
    return {f"{each}+{label}": joined(parts, inner.around) for each, parts in encoded.items()}


def _replace(model: onnx.ModelProto, encoded: Mapping[str, Encoded]) -> None:
    graph, new = model.graph, joined(*encoded.values())
    _check_free(graph, encoded)
    delete(graph.initializer, lambda tensor: tensor.name in encoded)
    delete(graph.input, lambda value: value.name in encoded)
    graph.initializer.extend(new.initializers)
    graph.sparse_initializer.extend(new.sparse)
    graph.value_info.extend(new.shapes)
    graph.node.extend(new.nodes)
    rebuilt = {node.output[0] for node in new.nodes}
    graph.node.sort(key=lambda node: not rebuilt & set(node.output))  # before all that uses it; the order stays
    model.ir_version = max(model.ir_version, 4)  # before, every initializer had to be an input too


def _check_free(graph: onnx.GraphProto, encoded: Mapping[str, Encoded]) -> None:
    taken = {name for node in graph.node for name in node.output}
    taken |= {part.name for part in (*graph.initializer, *graph.input)} - set(encoded)
    for parts in encoded.values():
        names = [tensor.name for tensor in parts.initializers] + [name for node in parts.nodes for name in node.output]
        clash = next((name for name in names if name in taken), None)
        if clash is not None:
            raise InputError(f"the model has a value {clash!r}, a name that the encoding needs: rename it")


def metadata_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Give what we wrote about a model; nothing for a model from elsewhere."""
    text = next((entry.value for entry in model.metadata_props if entry.key == METADATA), "{}")
    try:
        found = json.loads(text, parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()  # half a character cannot be written again
    except (ValueError, RecursionError):
        found = None
    labels = found.get("tensors", {}) if isinstance(found, dict) else None
    if not isinstance(labels, dict) or not all(isinstance(label, str) for label in labels.values()):
        raise InputError(f"the metadata {METADATA!r} of the model is damaged: export it again")
    assert isinstance(found, dict)
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def write_metadata(model: onnx.ModelProto, facts: Mapping[str, Any]) -> None:
    """Add facts to what is written about a model, with few bytes."""
    text = json.dumps({**metadata_of(model), **facts}, separators=(",", ":"), ensure_ascii=False)
    kept = {entry.key: entry.value for entry in model.metadata_props} | {METADATA: text}
    helper.set_model_props(model, kept)
