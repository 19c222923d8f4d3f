"""Training on sparse kernels is training with masks, without the masks."""

import copy
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.models.sparse_modules import SparseConv2d, SparseLinear, SparseModule
from rigl_compress.models.sparse_runs import SparseSequential
from rigl_compress.models.training_kernels import training_library
from rigl_compress.sparsity import sparse_layer
from rigl_compress.sparsity.sparsifier import Sparsifier

pytestmark = pytest.mark.skipif(training_library() is None, reason="installed without a C++ compiler")

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda each: torch.optim.SGD(each, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda each: torch.optim.SGD(each, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda each: torch.optim.Adam(each, lr=1e-3, weight_decay=1e-3),
    "adamw": lambda each: torch.optim.AdamW(each, lr=1e-3, amsgrad=True),
}


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 80), nn.Tanh(), nn.Linear(80, 60), nn.Tanh(), nn.Linear(60, 5))


def rectified() -> nn.Module:
    """Layers that are one run of sparse layers and a dense one."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 80), nn.ReLU(), nn.Linear(80, 60), nn.ReLU(), nn.Linear(60, 5))


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Unflatten(1, (3, 8, 8)), nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.Tanh()),
        *(nn.Conv2d(12, 16, 3, stride=2, padding=1, groups=2), nn.Tanh(), nn.Conv2d(16, 8, 1), nn.Flatten()),
        nn.Linear(128, 5),
    )


class Run:
    """A network in training, with data that depend on the step alone."""

    def __init__(
        self, kernels: str, build: Callable[[], nn.Module] = perceptron, optimizer: str = "sgd", **settings: Any
    ):
        self.model = build()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.width = 192 if build in (convolutional, Residual) else 30
        settings = {"method": "rigl", "sparsity": 0.8, "total_steps": 200, "interval": 10, **settings}
        self.sparse = Sparsifier(self.model, self.optimizer, kernels=kernels, **settings)
        self.taken = 0

    def train(self, steps: int, accumulate: int = 1, clip: float = 0.0) -> "Run":
        for _ in range(steps):
            generator = torch.Generator().manual_seed(self.taken)
            for _ in range(accumulate):
                x = torch.randn(16, self.width, generator=generator)
                ((self.model(x) - x[:, :5].sin()).square().mean() / accumulate).backward()
            if not self.sparse.step():
                if clip:
                    nn.utils.clip_grad_norm_(self.model.parameters(), clip)
                self.optimizer.step()
            self.optimizer.zero_grad()
            self.taken += 1
        return self

    def save(self) -> dict[str, Any]:
        states = (self.model.state_dict(), self.optimizer.state_dict(), self.sparse.state_dict())
        return copy.deepcopy({"model": states[0], "optimizer": states[1], "sparse": states[2], "taken": self.taken})

    def load(self, saved: dict[str, Any]) -> "Run":
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.sparse.load_state_dict(saved["sparse"])
        self.taken = saved["taken"]
        return self


def sparse_layers(model: nn.Module) -> list[SparseModule]:
    return [module for module in model.modules() if isinstance(module, SparseModule)]


def assert_alike(found: Run, expected: Run, tolerance: float = 2e-5) -> None:
    assert found.sparse.updates == expected.sparse.updates
    assert found.sparse.topology == expected.sparse.topology
    for name, tensor in expected.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], tensor, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["rigl", "set", "static"])
def test_200_steps_as_with_masks(method: str, optimizer: str) -> None:
    runs = [Run(kernels, optimizer=optimizer, method=method).train(200) for kernels in ("sparse", "masked")]
    assert len(sparse_layers(runs[0].model)) == 2
    assert_alike(*runs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["rigl", "set", "static"])
def test_200_steps_of_a_run_of_layers_as_with_masks(method: str, optimizer: str) -> None:
    """In float32 an output close to zero may be on the other side of ReLU's kink: the tolerance has room for some."""
    runs = [Run(kernels, rectified, optimizer, method=method).train(200) for kernels in ("sparse", "masked")]
    assert len(sparse_layers(runs[0].model)) == 2
    assert type(runs[0].model) is SparseSequential
    assert_alike(*runs, tolerance=1e-3)


class Residual(nn.Module):
    """Shortcuts, strides, normalization and pools between sparse convolutions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norms = nn.Conv2d(3, 12, 3, padding=1), nn.ModuleList(nn.BatchNorm2d(12) for _ in range(2))
        self.convs = nn.ModuleList([nn.Conv2d(12, 12, 3, padding=1, bias=False), nn.Conv2d(12, 12, 3, 2, 1)])
        self.shortcut, self.end, self.last = nn.Conv2d(12, 12, 1, 2), nn.AdaptiveAvgPool2d(1), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return five numbers for each image."""
        x = self.first(x.view(-1, 3, 8, 8))
        x = x + self.convs[0](nn.functional.silu(self.norms[0](x)))
        x = self.norms[1](x).tanh()
        out: Tensor = self.last(self.end(self.shortcut(x) + self.convs[1](x)).flatten(1))
        return out


