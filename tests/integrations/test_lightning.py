"""The callback in trainers of Lightning itself: what a loop of one's own does, it does too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import batch, equal, exact, perceptron
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import rigl_compress as rc
from rigl_compress.core.errors import InputError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*before.*optimizer.step:UserWarning"),
]
pl: Any = pytest.importorskip("lightning.pytorch")
SETTINGS = {"sparsity": 0.7, "interval": 3}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def sparse_training(**more: Any) -> Any:
    from rigl_compress.integrations.lightning import SparseTraining

    return SparseTraining(**{**SETTINGS, **more})


def samples() -> TensorDataset:
    return TensorDataset(*(torch.cat(each) for each in zip(*(batch(index) for index in range(4)), strict=True)))


def loader(size: int = 16) -> DataLoader[Any]:
    return DataLoader(samples(), batch_size=size)


class Steps:
    """A perceptron, its optimizer and a schedule, without a base class."""

    net: nn.Sequential
    fused = False

    def training_step(self, given: list[Tensor], index: int) -> Tensor:
        x, y = given
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2, weight_decay=0.1, fused=self.fused)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


class Classifier(Steps, pl.LightningModule):  # type: ignore[misc]
    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.net, self.fused = perceptron(), fused


def trainer(callback: Any, epochs: int = 2, package: Any = pl, **more: Any) -> Any:
    return package.Trainer(
        max_epochs=epochs,
        callbacks=[callback],
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"logger": False, "enable_checkpointing": False, **more},
    )


def by_hand(epochs: int, clip: float = 0.0, accumulate: int = 1, **settings: Any) -> tuple[nn.Module, rc.Sparsifier]:
    """The same training in a careful loop of one's own."""
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    total = epochs * 8 // accumulate
    sparse = rc.Sparsifier(model, optimizer, total_steps=total, **{**SETTINGS, **settings})
    for _ in range(epochs):
        for index, (x, y) in enumerate(loader()):
            (F.cross_entropy(model(x), y) / accumulate).backward()
            if (index + 1) % accumulate == 0:
                if not sparse.step():
                    if clip:
                        nn.utils.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
    return model, sparse


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_a_fit_is_the_loop_that_one_would_write(name: str) -> None:
    package = pytest.importorskip(name)

    class Own(Steps, package.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = perceptron()

    module, callback = Own(), sparse_training(module="net")
    trainer(callback, package=package).fit(module, loader())
    model, sparse = by_hand(2)
    assert equal(module.net, model)
    assert callback.topology == sparse.topology
    assert (callback.sparse.steps, callback.sparse.updates) == (sparse.steps, sparse.updates)
    assert sparse.updates >= 3


def test_a_trained_network_begins_at_its_largest_weights() -> None:
    module, callback = Classifier(), sparse_training(module="net", method="static", topology="magnitude")
    expected = rc.magnitude_topology(module.net, sparsity=0.7)
    trainer(callback, 1).fit(module, loader())
    assert callback.topology == expected


@pytest.mark.parametrize("method", ["rigl", "snfs", "pruning", "dnw"])
def test_accumulated_and_clipped_gradients(method: str) -> None:
    module, callback = Classifier(), sparse_training(module="net", method=method)
    trainer(callback, 3, accumulate_grad_batches=2, gradient_clip_val=0.3).fit(module, loader())
    model, sparse = by_hand(3, clip=0.3, accumulate=2, method=method)
    assert equal(module.net, model)
    assert callback.topology == sparse.topology


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "64-true"])
@pytest.mark.parametrize("method", ["rigl", "snfs"])
def test_precisions(precision: str, fused: bool, method: str) -> None:
    plugins: dict[str, Any] = {"precision": precision}
    if precision == "16-mixed":  # a trainer on a CPU takes half precision only with a scaler for it
        from lightning.pytorch.plugins import MixedPrecision

        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        plugins = {"plugins": [MixedPrecision("16-mixed", "cpu", scaler=scaler)]}
    module, callback = Classifier(fused), sparse_training(module="net", method=method)
    data = loader()
    if precision == "64-true":
        data = DataLoader([(x.double(), y) for x, y in samples()], batch_size=16)  # type: ignore[arg-type]
    trainer(callback, **plugins).fit(module, data)
    assert callback.sparse.updates >= 3
    assert callback.sparse.steps + callback.sparse.updates * (method == "rigl") == 16
    assert exact(module.net, callback.topology)
    if method == "snfs":  # the mean of gradients without their scale
        assert all(each["momentum"].abs().max() < 2 for each in callback.state_dict()["memory"].values())


class Obvious(pl.Callback):  # type: ignore[misc]
    """What one writes first: calls `step` before the optimizer, and ignores what it returns."""

    sparse: rc.Sparsifier

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.sparse = rc.Sparsifier(pl_module.net, trainer.optimizers[0], total_steps=16, **SETTINGS)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.sparse.step()


def test_a_callback_of_ones_own_may_ignore_what_step_returns() -> None:
    module, callback = Classifier(), Obvious()
    trainer(callback).fit(module, loader())
    model, sparse = by_hand(2)
    assert equal(module.net, model)
    assert callback.sparse.topology == sparse.topology


class Adversaries(pl.LightningModule):  # type: ignore[misc]
    """Two networks, each with its optimizer, in manual optimization."""

    def __init__(self, wrapped: bool = True) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second, self.wrapped = perceptron(), perceptron(), wrapped

    def training_step(self, given: list[Tensor], index: int) -> None:
        x, y = given
        for net, optimizer in zip((self.first, self.second), self.optimizers(self.wrapped), strict=True):
            optimizer.zero_grad()
            self.manual_backward(F.cross_entropy(net(x), y))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        nets = (self.first, self.second)
        return [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9) for net in nets]


