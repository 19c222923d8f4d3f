"""Distillation: its losses by hand, and a teacher that stays as it is."""

import math
from typing import Any

import pytest
import torch
from small_training import batch, perceptron, sgd
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.core.errors import InputError
from rigl_compress.sparsity.distillation import Distillation
from rigl_compress.sparsity.distillation_losses import DISTILLATION_LOSSES
from rigl_compress.sparsity.sparsifier import Sparsifier


def trained() -> nn.Sequential:
    """A network that is sure of its answers."""
    model = perceptron()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


# The losses


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0])
def test_the_divergence_by_hand(temperature: float) -> None:
    own, other = [[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], [[0.5, 1.0, -1.0], [2.0, 2.0, -4.0]]
    expected = 0.0
    for student, teacher in zip(own, other, strict=True):
        q, p = (softmax([value / temperature for value in row]) for row in (student, teacher))
        expected += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) * temperature**2 / 2
    found = DISTILLATION_LOSSES["kl"](torch.tensor(own), torch.tensor(other), temperature)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_every_token_counts_alike() -> None:
    own, other = torch.randn(3, 5, 7), torch.randn(3, 5, 7)
    whole = DISTILLATION_LOSSES["kl"](own, other, 2.0)
    pairs = zip(own.view(15, 1, 7), other.view(15, 1, 7), strict=True)
    parts = [DISTILLATION_LOSSES["kl"](a, b, 2.0) for a, b in pairs]
    torch.testing.assert_close(whole, torch.stack(parts).mean())


def test_embeddings_by_hand() -> None:
    own, other = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[4.0, 3.0], [1.0, 0.0]])
    assert DISTILLATION_LOSSES["mse"](own, other, 9.0).item() == pytest.approx(2 / 4)
    assert DISTILLATION_LOSSES["cosine"](own, other, 9.0).item() == pytest.approx(1 - (24 / 25 + 1) / 2)


@pytest.mark.parametrize("name", list(DISTILLATION_LOSSES))
def test_the_same_outputs_lose_nothing_and_half_precision_is_summed_in_float32(name: str) -> None:
    outputs = torch.randn(6, 4).to(torch.bfloat16)
    loss = DISTILLATION_LOSSES[name](outputs, outputs, 2.0)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(0, abs=1e-6)


# The teacher


def test_the_shares_of_the_sum() -> None:
    model, (x, y) = trained(), batch(0)
    distill = Distillation(trained(), weight=0.3, temperature=3.0)
    with torch.no_grad():
        model[0].weight.mul_(0.5)
    outputs = model(x)
    own = F.cross_entropy(outputs, y)
    taught = DISTILLATION_LOSSES["kl"](outputs, distill.teacher(x), 3.0)
    torch.testing.assert_close(distill(own, outputs, x), 0.7 * own + 0.3 * taught)
    assert taught > 0.01


