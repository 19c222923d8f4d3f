"""Files of every encoding with one thing changed: our session gives what ONNX Runtime gives, or refuses as it does."""

import json
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.exporters.restore import rebuilt_tensors
from rigl_compress.exporters.sparsify import METADATA, metadata_of
from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.session import InferenceSession

Array = NDArray[Any]
Change = Callable[[onnx.ModelProto], None]
ROWS, COLUMNS = 12, 20
X = {"x": np.linspace(-1, 1, 3 * COLUMNS, dtype=np.float32).reshape(3, COLUMNS)}
LAYOUTS = [
    *((encoding, values) for encoding in ("gap8", "bitmask") for values in ("fp32", "fp16", "int8")),
    *((encoding, values) for encoding in ("dense", "sparse") for values in ("fp16", "int8")),
    *(("gap8", "signed"), ("bitmask", "signed"), ("sparse", "fp32")),
]
QUICK = [("gap8", "fp32"), ("sparse", "fp32"), ("bitmask", "fp16")]
# Attributes that the operators know and that we do not write, with other values than they have by themselves.
UNWRITTEN: dict[str, dict[str, Any]] = {
    "CumSum": {"exclusive": 1, "reverse": 1},
    "ScatterElements": {"axis": -1, "reduction": "add"},
    "Reshape": {"allowzero": 1},
    "Gather": {"axis": 0},
    "Cast": {"saturate": 0},
}


def gathering_layer(weight: Array) -> onnx.ModelProto:
    """A layer behind a choice of inputs, as pruning leaves it: indices are encoded, too."""
    model = onnx_layer(weight)
    model.graph.node[0].input[0] = "chosen"
    model.graph.node.insert(0, helper.make_node("Gather", ["x", "index"], ["chosen"], axis=1))
    model.graph.initializer.append(numpy_helper.from_array(np.arange(0, COLUMNS), "index"))
    return model


@lru_cache
def encoded(encoding: str, values: str) -> onnx.ModelProto:
    weight = sparse_weight(0.8, (ROWS, COLUMNS))
    if values == "signed":
        weight = sparse_weight(0, (ROWS, COLUMNS)) * (weight != 0)
    plain = gathering_layer(weight)
    model = forced(plain, encoding, values)
    found, left = rebuilt_tensors(model)
    assert not left
    assert set(found) == ({"index", "w"} if "w" in metadata_of(model)["tensors"] else {"index"})
    return model


def forced(plain: onnx.ModelProto, encoding: str, values: str) -> onnx.ModelProto:
    """Encode the weight in one way, whether it is smaller or not, and the indices as their steps."""
    from rigl_compress.exporters import sparsify as module
    from rigl_compress.exporters.encodings import ENCODINGS
    from rigl_compress.exporters.index_encoding import encode_indices
    from rigl_compress.exporters.negative_zeros import without_signs
    from rigl_compress.exporters.value_precision import VALUES

    model = onnx.ModelProto()
    model.CopyFrom(plain)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in plain.graph.initializer}
    narrow = without_signs("w", arrays["w"]) if values == "signed" else VALUES[values].narrow("w", arrays["w"])
    if narrow is None:
        parts, label = ENCODINGS[encoding].encode("w", arrays["w"]), encoding
    else:
        parts = module.joined(ENCODINGS[encoding].encode(f"w/{narrow.part}", narrow.array), narrow.around)
        label = f"{encoding}+{values}"
    steps = encode_indices("index", arrays["index"])
    assert steps is not None
    module._replace(model, {"w": parts, "index": steps})
    labels = {"index": "steps", **({"w": label} if parts.nodes else {})}
    helper.set_model_props(model, {METADATA: json.dumps({"tensors": labels})})
    return model


# What can be changed


def changes(model: onnx.ModelProto) -> Iterator[tuple[str, Change]]:
    made = [place for place, node in enumerate(model.graph.node) if node.op_type not in ("Gemm",)]
    for place in made:
        node = model.graph.node[place]
        yield from ((f"{node.op_type} {node.output[0]}: {what}", change) for what, change in of_node(node, place))
    for number, tensor in enumerate(model.graph.initializer):
        yield from ((f"{tensor.name}: {what}", change) for what, change in of_tensor(tensor, number))
    for number, sparse in enumerate(model.graph.sparse_initializer):
        yield from ((f"{sparse.values.name}: {what}", change) for what, change in of_sparse(number))
    for number, _ in enumerate(model.graph.value_info):
        yield f"value_info {number}", lambda m, n=number: set_dimension(m.graph.value_info[n], 7)
    yield from of_model()


def set_dimension(value: onnx.ValueInfoProto, length: int) -> None:
    value.type.tensor_type.shape.dim[-1].dim_value = length