@pytest.mark.parametrize("wrapped", [True, False])
def test_manual_optimization_with_several_optimizers(wrapped: bool) -> None:
    module, callback = Adversaries(wrapped), sparse_training(module="second", optimizer=1)
    trainer(callback).fit(module, loader())
    assert callback.sparse.steps + callback.sparse.updates == 16
    assert callback.topology.sparsity > 0.65
    assert exact(module.second, callback.topology)
    assert all(weight.all() for weight in module.first.parameters())


def test_each_network_has_its_own_callback_and_its_place_in_the_checkpoint(tmp_path: Path) -> None:
    module = Adversaries()
    callbacks = [sparse_training(module=name, optimizer=index) for index, name in enumerate(("first", "second"))]
    fit = trainer(callbacks[0])
    fit.callbacks.append(callbacks[1])
    fit.fit(module, loader())
    assert exact(module.first, callbacks[0].topology)
    assert exact(module.second, callbacks[1].topology)
    fit.save_checkpoint(tmp_path / "both.ckpt")
    saved = torch.load(tmp_path / "both.ckpt", weights_only=True)["callbacks"]
    assert len([key for key in saved if key.startswith("SparseTraining")]) == 2


@pytest.mark.parametrize("method", ["rigl", "snfs", "pruning", "dnw"])
def test_a_resumed_fit_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    whole, other = Classifier(), sparse_training(module="net", method=method, total_steps=32)
    trainer(other, 4).fit(whole, loader())
    first = sparse_training(module="net", method=method, total_steps=32)
    fit = trainer(first, 2)
    fit.fit(Classifier(), loader())
    fit.save_checkpoint(tmp_path / "half.ckpt")
    module, second = Classifier(), sparse_training(module="net", method=method, total_steps=32, seed=9)
    second._late._seed = 0  # another seed would go on with other random numbers, from the same masks
    trainer(second, 4).fit(module, loader(), ckpt_path=tmp_path / "half.ckpt")
    assert equal(module, whole)
    assert second.topology == other.topology
    assert second.sparse.updates == other.sparse.updates > first.sparse.updates or method == "dnw"


def test_a_second_fit_goes_on_with_the_topology() -> None:
    module, callback = Classifier(), sparse_training(module="net")
    trainer(callback).fit(module, loader())
    before = callback.topology
    trainer(callback, 1).fit(module, loader())
    assert callback.sparse.steps > 16 - callback.sparse.updates
    assert before.changed(callback.topology) < before.active / 2
    other = Classifier()
    trainer(callback, 1).fit(other, loader())  # another model starts afresh
    assert callback.sparse.steps + callback.sparse.updates == 8


def test_figures_are_logged() -> None:
    class Kept(pl.loggers.logger.DummyLogger):  # type: ignore[misc]
        seen: dict[str, float] = {}  # noqa: RUF012

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.seen.update(metrics)

    callback = sparse_training(module="net")
    trainer(callback, logger=Kept(), log_every_n_steps=1).fit(Classifier(), loader())
    assert Kept.seen["net/sparsity"] == pytest.approx(callback.sparse.sparsity)
    assert "net/changed" in Kept.seen


class Moody(Classifier):
    """Leaves out every second batch."""

    def training_step(self, given: list[Tensor], index: int) -> Any:
        return super().training_step(given, index) if index % 2 else None


@pytest.mark.filterwarnings("ignore:.training_step. returned .None.:UserWarning")
def test_batches_that_are_left_out_do_not_count() -> None:
    module, callback = Moody(), sparse_training(module="net")
    trainer(callback).fit(module, loader())
    assert callback.sparse.steps + callback.sparse.updates == 8
    assert exact(module.net, callback.topology)


def test_the_result_is_ready_to_prune() -> None:
    module, callback = Classifier(), sparse_training(module="net", sparsity=0.9)
    trainer(callback).fit(module, loader())
    x, _ = batch(0)
    small = rc.prune_dead_neurons(module.net.eval(), callback.topology, x)
    assert small.topology.active <= callback.topology.active
    assert torch.allclose(small.model(x), module.net(x), atol=1e-6)


def test_bad_settings_are_named_before_the_fit() -> None:
    with pytest.raises(InputError, match="did you mean 'method'"):
        sparse_training(methd="rigl")
    with pytest.raises(InputError, match="trains gates beside the weights"):
        sparse_training(method="l0")
    with pytest.raises(InputError, match="the training has not started"):
        sparse_training().topology  # noqa: B018


def test_bad_choices_are_named_at_the_start_of_the_fit() -> None:
    for chosen, message in (
        ({"module": "nett"}, "module 'nett' is not a part of Adversaries, which has first, second"),
        ({"module": "first"}, "there are 2 optimizers"),
        ({"module": "first", "optimizer": 2}, "optimizer is 2, but there are only 2"),
        ({"module": "first", "optimizer": 1}, "the optimizer does not hold 0.weight"),
    ):
        with pytest.raises(InputError, match=message):
            trainer(sparse_training(**chosen)).fit(Adversaries(), loader())
    with pytest.raises(InputError, match="set total_steps"):
        trainer(sparse_training(module="net"), -1).fit(Classifier(), loader())
