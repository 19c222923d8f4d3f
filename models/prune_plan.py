"""A prune plan: which units of which layers go. Printable before it is applied, and replayable on a fresh network."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import fx, nn

from rigl_compress.models.errors import InputError
from rigl_compress.models.resize import Kept, resized, selecting
from rigl_compress.models.tracing import traced

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
    """All changes of a network. `sizes` are the numbers that its code has written out (views, splits), by graph node.

    `notes` tell what was kept because it was not understood.
    """

    changes: tuple[LayerChange, ...] = ()
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    notes: tuple[str, ...] = ()

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
        notes = tuple(dict.fromkeys((*self.notes, *later.notes)))
        return PrunePlan(tuple(changes.values()), tuple({**dict(self.sizes), **dict(later.sizes)}.items()), notes)

    def reshape(self, model: nn.Module) -> nn.Module:
        """Give a copy of the network in its new shape, with the weights that stay; constants are not folded here.

        The network keeps its class; only where sizes are written out in its code it becomes a `torch.fx.GraphModule`.
        """
        small = deepcopy(model)
        for change in self.changes:
            parent, _, name = change.layer.rpartition(".")
            setattr(small.get_submodule(parent), name, _changed(small.get_submodule(change.layer), change))
        return _with_sizes(small, dict(self.sizes)) if self.sizes else small

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values."""
        content: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "PrunePlan":
        """Read what `to_json` gave."""
        if content.get("format") != FORMAT:
            raise InputError(f"the prune plan has format {content.get('format')!r}, this version reads {FORMAT}")
        changes = tuple(
            LayerChange(
                **{
                    **change,
                    "removed_inputs": tuple(change["removed_inputs"]),
                    "removed_outputs": tuple(change["removed_outputs"]),
                }
            )
            for change in content["changes"]
        )
        sizes = tuple((node, tuple(numbers)) for node, numbers in content["sizes"])
        return cls(changes, sizes, tuple(content["notes"]))


def _changed(module: nn.Module, change: LayerChange) -> nn.Module:
    small: Any = resized(module, change.kept_inputs, change.kept_outputs)
    if change.new_bias:
        small.bias = nn.Parameter(small.weight.new_zeros(small.weight.shape[0]))
    if change.selects:
        kept = change.kept_inputs
        assert kept is not None  # a layer that picks, picks fewer
        return selecting(small, kept)
    result: nn.Module = small
    return result


def _with_sizes(model: nn.Module, sizes: Mapping[str, tuple[int, ...]]) -> fx.GraphModule:
    graph = traced(model)
    for node in graph.graph.nodes:
        if node.name in sizes:
            node.args = (node.args[0], *_sized(node, sizes[node.name]))
            node.kwargs = {key: value for key, value in node.kwargs.items() if key == "dim"}
    graph.recompile()
    return graph


def _sized(node: fx.Node, numbers: tuple[int, ...]) -> tuple[Any, ...]:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name in ("chunk", "split"):
        node.target = "split" if node.op == "call_method" else torch.split
        return (list(numbers), *node.args[2:])
    written: Any = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], tuple | list) else node.args[1:]
    return (tuple(new or old for new, old in zip(numbers, written, strict=True)),)
