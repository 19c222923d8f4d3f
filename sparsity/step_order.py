"""The order of a training loop: `sparse.step()` allows a step, the optimizer takes it, the sparsifier follows."""

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from torch.optim import Optimizer

from rigl_compress.core.errors import InputError
from rigl_compress.sparsity.optimizer_gradients import drop_gradients, unscale_gradients

_ORDER = "call sparse.step() between every backward() and optimizer.step(), or build the Sparsifier with automatic=True"
Closure = Callable[[], Any]
Call = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments of optimizer.step


class StepHooks:
    """Calls `before` and `after` around every step of an optimizer, and raises at a step that was not allowed.

    A step whose place a topology update took has no gradients, so that the optimizer does nothing. With `take`, the
    hooks call `sparse.step()` where the loop has not called it.

    The hooks are the optimizer's own and hold weak references: a sparsifier that was deleted has no effect. Where
    the step of an optimizer calls that of its base class, both hooks run twice, one pair inside of the other.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        before: Callable[[], None],
        after: Callable[[], None],
        take: Callable[[], None] | None = None,
    ) -> None:
        self.allowed = False
        self.replaced = False  # a topology update took the place of the step
        self.in_closure = False  # the optimizer is evaluating a closure, in which `sparse.step()` is called
        self.calls = 0  # of `sparse.step()`
        self._before, self._after = WeakMethod(before), WeakMethod(after)
        self._take = None if take is None else WeakMethod(take)
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    @property
    def decided(self) -> bool:
        """Whether `sparse.step()` was called for this step of the optimizer."""
        return self.allowed or self.replaced

    @property
    def repeated(self) -> bool:
        """Whether a closure is evaluated once more in the same step of the optimizer."""
        return self.in_closure and self.decided

    def forbid(self) -> None:
        """Let no step pass until one is allowed."""
        self.allowed = self.replaced = False

    def allow(self) -> None:
        """Let the optimizer take its step."""
        self.allowed, self.replaced = True, False

    def replace(self, optimizer: Optimizer) -> None:
        """Make the optimizer's step do nothing: an update took its place.

        The gradients are dropped at the last moment, since a gradient scaler looks at them before; within a closure
        that is now.
        """
        self.allowed, self.replaced = False, True
        if self.in_closure:
            drop_gradients(optimizer)

    def _begin(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        before = self._before()
        if before is None:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None and not self.repeated:  # else: of a base class, after an evaluation of the closure
            self.forbid()
        self.in_closure = closure is not None
        if closure is not None:
            return None if self._take is None else _with_closure(args, kwargs, self._followed(closure))
        if not self.decided:
            self._decide(optimizer)
        if self.replaced:
            drop_gradients(optimizer)
        else:
            before()
        return None

    def _decide(self, optimizer: Optimizer) -> None:
        """Call `sparse.step()` on behalf of the loop."""
        take = None if self._take is None else self._take()
        if take is None:
            raise InputError(f"optimizer.step() was called without sparse.step() before it: {_ORDER}")
        unscale_gradients(optimizer)
        take()

    def _followed(self, closure: Closure) -> Closure:
        """Return a closure that calls `sparse.step()` after its gradients are there, unless it does so itself."""

        def evaluate() -> Any:
            calls, result = self.calls, closure()
            take = None if self._take is None else self._take()
            if take is not None and self.calls == calls:
                take()
            return result

        return evaluate

    def _end(self, *_: object) -> None:
        after, uncalled = self._after(), self.in_closure and not self.decided
        self.in_closure = self.allowed = self.replaced = False
        if after is not None:
            after()
            if uncalled:
                raise InputError(f"the optimizer took a step whose closure did not call sparse.step(): {_ORDER}")


def _with_closure(args: tuple[Any, ...], kwargs: dict[str, Any], closure: Closure) -> Call:
    if len(args) > 1:
        return (args[0], closure, *args[2:]), kwargs
    return args, {**kwargs, "closure": closure}
