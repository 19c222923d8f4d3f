"""Tracing networks into graphs, in one way for all who do it: node names must agree between a plan and its replay."""

from typing import Any

from torch import fx, nn

from rigl_compress.models.resize import SelectingConv1d, SelectingConv2d, SelectingLinear


class Tracer(fx.Tracer):
    """Traces into everything but the layers of torch and the selecting ones of ours."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Say which modules stay whole."""
        ours = isinstance(m, SelectingLinear | SelectingConv2d | SelectingConv1d)
        return ours or super().is_leaf_module(m, module_qualified_name)


def traced(model: nn.Module) -> fx.GraphModule:
    """Trace a network.

    >>> [node.op for node in traced(nn.Sequential(nn.Linear(2, 2))).graph.nodes]
    ['placeholder', 'call_module', 'output']
    """
    tracer: Any = Tracer()
    return fx.GraphModule(model, tracer.trace(model), type(model).__name__)
