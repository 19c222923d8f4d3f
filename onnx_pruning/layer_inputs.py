"""What the layers of a model read on calibration samples, as sums: Gram matrices and means.

Two copies of the model run side by side: the original, whose outputs are wanted, and the pruned one, whose inputs a
layer will read. Both stand at a place of the graph, with the values that cross it; where these take too much memory,
the copies run again from the last place that could be kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor

from rigl_compress.core.errors import InputError, one_line
from rigl_compress.exporters.ort_sessions import SessionError
from rigl_compress.onnx_pruning.graph_segments import Cuts, Segment, Values, open_segment
from rigl_compress.onnx_pruning.prunable_layers import PrunableLayer
from rigl_compress.onnx_pruning.sampled_windows import columns_of, sampled_positions

Array = NDArray[Any]
KEPT_BYTES = 2**29  # of all values at a place, for each copy
LEAST_SQUARED, LARGEST_SQUARED = 1e-12, 1e15  # sums of squares in 32 bits hold inputs between them
Weights = Mapping[str, onnx.TensorProto]


class Stream:
    """A copy of a model that stands at a place of its graph, with the values of every batch there."""

    def __init__(self, cuts: Cuts, batches: Sequence[Values], threads: int = 0) -> None:
        self.cuts, self.threads = cuts, threads
        self.place, self._values = 0, [dict(each) for each in batches]

    @property
    def batches(self) -> int:
        """How many there are."""
        return len(self._values)

    def outputs(
        self, end: int, wanted: Sequence[str], weights: Weights, only: Sequence[int] | None = None
    ) -> Iterator[Values]:
        """Yield values before a place, batch by batch; of all batches, or of some."""
        segment = Segment(self.cuts, self.place, end, tuple(wanted))
        kinds = {name: each.dtype for name, each in self._values[0].items()}
        few = only is not None
        session = open_segment(segment.model(weights, kinds), self.threads, once=few) if segment.outputs else None
        stored = self.cuts.stored(wanted, weights)
        for values in self._values if only is None else [self._values[number] for number in only]:
            found = stored | {name: values[name] for name in wanted if name in values}
            if session is not None:
                found |= _ran(session, segment, values)
            yield found

    def advance(self, end: int, weights: Weights) -> None:
        """Move to a later place, if the values that cross it can be kept."""
        wanted, kept = self.cuts.live(end), []
        if end <= self.place:
            return
        room = KEPT_BYTES
        for found in self.outputs(end, wanted, weights):
            room -= sum(getattr(each, "nbytes", room) for each in found.values())
            if room < 0:
                return
            kept.append(found)
        self.place, self._values = end, kept


def _ran(session: Any, segment: Segment, values: Values) -> Values:
    try:
        found = session.run(segment.outputs, {name: values[name] for name in segment.inputs})
    except Exception as error:
        reason = one_line(error)
        raise SessionError(
            f"ONNX Runtime does not run the model on some calibration data ({reason}): remove samples that do not fit"
        ) from None
    return dict(zip(segment.outputs, found, strict=True))


@dataclass
class LayerSums:
    """Sums over samples of what a layer reads, by group: x in the pruned model, t in the original one."""

    groups: int
    columns: int
    samples: int = 0
    unseen: "LayerSums | None" = None  # of other samples, by which an error is judged
    gram: Tensor = field(init=False)  # Σ x xᵀ
    cross: Tensor = field(init=False)  # Σ x tᵀ
    target: Tensor = field(init=False)  # Σ t tᵀ
    means: Tensor = field(init=False)  # Σ x
    target_means: Tensor = field(init=False)  # Σ t

    def __post_init__(self) -> None:
        square = (self.groups, self.columns, self.columns)
        self.gram, self.cross, self.target = (torch.zeros(square, dtype=torch.float64) for _ in range(3))
        self.means, self.target_means = (torch.zeros(square[:2], dtype=torch.float64) for _ in range(2))

    def add(self, x: Tensor, t: Tensor) -> None:
        """Add samples, [groups, columns, samples] each."""
        same = x is t
        if _is_extreme(x) or _is_extreme(t):
            x, t = x.double(), t.double()
        self.gram += x @ x.mT
        self.cross += self.gram - self.cross if same else x @ t.mT
        self.target += self.gram - self.target if same else t @ t.mT
        self.means += x.sum(2, dtype=torch.float64)
        self.target_means += t.sum(2, dtype=torch.float64)
        self.samples += x.shape[2]

    @property
    def finite(self) -> bool:
        """Whether every sum is."""
        return all(bool(torch.isfinite(each).all()) for each in (self.gram, self.cross, self.means, self.target))


def _is_extreme(x: Tensor) -> bool:
    """Whether squares would overflow or vanish in 32 bits.

    >>> [_is_extreme(torch.tensor([each, 0.0])) for each in (1.0, 0.0, 1e-25, 1e20, float("inf"))]
    [False, False, True, True, False]
    """
    largest = max(map(abs, map(float, x.aminmax()))) if x.numel() else 0.0
    return 0 < largest < LEAST_SQUARED or LARGEST_SQUARED < largest < float("inf")


@dataclass(frozen=True)
class Recorder:
    """Runs both copies of a model, and sums up what layers read."""

    original: Stream
    pruned: Stream | None  # None: the original is what is measured
    samples: Callable[[PrunableLayer], int]
    unseen: int = 0  # every so many batches one is summed up apart

    def unseen_batches(self) -> list[int]:
        """Return the batches that are summed up apart; none if there are few."""
        every, count = self.unseen, self.original.batches
        return list(range(every - 1, count, every)) if every else []

    def record(self, layers: Sequence[PrunableLayer], originals: Weights, weights: Weights) -> list[LayerSums]:
        """Return the sums of layers that read the model up to the same place."""
        nodes = self.original.cuts.model.graph.node
        end = max(each.last for each in layers)
        wanted = sorted({nodes[place].input[0] for each in layers for place in each.uses})
        sums = [LayerSums(each.groups, each.columns) for each in layers]
        apart = set(self.unseen_batches())
        for each in sums:
            each.unseen = LayerSums(each.groups, each.columns) if apart else None
        first = self.original.outputs(end, wanted, originals)
        second = first if self.pruned is None else self.pruned.outputs(end, wanted, weights)
        for number, values in enumerate(first):
            other = values if self.pruned is None else next(second)
            for layer, each in zip(layers, sums, strict=True):
                own = each.unseen if number in apart and each.unseen is not None else each
                self._add(layer, own, (values, other), number)
        return sums

    def _add(self, layer: PrunableLayer, sums: LayerSums, values: tuple[Values, Values], number: int) -> None:
        nodes = self.original.cuts.model.graph.node
        most = ceil(self.samples(layer) / max(1, self.original.batches * len(layer.uses)))
        for place in layer.uses:
            wanted, given = (each[nodes[place].input[0]] for each in values)
            if wanted.shape != given.shape:
                raise InputError(f"the inputs of {layer.name} change their shape with the weights before it")
            positions = sampled_positions(layer, wanted.shape, most, number)
            target = columns_of(layer, wanted, positions)
            sums.add(target if given is wanted else columns_of(layer, given, positions), target)

    def advance(self, place: int, originals: Weights, weights: Weights) -> None:
        """Move both copies on."""
        self.original.advance(place, originals)
        if self.pruned is not None:
            self.pruned.advance(place, weights)
