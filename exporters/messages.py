"""Every part of a protobuf message, however deep: main graph, sub-graphs, functions, training, attributes."""

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

from rigl_compress.models.errors import InputError

Part = TypeVar("Part")


def messages_of(message: Any) -> Iterator[Any]:
    """Give a message and all messages within it; a stack and not recursion, as files can nest deeply.

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
    """Give all messages of a type within a message, wherever they stand."""
    return (each for each in messages_of(message) if isinstance(each, kind))


def check_texts(message: Any) -> None:
    """Refuse names and texts that are not UTF-8: protobuf hands these over as bytes, which no name equals."""
    for each in messages_of(message):
        for field, value in each.ListFields():
            if field.type == FieldDescriptor.TYPE_STRING and _has_bytes(value):
                raise InputError(f"{field.full_name} holds bytes that are not UTF-8: export the model again")


def _has_bytes(value: Any) -> bool:
    return any(isinstance(text, bytes) for text in ([value] if isinstance(value, str | bytes) else value))
