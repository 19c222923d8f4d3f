"""The callback in a Trainer of transformers, and a sparsifier in a loop of accelerate."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import batch, equal, exact, perceptron
from torch import Tensor, nn
from torch.nn import functional as F

import rigl_compress as rc
from rigl_compress.core.errors import InputError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
SETTINGS: dict[str, Any] = {"sparsity": 0.7, "interval": 3}
SAMPLES = [{"x": x, "labels": y} for index in range(4) for x, y in zip(*batch(index), strict=True)]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("gc.collect", lambda *_: 0)  # of every start of a Trainer: half a second of a test
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("transformers")


class Classifier(nn.Module):
    """A perceptron that returns its loss, as a Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def sparse_training(**more: Any) -> Any:
    from rigl_compress.integrations.huggingface import SparseTraining

    return SparseTraining(**{**SETTINGS, **more})


def trainer(callback: Any, model: nn.Module | None = None, folder: str = "out", **more: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    settings = {
        "max_steps": 16,
        "per_device_train_batch_size": 16,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "max_grad_norm": 0.0,
        "optim": "adamw_torch",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 4,
    }
    args = TrainingArguments(folder, **{**settings, **more})
    return Trainer(model or Classifier(), args, train_dataset=SAMPLES, eval_dataset=SAMPLES[:32], callbacks=[callback])


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [("rigl", "adamw_torch"), ("rigl", "adamw_torch_fused"), ("snfs", "sgd"), ("pruning", "sgd"), ("dnw", "sgd")],
)
def test_every_step_of_the_trainer_is_seen(method: str, optimizer: str) -> None:
    callback = sparse_training(method=method)
    training = trainer(callback, optim=optimizer)
    training.train()
    assert callback.sparse.steps + callback.sparse.updates * (method == "rigl") == 16
    assert callback.sparse.updates >= 3
    assert exact(training.model, callback.topology)
    assert callback.topology.sparsity > 0.65


def test_accumulated_gradients_count_once() -> None:
    callback = sparse_training()
    training = trainer(callback, gradient_accumulation_steps=2, max_grad_norm=0.5)
    training.train()
    assert callback.sparse.steps + callback.sparse.updates == 16
    assert exact(training.model, callback.topology)


@pytest.mark.parametrize("method", ["rigl", "snfs"])
def test_a_resumed_training_ends_with_the_same_bits(method: str) -> None:
    whole = trainer(one := sparse_training(method=method))
    whole.train()
    model = Classifier()
    trainer(sparse_training(method=method), model, save_strategy="steps", save_steps=7).train()
    again = trainer(other := sparse_training(method=method), Classifier(), save_strategy="steps", save_steps=7)
    again.train(resume_from_checkpoint="out/checkpoint-7")
    assert equal(whole.model, again.model)
    assert one.topology == other.topology
    assert other.sparse.updates == one.sparse.updates


def test_a_checkpoint_from_elsewhere(tmp_path: Path) -> None:
    trainer(sparse_training(), save_strategy="steps", save_steps=7).train()
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"sparsifier\.safetensors is missing.*resume_from"):
        trainer(sparse_training()).train(resume_from_checkpoint="elsewhere/checkpoint-7")
    callback = sparse_training(resume_from="elsewhere/checkpoint-7")
    training = trainer(callback)
    training.train(resume_from_checkpoint="elsewhere/checkpoint-7")
    assert callback.sparse.steps + callback.sparse.updates == 16
    assert exact(training.model, callback.topology)


def test_the_best_model_comes_with_its_topology() -> None:
    callback = sparse_training(interval=1, end=14)
    training = trainer(
        callback,
        save_strategy="steps",
        eval_strategy="steps",
        save_steps=4,
        eval_steps=4,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=True,  # the first: a topology that was left
    )
    training.train()
    assert training.state.best_model_checkpoint.endswith("checkpoint-4")
    assert exact(training.model, callback.topology)
    assert callback.sparse.steps + callback.sparse.updates == 4


