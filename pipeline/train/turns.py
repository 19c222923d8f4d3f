"""The order of a training loop: `sparse.step()` offers a step, the optimizer takes it, the sparsifier follows."""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakMethod

from torch.optim import Optimizer

from rigl_compress.models.errors import InputError

_ORDER = (
    "call sparse.step() after every backward(), and optimizer.step() only where it returned False "
    '(variants=("step-and-update",) takes the step as well)'
)


class Turns:
    """Calls `before` and `after` around every step of an optimizer, and refuses a step that was not offered.

    The hooks are the optimizer's own. They hold on to nobody: a sparsifier that is gone does nothing any more. Where
    the step of an optimizer calls that of its base class, both are called twice, one inside of the other.
    """

    def __init__(self, optimizer: Optimizer, before: Callable[[], None], after: Callable[[], None]) -> None:
        self.offered = False
        self.in_closure = False  # the optimizer is evaluating a closure, in which `sparse.step()` is called
        self._before, self._after = WeakMethod(before), WeakMethod(after)
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    @property
    def repeated(self) -> bool:
        """Whether a closure is evaluated once more in the same step of the optimizer."""
        return self.in_closure and self.offered

    def _begin(self, _: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        before = self._before()
        if before is None:
            return
        self.in_closure = (args[1] if len(args) > 1 else kwargs.get("closure")) is not None
        if self.in_closure:
            self.offered = False
        elif not self.offered:
            raise InputError(f"the optimizer was to take a step that sparse.step() did not offer: {_ORDER}")
        else:
            before()

    def _end(self, *_: object) -> None:
        after, uncalled = self._after(), self.in_closure and not self.offered
        self.in_closure = self.offered = False
        if after is not None:
            after()
            if uncalled:
                raise InputError(f"the optimizer took a step whose closure did not call sparse.step(): {_ORDER}")
