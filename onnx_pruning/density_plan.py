"""How many weights each layer of a file keeps: for a sparsity, or within a budget."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rigl_compress.onnx_pruning.budget_attempts import BudgetAttempts
from rigl_compress.onnx_pruning.budget_search import Found, TrialTimer, budgeted
from rigl_compress.onnx_pruning.density_allocation import error_counts, scaled_counts, uniform_counts
from rigl_compress.onnx_pruning.layer_errors import ErrorProbe, LayerErrors
from rigl_compress.onnx_pruning.one_shot_pruning import Listener, OneShotPruning
from rigl_compress.onnx_pruning.prunable_layers import PrunableLayer
from rigl_compress.onnx_pruning.pruned_file import PrunedFile
from rigl_compress.onnx_pruning.saved_layers import COUNTS, ERRORS
from rigl_compress.onnx_pruning.sparsify_config import SparsifyConfig
from rigl_compress.pipeline.bench.model_inputs import one_sample
from rigl_compress.sparsity.budgets import parse_budget


@dataclass
class DensityPlan:
    """Decides the weights of layers; `errors` are measured if there are none, `notes` and `facts` are added to."""

    config: SparsifyConfig
    listener: Listener
    errors: dict[str, LayerErrors]
    notes: list[str]
    facts: dict[str, Any]
    attempts: BudgetAttempts | None = field(init=False)

    def __post_init__(self) -> None:
        self.attempts = BudgetAttempts(parse_budget(self.config.budget)) if self.config.budget else None

    @property
    def sized(self) -> bool:
        """Whether there is a budget of bytes."""
        return self.attempts is not None and self.attempts.wished.kind == "size"

    def fits(self, size: int) -> bool:
        """Whether a file of so many bytes is within the budget; if not, the next counts are lower."""
        return self.attempts is None or self.attempts.fits(size, self.facts["budget"]["planned"])

    def counts(self, pruning: OneShotPruning, layers: Sequence[PrunableLayer], file: PrunedFile) -> dict[str, int]:
        """Return the weights that layers keep."""
        density = self.config.density
        if self.attempts is not None:
            return self._budgeted(pruning, layers, file, self.attempts)
        if self.config.chosen_allocation == "uniform":
            return uniform_counts(layers, density)
        if self.config.chosen_allocation == "scaled":
            return scaled_counts(pruning.pruned, layers, density)
        return dict(error_counts(layers, self._errors(pruning, layers), density).counts)

    def _budgeted(
        self, pruning: OneShotPruning, layers: Sequence[PrunableLayer], file: PrunedFile, attempts: BudgetAttempts
    ) -> dict[str, int]:
        """Return the counts that meet the budget; those of an interrupted run are kept, as times differ."""
        kept = pruning.saved.load_table(COUNTS)
        if kept is None:
            sample = one_sample(pruning.pruned.source, pruning.calibration.held_out[0])
            timer = TrialTimer(pruning.pruned, layers, sample, self.config.threads, self.listener)
            found = attempts.solved(lambda aimed: budgeted(aimed, timer, lambda: self._errors(pruning, layers), file))
            kept = _table(found, layers)
            pruning.saved.save_table(COUNTS, kept)
        idle = all(kept["counts"][each.name] == each.most for each in layers)
        self.facts["budget"] = {"wished": self.config.budget, "idle": idle, **kept["facts"]}
        if idle:
            self.notes.append(f"the budget {self.config.budget} is already met by the original: nothing is removed")
        return dict(kept["counts"])

    def _errors(self, pruning: OneShotPruning, layers: Sequence[PrunableLayer]) -> dict[str, LayerErrors]:
        """Return the errors of layers, measured or from an interrupted run."""
        kept = pruning.saved.load_table(ERRORS)
        self.errors.update({name: LayerErrors.from_json(each) for name, each in (kept or {}).items()})
        if self.errors:
            return self.errors
        probe = ErrorProbe(pruning.pruned, pruning.calibration, self.config.chosen_method, self.config.threads)
        self.errors.update(probe.run([each for each in layers if not each.depthwise], self.listener))
        pruning.saved.save_table(ERRORS, {name: each.to_json() for name, each in self.errors.items()})
        return self.errors


def _table(found: Found, layers: Sequence[PrunableLayer]) -> dict[str, Any]:
    """Return what a search found as plain values."""
    choice = found.choice.densities
    facts = {"planned": found.cost, "tried": found.tried, "speedup": found.speedup}
    return {"counts": {each.name: each.count_at(choice.get(each.name, 1.0)) for each in layers}, "facts": facts}
