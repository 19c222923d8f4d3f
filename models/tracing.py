"""Tracing networks into graphs, in one way for all who do it: a plan and its replay must see the same graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any

from torch import fx, nn

from rigl_compress.models.resize import Selecting

# Operations with sizes written out, and the word for them in a plan. A `chunk` is written anew as a `split`.
_SIZED = {"view": "view", "reshape": "view", "expand": "view", "chunk": "split", "split": "split"}


class Tracer(fx.Tracer):
    """Traces into everything but the layers of torch and the selecting ones of ours."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Say which modules stay whole."""
        ours = isinstance(m, Selecting)
        return ours or super().is_leaf_module(m, module_qualified_name)


def traced(model: nn.Module, inputs: int | None = None) -> fx.GraphModule:
    """Trace a network called with so many inputs (None: those it must have); the others have their defaults.

    The graph is that of evaluation mode, if the network asks for it.

    >>> [node.op for node in traced(nn.Sequential(nn.Linear(2, 2))).graph.nodes]
    ['placeholder', 'call_module', 'output']
    """
    with evaluating(model):
        return fx.GraphModule(model, graph_of(model, inputs), type(model).__name__)


def graph_of(model: nn.Module, inputs: int | None = None) -> fx.Graph:
    """Trace a network in the mode that it is in."""
    tracer: Any = Tracer()
    graph: fx.Graph = tracer.trace(model, concrete_args=_left_at_default(model, inputs))
    return graph


def _left_at_default(model: nn.Module, inputs: int | None) -> dict[str, Any]:
    """Give the parameters of `forward` that nobody gives a value, so that branches on them can be followed."""
    parameters = [each for each in signature(model.forward).parameters.values() if each.kind in _POSITIONAL]
    optional = [(place, each) for place, each in enumerate(parameters) if each.default is not Parameter.empty]
    return {
        each.name: each.default
        for place, each in optional
        if (inputs is None or place >= inputs) and isinstance(each.default, bool | int | float | str | None)
    }


_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def sized_nodes(graph: fx.Graph) -> dict[str, fx.Node]:
    """Give the operations with sizes written out, under names that a second tracing finds again.

    >>> class Flat(nn.Module):
    ...     def forward(self, x):
    ...         return x.view(-1, 4)
    >>> sized_nodes(traced(Flat()).graph)
    {'view 1': view}
    """
    found: dict[str, fx.Node] = {}
    for node in graph.nodes:
        kind = _SIZED.get(_function_name(node))
        if kind is not None:
            found[f"{kind} {len(found) + 1}"] = node
    return found


def _function_name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def argument(node: fx.Node, place: int, *names: str, default: Any = None) -> Any:
    """Give an argument of a call, whether it was given by place or by name."""
    if len(node.args) > place:
        return node.args[place]
    return next((node.kwargs[name] for name in names if name in node.kwargs), default)


def written_sizes(node: fx.Node) -> tuple[Any, ...]:
    """Give the sizes in a view, a reshape or an expand, which may come as one tuple or one by one."""
    first = argument(node, 1, "shape", "size", default=())
    return tuple(first) if isinstance(first, tuple | list) else node.args[1:]


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode for the time of a block; every module then gets its own mode back."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
