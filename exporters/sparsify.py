"""The last step of an export, on protobuf level: encode each weight of an ONNX model.

Tools that optimize graphs cannot run after it: they do not know sparse initializers, and some drop them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.import_by_name import is_reference
from rigl_compress.exporters.bounded_tensors import array_of
from rigl_compress.exporters.encoding_choice import cost_of, smallest_choice
from rigl_compress.exporters.encodings import ENCODINGS, Encoded, joined, register_encoding
from rigl_compress.exporters.index_encoding import NAME as STEPS
from rigl_compress.exporters.index_encoding import encode_indices
from rigl_compress.exporters.negative_zeros import NAME as SIGNED
from rigl_compress.exporters.negative_zeros import negative_zeros, without_signs
from rigl_compress.exporters.onnx_file import OLDEST_OPSET, delete, opset_of
from rigl_compress.exporters.protobuf_walk import constant_tensor, parts_of_type
from rigl_compress.exporters.value_precision import VALUES, Narrow, Values

Array = NDArray[Any]
COMPACT = "compact"
METADATA = "rigl_compress"  # the key of our JSON among the model's metadata
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_QUANTIZED = (TensorProto.INT8, TensorProto.UINT8)  # weights of quantized models: bitmask and gap8 shrink these too
# In these operators -0.0 in a weight has the effect of 0.0, and fewer bits affect nothing but accuracy.
_WEIGHT_OPERATORS = {"Conv", "ConvTranspose", "Gemm", "MatMul", "GRU", "LSTM", "RNN", "Gather"}

# What `compact` chooses from. Encodings of other packages are not among them: whoever opens the file may lack these.
_COMPACT_TRIES = ("dense", "sparse", "bitmask", "gap8")


def encoding_names() -> list[str]:
    """Return the names that an export takes: all encodings, and `compact`, the smallest for each tensor."""
    return [*ENCODINGS, COMPACT]


def encodings_to_try(encoding: str) -> tuple[str, ...]:
    """Return the encodings to try for a tensor; the smallest is used, so a tensor with few zeros stays dense.

    >>> encodings_to_try("gap8"), encodings_to_try("dense")
    (('dense', 'gap8'), ('dense',))
    """
    if encoding == COMPACT:
        return _COMPACT_TRIES
    if not is_reference(encoding) and encoding not in ENCODINGS:
        raise InputError(f"unknown encoding {encoding!r}: {did_you_mean(encoding, encoding_names())}")
    return tuple(dict.fromkeys(("dense", _registered(encoding))))


def _registered(encoding: str) -> str:
    """Return the name of an encoding; one by reference is registered: a file names its encodings by name."""
    found = ENCODINGS[encoding]
    if ENCODINGS.loaded.get(found.name) != found:
        register_encoding(found)
    return found.name


def sparsify(plain: onnx.ModelProto, encoding: str, values: str) -> onnx.ModelProto:
    """Return a copy of a plain model with its weights encoded."""
    tries, kind = encodings_to_try(encoding), VALUES[values]
    model = onnx.ModelProto()
    model.CopyFrom(plain)
    weights, signs = weights_of(model.graph), opset_of(model) >= OLDEST_OPSET

    def ways(tensor: TensorProto, tried: Sequence[str]) -> dict[str, Encoded]:
        return candidate_encodings(tensor, tried, kind if tensor.name in weights else VALUES["fp32"], signs=signs)

    tensors = {tensor.name: tensor for tensor in _encodable(model)}
    costs = {
        name: {label: cost_of(name, label, parts) for label, parts in ways(tensor, tries).items()}
        for name, tensor in tensors.items()
    }
    chosen = smallest_choice(costs, tries, lossy=kind.name != "fp32")
    # Encode the chosen ones again: to keep all candidates takes several times the memory of the model.
    encoded = {
        name: (label, ways(tensors[name], _bases(label))[label]) for name, label in chosen.items() if label != "dense"
    }
    if any(parts.nodes for _, parts in encoded.values()):
        check_opset(model)
    _replace(model, {name: parts for name, (_, parts) in encoded.items()})
    # `restore` recognises sparse initializers; it needs the encoding of tensors that operators rebuild.
    write_metadata(model, {"tensors": {name: label for name, (label, parts) in encoded.items() if parts.nodes}})
    return model


def _bases(label: str) -> tuple[str, ...]:
    """Return the encoding of a label; steps belong to gap8."""
    return ("gap8",) if label == STEPS else (label.partition("+")[0],)


def check_opset(model: onnx.ModelProto, name: object = "the model") -> None:
    """Raise `InputError` for a model in which operators cannot rebuild weights."""
    if opset_of(model) < OLDEST_OPSET:
        raise InputError(
            f"{name} uses opset {opset_of(model)}, all encodings but sparse need {OLDEST_OPSET}: choose sparse with "
            "fp32, export it again with a newer opset, or convert it with onnx.version_converter"
        )


def lift_constants(model: onnx.ModelProto) -> None:
    """Turn Constant operators with a tensor into initializers, so that all weights are initializers."""
    for node in model.graph.node:
        tensor = _constant(node)
        if tensor is not None:
            model.graph.initializer.add().CopyFrom(tensor)
            model.graph.initializer[-1].name = node.output[0]
    delete(model.graph.node, lambda node: _constant(node) is not None)


def _constant(node: onnx.NodeProto) -> TensorProto | None:
    """Return the tensor of a Constant operator, unless it is a scalar, which no encoding makes smaller."""
    tensor = constant_tensor(node)
    return tensor if tensor is not None and tensor.dims else None


def clear_negative_zeros(model: onnx.ModelProto) -> None:
    """Replace -0.0 in weights by 0.0: masked negative weights are -0.0, also after folding a normalisation.

    For exported networks and for fewer bits; the weights of a file keep all their bits.
    """
    weights = weights_of(model.graph)
    for tensor in _encodable(model):
        if tensor.name in weights and tensor.data_type in _FLOATS:
            array = array_of(tensor)
            if negative_zeros(array).any():
                tensor.CopyFrom(numpy_helper.from_array(np.where(array == 0, array.dtype.type(0), array), tensor.name))


def _encodable(model: onnx.ModelProto) -> list[TensorProto]:
    """Return the initializers that may be replaced: not those that are inputs too, which a caller can override."""
    inputs = {value.name for value in model.graph.input} if model.ir_version >= 4 else set()
    outputs = {value.name for value in model.graph.output}
    return [tensor for tensor in model.graph.initializer if tensor.name not in inputs | outputs and tensor.dims]


def weights_of(graph: onnx.GraphProto) -> set[str]:
    """Return the names of tensors that are used as weights only."""
    uses: dict[str, set[str]] = {}
    for node in parts_of_type(graph, onnx.NodeProto):
        for name in node.input:
            uses.setdefault(name, set()).add(node.op_type)
    return {name for name, operators in uses.items() if operators <= _WEIGHT_OPERATORS}


def candidate_encodings(
    tensor: TensorProto, tries: Sequence[str], values: Values, *, signs: bool = True
) -> dict[str, Encoded]:
    """Return a tensor in every allowed encoding: with all its bits, and in fewer if the value type can.

    With `signs`, also with -0.0 stored apart in a bit-mask.

    >>> tensor = numpy_helper.from_array(np.diag(np.ones(100, dtype=np.float32)), "w")
    >>> [*candidate_encodings(tensor, ("dense", "sparse"), VALUES["fp16"])]
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
    """Encode an inner tensor from which operators rebuild the original one."""
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
    graph.node.sort(key=lambda node: not rebuilt & set(node.output))  # before their users; the sort is stable
    model.ir_version = max(model.ir_version, 4)  # in older versions every initializer is an input too


