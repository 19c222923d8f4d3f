"""Prune plans: which units of which layers are removed; printable, and replayable on a fresh network."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from rigl_compress.core.dataclass_io import parse
from rigl_compress.core.errors import InputError
from rigl_compress.models.fx_tracing import argument, evaluating, graph_of, sized_nodes, traced, written_sizes
from rigl_compress.models.layer_resizing import gain_bias, resized, selecting, size_of
from rigl_compress.models.literal_picks import pick_nodes, repicked
from rigl_compress.models.parameter_cutting import Kept

FORMAT = 1


@dataclass(frozen=True)
class LayerChange:
    """The change of one layer: the positions removed from its inputs and outputs."""

    layer: str
    inputs: int  # before
    outputs: int
    removed_inputs: tuple[int, ...] = ()
    removed_outputs: tuple[int, ...] = ()
    selects: bool = False  # it reads the network's input, and selects the inputs that are left
    new_bias: bool = False  # constants of removed inputs are folded into a new bias
    heads: bool = False  # the outputs are heads of attention, the inputs are those of its output projection

    def __post_init__(self) -> None:
        for kind, before, removed in (
            ("inputs", self.inputs, self.removed_inputs),
            ("outputs", self.outputs, self.removed_outputs),
        ):
            if len({*removed}) < len(removed) or not all(0 <= index < before for index in removed):
                raise InputError(
                    f"the plan removes {kind} that {self.layer} does not have, or some twice: the file is damaged"
                )
        if self.selects and not self.removed_inputs:
            raise InputError(f"the plan lets {self.layer} select its inputs, and removes none: the file is damaged")

    @property
    def kept_inputs(self) -> Kept:
        """The positions that are kept, or None for all."""
        return _left(self.inputs, self.removed_inputs)

    @property
    def kept_outputs(self) -> Kept:
        """The positions that are kept, or None for all."""
        return _left(self.outputs, self.removed_outputs)

    def then(self, later: "LayerChange") -> "LayerChange":
        """Return both changes as one; the positions of `later` are those after this change."""
        return LayerChange(
            self.layer,
            self.inputs,
            self.outputs,
            _both(self.removed_inputs, self.kept_inputs, later.removed_inputs),
            _both(self.removed_outputs, self.kept_outputs, later.removed_outputs),
            self.selects or later.selects,
            self.new_bias or later.new_bias,
            self.heads or later.heads,
        )

    def __str__(self) -> str:
        parts = [
            f"{kind} {before} → {before - len(removed)}"
            for kind, before, removed in (
                ("inputs", self.inputs, () if self.heads else self.removed_inputs),
                ("heads" if self.heads else "outputs", self.outputs, self.removed_outputs),
            )
            if removed
        ]
        extra = [text for text, on in (("selects its inputs", self.selects), ("gains a bias", self.new_bias)) if on]
        return f"{self.layer}: {', '.join(parts + extra)}"


def _left(before: int, removed: tuple[int, ...]) -> Kept:
    if not removed:
        return None
    dropped = set(removed)
    # On the CPU whatever the default device: networks are also built on `meta`, where no value can be read.
    return torch.tensor([index for index in range(before) if index not in dropped], device="cpu")


def _both(first: tuple[int, ...], left: Kept, then: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted((*first, *(then if left is None else left[list(then)].tolist()))))


@dataclass(frozen=True)
class PrunePlan:
    """All changes of a network. `sizes` are the literal sizes in its code (views, splits).

    `notes` list what is kept because it cannot be analysed; `inputs` is the number of inputs of the forward pass.
    """

    changes: tuple[LayerChange, ...] = ()
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    notes: tuple[str, ...] = ()
    inputs: int | None = None

    def __post_init__(self) -> None:
        for change in self.changes:
            if len(change.removed_outputs) >= change.outputs > 0:
                raise InputError(f"the plan leaves {change.layer} without outputs, expected at least one")

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        lines = [str(change) for change in self.changes] or ["nothing to remove"]
        return "\n".join([*lines, *(f"kept: {note}" for note in self.notes)])

    def then(self, later: "PrunePlan") -> "PrunePlan":
        """Return both plans as one; `later` is a plan of the network after this one.

        >>> first = PrunePlan((LayerChange("fc", 4, 3, removed_inputs=(1,)),))
        >>> print(first.then(PrunePlan((LayerChange("fc", 3, 3, removed_inputs=(1, 2)),))).changes[0].removed_inputs)
        (1, 2, 3)
        """
        changes = {change.layer: change for change in self.changes}
        for change in later.changes:
            changes[change.layer] = changes[change.layer].then(change) if change.layer in changes else change
        sizes = {name: _latest(name, numbers, dict(self.sizes).get(name)) for name, numbers in later.sizes}
        notes = tuple(dict.fromkeys((*self.notes, *later.notes)))
        return PrunePlan(
            tuple(changes.values()), tuple({**dict(self.sizes), **sizes}.items()), notes, later.inputs or self.inputs
        )

    def reshape(self, model: nn.Module) -> nn.Module:
        """Return a copy of the network in its new shape, with the weights that are kept; constants are not folded.

        The network keeps its class, except if its code has literal sizes: then it becomes a `torch.fx.GraphModule`.
        """
        self.check_fits(model)
        small = deepcopy(model)
        modules = dict(small.named_modules(remove_duplicate=False))
        for change in self.changes:
            before = modules[change.layer]
            after = _changed(before, change)
            for path in (path for path, module in modules.items() if module is before):  # it may have several names
                parent, _, name = path.rpartition(".")
                setattr(modules[parent], name, after)
        return _with_sizes(small, dict(self.sizes), self.inputs) if self.sizes else small

    def check_fits(self, model: nn.Module) -> None:
        """Raise `InputError` unless the network has the layers of the plan, in the sizes that it expects."""
        modules = dict(model.named_modules(remove_duplicate=False))
        for change in self.changes:
            if change.layer not in modules:
                raise InputError(f"the plan changes {change.layer}, which is not in the network: it is another's plan")
            if (found := size_of(modules[change.layer])) != (change.inputs, change.outputs):
                raise InputError(
                    f"the plan is for {change.layer} with {change.inputs} inputs and {change.outputs} outputs, "
                    f"the network's has {found}: it is another network's plan"
                )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        content: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "PrunePlan":
        """Rebuild a plan from the values of `to_json`."""
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, Mapping) else None
            raise InputError(f"the prune plan has format {found!r}, this version reads {FORMAT}")
        return parse(cls, {key: value for key, value in content.items() if key != "format"}, "plan")


def _latest(name: str, numbers: tuple[int, ...], before: tuple[int, ...] | None) -> tuple[int, ...]:
    if before is None or name.startswith("pick"):
        return numbers
    return tuple(new or old for new, old in zip(numbers, before, strict=True))


def _changed(module: nn.Module, change: LayerChange) -> nn.Module:
    small: Any = resized(module, change.kept_inputs, change.kept_outputs)
    if change.new_bias:
        gain_bias(small)
    if change.selects:
        kept = change.kept_inputs
        assert kept is not None  # a selecting layer has fewer inputs
        return selecting(small, kept)
    result: nn.Module = small
    return result


def _with_sizes(model: nn.Module, sizes: Mapping[str, tuple[int, ...]], inputs: int | None) -> fx.GraphModule:
    graph = traced(model, inputs)
    for name, node in {**sized_nodes(graph.graph), **pick_nodes(graph.graph)}.items():
        if name in sizes:
            rewritten = repicked if name.startswith("pick") else _sized
            target, args, kwargs = rewritten(node, sizes[name])
            node.op = "call_function" if callable(target) else "call_method"
            node.target, node.args, node.kwargs = target, args, kwargs
    _revive_dropout(graph, model, inputs)
    graph.recompile()
    return _as_owner(graph, model)


def _sized(node: fx.Node, numbers: tuple[int, ...]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the call of a view or a split with new sizes. A chunk becomes a split, as its parts can differ in size."""
    if node.target in ("chunk", "split", torch.chunk, torch.split):
        dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
        return ("split" if node.op == "call_method" else torch.split), (node.args[0], list(numbers)), {"dim": dim}
    shape = tuple(new or old for new, old in zip(numbers, written_sizes(node), strict=True))
    unflattened = (argument(node, 1, "dim"),) if node.target in ("unflatten", torch.unflatten) else ()
    return node.target, (node.args[0], *unflattened, shape), {}


