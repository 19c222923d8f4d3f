"""Loops that ignore what `step()` returns, or never call it, end bit by bit where the careful loop ends."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_training import batch, perceptron
from torch import Tensor, nn, optim
from torch.nn import functional as F

from rigl_compress.core.errors import InputError
from rigl_compress.sparsity.methods import METHODS
from rigl_compress.sparsity.sparsifier import Sparsifier

Make = Callable[[nn.Module], optim.Optimizer]
STEPS = 14


def made(name: str, **settings: Any) -> Make:
    return lambda model: getattr(optim, name)(model.parameters(), **settings)


OPTIMIZERS: dict[str, Make] = {
    "sgd": made("SGD", lr=0.05),
    "momentum": made("SGD", lr=0.05, momentum=0.9, weight_decay=0.1),
    "nesterov": made("SGD", lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd-foreach": made("SGD", lr=0.05, momentum=0.9, weight_decay=0.1, foreach=True),
    "sgd-fused": made("SGD", lr=0.05, momentum=0.9, weight_decay=0.1, fused=True),
    "adam": made("Adam", lr=1e-2, weight_decay=0.1, amsgrad=True),
    "adamw": made("AdamW", lr=1e-2, weight_decay=0.1),
    "adamw-foreach": made("AdamW", lr=1e-2, weight_decay=0.1, foreach=True),
    "adamw-fused": made("AdamW", lr=1e-2, weight_decay=0.1, fused=True),
    "rmsprop": made("RMSprop", lr=1e-2, momentum=0.9, weight_decay=0.1),
    "muon": made("Muon", lr=0.05, weight_decay=0.1),
}
METHOD_NAMES = [name for name, method in METHODS.items() if not (method.dense or method.needs_topology)]


class Run:
    """A short training: `loop` is careful, ignoring or automatic."""

    def __init__(self, loop: str, make: Make = OPTIMIZERS["momentum"], **settings: Any) -> None:
        self.loop = loop
        self.model = perceptron(bias=False)
        self.optimizer = make(self.model)
        chosen = {"sparsity": 0.7, "total_steps": 60, "interval": 3, **settings}
        self.sparse = Sparsifier(self.model, self.optimizer, automatic=loop == "automatic", **chosen)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)

    def backward(self, index: int, factor: float = 1.0) -> Tensor:
        x, y = batch(index)
        loss = F.cross_entropy(self.model(x), y) * factor
        loss.backward()
        return loss

    def skips(self) -> bool:
        """Call `step` as the loop does; says whether it leaves out the optimizer's step."""
        return self.loop != "automatic" and self.sparse.step() and self.loop == "careful"

    def train(self) -> "Run":
        for index in range(STEPS):
            self.backward(index)
            if not self.skips():
                self.optimizer.step()
            self.optimizer.zero_grad()
            self.check()
        return self

    def check(self) -> None:
        parameters = dict(self.model.named_parameters())
        assert all(not parameters[name][~mask].any() for name, mask in self.sparse.topology.items())

    @property
    def end(self) -> dict[str, Any]:
        """All that a step could have moved."""
        states = enumerate(self.optimizer.state.values())
        found: dict[str, Any] = {f"weight {name}": each for name, each in self.model.named_parameters()}
        found |= {f"mask {name}": mask for name, mask in self.sparse.topology.items()}
        found |= {f"state {index} {key}": value for index, state in states for key, value in state.items()}
        memory = self.sparse.state_dict()["memory"].items()
        found |= {f"memory {name} {key}": value for name, each in memory for key, value in each.items()}
        return found | {"steps": self.sparse.steps, "updates": self.sparse.updates}


def assert_same(one: Run, other: Run, but: tuple[str, ...] = ()) -> None:
    assert one.end.keys() == other.end.keys()
    differing = [key for key, value in one.end.items() if not same(value, other.end[key])]
    assert [key for key in differing if not key.endswith(but or "-")] == []


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if torch.is_tensor(one) else bool(one == other)


