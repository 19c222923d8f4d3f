"""A prune plan: which units of which layers go. Printable before it is applied, and replayable on a fresh network."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from rigl_compress.models.errors import InputError
from rigl_compress.models.resize import Kept, resized, selecting, size_of
from rigl_compress.models.settings import parse
from rigl_compress.models.tracing import evaluating, graph_of, sized_nodes, traced, written_sizes

FORMAT = 1


@dataclass(frozen=True)
class LayerChange:
    """What happens to one layer: the positions removed from its inputs and outputs."""

    layer: str
    inputs: int  # before
    outputs: int
    removed_inputs: tuple[int, ...] = ()
    removed_outputs: tuple[int, ...] = ()
    selects: bool = False  # its inputs are the network's: it picks those that are left from the full input
    new_bias: bool = False  # constants of removed inputs are folded into a bias that the layer did not have

    def __post_init__(self) -> None:
        for kind, before, removed in (
            ("inputs", self.inputs, self.removed_inputs),
            ("outputs", self.outputs, self.removed_outputs),
        ):
            if len({*removed}) < len(removed) or not all(0 <= place < before for place in removed):
                raise InputError(
                    f"the plan removes {kind} that {self.layer} does not have, or some twice: it is damaged"
                )
        if self.selects and not self.removed_inputs:
            raise InputError(f"the plan lets {self.layer} pick its inputs, and removes none: it is damaged")

    @property
    def kept_inputs(self) -> Kept:
        """The positions that stay, or None for all."""
        return _left(self.inputs, self.removed_inputs)

    @property
    def kept_outputs(self) -> Kept:
        """The positions that stay, or None for all."""
        return _left(self.outputs, self.removed_outputs)

    def then(self, later: "LayerChange") -> "LayerChange":
        """Give both changes as one: `later` counts the positions that this one left."""
        return LayerChange(
            self.layer,
            self.inputs,
            self.outputs,
            _both(self.removed_inputs, self.kept_inputs, later.removed_inputs),
            _both(self.removed_outputs, self.kept_outputs, later.removed_outputs),
            self.selects or later.selects,
            self.new_bias or later.new_bias,
        )

    def __str__(self) -> str:
        parts = [
            f"{kind} {before} → {before - len(removed)}"
            for kind, before, removed in (
                ("inputs", self.inputs, self.removed_inputs),
                ("outputs", self.outputs, self.removed_outputs),
            )
            if removed
        ]
        extra = [text for text, on in (("picks its inputs", self.selects), ("gains a bias", self.new_bias)) if on]
        return f"{self.layer}: {', '.join(parts + extra)}"


def _left(before: int, removed: tuple[int, ...]) -> Kept:
    if not removed:
        return None
    gone = set(removed)
    # On the CPU whatever the default device is: networks are also built on `meta`, where no value can be read.
    return torch.tensor([index for index in range(before) if index not in gone], device="cpu")


def _both(first: tuple[int, ...], left: Kept, then: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted((*first, *(then if left is None else left[list(then)].tolist()))))


@dataclass(frozen=True)
class PrunePlan:
    """All changes of a network. `sizes` are the numbers that its code has written out (views, splits).

    `notes` tell what was kept because it was not understood, `inputs` how many values the network was called with.
    """

    changes: tuple[LayerChange, ...] = ()
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    notes: tuple[str, ...] = ()
    inputs: int | None = None

    def __post_init__(self) -> None:
        for change in self.changes:
            if len(change.removed_outputs) >= change.outputs > 0:
                raise InputError(f"the plan would leave {change.layer} without outputs: it is refused")

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        lines = [str(change) for change in self.changes] or ["nothing to remove"]
        return "\n".join([*lines, *(f"kept: {note}" for note in self.notes)])

    def then(self, later: "PrunePlan") -> "PrunePlan":
        """Give both plans as one: `later` was made for what this one leaves.

        >>> first = PrunePlan((LayerChange("fc", 4, 3, removed_inputs=(1,)),))
        >>> print(first.then(PrunePlan((LayerChange("fc", 3, 3, removed_inputs=(1, 2)),))).changes[0].removed_inputs)
        (1, 2, 3)
        """
        changes = {change.layer: change for change in self.changes}
        for change in later.changes:
            changes[change.layer] = changes[change.layer].then(change) if change.layer in changes else change
        sizes = {name: _latest(numbers, dict(self.sizes).get(name)) for name, numbers in later.sizes}
        notes = tuple(dict.fromkeys((*self.notes, *later.notes)))
        return PrunePlan(
            tuple(changes.values()), tuple({**dict(self.sizes), **sizes}.items()), notes, later.inputs or self.inputs
        )

    def reshape(self, model: nn.Module) -> nn.Module:
        """Give a copy of the network in its new shape, with the weights that stay; constants are not folded here.

        The network keeps its class; only where sizes are written out in its code it becomes a `torch.fx.GraphModule`.
        """
        small = deepcopy(model)
        modules = dict(small.named_modules(remove_duplicate=False))
        for change in self.changes:
            before = modules.get(change.layer)
            if before is None:
                raise InputError(f"the plan changes {change.layer}, which the network does not have: it is another's")
            after = _changed(before, change)
            for path in (path for path, module in modules.items() if module is before):  # it may have several names
                parent, _, name = path.rpartition(".")
                setattr(modules[parent], name, after)
        return _with_sizes(small, dict(self.sizes), self.inputs) if self.sizes else small

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values."""
        content: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "PrunePlan":
        """Read what `to_json` gave."""
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, Mapping) else None
            raise InputError(f"the prune plan has format {found!r}, this version reads {FORMAT}")
        return parse(cls, {key: value for key, value in content.items() if key != "format"}, "plan")