def of_node(node: NodeProto, place: int) -> Iterator[tuple[str, Change]]:
    for number, attribute in enumerate(node.attribute):
        for other in other_values(node, attribute):
            yield f"{attribute.name}={other}", lambda m, n=number, o=other: set_attribute(m.graph.node[place], n, o)
        yield f"without {attribute.name}", lambda m, n=number: m.graph.node[place].attribute.pop(n) and None
    for name, value in UNWRITTEN.get(node.op_type, {}).items():
        yield (
            f"with {name}",
            lambda m, n=name, v=value: m.graph.node[place].attribute.append(helper.make_attribute(n, v)),
        )
    yield "with an unknown attribute", lambda m: m.graph.node[place].attribute.append(helper.make_attribute("no", 1))
    yield "doubled", lambda m: behind(m, place, "Add")
    yield "negated", lambda m: behind(m, place, "Neg")
    yield "used elsewhere", lambda m: use_elsewhere(m, node.output[0])
    yield "of another domain", lambda m: setattr(m.graph.node[place], "domain", "com.microsoft")
    yield "of the standard's other name", lambda m: setattr(m.graph.node[place], "domain", "ai.onnx")
    yield "another operator", lambda m: setattr(m.graph.node[place], "op_type", "Identity")
    if len(node.input) > 1:
        yield "inputs swapped", lambda m: m.graph.node[place].input.reverse()
        yield "first input twice", lambda m: m.graph.node[place].input.__setitem__(1, node.input[0])
        yield "one input fewer", lambda m: m.graph.node[place].input.pop() and None


def other_values(node: NodeProto, attribute: onnx.AttributeProto) -> list[Any]:
    value = helper.get_attribute_value(attribute)
    if node.op_type == "Cast":
        return [TensorProto.FLOAT16, TensorProto.INT8, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE]
    if isinstance(value, bytes):
        return ["RIGHT", "LEFT", "UP"]
    if isinstance(value, TensorProto):
        array = numpy_helper.to_array(value)
        return [array + 1, array.astype(np.float64), np.zeros(2, array.dtype)]
    return [value + 1, -value - 1, 7]


def set_attribute(node: NodeProto, number: int, value: Any) -> None:
    name = node.attribute[number].name
    new = numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
    node.attribute[number].CopyFrom(helper.make_attribute(name, new))


def behind(model: onnx.ModelProto, place: int, operator: str) -> None:
    """Put an operator between one and all that use its output."""
    name = model.graph.node[place].output[0]
    model.graph.node[place].output[0] = f"{name}/before"
    inputs = [f"{name}/before"] * (2 if operator == "Add" else 1)
    model.graph.node.insert(place + 1, helper.make_node(operator, inputs, [name]))


def use_elsewhere(model: onnx.ModelProto, name: str) -> None:
    """Make a value an output of the model, too."""
    model.graph.node.append(helper.make_node("Identity", [name], ["z"]))
    model.graph.output.append(helper.make_empty_tensor_value_info("z"))


def of_tensor(tensor: TensorProto, number: int) -> Iterator[tuple[str, Change]]:
    array = numpy_helper.to_array(tensor)
    flat = array.reshape(-1)
    others = {
        "another first": np.concatenate([flat[:1] + 1, flat[1:]]).reshape(array.shape),
        "another last": np.concatenate([flat[:-1], flat[-1:] + 1]).reshape(array.shape),
        "one less": (array - 1).astype(array.dtype),
        "all one": np.ones_like(array),
        "reversed": flat[::-1].reshape(array.shape),
        "one more": np.append(flat, flat[-1:]),
        "one fewer": flat[:-1],
        "an axis more": array[None],
        "wider": array.astype(np.float64 if array.dtype.kind == "f" else np.int64),
        "none": flat[:0],
    }
    for what, other in others.items():
        yield what, lambda m, o=other: m.graph.initializer[number].CopyFrom(numpy_helper.from_array(o, tensor.name))
    yield (
        "an input too",
        lambda m: m.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))),
    )
    yield "twice", lambda m: m.graph.initializer.append(m.graph.initializer[number])
    yield "missing", lambda m: m.graph.initializer.pop(number) and None
    yield "another name", lambda m: setattr(m.graph.initializer[number], "name", "other")
    yield "cut short", lambda m: setattr(m.graph.initializer[number], "raw_data", b"1")