def _check_free(graph: onnx.GraphProto, encoded: Mapping[str, Encoded]) -> None:
    taken = {name for node in graph.node for name in node.output}
    taken |= {part.name for part in (*graph.initializer, *graph.input)} - set(encoded)
    for parts in encoded.values():
        names = [tensor.name for tensor in parts.initializers] + [name for node in parts.nodes for name in node.output]
        clash = next((name for name in names if name in taken), None)
        if clash is not None:
            raise InputError(f"the model has a value {clash!r}, a name that the encoding needs: rename the value")


def metadata_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the metadata that this package wrote into a model; empty for models from elsewhere."""
    text = next((entry.value for entry in model.metadata_props if entry.key == METADATA), "{}")
    try:
        found = json.loads(text, parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()  # raises for an unpaired surrogate
    except (ValueError, RecursionError):
        found = None
    labels = found.get("tensors", {}) if isinstance(found, dict) else None
    if not isinstance(labels, dict) or not all(isinstance(label, str) for label in labels.values()):
        raise InputError(f"the metadata {METADATA!r} of the model is damaged: export it again")
    assert isinstance(found, dict)
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def write_metadata(model: onnx.ModelProto, facts: Mapping[str, Any]) -> None:
    """Add facts to the metadata of a model, as compact JSON."""
    text = json.dumps({**metadata_of(model), **facts}, separators=(",", ":"), ensure_ascii=False)
    kept = {entry.key: entry.value for entry in model.metadata_props} | {METADATA: text}
    helper.set_model_props(model, kept)