def test_the_teacher_is_frozen_unmasked_and_evaluated() -> None:
    model = nn.Sequential(nn.Linear(12, 20), nn.BatchNorm1d(20), nn.Dropout(0.5), nn.ReLU(), nn.Linear(20, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    distill = Distillation(model, weight=1.0)
    optimizer = sgd(model)
    sparse = Sparsifier(model, optimizer, method="static", sparsity=0.8, total_steps=10)
    x, _ = batch(0)
    answers = distill.teacher(x)
    for _ in range(10):
        distill(None, model.train()(x), x).backward()
        sparse.step()
        optimizer.step()
        optimizer.zero_grad()
    assert sparse.sparsity > 0.6
    assert (model[0].weight == 0).sum() > 100
    assert all(torch.equal(before[name], tensor) for name, tensor in distill.teacher.state_dict().items())
    assert torch.equal(distill.teacher(x), answers)
    assert not any(module.training for module in distill.teacher.modules())


def test_gradients_flow_to_the_student_alone() -> None:
    teacher, model, (x, _) = perceptron(), perceptron(), batch(0)
    with torch.no_grad():
        model[4].weight.mul_(0.5)
    distill = Distillation(teacher, weight=1.0, hidden=["0", "2"], student=model)
    distill(None, model(x), x).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model[4].parameters())
    for network in (teacher, distill.teacher):
        assert all(parameter.grad is None for parameter in network.parameters())
    assert all(parameter.requires_grad for parameter in teacher.parameters())  # it was copied, not changed


def test_a_student_learns_without_labels() -> None:
    teacher, model = trained(), perceptron()
    distill, optimizer = Distillation(teacher, weight=1.0), sgd(model)
    losses = []
    for index in range(60):
        x, _ = batch(index)
        loss = distill(None, model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 5


# Hidden outputs


def test_hidden_outputs_by_hand() -> None:
    teacher, model, (x, _) = perceptron(), perceptron(), batch(0)
    with torch.no_grad():
        model[0].bias.add_(1)
        model[4].weight.zero_()
    distill = Distillation(teacher, hidden=["0", "3"], hidden_weight=5.0, student=model)
    outputs = model(x)
    parts = []
    for end in (1, 4):
        own, other = model[:end](x), distill.teacher[:end](x)
        parts.append((own - other).square().mean() / other.square().mean())
    outputs = model(x)
    expected = DISTILLATION_LOSSES["kl"](outputs, distill.teacher(x), 2.0) + 5.0 * (parts[0] + parts[1]) / 2
    torch.testing.assert_close(distill.from_teacher(outputs, x), expected)


class Tagger(nn.Module):
    """A network with a submodule that returns a tuple, and outputs in a dictionary behind a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.unused, self.head = nn.GRU(3, 5, batch_first=True), nn.Linear(1, 1), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": torch.tensor(0.0), "logits": self.head(self.gru(x)[0])}


def test_tuples_dictionaries_and_named_inputs() -> None:
    model, x = Tagger(), torch.randn(2, 6, 3)
    distill = Distillation(model, weight=1.0, hidden=["gru"], student=model)
    assert distill(None, model(x=x), x=x).item() == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        model.gru.weight_ih_l0.zero_()
    assert distill(None, model(x), x).item() > 0.01


@pytest.mark.parametrize("hidden", [(), ("0", "2")])
def test_a_compiled_student(hidden: tuple[str, ...]) -> None:
    model, (x, _) = trained(), batch(0)
    distill = Distillation(model, hidden=hidden, student=model)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        model[0].weight.mul_(0.5)
    for _ in range(2):
        expected = distill.from_teacher(model(x), x)
        torch.testing.assert_close(distill.from_teacher(compiled(x), x), expected)
    assert expected > 0.01


def test_under_autocast_the_sum_is_finite_and_float32() -> None:
    model, (x, y) = perceptron(), batch(0)
    distill = Distillation(model, hidden=["2"], student=model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(x)
        loss = distill(F.cross_entropy(outputs, y), outputs, x)
    assert outputs.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert distill.from_teacher(model(x), x).item() < 1e-3


# Bad input


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weight": 1.5}, "weight of distillation is 1.5, expected the teacher's share"),
        ({"weight": float("nan")}, "weight of distillation is nan"),
        ({"temperature": 0.0}, "temperature of distillation is 0.0, expected above 0"),
        ({"hidden_weight": -1.0}, "hidden_weight of distillation is -1.0"),
        ({"loss": "cosin"}, "did you mean 'cosine'"),
        ({"hidden": ["0"]}, "set student=model"),
        ({"hidden": ["gru1"], "student": Tagger()}, "has no submodule 'gru1': did you mean 'gru'"),
    ],
)
def test_settings_that_mean_nothing(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Distillation(Tagger() if "student" in settings else perceptron(), **settings)


def test_what_cannot_be_compared() -> None:
    model, x = Tagger(), torch.randn(2, 6, 3)
    with pytest.raises(InputError, match="there is no other loss: set weight=1"):
        Distillation(model)(None, model(x), x)
    with pytest.raises(InputError, match="submodule 'unused' has no output"):
        Distillation(model, hidden=["unused"], student=model).from_teacher(model(x), x)
    with pytest.raises(InputError, match=r"the output has shape \(2, 4\), that of the teacher \(2, 6, 4\)"):
        Distillation(model).from_teacher(torch.zeros(2, 4), x)
    with pytest.raises(InputError, match="the network returns a str without a tensor"):
        Distillation(model).from_teacher("logits", x)
