"""The sparsifier with real optimizers: what must hold whatever the method, the optimizer and the loop."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from rigl_compress.core.errors import InputError
from rigl_compress.models.topology import Topology
from rigl_compress.sparsity.sparsifier import Sparsifier

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=1e-2),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=1e-2),
    "fused-nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2, fused=True),
    "fused-adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=1e-2, fused=True),
}


def network(device: str = "cpu") -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)


def batches(count: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(32, 12, generator=rng)
        yield x, x[:, :4].argmax(dim=1)


def train(
    model: nn.Module, optimizer: Optimizer, sparse: Sparsifier, count: int, watch: Callable[[bool], None] | None = None
) -> list[bool]:
    history = []
    for x, y in batches(count):
        F.cross_entropy(model(x), y).backward()
        history.append(sparse.step())
        if not history[-1]:
            optimizer.step()
        optimizer.zero_grad()
        if watch:
            watch(history[-1])
    return history


def living(model: nn.Module, sparse: Sparsifier) -> bool:
    parameters = dict(model.named_parameters())
    return all(not parameters[name][~mask].any() for name, mask in sparse.topology.items())


def states(optimizer: Optimizer, model: nn.Module, sparse: Sparsifier) -> Iterator[tuple[str, Tensor, Tensor]]:
    parameters = dict(model.named_parameters())
    for name, mask in sparse.topology.items():
        for key, value in optimizer.state[parameters[name]].items():
            if torch.is_tensor(value) and value.shape == mask.shape:
                yield f"{name}/{key}", value, mask


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_dead_weights_and_their_optimizer_state_are_zero_after_every_step(make: Callable[..., Optimizer]) -> None:
    model = network()
    optimizer = make(model.parameters())
    sparse = Sparsifier(model, optimizer, sparsity=0.7, total_steps=60, interval=5)

    def watch(updated: bool) -> None:
        assert living(model, sparse)
        for name, state, mask in states(optimizer, model, sparse):
            assert not state[~mask].any(), name

    train(model, optimizer, sparse, 50, watch)
    assert sparse.updates > 5
    # The second moment of Adam is among what was checked: other implementations forget it.
    keys = {name.rpartition("/")[2] for name, _, _ in states(optimizer, model, sparse)}
    assert ("exp_avg_sq" in keys) == ("adam" in type(optimizer).__name__.lower())


def test_an_update_takes_the_place_of_the_step_and_of_the_count() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparse = Sparsifier(model, optimizer, sparsity=0.7, begin=3, end=7, interval=2)
    history = train(model, optimizer, sparse, 11)
    assert "".join("0" if updated else "1" for updated in history) == "11101101101"
    assert (sparse.steps, sparse.updates) == (8, 3)


def test_survivors_keep_weight_and_momentum_and_newcomers_start_at_zero() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparse = Sparsifier(model, optimizer, sparsity=0.7, total_steps=100, interval=10, fraction=0.5, begin=10)
    train(model, optimizer, sparse, 10)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    momenta = {name: optimizer.state[p]["momentum_buffer"].clone() for name, p in model.named_parameters()}
    old = sparse.topology
    assert train(model, optimizer, sparse, 1) == [True]
    new = sparse.topology
    assert new.changed(old) > 0
    for name, parameter in model.named_parameters():
        if name not in new:
            assert torch.equal(parameter, before[name])  # biases: no step was taken
            continue
        both, born = new[name] & old[name], new[name] & ~old[name]
        momentum = optimizer.state[parameter]["momentum_buffer"]
        assert torch.equal(parameter[both], before[name][both])
        assert torch.equal(momentum[both], momenta[name][both])
        assert not parameter[born].any()
        assert not momentum[born].any()


def test_growth_uses_the_dense_gradient_of_the_loss_without_weight_decay() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=10.0)
    sparse = Sparsifier(model, optimizer, sparsity=0.8, total_steps=100, fraction=0.5)
    x, y = next(batches(1))
    F.cross_entropy(model(x), y).backward()
    weight, old = model[2].weight, sparse.topology["2.weight"]
    strength, gradient = weight.detach().abs(), weight.grad.abs()  # type: ignore[union-attr, operator]
    k = int(int(old.sum()) * 0.5)
    weakest_kept = strength[old].sort(descending=True).values[int(old.sum()) - k - 1]
    kept = old & (strength >= weakest_kept)
    threshold = gradient[~kept].sort(descending=True).values[k - 1]
    assert sparse.step()
    assert torch.equal(sparse.topology["2.weight"], kept | (~kept & (gradient >= threshold)))


def test_a_fully_dense_layer_is_left_alone() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sparse = Sparsifier(model, optimizer, layers={"0": 0.0, "2": 0.9, "4": 0.0}, total_steps=100)
    before = model[0].weight.detach().clone()
    train(model, optimizer, sparse, 1)
    assert torch.equal(before, model[0].weight)


def test_same_seed_same_topology_other_seed_another() -> None:
    found = []
    for seed in (0, 0, 1):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        sparse = Sparsifier(model, optimizer, method="set", sparsity=0.7, total_steps=40, interval=5, seed=seed)
        train(model, optimizer, sparse, 30)
        found.append(sparse.topology)
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_what_else_draws_random_numbers_plays_no_part() -> None:
    found = []
    for disturb in (False, True):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        sparse = Sparsifier(model, optimizer, method="set", sparsity=0.7, total_steps=40, interval=5)
        train(model, optimizer, sparse, 20, (lambda _: torch.rand(3)) if disturb else None)
        found.append(sparse.topology)
    assert found[0] == found[1]


def test_gradient_accumulation_grows_by_the_summed_gradient() -> None:
    whole, parts = network(), network()
    sparse = []
    x, y = next(batches(1))
    for model, pieces in ((whole, 1), (parts, 4)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        sparse.append(Sparsifier(model, optimizer, sparsity=0.8, total_steps=100))
        for part, answer in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
            (F.cross_entropy(model(part), answer) / pieces).backward()
        assert sparse[-1].step()
    assert sparse[0].topology == sparse[1].topology


def test_closures() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparse = Sparsifier(model, optimizer, sparsity=0.7, total_steps=40, interval=4)
    losses = []
    for x, y in batches(40):

        def closure(x: Tensor = x, y: Tensor = y) -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            sparse.step()
            return loss.item()

        losses.append(closure() if sparse.update_due else optimizer.step(closure))
    assert living(model, sparse)
    assert sparse.updates == 8
    assert losses[-1] < losses[0]  # type: ignore[operator]


def test_autocast_and_gradient_scaler() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparse = Sparsifier(model, optimizer, sparsity=0.7, total_steps=40, interval=5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for x, y in batches(20):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if not sparse.step():
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert living(model, sparse)
    assert (sparse.steps, sparse.updates) == (16, 4)


def test_a_gradient_that_overflowed_changes_no_topology() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sparse = Sparsifier(model, optimizer, sparsity=0.7, total_steps=40)
    x, y = next(batches(1))
    (F.cross_entropy(model(x), y) * torch.inf).backward()
    before = sparse.topology
    assert sparse.step()
    assert sparse.topology == before
    assert living(model, sparse)


def test_any_learning_rate_scheduler() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    sparse = Sparsifier(model, optimizer, sparsity=0.7, total_steps=40, interval=5)
    for x, y in batches(30):
        F.cross_entropy(model(x), y).backward()
        if not sparse.step():
            optimizer.step()
            scheduler.step()
        optimizer.zero_grad()
    assert scheduler.last_epoch == sparse.steps == 30 - sparse.updates


@pytest.mark.parametrize("method", ["rigl", "set", "dnw"])
def test_compiled_models(method: str) -> None:
    model, twin = network(), network()
    compiled = torch.compile(model, backend="eager")  # the tracing is what could go wrong, not the code generation
    runs = []
    for trained, forward in ((model, compiled), (twin, twin)):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
        sparse = Sparsifier(trained, optimizer, method=method, sparsity=0.7, total_steps=40, interval=5)
        train(forward, optimizer, sparse, 20)  # type: ignore[arg-type]
        runs.append(sparse.topology)
    assert runs[0] == runs[1]
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("automatic", [False, True])
def test_the_optimizer_step_is_not_replaced(automatic: bool) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    before = optimizer.step.__func__ if hasattr(optimizer.step, "__func__") else optimizer.step
    Sparsifier(model, optimizer, method="set", sparsity=0.7, total_steps=40, automatic=automatic)
    after = optimizer.step.__func__ if hasattr(optimizer.step, "__func__") else optimizer.step
    assert before is after
    assert "step" not in vars(optimizer)


class Watch(TorchDispatchMode):
    """Records operations that move tensors between devices or make Python wait for a value."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name()
        waits = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")
        moves = name.startswith("aten::_to_copy") and kwargs.get("device") is not None
        if moves or any(name.startswith(f"aten::{wait}") for wait in waits):
            self.seen.append(name)
        return func(*args, **kwargs)


