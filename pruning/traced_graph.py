"""The graph of a network, with the shape and storage of every value in a run on the example input."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, fx, nn

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.models.fx_tracing import evaluating, traced
from rigl_compress.models.nested_tensors import as_call, as_inputs, tensors_in
from rigl_compress.pruning.recorded_graph import has_composites, recorded
from rigl_compress.pruning.value_facts import note_facts, versions_of

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]


class ShapeRecorder(fx.Interpreter):
    """Runs a traced network once and records the shape of every value, and whether it was changed in place."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)  # a freed storage would be mistaken for its successor

    def run_node(self, n: fx.Node) -> Any:
        """Record the facts about a node's value."""
        inputs = [*tensors_in([self.env[source] for source in n.all_input_nodes])]
        versions = versions_of(inputs)
        value = super().run_node(n)
        note_facts(n, value, inputs, versions)
        return value


def trace(model: nn.Module, example_input: Example) -> fx.GraphModule:
    """Trace a network and record the shapes of its values on the example input.

    What `torch.fx` cannot trace, or does not look into, is recorded in a run on the example.
    """
    graph = None if isinstance(example_input, Mapping) or has_composites(model) else _symbolic(model, example_input)
    return _without_changes_in_place(_with_first_input_first(graph or _recorded(model, example_input)))


def _symbolic(model: nn.Module, example_input: Example) -> fx.GraphModule | None:
    """Return the symbolic trace; None if the network cannot be traced."""
    inputs = as_inputs(example_input)
    try:
        graph = traced(model, len(inputs))
    except Exception:  # the code of a network can raise anything when it is traced
        return None
    try:
        signature(model.forward).bind(*inputs)
        with torch.no_grad(), evaluating(graph):
            ShapeRecorder(graph).run(*copied(inputs))
    except Exception as error:
        raise _unfit(model, example_input, error) from None
    graph.meta |= {"inputs": len(inputs), "recorded": False}
    return graph


def _recorded(model: nn.Module, example_input: Example) -> fx.GraphModule:
    args, kwargs = as_call(example_input)
    try:
        with torch.no_grad(), evaluating(model):
            model(*copied(args), **copied_by_name(kwargs))
    except Exception as error:
        raise _unfit(model, example_input, error) from None
    try:
        with evaluating(model):
            graph = recorded(model, copied(args), copied_by_name(kwargs))
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} cannot be traced ({first_line(error)}): its forward must not branch on values; "
            "wrap the part that does with torch.fx.wrap, or prune the parts one by one"
        ) from None
    graph.meta |= {"inputs": None, "recorded": True}
    return graph


def _unfit(model: nn.Module, example_input: Example, error: Exception) -> InputError:
    args, kwargs = as_call(example_input)
    shapes = ", ".join(
        str(tuple(value.shape)) if isinstance(value, Tensor) else repr(value) for value in (*args, *kwargs.values())
    )
    return InputError(
        f"an example input of shape {shapes} does not go through {type(model).__name__} ({first_line(error)}): "
        "pass what the network itself takes, as in model(example_input), or a dictionary of keyword inputs"
    )


def copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return copies of the inputs: a network may write into them."""
    return tuple(value.detach().clone() if isinstance(value, Tensor) else value for value in inputs)


def copied_by_name(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of keyword inputs."""
    return dict(zip(inputs, copied(tuple(inputs.values())), strict=True))


def _with_first_input_first(graph: fx.GraphModule) -> fx.GraphModule:
    """Pass the first input by position: relu(input=x) → relu(x)."""
    for node in graph.graph.nodes:
        if not node.args and (name := next((name for name in ("input", "tensors") if name in node.kwargs), None)):
            node.args = (node.kwargs[name],)
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != name}
    return graph


def _without_changes_in_place(graph: fx.GraphModule) -> fx.GraphModule:
    """Make nodes that read a value after an in-place change read the result of that change.

    Where a change is visible through another value (a view), the values are marked `aliased`.
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
    """Return the shape of a node's value."""
    found: tuple[int, ...] = node.meta["shape"]
    return found


def is_plain(node: fx.Node) -> bool:
    """Whether a node's value is made of numbers and the like, not of tensors."""
    return bool(node.meta["plain"])


def plain_value(node: fx.Node) -> Any:
    """Return a node's value in the run on the example; it is made of numbers and the like."""
    return node.meta["value"]
