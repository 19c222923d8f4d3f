"""Walks over ONNX models: parts of protobuf messages at any depth, sub-graphs, tensors of Constant operators."""

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from rigl_compress.core.errors import InputError

Part = TypeVar("Part")
STANDARD_DOMAINS = ("", "ai.onnx")


def messages_of(message: Any) -> Iterator[Any]:
    """Yield a message and all messages within it; with a stack, as files can be nested deeper than Python recurses.

    >>> from onnx import helper
    >>> [type(each).__name__ for each in messages_of(helper.make_node("Neg", ["x"], ["y"], alpha=1))]
    ['NodeProto', 'AttributeProto']
    """
    waiting = [message]
    while waiting:
        each = waiting.pop()
        yield each
        for field, value in each.ListFields():
            if field.message_type is not None:
                waiting.extend([value] if isinstance(value, Message) else value)


def parts_of_type(message: Any, kind: type[Part]) -> Iterator[Part]:
    """Yield all messages of a type within a message, at any depth."""
    return (each for each in messages_of(message) if isinstance(each, kind))


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and all graphs within its operators, depth first."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from graphs_of(inner)


def constant_tensor(node: NodeProto) -> TensorProto | None:
    """Return the tensor of a standard Constant operator; None for other operators and for values that are no tensor."""
    if node.op_type != "Constant" or node.domain not in STANDARD_DOMAINS:
        return None
    return next((each.t for each in node.attribute if each.name == "value"), None)


def check_texts(message: Any) -> None:
    """Raise `InputError` for strings that are not UTF-8: protobuf returns them as bytes, which equal no name."""
    for each in messages_of(message):
        for field, value in each.ListFields():
            if field.type == FieldDescriptor.TYPE_STRING and _has_bytes(value):
                raise InputError(f"{field.full_name} holds bytes that are not UTF-8: export the model again")


def _has_bytes(value: Any) -> bool:
    return any(isinstance(text, bytes) for text in ([value] if isinstance(value, str | bytes) else value))


def check_attributes(graph: GraphProto) -> None:
    """Raise `InputError` for attributes that refer to those of a function, in a graph that is not a function."""
    for each in parts_of_type(graph, AttributeProto):
        if each.ref_attr_name:
            raise InputError(
                f"attribute {each.name!r} refers to {each.ref_attr_name!r} of a function, expected a value: "
                "export the model again"
            )