@pytest.mark.parametrize("method", ["rigl", "set"])
def test_residual_networks_as_with_masks(method: str) -> None:
    runs = [Run(kernels, Residual, method=method).train(60) for kernels in ("sparse", "masked")]
    assert len([each for each in sparse_layers(runs[0].model) if isinstance(each, SparseConv2d)]) >= 3
    assert_alike(*runs)
    runs[0].sparse.finish()
    assert type(runs[0].model.get_submodule("norms.0")) is nn.BatchNorm2d


@pytest.mark.parametrize("method", ["rigl", "set"])
def test_convolutions_as_with_masks(method: str) -> None:
    runs = [Run(kernels, convolutional, method=method).train(100) for kernels in ("sparse", "masked")]
    assert any(isinstance(each, SparseConv2d) for each in sparse_layers(runs[0].model))
    assert_alike(*runs)


@pytest.mark.parametrize("build", [perceptron, convolutional])
def test_growth_in_blocks_as_with_masks(build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_layer, "BLOCK", 200)
    assert_alike(*(Run(kernels, build).train(50) for kernels in ("sparse", "masked")))


@pytest.mark.parametrize("variants", [("reset-regrown",), ("round-up",), ("step-and-update",)])
def test_variants_as_with_masks(variants: tuple[str, ...]) -> None:
    assert_alike(*(Run(kernels, variants=variants).train(60) for kernels in ("sparse", "masked")))


@pytest.mark.parametrize("build", [perceptron, rectified])
def test_accumulated_and_clipped_gradients_as_with_masks(build: Callable[[], nn.Module]) -> None:
    runs = [Run(kernels, build).train(60, accumulate=3, clip=0.05) for kernels in ("sparse", "masked")]
    assert_alike(*runs, tolerance=2e-5 if build is perceptron else 1e-3)


def test_gradients_that_were_cleared_play_no_part_in_growth() -> None:
    runs = [Run(kernels).train(11) for kernels in ("sparse", "masked")]
    for run in runs:
        assert run.sparse.update_due
        for set_to_none in (True, False):
            (run.model(torch.full((4, 30), 7.0)) * 50).sum().backward()
            run.optimizer.zero_grad(set_to_none=set_to_none)
        run.train(1)
    assert_alike(*runs)


def test_a_layer_that_is_used_twice_as_with_masks() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.again = nn.Linear(30, 30), nn.Linear(30, 5)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.again(self.first(self.first(x).tanh()).tanh())
            return out

    assert_alike(*(Run(kernels, Twice).train(60) for kernels in ("sparse", "masked")))


@pytest.mark.parametrize("build", [perceptron, rectified, convolutional])
@pytest.mark.parametrize("optimizer", ["nesterov", "adamw"])
def test_resuming_gives_the_same_bits(build: Callable[[], nn.Module], optimizer: str) -> None:
    whole = Run("sparse", build, optimizer).train(47)
    saved = Run("sparse", build, optimizer).train(23).save()
    resumed = Run("sparse", build, optimizer).load(saved).train(24)
    assert resumed.sparse.topology == whole.sparse.topology
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name


@pytest.mark.parametrize("steps", range(11, 16))
def test_resuming_next_to_an_update(steps: int) -> None:
    """Sparse layers record what growth needs in the forward pass of an update, which may be the first of a process."""
    resumed = Run("sparse", begin=2).load(Run("sparse", begin=2).train(steps).save()).train(18 - steps)
    assert_alike(resumed, Run("sparse", begin=2).train(18), tolerance=0)
    assert resumed.sparse.updates


@pytest.mark.parametrize(("first", "then"), [("sparse", "masked"), ("masked", "sparse")])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_checkpoints_of_one_form_go_on_in_the_other(first: str, then: str, optimizer: str) -> None:
    saved = Run(first, optimizer=optimizer).train(35).save()
    assert_alike(Run(then, optimizer=optimizer).load(saved).train(30), Run(first, optimizer=optimizer).train(65))


