"""Dead weights are exactly zero after every step of every optimizer, or there is an error at the first one."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_training import Loop, batch, perceptron, sgd
from torch import Tensor, nn, optim
from torch.nn import functional as F

from rigl_compress.core.errors import InputError
from rigl_compress.sparsity.sparsifier import Sparsifier

# Settings that make each optimizer do all it can: decay, averages, centring.
SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "ASGD": {"lr": 0.05, "lambd": 0.01, "t0": 2, "weight_decay": 0.01},
    "RMSprop": {"centered": True, "momentum": 0.9, "weight_decay": 0.01},
    "Adagrad": {"lr_decay": 0.01, "initial_accumulator_value": 0.1, "weight_decay": 0.01},
    "Adam": {"amsgrad": True, "weight_decay": 0.01},
    "NAdam": {"weight_decay": 0.01, "decoupled_weight_decay": True},
    "RAdam": {"weight_decay": 0.01, "decoupled_weight_decay": True},
    "Muon": {"lr": 0.05},
    "LBFGS": {"lr": 0.1, "max_iter": 4},
}
EVERY = sorted(
    name
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer
)
OPTIMIZERS = [name for name in EVERY if name != "SparseAdam"]  # it takes sparse gradients alone


def made(name: str, model: nn.Module) -> optim.Optimizer:
    kind: Callable[..., optim.Optimizer] = getattr(optim, name)
    return kind(model.parameters(), **SETTINGS.get(name, {}))


@pytest.mark.parametrize("method", ["rigl", "set", "pruning"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch(name: str, method: str) -> None:
    loop = Loop(perceptron(bias=False), lambda model: made(name, model), method=method, interval=3)
    optimizer, sparse = loop.optimizer, loop.sparse

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(loop.model(x), y)
        loss.backward()
        sparse.step()
        return loss

    for index in range(14):
        x, y = batch(index)
        closure() if sparse.update_due else optimizer.step(closure)  # type: ignore[arg-type]
        assert loop.exact, index
        assert 0 < loop.nonzeros <= sparse.topology.active
    assert sparse.updates >= 4
    assert sparse.steps + sparse.updates * (method == "rigl") == 14  # closures that are evaluated again count once


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "LBFGS"])
def test_every_optimizer_without_a_closure(name: str) -> None:
    loop = Loop(perceptron(bias=False), lambda model: made(name, model), interval=3)
    for _ in range(12):
        loop.loss().backward()
        if not loop.sparse.step():
            loop.optimizer.step()
        loop.optimizer.zero_grad()
        assert loop.exact
    assert loop.sparse.sparsity == loop.sparse.topology.sparsity


def densely_trained(name: str) -> tuple[nn.Module, optim.Optimizer]:
    """A network after some dense steps: its optimizer remembers every weight."""
    model = perceptron(bias=False)
    optimizer = made(name, model)
    for index in range(5):
        x, y = batch(index)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_momentum_of_dense_training_revives_nothing(name: str) -> None:
    model, optimizer = densely_trained(name)
    loop = Loop(model, lambda _: optimizer, method="static")
    for _ in range(3):
        loop.step()
        assert loop.exact


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_optimizer_state_that_is_loaded_later_revives_nothing(name: str) -> None:
    loop = Loop(perceptron(bias=False), lambda model: made(name, model), method="static").train(2)
    loop.optimizer.load_state_dict(densely_trained(name)[1].state_dict())
    for _ in range(3):
        loop.step()
        assert loop.exact


def test_weights_written_behind_the_back_of_autograd() -> None:
    """`.data` leaves no trace in a tensor's version: the next step masks them; no sparsity is claimed before."""
    loop = Loop(perceptron(bias=False), method="static").train(2)
    for parameter, other in zip(loop.model.parameters(), perceptron(bias=False).parameters(), strict=True):
        parameter.data.copy_(other.data)
    with pytest.raises(InputError, match="weights of inactive connections are not zero"):
        loop.sparse.sparsity  # noqa: B018
    loop.step()
    assert loop.exact


