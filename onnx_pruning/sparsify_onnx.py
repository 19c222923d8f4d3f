"""Prune any ONNX file without training code and labels."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import onnx

from rigl_compress.core.errors import InputError
from rigl_compress.core.wording import listed, percent
from rigl_compress.exporters.onnx_export import check_target
from rigl_compress.exporters.onnx_file import files_of, load_model, sha256_of
from rigl_compress.exporters.ort_sessions import open_session
from rigl_compress.onnx_pruning.calibration_samples import Calibration, read_calibration
from rigl_compress.onnx_pruning.channel_removal import kept_for_type, remove_dead_channels
from rigl_compress.onnx_pruning.density_allocation import already
from rigl_compress.onnx_pruning.density_plan import DensityPlan
from rigl_compress.onnx_pruning.layer_errors import LayerErrors
from rigl_compress.onnx_pruning.measured_latency import measured_latencies
from rigl_compress.onnx_pruning.one_shot_pruning import (
    Listener,
    OneShotPruning,
    PrunedWeight,
    notes_of,
    prune_by_magnitude,
)
from rigl_compress.onnx_pruning.output_quality import check_finite, compare, outputs_of, unchanged
from rigl_compress.onnx_pruning.plain_source import check_gain, plain_source
from rigl_compress.onnx_pruning.predicted_times import with_predictions
from rigl_compress.onnx_pruning.prunable_layers import FoundLayers, PrunableLayer, find_prunable
from rigl_compress.onnx_pruning.pruned_file import PrunedFile
from rigl_compress.onnx_pruning.pruned_model import PrunedModel, with_own_biases
from rigl_compress.onnx_pruning.saved_layers import SavedLayers
from rigl_compress.onnx_pruning.sparsify_config import SparsifyConfig
from rigl_compress.onnx_pruning.sparsify_report import SparsifyReport, sparsity_of
from rigl_compress.onnx_pruning.written_paths import check_written, paths_of_curve
from rigl_compress.pipeline.bench.model_inputs import one_sample
from rigl_compress.pipeline.workspace import locked_for
from rigl_compress.runtime.sparse_runtime_export import refuse_rewritten


def sparsify_onnx(
    source: Path | str,
    path: Path | str,
    config: SparsifyConfig | None = None,
    *,
    listener: Listener = lambda *_: None,
    **settings: Any,
) -> SparsifyReport:
    """Prune the weights of an ONNX file and write another; takes a config, fields of it as keywords, or both.

    With calibration data (arrays by the names of the inputs, an .npz file of them, a folder of images, .npy or .npz
    files), weights are removed layer by layer and the others moved so that the outputs of each layer change least;
    without, by magnitude. The result is checked on samples that were held out.

    >>> import tempfile
    >>> import numpy as np
    >>> from onnx import helper, numpy_helper
    >>> draw = np.random.default_rng(0)
    >>> weight = numpy_helper.from_array(draw.normal(size=(64, 32)).astype(np.float32), "w")
    >>> x, y = (helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x", 64), ("y", 32)))
    >>> graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    >>> model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/net.onnx").write_bytes(model.SerializeToString())
    ...     np.savez(f"{folder}/data.npz", x=draw.normal(size=(400, 64)).astype(np.float32))
    ...     settings = {"sparsity": 0.5, "calibration": f"{folder}/data.npz", "timing": None}
    ...     found = sparsify_onnx(f"{folder}/net.onnx", f"{folder}/small.onnx", **settings)
    >>> found.sparsity, found.quality.cosine > 0.9
    (0.5, True)
    """
    chosen = replace(config, **settings) if config else SparsifyConfig(**settings)
    return _Job(Path(source), Path(path), chosen, listener).run()


def sparsify_curve(
    source: Path | str, path: Path | str, sparsities: Sequence[float], config: SparsifyConfig, listener: Listener
) -> Iterator[SparsifyReport]:
    """Prune a file to several sparsities, as PATH-0.4.onnx and so on; the errors of layers are measured once.

    Layers are kept until the last file is there: the same call goes on where it was interrupted, also between files.
    """
    errors, targets = dict[str, LayerErrors](), paths_of_curve(Path(path), sparsities)
    jobs = [
        _Job(Path(source), target, replace(config, sparsity=each), listener, errors)
        for target, each in zip(targets, sparsities, strict=True)
    ]
    for job in jobs:
        job.check()
    for job in jobs:
        yield job.run(keep_layers=True)
    for job in jobs:
        job.saved.remove()


class _Job:
    """One file to prune; `errors` of layers are measured if there are none."""

    def __init__(
        self,
        source: Path,
        path: Path,
        config: SparsifyConfig,
        listener: Listener,
        errors: dict[str, LayerErrors] | None = None,
    ) -> None:
        self.source, self.path, self.config, self.listener = source, path, config, listener
        self.errors: dict[str, LayerErrors] = {} if errors is None else errors
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self.saved = SavedLayers()
        self.plan = DensityPlan(config, listener, self.errors, self.notes, self.facts)

    def run(self, *, keep_layers: bool = False) -> SparsifyReport:
        """Read, prune, check, write."""
        began = perf_counter()
        refuse_rewritten(self.source)
        self.check()
        with locked_for(self.path):
            report = self._pruned()
            if not keep_layers:
                self.saved.remove()
        return replace(report, seconds=perf_counter() - began)

    def check(self) -> None:
        """Raise for an output that exists; one of an interrupted curve is looked at when its layers are opened."""
        check_written(self.path, self.source, self.config.samples_config.path)
        if self.config.chosen_method == "obs":
            SavedLayers.check(self.path)
        if not SavedLayers.are_beside(self.path):
            self._check_target()

    def _check_target(self) -> None:
        check_target(self.path, overwrite=self.config.overwrite, source=self.source)

    def _pruned(self) -> SparsifyReport:
        model = load_model(self.source)
        plain = plain_source(model, self.source, self.config)
        open_session(plain)  # raises for a file that ONNX Runtime refuses
        calibration = read_calibration(model, self.config.samples_config)
        self.notes += calibration.notes
        expected = outputs_of(plain, calibration.held_out, self.config.threads)
        check_finite(expected)
        found = self._layers(plain)
        pruned = PrunedModel(plain)
        self.saved = self._opened(calibration)
        pruning = OneShotPruning(pruned, calibration, self.saved, self.config.threads)
        file = PrunedFile(self.source, self.config, calibration.held_out[0])
        layers, alive = self._fitting(pruning, found.layers, file)
        if self.config.timing is not None:
            layers = with_predictions(layers, plain, found.layers, one_sample(plain, calibration.held_out[0]))
        small = pruned.model()
        self.listener("checking", 0, 1)
        quality = compare(expected, outputs_of(small, calibration.held_out, self.config.threads), plain)
        exported = file.write(alive, self.path, sparsity_of(layers))
        latencies, notes = measured_latencies(self.source, self.path, calibration.held_out[0], self.config)
        return SparsifyReport(
            self.source, self.path, self.config.chosen_method, self.config.chosen_allocation, tuple(layers),
            found.dense, quality, sum(each.stat().st_size for each in files_of(self.source)), exported.bytes, latencies,
            (*self.notes, *notes), facts=self.facts,
        ).with_budget(file.flops(alive) if "flops" in self.config.budget else None)  # fmt: skip

    def _fitting(
        self, pruning: OneShotPruning, layers: Sequence[PrunableLayer], file: PrunedFile
    ) -> tuple[list[PrunedWeight], onnx.ModelProto]:
        """Prune; again and further, if the file would be larger than its budget. Return the model as it is written."""
        known = len(self.notes)
        while True:
            counts = self.plan.counts(pruning, layers, file)
            check_gain(self.config, self.source, pruning.pruned.source, layers, counts)
            rows = self._prune(pruning, layers, counts)
            alive = self._without_dead(pruning.pruned.model(), pruning.calibration)
            if not self.plan.sized or self.plan.fits(file.size(alive, sparsity_of(rows))):
                return rows, alive
            pruning.saved.forget()
            pruning.pruned.changed.clear()
            del self.notes[known:]
            self.facts.pop("dead_channels", None)

    def _without_dead(self, small: onnx.ModelProto, calibration: Calibration) -> onnx.ModelProto:
        """Return the model without dead channels; as it is, if that would change its outputs."""
        if self.config.keep_dead_channels:
            return small
        found = remove_dead_channels(small)
        self.notes.extend(found.lines[-1:] if found.kept else [])
        self.notes.extend(filter(None, [kept_for_type(small)]))
        if not found.removed:
            return small
        first = calibration.held_out[:1]
        before, after = (outputs_of(each, first, self.config.threads) for each in (small, found.model))
        if not unchanged(before, after):
            self.notes.append("dead channels were kept: without them the outputs differ")
            return small
        self.facts["dead_channels"] = dict(found.removed)
        return found.model

    def _layers(self, plain: onnx.ModelProto) -> FoundLayers:
        found = find_prunable(plain)
        _check_patterns(self.config.dense, found)
        found = found.without(self.config.dense)
        found.check_some(self.source)
        if self.config.chosen_method == "obs":
            found = with_own_biases(plain, found).without(self.config.dense)
        alone = {each.name: each.size for each in found.layers if each.depthwise}
        if alone:
            self.notes.append(f"left dense, as they read one channel per output: {listed(alone, most=3)}")
        share, asked = already(found.layers), 1 - self.config.density
        if share > asked and not self.config.budget:
            self.notes.append(
                f"the weights had {percent(share)} zeros, more than the {percent(asked)} asked: these stay"
            )
        return found

    def _opened(self, calibration: Calibration) -> SavedLayers:
        """Return the folder of layers that are done."""
        if self.config.chosen_method != "obs":
            self._check_target()
            return SavedLayers()
        settings = self.config.decides | {"samples": calibration.digest}
        settings |= {"source": [sha256_of(each) for each in files_of(self.source)]}
        if not SavedLayers.are_beside(self.path, settings):
            self._check_target()
        saved = SavedLayers.beside(self.path, settings)
        if saved.count:
            self.notes.append(f"resumed: {saved.count} layers were done")
        return saved

    def _prune(
        self, pruning: OneShotPruning, layers: Sequence[PrunableLayer], counts: dict[str, int]
    ) -> list[PrunedWeight]:
        if self.config.chosen_method == "magnitude":
            return prune_by_magnitude(pruning.pruned, layers, counts)
        found = list(pruning.run(layers, counts, self.listener))
        self.notes += notes_of(found)
        return found


def _check_patterns(patterns: Sequence[str], found: FoundLayers) -> None:
    for pattern in patterns:
        if len(found.without([pattern]).layers) == len(found.layers):
            names = ", ".join(each.name for each in found.layers[:3])
            raise InputError(f"--dense {pattern!r} matches no weight: the model has {names}, …")