@pytest.mark.parametrize("loop", ["ignoring", "automatic"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_optimizer_ends_where_it_does_with_care(make: Make, loop: str) -> None:
    careful, other = Run("careful", make).train(), Run(loop, make).train()
    assert careful.sparse.updates >= 4
    assert_same(careful, other)


@pytest.mark.parametrize("loop", ["ignoring", "automatic"])
@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_method_ends_where_it_does_with_care(method: str, loop: str) -> None:
    careful, other = Run("careful", method=method).train(), Run(loop, method=method).train()
    assert_same(careful, other)


def test_the_step_of_the_optimizer_and_its_schedule_are_called_every_time() -> None:
    run = Run("ignoring")
    scheduler = optim.lr_scheduler.LambdaLR(run.optimizer, lambda step: 1 / (1 + step))
    for index in range(STEPS):
        run.backward(index)
        before = [each.detach().clone() for each in run.model.parameters()]
        updated = run.sparse.step()
        after = [each.detach().clone() for each in run.model.parameters()]
        run.optimizer.step()
        moved = not all(map(torch.equal, after, run.model.parameters()))
        assert moved is not updated
        assert updated or not all(map(torch.equal, before, run.model.parameters()))
        scheduler.step()
        run.optimizer.zero_grad()
    assert scheduler.last_epoch == STEPS == run.sparse.steps + run.sparse.updates


# Gradient scalers


def scaled(
    loop: str, make: Make, factors: tuple[float, ...] = (1.0,) * STEPS, *, unscale: bool = True, **more: Any
) -> Run:
    run = Run(loop, make, **more)
    for index, factor in enumerate(factors):
        x, y = batch(index)
        run.scaler.scale(F.cross_entropy(run.model(x), y) * factor).backward()  # type: ignore[no-untyped-call]
        if unscale:
            run.scaler.unscale_(run.optimizer)
        if not run.skips():
            run.scaler.step(run.optimizer)
        run.scaler.update()
        run.optimizer.zero_grad()
        run.check()
    return run


@pytest.mark.parametrize("loop", ["ignoring", "automatic"])
@pytest.mark.parametrize("method", ["rigl", "snfs"])
@pytest.mark.parametrize("name", ["nesterov", "adamw", "sgd-fused", "adamw-fused"])
def test_gradient_scalers(name: str, method: str, loop: str) -> None:
    careful = scaled("careful", OPTIMIZERS[name], method=method)
    # nobody unscales for the automatic loop: the scaler does so itself, or leaves it to a fused optimizer
    other = scaled(loop, OPTIMIZERS[name], method=method, unscale=loop == "ignoring")
    assert_same(careful, other)
    assert careful.scaler.get_scale() == other.scaler.get_scale()


@pytest.mark.parametrize("loop", ["ignoring", "automatic"])
@pytest.mark.parametrize("name", ["momentum", "adamw-fused"])
@pytest.mark.parametrize("method", ["rigl", "snfs", "snip"])
def test_overflows_change_nothing(method: str, name: str, loop: str) -> None:
    factors = (torch.inf, 1.0, 1.0, torch.inf, 1.0, torch.nan, 1.0, 1.0)
    run = scaled(loop, OPTIMIZERS[name], factors, method=method, interval=2, unscale=loop == "ignoring")
    assert all(value.isfinite().all() for value in run.end.values() if torch.is_tensor(value))
    assert run.sparse.updates >= 1
    assert run.scaler.get_scale() == 2.0**5  # the scaler saw all three of them


def test_a_fused_optimizer_is_handed_unscaled_gradients() -> None:
    run = scaled("automatic", OPTIMIZERS["sgd-fused"], method="snfs", unscale=False)
    assert not hasattr(run.optimizer, "grad_scale")


# Closures


def closed(loop: str, make: Make, **more: Any) -> Run:
    return closed_with(Run(loop, make, **more))


def closed_with(run: Run) -> Run:
    for index in range(STEPS):

        def closure(index: int = index) -> Tensor:
            run.optimizer.zero_grad()
            loss = run.backward(index)
            if run.loop != "automatic":
                run.sparse.step()
            return loss

        if run.loop == "careful" and run.sparse.update_due:
            closure()
        else:
            run.optimizer.step(closure)  # type: ignore[arg-type]
        run.check()
    return run


@pytest.mark.parametrize("loop", ["ignoring", "automatic"])
@pytest.mark.parametrize("method", ["rigl", "snip", "set", "dnw"])
@pytest.mark.parametrize("name", ["nesterov", "adamw", "adamw-fused", "muon"])
def test_closures(name: str, method: str, loop: str) -> None:
    careful, other = (closed(each, OPTIMIZERS[name], method=method) for each in ("careful", loop))
    assert_same(careful, other)


@pytest.mark.parametrize("loop", ["ignoring", "automatic"])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_closures_that_are_evaluated_several_times(search: str | None, loop: str) -> None:
    make = made("LBFGS", lr=0.1, max_iter=4, line_search_fn=search)
    careful, other = closed("careful", make), closed(loop, make)
    assert careful.sparse.updates >= 4
    assert_same(careful, other, but=("func_evals",))  # a statistic: the evaluation of the update counts, too


class Twice(optim.SGD):
    """Evaluates its closure two times, whatever the gradients are."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            closure()
        return super().step(closure)


@pytest.mark.parametrize("loop", ["ignoring", "automatic"])
def test_an_update_in_a_closure_that_is_evaluated_again(loop: str) -> None:
    make = lambda model: Twice(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)  # noqa: E731
    assert_same(closed("careful", make), closed(loop, make))


@pytest.mark.parametrize("loop", ["ignoring", "automatic"])
def test_gradient_accumulation(loop: str) -> None:
    def accumulated(loop: str) -> Run:
        run = Run(loop)
        for index in range(3 * STEPS):
            run.backward(index, 1 / 3)
            if index % 3 == 2:
                if not run.skips():
                    run.optimizer.step()
                run.optimizer.zero_grad()
        return run

    assert_same(accumulated("careful"), accumulated(loop))


# Optimizers of other packages


class Centred(optim.Optimizer):
    """Moves every weight with a gradient, those of inactive connections too, and keeps its state in lists."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    past = self.state[parameter].setdefault("past", [])
                    past.append(parameter.grad - parameter.grad.mean())
                    parameter.sub_(torch.stack(past[-3:]).mean(0), alpha=group["lr"])


@pytest.mark.parametrize("method", ["rigl", "set", "snfs", "pruning"])
def test_an_optimizer_that_brings_weights_back(method: str) -> None:
    make = lambda model: Centred(model.parameters())  # noqa: E731
    runs = [Run(loop, make, method=method).train() for loop in ("careful", "ignoring", "automatic")]
    assert_same(runs[0], runs[1])
    assert_same(runs[0], runs[2])


class Drifting(optim.SGD):
    """Moves all weights, gradient or not, after the step of its base class."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(0.01)


@pytest.mark.parametrize("loop", ["ignoring", "automatic"])
def test_an_optimizer_that_needs_no_gradients_leaves_inactive_weights_at_zero(loop: str) -> None:
    run = Run(loop, lambda model: Drifting(model.parameters(), lr=0.05)).train()
    assert run.sparse.updates >= 4
    assert run.sparse.sparsity == run.sparse.topology.sparsity


# The automatic loop


def test_a_loop_may_call_step_though_nobody_has_to() -> None:
    run = Run("automatic")
    for index in range(STEPS):
        run.backward(index)
        if index % 2:
            run.sparse.step()
        run.optimizer.step()
        run.optimizer.zero_grad()
    assert_same(Run("careful").train(), run)


def test_a_closure_may_call_step_though_nobody_has_to() -> None:
    runs = [closed(loop, OPTIMIZERS["momentum"], method="dnw") for loop in ("ignoring", "careful")]
    other = Run("automatic", method="dnw")
    other.loop = "ignoring"  # its closures call `step`, and DNW refuses a second call
    assert_same(runs[0], runs[1])
    assert_same(runs[0], closed_with(other))


def test_steps_without_a_gradient_do_not_count() -> None:
    run = Run("automatic")
    run.optimizer.step()
    run.optimizer.step(lambda: 0.0)
    assert (run.sparse.steps, run.sparse.updates) == (0, 0)
    assert_same(Run("careful").train(), run.train())


def test_an_automatic_sparsifier_that_is_gone_has_no_effect() -> None:
    run = Run("automatic")
    weight, mask = run.model[0].weight, run.sparse.topology["0.weight"]
    del run.sparse
    run.backward(0)
    run.optimizer.step()
    once = weight[~mask].clone()  # type: ignore[index]
    assert once.any()
    run.optimizer.step(lambda: run.backward(0))  # type: ignore[arg-type, return-value]
    assert not torch.equal(once, weight[~mask])  # type: ignore[index]


def test_an_update_is_good_for_one_step_that_does_nothing() -> None:
    run = Run("ignoring")
    run.backward(0)
    assert run.sparse.step()
    run.optimizer.step()
    with pytest.raises(InputError, match=r"without sparse\.step\(\) before it"):
        run.optimizer.step()


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(InputError, match=r"the optimizer is a list, expected a torch\.optim\.Optimizer"):
        Sparsifier(perceptron(), [], total_steps=9)  # type: ignore[arg-type]