@pytest.mark.parametrize("kernels", ["masked", "sparse"])
def test_a_diverged_training_is_called_so(kernels: str) -> None:
    """Zero times infinity is not zero: that no weight was loaded from elsewhere must not be claimed."""
    loop = Loop(perceptron(bias=False), method="static", kernels=kernels).train(2)
    state = {name: torch.full_like(each, torch.nan) for name, each in loop.model.state_dict().items()}
    loop.model.load_state_dict(state)
    with pytest.raises(InputError, match="weights are not finite, the training has diverged"):
        loop.step()


class Restless(optim.SGD):
    """Moves every weight, and calls the step of its base class, hooks and all."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data += 0.01


@pytest.mark.parametrize("method", ["rigl", "set", "dnw"])
def test_an_optimizer_of_ones_own_is_not_trusted(method: str) -> None:
    loop = Loop(make=lambda model: Restless(model.parameters(), lr=0.1), method=method)
    for _ in range(8):
        loop.step()
        assert loop.exact
    assert loop.nonzeros == loop.sparse.topology.active
    assert loop.sparse.updates > 1


def test_dnw_keeps_what_others_do_to_the_living_weights() -> None:
    loop = Loop(method="dnw").train(3)
    with torch.no_grad():
        loop.model[0].weight.clamp_(-0.01, 0.01)  # type: ignore[operator]
    before = loop.sparse.state_dict()["memory"]["0.weight"]["all_weights"].abs().max()
    loop.optimizer.param_groups[0]["lr"] = 0.0
    loop.step()
    alive = loop.model[0].weight[loop.sparse.topology["0.weight"]]  # type: ignore[index]
    assert before > 0.1
    assert alive.abs().max() < before


def test_gradients_that_are_changed_after_they_were_masked() -> None:
    loop = Loop(method="static")
    for _ in range(3):
        loop.loss().backward()
        assert not loop.sparse.step()
        for parameter in loop.model.parameters():
            parameter.grad.add_(0.1)  # type: ignore[union-attr]
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        assert loop.exact


# The order of calls


def test_a_step_without_ours_is_an_error_and_changes_nothing() -> None:
    loop = Loop(method="set")
    loop.loss().backward()
    before = copy.deepcopy(loop.model.state_dict())
    with pytest.raises(InputError, match=r"call sparse\.step\(\) between every backward.*automatic=True"):
        loop.optimizer.step()
    assert all(value.equal(before[name]) for name, value in loop.model.state_dict().items())
    assert loop.exact


def test_a_step_beside_an_update_does_nothing() -> None:
    loop = Loop()
    loop.loss().backward()
    assert loop.sparse.step()
    before = copy.deepcopy(loop.model.state_dict())
    loop.optimizer.step()
    assert all(value.equal(before[name]) for name, value in loop.model.state_dict().items())
    assert not loop.optimizer.state
    assert loop.exact


def test_one_call_is_good_for_one_step() -> None:
    loop = Loop(method="static").train(1)
    loop.loss().backward()
    with pytest.raises(InputError, match=r"without sparse\.step\(\) before it"):
        loop.optimizer.step()


def test_a_closure_without_our_step_is_an_error() -> None:
    loop = Loop(method="static")

    def closure() -> Tensor:
        loss = loop.loss()
        loss.backward()
        return loss

    with pytest.raises(InputError, match=r"closure did not call sparse\.step"):
        loop.optimizer.step(closure)  # type: ignore[arg-type]
    assert loop.exact


def test_dnw_refuses_closures_that_are_evaluated_again() -> None:
    loop = Loop(perceptron(bias=False), lambda model: made("LBFGS", model), method="dnw")

    def closure() -> Tensor:
        loop.optimizer.zero_grad()
        loss = loop.loss()
        loss.backward()
        loop.sparse.step()
        return loss

    with pytest.raises(InputError, match="LBFGS does so several times"):
        loop.optimizer.step(closure)  # type: ignore[arg-type]


def test_a_sparsifier_that_is_gone_asks_for_nothing() -> None:
    model = perceptron()
    optimizer = sgd(model)
    Sparsifier(model, optimizer, method="set", total_steps=9)
    sparse = Sparsifier(model, optimizer, method="static", total_steps=9)  # a cell of a notebook, run again
    for index in range(3):
        x, y = batch(index)
        F.cross_entropy(model(x), y).backward()
        sparse.step()
        optimizer.step()
    assert sparse.steps == 3


# Weights from elsewhere


def test_weights_loaded_after_construction_are_an_error_at_the_next_step() -> None:
    loop = Loop()
    loop.model.load_state_dict(perceptron().state_dict())
    loop.loss().backward()
    with pytest.raises(InputError, match=r"0\.weight, 2\.weight.*loaded or changed after the Sparsifier was built"):
        loop.sparse.step()
    with pytest.raises(InputError, match="weights of inactive connections are not zero"):
        _ = loop.sparse.sparsity


def test_a_checkpoint_is_loaded_in_any_order() -> None:
    source = Loop(seed=3).train(8)
    parts = [("model", source.model.state_dict()), ("sparse", source.sparse.state_dict())]
    for order in (parts, parts[::-1]):
        loop = Loop(seed=4)
        for name, state in order:
            getattr(loop, name).load_state_dict(state)
        loop.done = source.done
        loop.step()
        assert loop.exact
        assert loop.sparse.steps == source.sparse.steps + 1


def test_the_state_of_a_sparsifier_without_its_weights_is_an_error() -> None:
    source, loop = Loop(seed=3).train(8), Loop(seed=4)
    loop.sparse.load_state_dict(source.sparse.state_dict())
    loop.loss().backward()
    with pytest.raises(InputError, match="weights of inactive connections are not zero"):
        loop.sparse.step()


def test_weights_that_fit_the_topology_may_be_loaded() -> None:
    loop = Loop().train(3)
    kept = copy.deepcopy(loop.model.state_dict())
    loop.train(1)
    loop.model.load_state_dict(kept)
    loop.train(3)
    assert loop.exact


def test_parameters_that_were_replaced_are_an_error() -> None:
    loop = Loop()
    loop.model.load_state_dict(perceptron().state_dict(), assign=True)
    loop.loss().backward()
    with pytest.raises(InputError, match=r"'0\.weight' is not the parameter it was"):
        loop.sparse.step()


# Other things that happen to a model


@pytest.mark.parametrize("method", ["rigl", "snfs", "dnw", "deepr"])
def test_a_model_converted_after_construction(method: str) -> None:
    loop = Loop(method=method).train(3)
    before = loop.sparse.topology
    loop.model.double()
    for _ in range(6):
        x, y = batch(loop.done)
        loop.done += 1
        F.cross_entropy(loop.model(x.double()), y).backward()
        for state in loop.optimizer.state.values():
            state["momentum_buffer"] = state["momentum_buffer"].double()
        if not loop.sparse.step():
            loop.optimizer.step()
        loop.optimizer.zero_grad()
        assert loop.exact
    assert loop.sparse.topology.active == before.active


def test_channels_last() -> None:
    def run(memory_format: torch.memory_format) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(16, 4))
        model = model.double().to(memory_format=memory_format)  # type: ignore[call-overload]
        optimizer = sgd(model)
        sparse = Sparsifier(model, optimizer, sparsity=0.7, total_steps=40, interval=3)
        for index in range(12):
            x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(index), dtype=torch.float64)
            F.cross_entropy(model(x.to(memory_format=memory_format)), x[:, 0, 0, :4].argmax(1)).backward()
            if not sparse.step():
                optimizer.step()
            optimizer.zero_grad()
        return list(sparse.topology.values())

    plain, last = run(torch.contiguous_format), run(torch.channels_last)
    assert all(one.equal(other) for one, other in zip(plain, last, strict=True))


def test_a_copy_of_the_whole_loop_goes_on_by_itself() -> None:
    loop = Loop(method="set").train(4)
    twin = copy.deepcopy(loop)
    loop.train(8)
    twin.train(8)
    assert twin.sparse.updates == loop.sparse.updates > 1
    assert twin.sparse.topology == loop.sparse.topology
    assert twin.exact
    assert twin.model[0].weight is not loop.model[0].weight  # type: ignore[index]


def test_parameters_added_to_the_optimizer_later() -> None:
    loop = Loop(method="rigl").train(3)
    loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    loop.train(8)
    assert loop.exact
    assert loop.sparse.updates > 1


def test_layers_that_share_a_weight() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4))
    model[2].weight = model[0].weight  # type: ignore[union-attr]
    loop = Loop(model).train(9)
    assert list(loop.sparse.topology) == ["0.weight", "4.weight"]
    assert loop.exact