def test_what_is_saved_is_sparse_and_the_history_says_so(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    callback = sparse_training()
    training = trainer(callback, save_strategy="steps", save_steps=16)
    training.train()
    saved = load_file(tmp_path / "out" / "checkpoint-16" / "model.safetensors")
    zeros = sum(int((saved[name] == 0).sum()) for name in callback.topology)
    assert zeros >= sum(mask.numel() for mask in callback.topology.values()) - callback.topology.active
    history = [entry for entry in training.state.log_history if "loss" in entry]
    assert history[-1]["sparsity"] == pytest.approx(callback.sparse.sparsity)
    assert all("changed" in entry for entry in history)
    json.dumps(training.state.log_history)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_trackers_get_the_figures_of_a_callback_that_comes_first() -> None:
    from transformers import TrainerCallback

    class Tracker(TrainerCallback):  # type: ignore[misc]
        seen: list[dict[str, Any]] = []  # noqa: RUF012

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            self.seen.append(dict(logs))

    training = trainer(Tracker())
    training.callback_handler.callbacks.insert(0, sparse_training())
    training.train()
    assert all("sparsity" in logs for logs in Tracker.seen)


def test_an_evaluation_before_the_training() -> None:
    training = trainer(callback := sparse_training())
    assert training.evaluate()["eval_loss"] > 0
    with pytest.raises(InputError, match="the training has not started"):
        callback.topology  # noqa: B018


@pytest.mark.filterwarnings("ignore:sparse training does not reach:UserWarning")
def test_a_pretrained_model(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=30, max_position_embeddings=16, **shape))
    rows = [{"input_ids": torch.randint(0, 30, (8,)), "labels": torch.tensor(index % 2)} for index in range(32)]
    callback = sparse_training(method="pruning", dense=("classifier",))
    training = trainer(callback, model, per_device_train_batch_size=4)
    training.train_dataset = rows
    training.train()
    training.save_model("saved")
    again = BertForSequenceClassification.from_pretrained("saved")
    assert equal(again, model)
    assert exact(again, callback.topology)
    assert callback.topology.sparsity > 0.5


# accelerate


def accelerated(
    method: str, steps: int, accelerator: Any, resume: str = "", save_at: int = -1
) -> tuple[nn.Module, rc.Sparsifier]:
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    sparse = rc.Sparsifier(
        accelerator.unwrap_model(model), optimizer, method=method, automatic=True, total_steps=16, **SETTINGS
    )
    accelerator.register_for_checkpointing(sparse)
    if resume:
        accelerator.load_state(resume)
    for index in range(2 * save_at if resume else 0, 2 * steps):
        with accelerator.accumulate(model):
            x, y = batch(index)
            accelerator.backward(F.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if index == 2 * save_at - 1 and not resume:
            accelerator.save_state("saved")
    return accelerator.unwrap_model(model), sparse


def accelerator(**more: Any) -> Any:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    return accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True, **more)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("method", ["rigl", "snfs"])
def test_accelerate(method: str, precision: str) -> None:
    model, sparse = accelerated(method, 16, accelerator(mixed_precision=precision))
    assert sparse.steps + sparse.updates * (method == "rigl") == 16
    assert sparse.updates >= 3
    assert exact(model, sparse.topology)
    assert type(sparse.optimizer) is torch.optim.AdamW


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("method", ["rigl", "snfs"])
def test_accelerate_with_a_gradient_scaler(method: str, fused: bool) -> None:
    """As in half precision, which accelerate refuses on a CPU: the wrapper steps by way of the scaler."""
    from accelerate.optimizer import AcceleratedOptimizer

    accelerator()  # makes the state that the wrapper wants
    found = []
    for scale in (None, 2.0**8):
        model = perceptron()
        inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        optimizer = AcceleratedOptimizer(inner, scaler=scaler if scale else None)
        sparse = rc.Sparsifier(model, optimizer, method=method, automatic=True, total_steps=16, **SETTINGS)
        for index in range(12):
            x, y = batch(index)
            scaler.scale(F.cross_entropy(model(x), y)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            assert not optimizer.step_was_skipped
        found.append((model, sparse))
    (model, sparse), (scaled, other) = found
    assert sparse.topology == other.topology
    assert (sparse.steps, sparse.updates) == (other.steps, other.updates)
    assert equal(model, scaled)


@pytest.mark.parametrize("method", ["rigl", "snfs", "dnw"])
def test_accelerate_resumes_with_the_same_bits(method: str) -> None:
    model, sparse = accelerated(method, 12, accelerator(), save_at=7)
    again, resumed = accelerated(method, 12, accelerator(), resume="saved", save_at=7)
    assert equal(model, again)
    assert sparse.topology == resumed.topology
    assert sparse.steps == resumed.steps
