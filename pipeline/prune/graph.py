"""The graph of a network, with what one run on the example input shows of every value in it."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor, fx, nn

from rigl_compress.models.errors import InputError
from rigl_compress.models.tracing import evaluating, traced

Example = Tensor | tuple[Any, ...]
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, type(None))


class Watcher(fx.Interpreter):
    """Runs a traced network once and notes of every value its shape, and whether it was changed in place."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)  # a freed storage would be mistaken for its successor

    def run_node(self, n: fx.Node) -> Any:
        """Note what there is to know of a node's value."""
        inputs = _tensors([self.env[source] for source in n.all_input_nodes])
        versions = [tensor._version for tensor in inputs]
        value = super().run_node(n)
        n.meta["shape"] = tuple(value.shape) if isinstance(value, Tensor) else None
        n.meta["float"] = isinstance(value, Tensor) and value.is_floating_point()
        n.meta["plain"] = _is_plain(value)
        n.meta["storages"] = {_storage(tensor) for tensor in _tensors(value)}
        n.meta["changes"] = {
            _storage(tensor) for tensor, version in zip(inputs, versions, strict=True) if tensor._version != version
        }
        return value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, tuple | list) else []


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple | list) else isinstance(value, _PLAIN)


def trace(model: nn.Module, example_input: Example) -> fx.GraphModule:
    """Trace a network and note what is to know of its values on the example input."""
    inputs = example_input if isinstance(example_input, tuple) else (example_input,)
    try:
        graph = traced(model, len(inputs))
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} cannot be traced ({_first_line(error)}): its forward must not branch on values; "
            "wrap the part that does with torch.fx.wrap, or prune the parts one by one"
        ) from None
    try:
        signature(model.forward).bind(*inputs)
        with torch.no_grad(), evaluating(graph):
            Watcher(graph).run(*copied(inputs))
    except Exception as error:
        shapes = ", ".join(str(tuple(value.shape)) if isinstance(value, Tensor) else repr(value) for value in inputs)
        raise InputError(
            f"an example input of shape {shapes} does not go through {type(model).__name__} ({_first_line(error)}): "
            "pass what the network itself takes, as in model(example_input)"
        ) from None
    graph.meta["inputs"] = len(inputs)
    return _without_changes_in_place(_with_first_input_first(graph))


def copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give the inputs as copies: a network may write into them."""
    return tuple(value.detach().clone() if isinstance(value, Tensor) else value for value in inputs)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _with_first_input_first(graph: fx.GraphModule) -> fx.GraphModule:
    """Give by place what was given by name: relu(input=x) → relu(x)."""
    for node in graph.graph.nodes:
        if not node.args and (name := next((name for name in ("input", "tensors") if name in node.kwargs), None)):
            node.args = (node.kwargs[name],)
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != name}
    return graph


def _without_changes_in_place(graph: fx.GraphModule) -> fx.GraphModule:
    """Let those who read a value after it was changed in place read the result of the change.

    Where a change is seen through another name (a view), the values are marked `aliased`.
    """
    nodes = list(graph.graph.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    for node in nodes:
        if not node.meta["changes"]:
            continue
        earlier = [other for other in nodes[: place[node]] if other.meta["storages"] & node.meta["changes"]]
        read_later = {
            other: later for other in earlier if (later := [user for user in other.users if place[user] > place[node]])
        }
        target = node.args[0] if node.args else None
        if set(read_later) <= {target} and node.meta["storages"] == node.meta["changes"]:
            for user in read_later.get(target, ()):
                user.replace_input_with(target, node)
        else:
            for other in (node, *read_later):
                other.meta["aliased"] = True
    return graph


def shape(node: Any) -> tuple[int, ...]:
    """The shape of a node's value."""
    found: tuple[int, ...] = node.meta["shape"]
    return found


def is_plain(node: fx.Node) -> bool:
    """Whether a node's value is made of numbers and the like, not of tensors."""
    return bool(node.meta["plain"])
