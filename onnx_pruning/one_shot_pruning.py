"""Pruning of a model layer by layer: each layer reads what the pruned layers before it make of the samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import onnx
import torch

from rigl_compress.core.wording import some
from rigl_compress.onnx_pruning.calibration_samples import Calibration
from rigl_compress.onnx_pruning.graph_segments import Cuts
from rigl_compress.onnx_pruning.layer_inputs import LayerSums, Recorder, Stream
from rigl_compress.onnx_pruning.layer_surgery import LayerMoments, LayerSurgeon, PrunedLayer, by_magnitude
from rigl_compress.onnx_pruning.prunable_layers import PrunableLayer
from rigl_compress.onnx_pruning.pruned_model import PrunedModel
from rigl_compress.onnx_pruning.saved_layers import SavedLayers

SAMPLES = 16_384  # positions that a layer is fitted to, or eight for every column
FEW_SAMPLES = 4096  # of a layer with few columns
METHODS = ("obs", "magnitude")
Listener = Callable[[str, int, int], None]


@dataclass(frozen=True)
class PrunedWeight:
    """What became of a layer: the weights left, its error (squared, relative), how it was pruned, predicted seconds."""

    name: str
    operator: str
    shape: tuple[int, ...]
    count: int
    error: float | None
    how: str
    predicted: tuple[float, float] | None = None  # before, and with the weights left
    depthwise: bool = False  # stays dense, and counts in no share of zeros

    @property
    def size(self) -> int:
        """The number of weights before."""
        found = 1
        for axis in self.shape:
            found *= axis
        return found

    @property
    def sparsity(self) -> float:
        """The share of weights removed."""
        return 1 - self.count / self.size


def wanted_samples(layer: PrunableLayer) -> int:
    """Return how many positions a layer is fitted to."""
    return FEW_SAMPLES if layer.depthwise else max(SAMPLES, 8 * layer.columns)


def grouped(layers: Sequence[PrunableLayer], model: onnx.ModelProto) -> list[list[PrunableLayer]]:
    """Return layers together that read the same value: pruning one does not change what the others read."""

    def reads(layer: PrunableLayer) -> Any:
        single = len(layer.uses) == 1
        return model.graph.node[layer.first].input[0] if single else layer.name

    order = {reads(layer): place for place, layer in reversed(list(enumerate(layers)))}
    ranked = sorted(layers, key=lambda each: (order[reads(each)], each.first))
    return [list(group) for _, group in groupby(ranked, key=reads)]


def prune_by_magnitude(
    pruned: PrunedModel, layers: Sequence[PrunableLayer], counts: Mapping[str, int]
) -> list[PrunedWeight]:
    """Keep the largest weights of each layer."""
    return [_smallest_removed(pruned, layer, counts[layer.name], "magnitude") for layer in layers]


def _smallest_removed(pruned: PrunedModel, layer: PrunableLayer, count: int, how: str) -> PrunedWeight:
    if count < layer.most:
        blocks = by_magnitude(layer, pruned.original(layer.name), count)
        pruned.apply(layer, PrunedLayer(blocks, None, 0.0))
    how = how if count < layer.most else "as it was" if layer.zeros else "dense"
    return PrunedWeight(layer.name, layer.operator, layer.shape, count, None, how, depthwise=layer.depthwise)


@dataclass(frozen=True)
class OneShotPruning:
    """Prunes by second-order information, and keeps each layer that is done."""

    pruned: PrunedModel
    calibration: Calibration
    saved: SavedLayers
    threads: int = 1

    def run(
        self, layers: Sequence[PrunableLayer], counts: Mapping[str, int], listener: Listener
    ) -> Iterator[PrunedWeight]:
        """Prune layers in the order of the graph."""
        cuts = Cuts(self.pruned.source)
        original, other = (Stream(cuts, self.calibration.batches, self.threads) for _ in range(2))
        recorder, done = Recorder(original, other, wanted_samples), 0
        for group in grouped(layers, self.pruned.source):
            listener(f"pruning {group[0].name}", done, len(layers))
            yield from self._group(recorder, group, counts)
            done += len(group)
        listener("pruned", done, len(layers))

    def _group(
        self, recorder: Recorder, group: Sequence[PrunableLayer], counts: Mapping[str, int]
    ) -> Iterator[PrunedWeight]:
        earlier = {each.name: self.saved.load(each.name) for each in group}
        missing = [each for each in group if earlier[each.name] is None]
        sums: dict[str, LayerSums] = {}
        if missing:
            recorder.advance(group[0].first, {}, self.pruned.changed)
            found = recorder.record(missing, {}, self.pruned.changed)
            sums = dict(zip((each.name for each in missing), found, strict=True))
        for layer in group:
            kept = earlier[layer.name]
            result, how = kept if kept is not None else self._layer(layer, sums.pop(layer.name), counts[layer.name])
            if kept is None:
                self.saved.save(layer.name, result, how)
            self.pruned.apply(layer, result)
            count, error = self.pruned.nonzeros(layer.name), result.error
            yield PrunedWeight(layer.name, layer.operator, layer.shape, count, error, how, depthwise=layer.depthwise)

    def _layer(self, layer: PrunableLayer, sums: LayerSums, count: int) -> tuple[PrunedLayer, str]:
        weight = self.pruned.original(layer.name)
        moments = LayerMoments.of(layer, weight, sums)
        fitted, fallen = ("obs", "magnitude") if count < layer.most else ("refitted", "dense")
        if moments.refusal:
            return _unfitted(moments, weight, count), f"{fallen}: {moments.refusal}"
        singular = moments.singular
        return LayerSurgeon(moments)(count), f"{fitted}, singular: {singular}, damped" if singular else fitted


def _unfitted(moments: LayerMoments, weight: Any, count: int) -> PrunedLayer:
    """Return a layer with its largest weights; its bias takes up what can be known."""
    blocks = by_magnitude(moments.layer, weight, count)
    if moments.sums.finite and moments.enough:
        return moments.pruned(torch.from_numpy(blocks.astype(np.float64)))
    return PrunedLayer(blocks, None, float("nan"))


def notes_of(layers: Sequence[PrunedWeight]) -> list[str]:
    """Return what to say about layers whose samples do not determine their weights: a line for each reason."""
    singular = [each for each in layers if "singular" in each.how]
    few = [each.name for each in singular if "columns" in each.how]
    others = [each.name for each in singular if each.name not in few]
    fallen = [f"{each.name} ({each.how})" for each in layers if each.how.startswith("magnitude:")]
    lines = {
        "fewer samples than columns, damped: {}; more samples help": few,
        "inputs that do not vary or depend on each other, damped: {}": others,
        "pruned by magnitude: {}": fallen,
    }
    return [line.format(some(names)) for line, names in lines.items() if names]