# SNIP and pruning change how many connections live: they ask the device once an update whether the scores are finite.
NEVER_WAIT = ("rigl", "set", "snfs", "static", "dnw")


@pytest.mark.parametrize("method", NEVER_WAIT)
def test_no_step_moves_a_tensor_or_waits_for_the_device(method: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparse = Sparsifier(model, optimizer, method=method, sparsity=0.7, total_steps=40, interval=5)
    watch = Watch()
    for x, y in batches(12):
        F.cross_entropy(model(x), y).backward()
        with watch:
            updated = sparse.step()
        if not updated:
            optimizer.step()
        optimizer.zero_grad()
    assert watch.seen == []
    assert (sparse.updates > 0) == (method != "static")


@pytest.mark.parametrize("method", NEVER_WAIT)
def test_runs_where_there_is_no_data_at_all(method: str) -> None:
    """On the meta device any look at a value is an error: what runs there runs on a GPU without waiting for it."""
    model = network().to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparse = Sparsifier(model, optimizer, method=method, sparsity=0.7, total_steps=40, interval=2)
    for _ in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        if not sparse.step():
            optimizer.step()
    assert sparse.steps >= 3
    assert 0 <= sparse.sparsity <= 0.71


def test_state_can_be_saved_and_loaded() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparse = Sparsifier(model, optimizer, method="snfs", sparsity=0.7, total_steps=40, interval=5)
    train(model, optimizer, sparse, 12)
    other = network()
    again = Sparsifier(other, optimizer_of(other), method="snfs", sparsity=0.7, total_steps=40, seed=9)
    assert again.topology != sparse.topology
    again.load_state_dict(sparse.state_dict())
    assert again.topology == sparse.topology
    assert (again.steps, again.updates) == (sparse.steps, sparse.updates)


def optimizer_of(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def test_a_given_topology_is_taken_as_it_is() -> None:
    model = network()
    first = Sparsifier(model, optimizer_of(model), sparsity=0.7, total_steps=40, seed=5)
    other = network()
    second = Sparsifier(other, optimizer_of(other), method="static", total_steps=40, topology=first.topology)
    assert second.topology == first.topology
    assert living(other, second)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 1.0}, "sparsity is 1.0, expected at least 0 and below 1"),
        ({"sparsity": -0.1}, "sparsity is -0.1"),
        ({"methd": "rigl"}, "did you mean 'method'"),
        ({"method": "rigel"}, "did you mean 'rigl'"),
        ({"distribution": "ERK"}, "unknown distribution 'ERK'"),
        ({"layers": {"fc9": 0.5}}, "layer 'fc9' matches nothing"),
        ({"end": 500}, "updates end at step 500, but the run has only 100 steps"),
        ({"interval": 0}, "interval"),
        ({"variants": ("faster",)}, "unknown variant 'faster'"),
        ({"options": {"momentum": 0.9}}, "method 'rigl' has no option 'momentum'"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    model = network()
    with pytest.raises(InputError, match=message):
        Sparsifier(model, optimizer_of(model), total_steps=100, **settings)


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"the optimizer does not hold 0\.weight"):
        Sparsifier(network(), optimizer_of(network()), total_steps=100)


def test_a_topology_of_another_model_is_refused() -> None:
    model = network()
    with pytest.raises(InputError, match="another model"):
        Sparsifier(model, optimizer_of(model), total_steps=9, topology=Topology.full({"0.weight": (3, 3)}))


def test_a_share_that_a_step_overrules_is_said() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"end_share = 0.3 has no effect: end = 10 takes precedence"):
        Sparsifier(model, optimizer, sparsity=0.5, end=10, end_share=0.3, total_steps=20)
