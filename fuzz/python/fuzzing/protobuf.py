"""Mutations of ONNX models at the level of protobuf: any field of any message, with names and numbers that fit."""

from collections.abc import Iterator
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from fuzzing.binary import EDGES, mutate_bytes
from fuzzing.values import NUMBERS, TEXTS, mutate_json

Site = tuple[Any, FieldDescriptor]
OPERATORS = (
    "Add",
    "Mul",
    "Gemm",
    "MatMul",
    "Conv",
    "Relu",
    "Gather",
    "Reshape",
    "Transpose",
    "Cast",
    "Identity",
    "Not",
)
_WHOLE = {getattr(FieldDescriptor, f"CPPTYPE_{name}") for name in ("INT32", "INT64", "UINT32", "UINT64")}
_REAL = {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}


def mutate_model(data: bytes, rng: Random) -> bytes:
    """Change a model in one to four fields; now and then in its bytes."""
    if rng.random() < 0.05:
        return mutate_bytes(data, rng)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return mutate_bytes(data, rng)
    sites = list(_sites(model))
    names = sorted(_names(sites))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4)) if sites else 0):
        _change(*_chosen(sites, rng), names, rng)
    return model.SerializeToString()


def _chosen(sites: list[Site], rng: Random) -> Site:
    """Choose a kind of field first: otherwise the many fields of operators would take nearly all changes."""
    kinds: dict[str, list[Site]] = {}
    for site in sites:
        kinds.setdefault(site[1].full_name, []).append(site)
    return rng.choice(kinds[rng.choice(list(kinds))] if rng.random() < 0.6 else sites)


def _sites(message: Any) -> Iterator[Site]:
    for field, value in message.ListFields():
        yield message, field
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value if _repeated(field) else (value,):
                yield from _sites(each)


def _repeated(field: FieldDescriptor) -> bool:
    """Return whether a field is a list; older versions of protobuf have a label for it."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED)


def _names(sites: list[Site]) -> set[str]:
    found = set()
    for message, field in sites:
        if field.type == FieldDescriptor.TYPE_STRING:
            value = getattr(message, field.name)
            found.update(value if _repeated(field) else (value,))
    return found


def _change(message: Any, field: FieldDescriptor, names: list[str], rng: Random) -> None:
    try:
        if rng.random() < 0.1:
            message.ClearField(field.name)
        elif _repeated(field):
            _change_list(message, field, names, rng)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            _add_field(getattr(message, field.name), names, rng)
        else:
            setattr(message, field.name, _scalar(message, field, getattr(message, field.name), names, rng))
    except (ValueError, TypeError):  # what the field cannot hold
        return


def _add_field(message: Any, names: list[str], rng: Random) -> None:
    """Set a field that may have been empty."""
    field = rng.choice(list(message.DESCRIPTOR.fields))
    if _repeated(field):
        _change_list(message, field, names, rng)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _scalar(message, field, getattr(message, field.name), names, rng))


def _change_list(message: Any, field: FieldDescriptor, names: list[str], rng: Random) -> None:
    values, chance = getattr(message, field.name), rng.random()
    if not values:
        values.add() if field.type == FieldDescriptor.TYPE_MESSAGE else values.append(_empty(field, names, rng))
        return
    place = rng.randrange(len(values))
    if chance < 0.2:
        del values[place]
    elif chance < 0.35:
        _repeat(values, place, field)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        _move(values, place, rng) if chance < 0.6 else _add_field(values[place], names, rng)
    else:
        values[place] = _scalar(message, field, values[place], names, rng)


def _repeat(values: Any, place: int, field: FieldDescriptor) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        values.add().CopyFrom(values[place])
    else:
        values.append(values[place])


def _move(values: Any, place: int, rng: Random) -> None:
    """Let a message take the content of a neighbour: a weight in another's place, an operator twice."""
    copied = type(values[place])()
    copied.CopyFrom(values[rng.randrange(len(values))])
    values[place].CopyFrom(copied)


def _empty(field: FieldDescriptor, names: list[str], rng: Random) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(names or [""])
    return b"" if field.type == FieldDescriptor.TYPE_BYTES else rng.choice((0, 1, 2))


def _scalar(message: Any, field: FieldDescriptor, value: Any, names: list[str], rng: Random) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return rng.randrange(0, 24)
    if field.cpp_type in _WHOLE:
        return rng.choice((*EDGES, -(2**63), value + 1, value - 1, value * 2, -value, rng.randrange(24)))
    if field.cpp_type in _REAL:
        return float(rng.choice((*NUMBERS, -value, value * 2)))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return mutate_bytes(value, rng)
    return _text(message, field, value, names, rng)


def _text(message: Any, field: FieldDescriptor, value: str, names: list[str], rng: Random) -> str:
    if message.DESCRIPTOR.name == "StringStringEntryProto" and field.name == "value" and rng.random() < 0.8:
        return mutate_json(value.encode(), rng).decode("utf-8", "replace")
    if field.name == "op_type" and rng.random() < 0.7:
        return rng.choice(OPERATORS)
    if rng.random() < 0.7 and names:
        return rng.choice(names)
    return rng.choice((*TEXTS, value + "x", value[:-1])).encode("utf-8", "replace").decode()