def _latest(numbers: tuple[int, ...], before: tuple[int, ...] | None) -> tuple[int, ...]:
    return numbers if before is None else tuple(new or old for new, old in zip(numbers, before, strict=True))


def _changed(module: nn.Module, change: LayerChange) -> nn.Module:
    if size_of(module) != (change.inputs, change.outputs):
        raise InputError(
            f"the plan is for {change.layer} with {change.inputs} inputs and {change.outputs} outputs, "
            f"the network's has {size_of(module)}: it is another network's plan"
        )
    small: Any = resized(module, change.kept_inputs, change.kept_outputs)
    if change.new_bias and small.bias is None:
        small.bias = nn.Parameter(small.weight.new_zeros(small.weight.shape[0]))
    if change.selects:
        kept = change.kept_inputs
        assert kept is not None  # a layer that picks, picks fewer
        return selecting(small, kept)
    result: nn.Module = small
    return result


def _with_sizes(model: nn.Module, sizes: Mapping[str, tuple[int, ...]], inputs: int | None) -> fx.GraphModule:
    graph = traced(model, inputs)
    for name, node in sized_nodes(graph.graph).items():
        if name in sizes:
            node.target, node.args, node.kwargs = _sized(node, sizes[name])
    _revive_dropout(graph, model, inputs)
    graph.recompile()
    return _as_owner(graph, model)


def _sized(node: fx.Node, numbers: tuple[int, ...]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Give the call of a view or a split anew. A chunk becomes a split: its parts need no longer be equal."""
    if node.target in ("chunk", "split", torch.chunk, torch.split):
        dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
        return ("split" if node.op == "call_method" else torch.split), (node.args[0], list(numbers)), {"dim": dim}
    shape = tuple(new or old for new, old in zip(numbers, written_sizes(node), strict=True))
    return node.target, (node.args[0], shape), {}


_DROPOUTS: dict[Any, type[nn.Module]] = {
    F.dropout: nn.Dropout,
    F.dropout1d: nn.Dropout1d,
    F.dropout2d: nn.Dropout2d,
}


def _revive_dropout(graph: fx.GraphModule, model: nn.Module, inputs: int | None) -> None:
    """A graph has the mode of its tracing in it: let modules take the place of functions that ask for the mode."""
    with evaluating(model):
        for module in model.modules():
            module.training = True
        training = list(graph_of(model, inputs).nodes)
    for place, (node, twin) in enumerate(zip(list(graph.graph.nodes), training, strict=False)):
        if node.target in _DROPOUTS and node.target == twin.target and node.kwargs != twin.kwargs:
            graph.add_submodule(f"dropout_{place}", _DROPOUTS[node.target](twin.kwargs.get("p", 0.5)))
            node.op, node.target, node.args, node.kwargs = "call_module", f"dropout_{place}", node.args[:1], {}


def _as_owner(graph: fx.GraphModule, model: nn.Module) -> fx.GraphModule:
    """Let the graph own all that the network owns, in its order, also what its code does not use."""
    for kind in ("_parameters", "_buffers", "_modules"):
        mine, theirs = getattr(graph, kind), getattr(model, kind)
        new = {name: value for name, value in mine.items() if name not in theirs}
        mine.clear()
        mine.update({**theirs, **new})
    graph._non_persistent_buffers_set = set(model._non_persistent_buffers_set)
    graph.training = model.training
    return graph