def of_sparse(number: int) -> Iterator[tuple[str, Change]]:
    def with_indices(change: Callable[[Array], Array]) -> Change:
        def apply(model: onnx.ModelProto) -> None:
            indices = model.graph.sparse_initializer[number].indices
            indices.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(indices)), indices.name))

        return apply

    yield "negative", with_indices(lambda a: np.concatenate([[-1], a[1:]]))
    yield "outside", with_indices(lambda a: np.concatenate([a[:-1], [ROWS * COLUMNS]]))
    yield "reversed", with_indices(lambda a: a[::-1].copy())
    yield "doubled", with_indices(lambda a: np.concatenate([a[:1], a[:1], a[2:]]))
    yield "too few", with_indices(lambda a: a[:-1])
    yield "narrow", with_indices(lambda a: a.astype(np.int32))
    yield "shape", lambda m: m.graph.sparse_initializer[number].dims.__setitem__(0, 3)
    yield "no shape", lambda m: m.graph.sparse_initializer[number].dims.__delitem__(slice(None))


def of_model() -> Iterator[tuple[str, Change]]:
    def relabelled(label: str) -> Change:
        text = json.dumps({"tensors": {"w": label, "index": "steps"}})
        return lambda model: helper.set_model_props(model, {METADATA: text})

    for label in ("gap8", "bitmask", "gap8+fp16", "bitmask+int8", "sparse+int8", "dense+fp16", "gap8+signed", "steps"):
        yield f"label {label}", relabelled(label)
    for opset in (9, 10, 11, 13, 99):
        yield f"opset {opset}", lambda m, o=opset: setattr(m.opset_import[0], "version", o)
    yield "no opset", lambda m: m.opset_import.pop() and None
    yield "old format", lambda m: setattr(m, "ir_version", 3)
    yield "future format", lambda m: setattr(m, "ir_version", 99)
    yield "unknown attribute of a layer", lambda m: m.graph.node[-1].attribute.append(helper.make_attribute("no", 1))
    yield "layer of another type", lambda m: setattr(m.graph.node[-1], "op_type", "Gemmm")
    yield (
        "layer that does not fit",
        lambda m: m.graph.node[-1].attribute[0].CopyFrom(helper.make_attribute("transB", 0)),
    )
    yield "input of another type", lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.DOUBLE)
    yield "input of another shape", lambda m: set_dimension(m.graph.input[0], 7)
    yield "output of another shape", lambda m: set_dimension(m.graph.output[0], 7)
    yield "output of nothing", lambda m: setattr(m.graph.output[0], "name", "nothing")


# What must be the same


def answer(opened: Callable[[bytes], Any], content: bytes) -> list[Array] | None:
    """What a session gives; None if it refuses the file or the inputs."""
    try:
        outputs: list[Array] = opened(content).run(None, X)
    except Exception:
        return None
    return outputs


def theirs(content: bytes | str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def ours(content: bytes | str) -> InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return InferenceSession(content, options)


def agree(one: list[Array] | None, other: list[Array] | None) -> bool:
    if one is None or other is None:
        return one is other
    same = [(each.shape, each.dtype) for each in one] == [(each.shape, each.dtype) for each in other]
    return same and largest_difference(one, other) < 1e-5


@pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize(
    ("encoding", "values"),
    [pytest.param(*layout, marks=[] if layout in QUICK else [pytest.mark.slow]) for layout in LAYOUTS],
)
def test_no_change_makes_a_difference(encoding: str, values: str) -> None:
    model = encoded(encoding, values)
    content = model.SerializeToString()
    assert ours(content).sparse_layers == ("y",)  # or else there would be nothing to compare
    assert agree(answer(ours, content), answer(theirs, content))
    different, tried = [], 0
    for what, change in changes(model):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        change(changed)
        content, tried = changed.SerializeToString(), tried + 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not agree(answer(ours, content), answer(theirs, content)):
                different.append(what)
    assert different == []
    assert tried > 80


BROKEN = {
    ("sparse", "w: negative"),
    ("sparse", "w: outside"),
    ("sparse", "w: too few"),
    ("gap8", "w/values: cut short"),
    ("gap8", "w/shape: missing"),
    ("gap8", "opset 10"),
    ("gap8", "no opset"),
    ("gap8", "future format"),
    ("gap8", "unknown attribute of a layer"),
    ("gap8", "layer of another type"),
    ("gap8", "layer that does not fit"),
    ("gap8", "output of nothing"),
}


@pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize(("encoding", "what"), sorted(BROKEN))
def test_what_onnx_runtime_refuses_is_refused(encoding: str, what: str, tmp_path: Path) -> None:
    """From a path as from bytes, with the same error, and without a word about speed."""
    model = onnx.ModelProto()
    model.CopyFrom(encoded(encoding, "fp32"))
    dict(changes(encoded(encoding, "fp32")))[what](model)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    for source in (model.SerializeToString(), str(tmp_path / "m.onnx")):
        with pytest.raises(Exception, match="ONNXRuntimeError") as expected:
            theirs(source)
        with pytest.raises(type(expected.value)) as found:
            ours(source)
        assert str(found.value) == str(expected.value)
