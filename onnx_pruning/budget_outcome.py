"""What a budget came to in the file that was written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rigl_compress.core.wording import percent
from rigl_compress.pipeline.bench.bench_tables import duration
from rigl_compress.sparsity.budgets import TIMES, Budget, parse_budget

FAR = 0.1  # of the wished time


@dataclass(frozen=True)
class BudgetOutcome:
    """A budget as it was typed, and what was reached: of the file, or in the search if that was not measured."""

    wished: str
    reached: float
    measured: bool = True

    @classmethod
    def of(cls, facts: Mapping[str, Any], figures: Mapping[str, float | None]) -> "BudgetOutcome":
        """Combine what the search planned with figures of the file, by the kinds of budgets."""
        wished = facts["wished"]
        kind = parse_budget(wished).kind
        found, expected = figures[kind], facts["speedup"] if kind == "speedup" else facts["planned"]
        return cls(wished, expected if found is None else found, found is not None)

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> "BudgetOutcome":
        """Return the outcome that a report has."""
        return cls(facts["wished"], facts["reached"], facts["measured"])

    @property
    def budget(self) -> Budget:
        """The budget."""
        return parse_budget(self.wished)

    @property
    def figure(self) -> str:
        """What was reached, with its unit."""
        if self.budget.kind in TIMES:
            return duration(self.reached) if self.budget.kind == "latency" else f"{self.reached:.2f}x"
        return f"{self.reached:,.0f} {'bytes' if self.budget.kind == 'size' else 'FLOPs'}"

    @property
    def line(self) -> str:
        """The wish and what was reached."""
        return f"{self.wished}: {self.figure}{'' if self.measured else ' in a trial'}"

    def notes(self, *, removed: bool) -> list[str]:
        """Return a sentence if the measured time is far from the wished one; a dense network may be faster."""
        wished = self.budget
        if wished.kind not in TIMES or not self.measured:
            return []
        longer = wished.value / self.reached if wished.kind == "speedup" else self.reached / wished.value
        if longer > 1 + FAR:
            more = f"{percent(longer - 1, 0)} more time than wished"
            return [f"the budget {self.wished} is missed: {self.figure} was measured, {more}; other work may slow it"]
        if longer < 1 - FAR and removed:
            return [f"the budget {self.wished} is more than met: {self.figure} was measured; a looser one loses less"]
        return []
