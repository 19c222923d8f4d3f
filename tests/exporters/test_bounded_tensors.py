"""Tensors that declare more than they hold, and small files that ask for much memory: refused before any is taken."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.bounded_tensors import LIMIT, array_of, bytes_for, decoded_limit, dense_of
from rigl_compress.exporters.onnx_file import load_bytes, load_model
from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.sparsify import sparsify
from rigl_compress.runtime.file_contents import read_contents

EVERY_TYPE = [each for each in TensorProto.DataType.values() if each != TensorProto.UNDEFINED]


def tensor(data_type: int = TensorProto.FLOAT, dims: Any = (2, 3), **content: Any) -> TensorProto:
    return TensorProto(name="w", data_type=data_type, dims=dims, **content)


@pytest.mark.parametrize("data_type", EVERY_TYPE)
def test_every_type_is_read_as_onnx_writes_it(data_type: int) -> None:
    count = 5
    try:
        kind = helper.tensor_dtype_to_np_dtype(data_type)
        array = np.array(["a"] * count, dtype=object) if data_type == TensorProto.STRING else np.ones(count, dtype=kind)
        raw = numpy_helper.from_array(array, "w")
        typed = helper.make_tensor("w", data_type, [count], array.tolist())
    except (ValueError, TypeError, NotImplementedError):
        pytest.skip("onnx itself does not write it")
    assert array_of(raw).shape == (count,)
    assert array_of(typed).tobytes() == numpy_helper.to_array(typed).tobytes()


@pytest.mark.parametrize(
    "bad",
    [
        tensor(raw_data=b"\0" * 20),
        tensor(raw_data=b"\0" * 28),
        tensor(raw_data=b""),
        tensor(),
        tensor(float_data=[1.0] * 5),
        tensor(int32_data=[1] * 6),
        tensor(dims=[2**45], raw_data=b"\0" * 24),
        tensor(dims=[2**40, 2**40], float_data=[1.0]),
        tensor(dims=[2**32, 2**32], raw_data=b""),  # 0 in 64 bits
        tensor(dims=[-1, -6], raw_data=b"\0" * 24),
        tensor(dims=[2**62 + 1] * 65, raw_data=b"\0" * 24),
        tensor(TensorProto.INT4, [5], raw_data=b"\0" * 5),
        tensor(TensorProto.COMPLEX64, [2], float_data=[1.0, 2.0]),
        tensor(TensorProto.STRING, [2], raw_data=b"ab"),
        tensor(99, raw_data=b"\0" * 24),
        tensor(0, raw_data=b"\0" * 24),
    ],
)
def test_a_tensor_that_does_not_hold_what_it_declares(bad: TensorProto) -> None:
    with pytest.raises(InputError) as caught:
        array_of(bad)
    assert "\n" not in str(caught.value)
    for model in (onnx_layer(sparse_weight(), initializer=[bad]), _in_a_constant(bad)):
        with pytest.raises(InputError):
            load_bytes(model.SerializeToString())


def _in_a_constant(bad: TensorProto) -> onnx.ModelProto:
    model = onnx_layer(sparse_weight())
    model.graph.node.append(helper.make_node("Constant", [], ["k"], value=bad))
    return model


def sparse(dims: list[int], places: Any, count: int | None = None) -> onnx.SparseTensorProto:
    places = np.array(places, dtype=np.int64)
    values = numpy_helper.from_array(np.ones(len(places) if count is None else count, dtype=np.float32), "w")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(places, "i"), dims)


BAD_PLACES = {
    "negative": sparse([40, 60], [-1, 3]),
    "too high": sparse([40, 60], [3, 2400]),
    "too many": sparse([40, 60], [3, 4, 5], 2),
    "too few": sparse([40, 60], [3], 2),
    "negative column": sparse([40, 60], [[0, -1]]),
    "high column": sparse([40, 60], [[0, 60]]),
    "three columns": sparse([40, 60], [[0, 1, 2]]),
    "no axes": sparse([40, 60], 3, 1),
    "negative shape": sparse([-40, -60], [3]),
    "no indices": onnx.SparseTensorProto(values=sparse([1], [0]).values, dims=[40, 60]),
}


@pytest.mark.parametrize("name", BAD_PLACES)
def test_a_sparse_tensor_with_places_that_there_are_not(name: str, tmp_path: Path) -> None:
    model = onnx_layer(sparse_weight(), initializer=[], sparse_initializer=[BAD_PLACES[name]])
    onnx.save(model, tmp_path / "m.onnx")
    readers: list[Callable[[], Any]] = [
        lambda: dense_of(BAD_PLACES[name]),
        lambda: restore(model),
        lambda: load_bytes(model.SerializeToString()),
        lambda: load_model(tmp_path / "m.onnx"),
    ]
    for read in readers:
        with pytest.raises(InputError) as caught:
            read()
        assert "\n" not in str(caught.value)


def bomb_sparse() -> onnx.ModelProto:
    return onnx_layer(sparse_weight(), initializer=[], sparse_initializer=[sparse([2**22, 2**23], [5])])


def bomb_in_a_constant() -> onnx.ModelProto:
    model = onnx_layer(sparse_weight())
    node = helper.make_node("Constant", [], ["k"])
    node.attribute.append(onnx.AttributeProto(name="sparse_value", sparse_tensor=sparse([2**45], [5]), type=11))
    model.graph.node.append(node)
    return model


def bomb_of_many() -> onnx.ModelProto:
    many = [sparse([2**20, 64], [5]) for _ in range(100)]
    for number, each in enumerate(many):
        each.values.name = f"w{number}"
    return onnx_layer(sparse_weight(), sparse_initializer=many)


def bomb_of(encoding: str, values: str) -> Callable[[], onnx.ModelProto]:
    def make() -> onnx.ModelProto:
        model = sparsify(onnx_layer(sparse_weight()), encoding, values)
        for each in model.graph.initializer:
            if each.name.endswith("/shape"):
                each.CopyFrom(numpy_helper.from_array(np.array([2**22, 2**23]), each.name))
            if each.name.endswith("/size"):
                each.CopyFrom(numpy_helper.from_array(np.array([2**45]), each.name))
        return model

    return make


def bomb_expanded() -> onnx.ModelProto:
    model = onnx_layer(sparse_weight())
    model.graph.initializer.append(numpy_helper.from_array(np.array([2**22, 2**23, 1, 1]), "large"))
    model.graph.node.append(helper.make_node("Expand", ["y", "large"], ["z"]))
    return model


BOMBS = {
    "sparse": bomb_sparse,
    "constant": bomb_in_a_constant,
    "many": bomb_of_many,
    "expand": bomb_expanded,
    **{f"{one}+{other}": bomb_of(one, other) for one in ("gap8", "bitmask") for other in ("fp32", "fp16", "int8")},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_asks_for_much_memory(name: str, tmp_path: Path) -> None:
    model = BOMBS[name]()
    assert model.ByteSize() < 20_000
    onnx.save(model, tmp_path / "m.onnx")
    tracemalloc.start()
    try:
        for read in (lambda: load_bytes(model.SerializeToString()), lambda: read_contents(tmp_path / "m.onnx")):
            with pytest.raises(InputError, match=f"once they are densified, 268,435,456 are allowed: .* set {LIMIT}"):
                read()
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


def test_the_limit_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sparsify(onnx_layer(np.zeros((1000, 1000), dtype=np.float32)), "sparse", "fp32")
    load_bytes(model.SerializeToString())
    monkeypatch.setattr("rigl_compress.exporters.bounded_tensors.ALWAYS_ALLOWED", 1000)
    monkeypatch.setenv(LIMIT, "3999999")
    with pytest.raises(InputError, match="take 4,000,000 bytes once they are densified, 3,999,999 are allowed"):
        load_bytes(model.SerializeToString())
    monkeypatch.setenv(LIMIT, "4000000")
    load_bytes(model.SerializeToString())
    monkeypatch.setenv(LIMIT, "4 GB")
    with pytest.raises(InputError, match="is '4 GB', expected a number of bytes"):
        load_bytes(model.SerializeToString())


def test_a_larger_file_may_grow_larger() -> None:
    small, large = (onnx_layer(sparse_weight(0, shape)) for shape in ((2, 2), (1000, 100)))
    assert decoded_limit(small) == 2**28
    assert decoded_limit(large) == 1000 * large.ByteSize()


def test_bytes_of_types_below_a_byte() -> None:
    assert [bytes_for(3, each) for each in (TensorProto.INT4, TensorProto.UINT2, TensorProto.COMPLEX128)] == [2, 1, 48]


def test_names_that_are_no_text() -> None:
    content = onnx_layer(sparse_weight()).SerializeToString().replace(b"layer", b"\xff\xfe\xfd\xfc\xfb")
    with pytest.raises(InputError, match=r"onnx.GraphProto.name holds bytes that are not UTF-8"):
        load_bytes(content)


def test_shapes_of_too_many_axes() -> None:
    """The product of a million numbers takes minutes."""
    model = onnx_layer(sparse_weight())
    model.graph.initializer.append(numpy_helper.from_array(np.full(65, 2**62 + 1), "sizes"))
    model.graph.node.append(helper.make_node("ConstantOfShape", ["sizes"], ["filled"]))
    with pytest.raises(InputError, match="'sizes' is a shape of 65 axes, expected at most 64"):
        load_bytes(model.SerializeToString())
