"""What each layer loses at some densities, measured, and what that does to the outputs of the model.

A layer is pruned alone, on the inputs that it has in the original model. Its error is that of its own outputs, times a
sensitivity: how much of it reaches the outputs of the model, measured at one density.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rigl_compress.core.dataclass_io import parse
from rigl_compress.onnx_pruning.calibration_samples import Calibration
from rigl_compress.onnx_pruning.graph_segments import Cuts
from rigl_compress.onnx_pruning.layer_inputs import LayerSums, Recorder, Stream
from rigl_compress.onnx_pruning.layer_surgery import LayerMoments, LayerSurgeon, PrunedLayer, by_magnitude
from rigl_compress.onnx_pruning.one_shot_pruning import Listener, grouped, wanted_samples
from rigl_compress.onnx_pruning.output_quality import relative_error
from rigl_compress.onnx_pruning.prunable_layers import PrunableLayer
from rigl_compress.onnx_pruning.pruned_model import PrunedModel

Array = NDArray[Any]
DENSITIES = (0.75, 0.55, 0.4, 0.27, 0.16, 0.08)  # measured; between them, logarithms are interpolated
PROBE = 0.4  # density at which the effect on the outputs is measured
PROBED_BATCHES = 2
UNSEEN = 4  # one of so many batches is not fitted to: the error on it is that of other samples
FEWER_STEPS = 8  # of the search for a mask: the order of densities is the same
LEAST_ERROR = 1e-9


@dataclass(frozen=True)
class LayerErrors:
    """The error of the model's outputs if one layer is pruned to a density."""

    densities: tuple[float, ...]
    errors: tuple[float, ...]  # of the layer's outputs
    sensitivity: float

    def at(self, density: float) -> float:
        """Return the error at a density.

        >>> round(LayerErrors((0.5, 0.1), (0.01, 0.1), 2.0).at(0.5), 3), LayerErrors((0.5,), (0.01,), 2.0).at(1.0)
        (0.02, 0.0)
        """
        if density >= 1:
            return 0.0
        known = sorted(zip((*self.densities, 1.0), (*self.errors, min(self.errors) / 100), strict=True))
        places, values = zip(*known, strict=True)
        found = np.interp(density, places, np.log(np.maximum(values, LEAST_ERROR)))
        return float(self.sensitivity * np.exp(found))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> "LayerErrors":
        """Rebuild the values of `to_json`."""
        return parse(cls, content)


@dataclass(frozen=True)
class ErrorProbe:
    """Measures the errors of layers on calibration samples."""

    pruned: PrunedModel
    calibration: Calibration
    method: str
    threads: int = 1

    def run(self, layers: Sequence[PrunableLayer], listener: Listener) -> dict[str, LayerErrors]:
        """Return the errors of every layer."""
        model = self.pruned.source
        stream = Stream(Cuts(model), self.calibration.batches, self.threads)
        recorder, found = Recorder(stream, None, wanted_samples, UNSEEN), dict[str, LayerErrors]()
        outputs = [value.name for value in model.graph.output]
        expected = list(stream.outputs(len(model.graph.node), outputs, {}, self._probed(recorder)))
        for group in grouped(layers, model):
            listener(f"measuring {group[0].name}", len(found), len(layers))
            recorder.advance(group[0].first, {}, {})
            for layer, sums in zip(group, recorder.record(group, {}, {}), strict=True):
                found[layer.name] = self._layer(layer, sums, recorder, expected)
        return found

    def _probed(self, recorder: Recorder) -> list[int]:
        """Return the batches on which outputs are compared."""
        return (recorder.unseen_batches() or list(range(recorder.original.batches)))[:PROBED_BATCHES]

    def _layer(
        self, layer: PrunableLayer, sums: LayerSums, recorder: Recorder, expected: Sequence[Mapping[str, Array]]
    ) -> LayerErrors:
        weight = self.pruned.original(layer.name)
        moments = LayerMoments.of(layer, weight, sums)
        usable = sums.finite and moments.enough
        surgeon = LayerSurgeon(moments, FEWER_STEPS) if self.method == "obs" and not moments.refusal else None
        found = {density: self._pruned(layer, moments, surgeon, density) for density in DENSITIES}
        judge = moments if sums.unseen is None else LayerMoments.of(layer, weight, sums.unseen)
        blocks = {density: torch.from_numpy(each.blocks.astype(np.float64)) for density, each in found.items()}
        errors = tuple(judge.error(each) if usable else 1 - density for density, each in blocks.items())
        probe = found[PROBE]
        own = max(errors[DENSITIES.index(PROBE)], LEAST_ERROR)
        return LayerErrors(DENSITIES, errors, self._effect(layer, probe, recorder, expected) / own)

    def _pruned(
        self, layer: PrunableLayer, moments: LayerMoments, surgeon: LayerSurgeon | None, density: float
    ) -> PrunedLayer:
        count = layer.count_at(density)
        if surgeon is not None:
            return surgeon(count)
        blocks = by_magnitude(layer, self.pruned.original(layer.name), count)
        return PrunedLayer(blocks, None, moments.error(torch.from_numpy(blocks.astype(np.float64))))

    def _effect(
        self, layer: PrunableLayer, probe: PrunedLayer, recorder: Recorder, expected: Sequence[Mapping[str, Array]]
    ) -> float:
        """Return the squared error of the model's outputs with one layer pruned."""
        names = list(expected[0])
        end = len(self.pruned.source.graph.node)
        changed = self.pruned.tensors(layer, probe)
        found = recorder.original.outputs(end, names, changed, self._probed(recorder))
        wanted, got = (
            [[np.asarray(each[name]) for name in names] for each in batches] for batches in (expected, found)
        )
        return max(relative_error(wanted, got), LEAST_ERROR)
