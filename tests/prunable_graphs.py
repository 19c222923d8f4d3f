"""Networks with branches, joins, gates and recurrence."""

from collections.abc import Callable
from typing import Any

import torch
from prunable_registry import IMAGE, NETWORKS, Case, Code, case, coded, conv
from torch import Tensor, nn
from torch.nn import functional as F

# Residual networks: shared and projected shortcuts


class Block(nn.Module):
    """conv-BN-ReLU-conv-BN, and a shortcut: the identity, or a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv(outputs, outputs, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Sequential() if same else nn.Sequential(conv(inputs, outputs, 1, stride=stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return self.relu(out)


case("resnet", IMAGE)(
    lambda: nn.Sequential(
        *(conv(3, 8, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Block(8, 8), Block(8, 12, 2), Block(12, 12)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4)),
    )
)
coded(
    "resnet-preactivation",
    IMAGE,
    code=lambda self, x: self.head(
        (lambda y: self.shortcut(y) + self.conv2(F.relu(self.bn2(self.conv1(y)))))(F.relu(self.bn1(self.stem(x))))
    ),
    layers=lambda: {
        "stem": conv(3, 8, padding=1),
        "bn1": nn.BatchNorm2d(8),
        "conv1": conv(8, 10, padding=1),
        "bn2": nn.BatchNorm2d(10),
        "conv2": conv(10, 8, padding=1),
        "shortcut": conv(8, 8, 1),
        "head": nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    },
)
coded(
    "residual-mlp",
    (3, 10),
    code=lambda self, x: self.out((h := F.relu(self.a(x))) + torch.sigmoid(self.b(h)) - 0.5 * self.c(h) / 3),
    layers=lambda: {
        "a": nn.Linear(10, 8),
        "b": nn.Linear(8, 8),
        "c": nn.Linear(8, 8, bias=False),
        "out": nn.Linear(8, 3),
    },
)

# Concatenation, splits


def dense_net(self: Any, x: Tensor) -> Tensor:
    one = F.relu(self.bn0(self.stem(x)))
    two = torch.cat([one, torch.sigmoid(self.conv1(one))], 1)
    three = torch.cat([two, F.relu(self.bn2(self.conv2(two)))], dim=1)
    return self.fc(F.adaptive_avg_pool2d(self.transition(three), 1).flatten(1))


coded(
    "densenet",
    IMAGE,
    code=dense_net,
    layers=lambda: {
        "stem": conv(3, 6, padding=1),
        "bn0": nn.BatchNorm2d(6),
        "conv1": conv(6, 4, padding=1),
        "conv2": conv(10, 4, padding=1),
        "bn2": nn.BatchNorm2d(4),
        "transition": nn.Sequential(nn.BatchNorm2d(14), nn.ReLU(), conv(14, 6, 1)),
        "fc": nn.Linear(6, 3),
    },
)
coded(
    "cat-along-space",
    (2, 3, 12),
    code=lambda self, x: self.out(torch.cat((self.a(x), F.relu(self.b(x))), dim=-1)).mean(dim=2),
    layers=lambda: {"a": nn.Conv1d(3, 6, 3), "b": nn.Conv1d(3, 6, 3), "out": nn.Conv1d(6, 3, 3, padding=1)},
)
SPLITS: dict[str, Callable[[Tensor], Any]] = {
    "chunk": lambda x: x.chunk(2, dim=1),
    "chunk-function": lambda x: torch.chunk(x, chunks=2, dim=1),
    "split": lambda x: x.split(6, 1),
    "split-sections": lambda x: torch.split(x, [6, 6], dim=1),
}
for label, split in SPLITS.items():

    def halves(self: Any, x: Tensor, split: Any = split) -> Tensor:
        parts = split(self.stem(x))
        one, other = parts[0], parts[-1]
        gated = self.a(torch.tanh(one)) * torch.sigmoid(self.b(other))
        again = split(self.wide(gated))
        return self.out(again[1]).mean((2, 3)) + self.other(again[0]).amax(dim=(-1, -2))

    coded(
        f"split-{label}",
        IMAGE,
        code=halves,
        layers=lambda: {
            "stem": conv(3, 12),
            "a": conv(6, 8, padding=1),
            "b": conv(6, 8, padding=1),
            "wide": conv(8, 12, 1),
            "out": conv(6, 3),
            "other": conv(6, 3, padding=1),
        },
    )

# Grouped and depthwise convolutions


class Inverted(nn.Module):
    """The block of MobileNet-v2: 1×1 wider, depthwise, 1×1 narrower, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, expand: int = 2, stride: int = 1) -> None:
        super().__init__()
        wide = inputs * expand
        self.layers = nn.Sequential(
            *(conv(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True)),
            *(conv(wide, wide, 3, stride=stride, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide)),
            *(nn.ReLU6(inplace=True), conv(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.shortcut = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.shortcut else self.layers(x)


case("mobilenet-v2", IMAGE)(
    lambda: nn.Sequential(
        *(conv(3, 6, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU6(), Inverted(6, 6), Inverted(6, 8, 3, 2)),
        *(Inverted(8, 8), conv(8, 12, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4)),
    )
)


def separable(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    first = conv(inputs, inputs, 3, stride=stride, padding=1, groups=inputs, bias=False)
    return [first, nn.BatchNorm2d(inputs), nn.ReLU6(), conv(inputs, outputs, 1), nn.BatchNorm2d(outputs), nn.ReLU()]


case("mobilenet-v1", IMAGE)(
    lambda: nn.Sequential(
        *(conv(3, 6, padding=1), nn.ReLU(), *separable(6, 8, 1), *separable(8, 10, 2), *separable(10, 8, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    )
)
case("grouped", IMAGE)(
    lambda: nn.Sequential(
        *(conv(3, 8), nn.ReLU(), conv(8, 12, groups=4, padding=1), nn.Sigmoid(), conv(12, 8, groups=2), nn.ReLU()),
        *(conv(8, 8, groups=2, bias=False), nn.Flatten(), nn.Linear(72, 3)),
    )
)
case("grouped-on-input", (2, 4, 9, 9))(
    lambda: nn.Sequential(conv(4, 8, groups=2), nn.ReLU(), conv(8, 4, groups=4), nn.Flatten(), nn.Linear(100, 3))
)

# Gates


def squeeze(shape: Callable[[Tensor, Any], Tensor]) -> Callable[..., Tensor]:
    def code(self: Any, x: Tensor) -> Tensor:
        y = F.relu(self.stem(x))
        weights = torch.sigmoid(self.up(F.relu(self.down(y.mean([2, 3])))))
        return self.head(y * shape(weights, y)).mean((2, 3))

    return code


def sized_like(weights: Tensor, y: Tensor) -> Tensor:
    batch, channels, _, _ = y.size()
    return weights.view(batch, channels, 1, 1)


GATES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "view": lambda weights, y: weights.view(-1, 8, 1, 1),
    "sized": sized_like,
    "indexed": lambda weights, y: weights[:, :, None, None],
    "ellipsis": lambda weights, y: weights[..., None, None],
    "unsqueezed": lambda weights, y: weights.unsqueeze(2).unsqueeze(-1),
    "expand-as": lambda weights, y: weights.view(y.size(0), y.size(1), 1, 1).expand_as(y),
    "expand": lambda weights, y: weights.reshape(-1, 8, 1, 1).expand(-1, 8, y.size(2), y.size(3)),
}
for label, gate in GATES.items():
    coded(
        f"squeeze-excite-{label}",
        IMAGE,
        code=squeeze(gate),
        layers=lambda: {
            "stem": conv(3, 8, padding=1),
            "down": nn.Linear(8, 4),
            "up": nn.Linear(4, 8),
            "head": conv(8, 3, padding=1),
        },
    )
coded(
    "gate-mlp",
    (3, 10),
    code=lambda self, x: self.out(F.relu(h := self.a(x)) * F.relu(self.b(x)) + torch.maximum(h, self.c(x))),
    layers=lambda: {name: nn.Linear(10, 8) for name in "abc"} | {"out": nn.Linear(8, 3)},
)

# Normalisation over several channels

for groups in (1, 4, 8):
    case(f"group-norm-{groups}", IMAGE)(
        lambda groups=groups: nn.Sequential(  # type: ignore[misc]
            *(conv(3, 8), nn.GroupNorm(groups, 8), nn.ReLU(), conv(8, 8), nn.ReLU(), nn.GroupNorm(groups, 8)),
            *(conv(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
        )
    )
case("layer-norm", (2, 5, 8))(
    lambda: nn.Sequential(nn.Linear(8, 10), nn.LayerNorm(10), nn.Linear(10, 12), nn.GELU(), nn.Linear(12, 3))
)
case("batch-statistics", IMAGE)(
    lambda: nn.Sequential(
        *(conv(3, 8), nn.ReLU(), conv(8, 6), nn.BatchNorm2d(6, track_running_stats=False), nn.ReLU(), conv(6, 3)),
    )
)

# Recurrence


def language_model(read: Callable[[Any, Tensor], Tensor], bias: bool = True, first: bool = True) -> nn.Module:
    def code(self: Any, tokens: Tensor) -> Tensor:
        states, last = self.gru(F.relu(self.mix(self.embedding(tokens))))
        return self.readout(read(states, last))

    gru = nn.GRU(8, 10, batch_first=first, bias=bias)
    return Code(code, embedding=nn.Embedding(11, 6), mix=nn.Linear(6, 8), gru=gru, readout=nn.Linear(10, 11))


READS: dict[str, Callable[[Any, Any], Tensor]] = {
    "sequence": lambda states, last: states,
    "flat": lambda states, last: states.reshape(-1, 10),
    "last-state": lambda states, last: last[-1],
    "squeezed": lambda states, last: last.squeeze(0),
    "last-step": lambda states, last: states[:, -1],
    "both": lambda states, last: states.mean(1) + last[0],
}
for label, read in READS.items():
    NETWORKS[f"gru-{label}"] = Case(
        lambda read=read: language_model(read), lambda: torch.randint(0, 11, (3, 5), generator=torch.Generator())
    )
NETWORKS["gru-time-first"] = Case(
    lambda: language_model(READS["sequence"], first=False), lambda: torch.randint(0, 11, (5, 3))
)
NETWORKS["gru-no-bias"] = Case(
    lambda: language_model(READS["last-state"], bias=False), lambda: torch.randint(0, 11, (3, 5))
)
NETWORKS["gru-whole-answer"] = Case(
    lambda: Code(
        lambda self, tokens: self.gru(self.embedding(tokens)),
        embedding=nn.Embedding(11, 6),
        gru=nn.GRU(6, 5, batch_first=True),
    ),
    lambda: torch.randint(0, 11, (3, 5)),
)