def test_state_has_the_names_and_shapes_of_the_dense_network() -> None:
    run, plain = Run("sparse").train(12), perceptron()
    assert {k: v.shape for k, v in run.model.state_dict().items()} == {
        k: v.shape for k, v in plain.state_dict().items()
    }
    buffers = [each["momentum_buffer"].shape for each in run.optimizer.state_dict()["state"].values()]
    assert buffers == [each.shape for each in plain.parameters()]
    assert all(len(each.weight) == len(each.wiring.positions) for each in sparse_layers(run.model))
    assert sum(value["momentum_buffer"].numel() for value in run.optimizer.state.values()) < 2500


def test_weights_that_do_not_fit_the_topology_are_refused_until_its_state_is_loaded() -> None:
    saved, run = Run("sparse").train(25).save(), Run("sparse")
    run.model.load_state_dict(saved["model"])
    run.model(torch.zeros(1, 30)).sum().backward()
    with pytest.raises(InputError, match="load its own state too"):
        run.sparse.step()
    run.sparse.load_state_dict(saved["sparse"])
    assert torch.equal(run.model.state_dict()["0.weight"], saved["model"]["0.weight"])


def test_the_end_leaves_plain_layers() -> None:
    run = Run("sparse", convolutional).train(25)
    x = torch.randn(6, 192)
    run.model.eval()
    expected, state, topology = run.model(x), run.model.state_dict(), run.sparse.topology
    run.sparse.finish()
    assert not sparse_layers(run.model)
    assert type(run.model) is nn.Sequential
    assert {type(module) for module in run.model} >= {nn.Conv2d, nn.Linear}
    assert all(torch.equal(tensor, state[name]) for name, tensor in run.model.state_dict().items())
    torch.testing.assert_close(run.model(x), expected)
    assert run.sparse.topology == topology
    assert run.sparse.sparsity == topology.sparsity
    run.train(3)  # goes on with masks


def test_prune_export_and_count_what_is_still_sparse(tmp_path: Path) -> None:
    run = Run("sparse", sparsity=0.97).train(15)
    x = torch.randn(3, 30)
    pruned = rc.prune_dead_neurons(run.model, run.sparse.topology, x)
    torch.testing.assert_close(pruned.model(x), run.model(x), atol=1e-5, rtol=1e-5)
    rc.export_onnx(run.model, x, tmp_path / "model.onnx")
    assert rc.count_flops(run.model, x[:1], run.sparse.topology).dense == 2 * (30 * 80 + 80 * 60 + 60 * 5)
    assert sparse_layers(run.model)


def test_a_second_sparsifier_waits_for_the_end_of_the_first() -> None:
    run = Run("sparse").train(2)
    with pytest.raises(InputError, match="call finish"):
        Sparsifier(run.model, run.optimizer, total_steps=5)
    run.sparse.finish()
    Sparsifier(run.model, run.optimizer, total_steps=5)


def test_copies_train_alike() -> None:
    run = Run("sparse").train(15)
    twin = copy.deepcopy(run)
    assert_alike(twin.train(20), run.train(20), tolerance=0)
    file = io.BytesIO()
    torch.save(run.model, file)
    file.seek(0)
    x = torch.randn(2, 30)
    assert torch.equal(torch.load(file, weights_only=False)(x), run.model(x))


# What stays masked


def test_layers_without_kernels_stay_masked_and_are_named() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ConvTranspose2d(2, 2, 3), nn.Conv2d(2, 2, 3, padding_mode="circular"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="masked dense ones") as caught:
        sparse = Sparsifier(model, optimizer, kernels="sparse", sparsity=0.5, distribution="er", total_steps=9)
    assert "1.weight (a ConvTranspose2d has no sparse kernel)" in str(caught[0].message)
    assert [*sparse.masked] == ["1.weight", "2.weight"]
    assert isinstance(model[0], SparseLinear)


