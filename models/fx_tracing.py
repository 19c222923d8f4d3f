"""Tracing networks into fx graphs; a prune plan and its replay depend on the same graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any

from torch import fx, nn

from rigl_compress.models.layer_resizing import Selecting
from rigl_compress.models.recurrent_layers import Uneven
from rigl_compress.models.resized_attention import ResizedAttention

# Operations with literal sizes, and their name in a prune plan. A `chunk` is rewritten as a `split`.
_SIZED = {"view": "view", "reshape": "view", "expand": "view", "unflatten": "view", "chunk": "split", "split": "split"}


class Tracer(fx.Tracer):
    """A tracer that keeps torch's layers and our resized ones whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module stays whole."""
        ours = isinstance(m, Selecting | Uneven | ResizedAttention)
        return ours or super().is_leaf_module(m, module_qualified_name)


def traced(model: nn.Module, inputs: int | None = None) -> fx.GraphModule:
    """Trace a network in evaluation mode, called with so many inputs (None: those without a default).

    >>> [node.op for node in traced(nn.Sequential(nn.Linear(2, 2))).graph.nodes]
    ['placeholder', 'call_module', 'output']
    """
    with evaluating(model):
        return fx.GraphModule(model, graph_of(model, inputs), type(model).__name__)


def graph_of(model: nn.Module, inputs: int | None = None) -> fx.Graph:
    """Trace a network in its current mode."""
    tracer: Any = Tracer()
    graph: fx.Graph = tracer.trace(model, concrete_args=_left_at_default(model, inputs))
    return graph


def _left_at_default(model: nn.Module, inputs: int | None) -> dict[str, Any]:
    """Return the defaults of parameters of `forward` that are not passed, so that branches on them can be traced."""
    parameters = [each for each in signature(model.forward).parameters.values() if each.kind in _POSITIONAL]
    optional = [(position, each) for position, each in enumerate(parameters) if each.default is not Parameter.empty]
    return {
        each.name: each.default
        for position, each in optional
        if (inputs is None or position >= inputs) and isinstance(each.default, bool | int | float | str | None)
    }


_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def sized_nodes(graph: fx.Graph) -> dict[str, fx.Node]:
    """Return the operations with literal sizes, under names that are the same in every trace.

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


def argument(node: fx.Node, position: int, *names: str, default: Any = None) -> Any:
    """Return an argument of a call, whether positional or by keyword."""
    if len(node.args) > position:
        return node.args[position]
    return next((node.kwargs[name] for name in names if name in node.kwargs), default)


def written_sizes(node: fx.Node) -> tuple[Any, ...]:
    """Return the sizes of a view, a reshape or an expand, which are one tuple or separate arguments."""
    if _function_name(node) == "unflatten":
        return tuple(argument(node, 2, "sizes"))
    first = argument(node, 1, "shape", "size", default=())
    return tuple(first) if isinstance(first, tuple | list) else node.args[1:]


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Set evaluation mode within a block; afterwards every module has its own mode again."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
