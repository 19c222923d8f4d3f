"""A budget of bytes is kept by what is written, not by what was planned: if it is not, the next attempt aims lower."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rigl_compress.core.errors import InputError
from rigl_compress.onnx_pruning.budget_search import Found
from rigl_compress.sparsity.budgets import Budget

ATTEMPTS = 4


@dataclass
class BudgetAttempts:
    """What was wished, what is aimed at now, and the sizes of files that were too large."""

    wished: Budget
    aimed: Budget = field(init=False)
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.aimed = self.wished

    def fits(self, size: int, planned: float) -> bool:
        """Whether a file is within the budget; if not, aim lower by what it has more than planned."""
        if size <= self.wished.value:
            return True
        self.sizes.append(size)
        self.aimed = replace(self.wished, value=self.wished.value - (size - planned))
        if len(self.sizes) == ATTEMPTS or self.aimed.value <= 0:
            raise self.failure()
        return False

    def solved(self, search: Callable[[Budget], Found]) -> Found:
        """Return what a search finds within what is aimed at; an error names a size that was reached, if one was."""
        try:
            return search(self.aimed)
        except InputError:
            if self.sizes:
                raise self.failure() from None
            raise

    def failure(self) -> InputError:
        """Return the error of a budget that no file has met."""
        return InputError(f"the budget {self.wished} cannot be met: the closest is size={min(self.sizes)}")