def test_auto_leaves_dense_layers_and_other_methods_masked_without_a_word() -> None:
    for settings in ({"sparsity": 0.5}, {"method": "snfs"}, {"method": "pruning"}, {"method": "dnw"}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run = Run("auto", **settings)
        assert not sparse_layers(run.model)
        assert all(run.sparse.masked.values())
    assert sparse_layers(Run("auto").model)
    assert any(isinstance(each, SparseConv2d) for each in sparse_layers(Run("auto", convolutional).model))


def test_auto_leaves_few_sparse_convolutions_among_dense_ones_masked() -> None:
    model = nn.Sequential(*(nn.Conv2d(64, 64, 3) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"sparsity": 0.5, "distribution": "uniform", "dense": (), "total_steps": 9}
    few = Sparsifier(model, optimizer, kernels="auto", layers={"0": 0.9, "1": 0.3, "2": 0.3}, **settings)
    assert few.masked["0.weight"] == "most convolutions of the network are dense"
    most = Sparsifier(model, optimizer, kernels="auto", layers={"0": 0.9, "1": 0.9, "2": 0.3}, **settings)
    assert [*most.masked] == ["2.weight"]


@pytest.mark.parametrize("method", ["snfs", "deepr", "dsr", "snip", "pruning", "dnw", "l1-filter"])
def test_methods_that_need_all_weights_say_so(method: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = Run("sparse", method=method, total_steps=30).train(3)
    assert not sparse_layers(run.model)
    assert "l1" in method or any("needs weights or gradients of all" in str(each.message) for each in caught)


def test_unknown_kernels_are_an_error() -> None:
    with pytest.raises(InputError, match="did you mean 'sparse'"):
        Run("spars")


# Input


@pytest.mark.parametrize("batch", [1, 3, 17, 130])
def test_inputs_of_any_layout(batch: int) -> None:
    run, plain = Run("sparse").train(11), perceptron()
    plain.load_state_dict(run.model.state_dict())
    wide = torch.randn(60, 2 * batch)
    for x in (wide[:30, :batch].t(), wide.t()[:batch, ::2], torch.randn(2, batch, 30).transpose(0, 1)):
        torch.testing.assert_close(run.model(x), plain(x), atol=1e-5, rtol=1e-5)


def test_autocast_computes_in_float32() -> None:
    run = Run("sparse")
    x = torch.randn(4, 30)
    with torch.autocast("cpu", torch.bfloat16):
        y = run.model[0](x.bfloat16())
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, run.model[0](x.bfloat16().float()))


@pytest.mark.parametrize("change", [lambda m: m.double(), lambda m: m.to("meta")], ids=["float64", "device"])
def test_other_types_and_devices_are_an_error(change: Callable[[nn.Module], nn.Module]) -> None:
    model = Run("sparse").model
    with pytest.raises(InputError, match='kernels="masked"'):
        change(model)(torch.zeros(1, 30, dtype=torch.float64))
    with pytest.raises(InputError, match="has 31 features"):
        Run("sparse").model(torch.zeros(1, 31))


def test_a_topology_that_changes_between_forward_and_backward_is_an_error() -> None:
    run = Run("sparse").train(11)
    loss = run.model(torch.randn(4, 30)).sum()
    run.train(1)  # an update
    with pytest.raises((InputError, RuntimeError), match=r"changed|modified"):
        loss.backward()


def test_gradients_that_are_not_finite_change_no_topology() -> None:
    run = Run("sparse").train(11)
    before = run.sparse.topology
    (run.model(torch.randn(4, 30)) * float("nan")).sum().backward()
    assert run.sparse.step()
    assert run.sparse.topology == before
    assert run.sparse.updates == 1


def test_a_layer_without_connections() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    topology = rc.Topology.from_masks(
        {"0.weight": torch.zeros(4, 6, dtype=torch.bool), "1.weight": torch.tensor([[True, False, False, True]] * 2)}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.warns(UserWarning, match="no connection is left in 0.weight"):
        sparse = Sparsifier(model, optimizer, kernels="sparse", topology=topology, total_steps=9, interval=1)
    for _ in range(3):
        model(torch.randn(5, 6)).square().sum().backward()
        if not sparse.step():
            optimizer.step()
        optimizer.zero_grad()
    assert sparse.topology["0.weight"].sum() == 0
    assert torch.equal(model(torch.randn(1, 6)), model(torch.randn(1, 6)))


def test_weights_without_memory_are_drawn_at_the_connections_alone() -> None:
    with torch.device("meta"):
        large = nn.Linear(30, 4000)
    model = nn.Sequential(large, nn.Tanh(), nn.Linear(4000, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparse = Sparsifier(
        model, optimizer, kernels="sparse", sparsity=0.99, distribution="er", total_steps=9, interval=2, seed=3
    )
    layer = model[0]
    assert isinstance(layer, SparseLinear)
    assert 0.9 < float(layer.weight.detach().abs().max()) * 30**0.5 <= 1
    before = layer.weight.detach().clone()
    for _ in range(5):
        model(torch.randn(8, 30)).square().mean().backward()
        if not sparse.step():
            optimizer.step()
        optimizer.zero_grad()
    assert sparse.updates == 2
    assert not torch.equal(before, layer.weight)
    with torch.device("meta"):
        other = nn.Sequential(nn.Linear(30, 400), nn.Linear(400, 400), nn.LayerNorm(400))
    with pytest.raises(InputError, match="are on the meta device"):
        Sparsifier(other, torch.optim.SGD(other.parameters(), lr=0.1), kernels="sparse", total_steps=9)
