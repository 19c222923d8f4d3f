"""The order in which a network computes its layers, which can differ from the order of their definition."""

import warnings
from collections.abc import Iterable

from torch import nn

from rigl_compress.models.fx_tracing import evaluating, graph_of
from rigl_compress.models.sparse_parameters import ENDS, layer_types, match_layers


def find_layers(model: nn.Module, pattern: str, names: Iterable[str]) -> list[str]:
    """Resolve a pattern as `match_layers` does, with 'first' and 'last' in the order of the forward pass.

    >>> class Crossed(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.head, self.stem = nn.Linear(4, 2), nn.Linear(8, 4)
    ...     def forward(self, x):
    ...         return self.head(self.stem(x))
    >>> find_layers(Crossed(), "first", ["head.weight", "stem.weight"])
    ['stem.weight']
    """
    known = list(names)
    if pattern in ENDS and len(known) > 1:
        order = computed_order(model, known)
        if order is None:
            end = known[0 if pattern == "first" else -1]
            warnings.warn(
                f"the forward pass of {type(model).__name__} cannot be traced: {pattern!r} is taken for {end}, the "
                f"{pattern} layer by definition; if another is meant, write its name",
                stacklevel=2,
            )
        known = order or known
    return match_layers(pattern, known, layer_types(model))


def computed_order(model: nn.Module, names: Iterable[str]) -> list[str] | None:
    """Return the layers that a forward pass computes, in its order; None if it cannot be traced.

    Inside a module that is traced as a whole (attention) they are in the order of their definition.
    """
    core, prefix = _unwrapped(model)
    try:
        with evaluating(core):
            graph = graph_of(core)
    except Exception:  # the code of a network can raise anything when it is traced
        return None
    known, found = list(names), dict[str, None]()
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            found |= dict.fromkeys(name for name in known if _belongs(name, f"{prefix}{node.target}"))
    return list(found) or None


def _belongs(name: str, target: str) -> bool:
    return not target or name == target or name.startswith(f"{target}.")


def _unwrapped(model: nn.Module) -> tuple[nn.Module, str]:
    """Return the network inside torch.compile and parallel wrappers, and the prefix that they add to its names."""
    prefix = ""
    while True:
        inner = next((name for name in ("_orig_mod", "module") if _wraps(model, name)), None)
        if inner is None:
            return model, prefix
        model, prefix = model.get_submodule(inner), f"{prefix}{inner}."


def _wraps(model: nn.Module, name: str) -> bool:
    kinds = ("OptimizedModule", "DistributedDataParallel", "DataParallel")
    return type(model).__name__ in kinds and [*dict(model.named_children())] == [name]