_DROPOUTS: dict[Any, type[nn.Module]] = {
    F.dropout: nn.Dropout,
    F.dropout1d: nn.Dropout1d,
    F.dropout2d: nn.Dropout2d,
}


def _revive_dropout(graph: fx.GraphModule, model: nn.Module, inputs: int | None) -> None:
    """Replace dropout functions by modules: in a graph, a function keeps the mode in which it was traced."""
    with evaluating(model):
        for module in model.modules():
            module.training = True
        training = list(graph_of(model, inputs).nodes)
    for index, (node, twin) in enumerate(zip(list(graph.graph.nodes), training, strict=False)):
        if node.target in _DROPOUTS and node.target == twin.target and node.kwargs != twin.kwargs:
            graph.add_submodule(f"dropout_{index}", _DROPOUTS[node.target](twin.kwargs.get("p", 0.5)))
            node.op, node.target, node.args, node.kwargs = "call_module", f"dropout_{index}", node.args[:1], {}


def _as_owner(graph: fx.GraphModule, model: nn.Module) -> fx.GraphModule:
    """Add to the graph all parameters, buffers and modules of the network in its order, also unused ones."""
    for kind in ("_parameters", "_buffers", "_modules"):
        mine, theirs = getattr(graph, kind), getattr(model, kind)
        new = {name: value for name, value in mine.items() if name not in theirs}
        mine.clear()
        mine.update({**theirs, **new})
    graph._non_persistent_buffers_set = set(model._non_persistent_buffers_set)
    graph.training = model.training
    if patterns := getattr(model, "dense_layers", ()):
        graph.dense_layers = patterns
    return graph
