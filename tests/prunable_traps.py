"""Networks in which pruning could easily go wrong,."""

from itertools import pairwise
from typing import Any

import torch
from prunable_registry import IMAGE, NETWORKS, Case, Code, case, coded, conv
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

# The same layer or the same weights in two places


def linears(*sizes: int, **others: nn.Module) -> dict[str, Any]:
    """Layers a, b, c, … with these sizes from one to the next, and others by name."""
    pairs = zip("abcdefg", pairwise(sizes), strict=False)
    return {name: nn.Linear(*pair) for name, pair in pairs} | others


coded(
    "shared-layer",
    (3, 8),
    code=lambda self, x: self.c(F.relu(self.b(F.relu(self.b(F.relu(self.a(x))))))),
    layers=lambda: {"a": nn.Linear(8, 8), "b": nn.Linear(8, 8), "c": nn.Linear(8, 3)},
)
coded(
    "shared-layer-on-input",
    (3, 8),
    (3, 8),
    code=lambda self, x, y: self.b(F.relu(self.a(x)) - torch.sigmoid(self.a(y))),
    layers=lambda: linears(8, 10, 3),
)
coded(
    "shared-batchnorm",
    IMAGE,
    code=lambda self, x: self.out(self.bn(self.b(F.relu(self.bn(self.a(x)))))),
    layers=lambda: {"a": conv(3, 6), "bn": nn.BatchNorm2d(6), "b": conv(6, 6), "out": conv(6, 3)},
)


def two_names() -> nn.Module:
    model = Code(lambda self, x: run(self.layers, x), first=nn.Linear(8, 12), second=nn.Linear(12, 3))
    model.layers = nn.ModuleList([model.first, nn.Sigmoid(), model.second])  # type: ignore[list-item]
    return model


def run(layers: Any, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


case("two-names", (3, 8))(two_names)


def tied() -> nn.Module:
    layers = {"embedding": nn.Embedding(9, 6), "mix": nn.Linear(6, 8), "back": nn.Linear(8, 6)}
    model = Code(lambda self, x: self.readout(self.back(F.relu(self.mix(self.embedding(x))))), **layers)
    model.readout = nn.Linear(6, 9)
    model.readout.weight = layers["embedding"].weight  # type: ignore[assignment]
    return model


NETWORKS["tied-weights"] = Case(tied, lambda: torch.randint(0, 9, (2, 4)))
NETWORKS["tied-by-function"] = Case(
    lambda: Code(
        lambda self, x: F.linear(self.back(F.relu(self.mix(self.embedding(x)))), self.embedding.weight),
        embedding=nn.Embedding(9, 6),
        mix=nn.Linear(6, 8),
        back=nn.Linear(8, 6),
    ),
    lambda: torch.randint(0, 9, (2, 4)),
)
case("weight-norm", (3, 8))(
    lambda: nn.Sequential(
        nn.Linear(8, 8), nn.ReLU(), parametrizations.weight_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 3)
    )
)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 3))
    model[2].register_forward_hook(lambda module, inputs, output: output + inputs[0].sum(1, keepdim=True))
    return model


case("hooked", (3, 8))(hooked)

# Several inputs, several outputs

coded(
    "two-inputs",
    (3, 8),
    (3, 6),
    code=lambda self, x, y: (self.out(torch.cat([F.relu(self.a(x)), self.b(y)], 1)), self.both(torch.cat((x, y), 1))),
    layers=lambda: {"a": nn.Linear(8, 7), "b": nn.Linear(6, 7), "out": nn.Linear(14, 3), "both": nn.Linear(14, 2)},
)
coded(
    "one-input-two-layers",
    (3, 12),
    code=lambda self, x: self.out(torch.tanh(self.a(x)) * self.b(x - 0.5)),
    layers=lambda: {"a": nn.Linear(12, 8), "b": nn.Linear(12, 8), "out": nn.Linear(8, 2)},
)
coded(
    "dictionary",
    (3, 8),
    code=lambda self, x: {"one": (y := self.b(F.relu(self.a(x)))), "more": [self.c(y), {"sum": y.sum()}]},
    layers=lambda: linears(8, 9, 7, 3),
)
coded(
    "output-and-elsewhere",
    (3, 8),
    code=lambda self, x: ((h := torch.sigmoid(self.b(F.relu(self.a(x)))))[:, 2:4], self.c(h)),
    layers=lambda: linears(8, 9, 7, 3),
)
coded(
    "unused-layers",
    (3, 8),
    code=lambda self, x: self.b(F.relu(self.a(x)).view(-1, 9)),
    layers=lambda: linears(8, 9, 7, 3),
)

# What is changed in place, and read under another name


def late_reader(self: Any, x: Tensor) -> Tensor:
    h = torch.sigmoid(self.a(x)) - 0.7
    before = self.b(h)
    after = self.c(F.relu(h, inplace=True))
    return before + after + self.d(h)


def through_a_view(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    h.view(-1, 8).sub_(self.d(x)).relu_()
    return self.b(h) + self.c(torch.sigmoid(h))


def under_a_view(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    view = h.transpose(0, 1).transpose(0, 1)
    return self.b(view) + self.c(F.relu(h, inplace=True)) + self.d(view)


BRANCHES = dict.fromkeys("abcd", (8, 8))
for label, code in {
    "late-reader": late_reader,
    "through-a-view": through_a_view,
    "under-a-view": under_a_view,
}.items():
    coded(
        f"in-place-{label}", (3, 8), code=code, layers=lambda: {key: nn.Linear(*size) for key, size in BRANCHES.items()}
    )
coded("in-place-input", (3, 8), code=lambda self, x: self.b(F.relu(self.a(x.mul_(2)))), layers=lambda: linears(8, 9, 3))

# Sizes in the code


def scaled_by_size(self: Any, x: Tensor) -> Tensor:
    h = F.relu(self.a(x))
    return self.c(self.b(h) / h.size(1) + h.shape[-1] ** -0.5)


def size_of_another(self: Any, x: Tensor) -> Tensor:
    h, y = F.relu(self.a(x)), self.b(x)
    return self.c(y.view(-1, h.size(1) // 2, 2).flatten(1))


coded("size-as-number", (3, 8), code=scaled_by_size, layers=lambda: {key: nn.Linear(8, 8) for key in "abc"})
coded("size-of-another", (3, 8), code=size_of_another, layers=lambda: {key: nn.Linear(8, 8) for key in "abc"})
coded(
    "squeezed",
    IMAGE,
    code=lambda self, x: self.fc(F.relu(self.a(x)).mean((2, 3), True).squeeze()),
    layers=lambda: {"a": conv(3, 8), "fc": nn.Linear(8, 3)},
)
coded(
    "unflattened",
    (3, 8),
    code=lambda self, x: self.out(self.up(F.relu(self.a(x)).view(-1, 4, 3, 3))).mean((2, 3)),
    layers=lambda: {"a": nn.Linear(8, 36), "up": conv(4, 6, padding=1), "out": conv(6, 2)},
)

# What is not understood


def attention(self: Any, x: Tensor) -> Tensor:
    query, key, value = self.query(x), self.key(x), self.value(x)
    weights = F.softmax(query @ key.transpose(1, 2) / 3, dim=-1)
    return self.out(F.gelu(self.wide(x + weights @ value)))


coded(
    "attention",
    (2, 5, 8),
    code=attention,
    layers=lambda: (
        {name: nn.Linear(8, 8) for name in ("query", "key", "value")}
        | {"wide": nn.Linear(8, 12), "out": nn.Linear(12, 3)}
    ),
)


class Scaled(nn.Module):
    """Parameters of its own: a position code and a scale of each channel, read by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.scale = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(8))
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.b(self.scale * torch.sigmoid(self.a(x)) + self.position)))


case("own-parameters", (2, 5, 8))(Scaled)
coded(
    "transformer",
    (2, 5, 8),
    code=lambda self, x: self.b(self.block(F.relu(self.a(x)))),
    layers=lambda: {
        "a": nn.Linear(8, 8),
        "block": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        "b": nn.Linear(8, 3),
    },
)
coded(
    "positions-of-maxima",
    IMAGE,
    code=lambda self, x: (
        self.b((p := F.max_pool2d(F.relu(self.a(x)), 2, return_indices=True))[0]) + p[1][:, :3, :1, :1]
    ),
    layers=lambda: {"a": conv(3, 6), "b": conv(6, 3)},
)
coded(
    "statistics",
    (3, 8),
    code=lambda self, x: self.b((h := F.relu(self.a(x))) / h.max().item() + 2 ** -h.abs()),
    layers=lambda: linears(8, 9, 3),
)
coded(
    "axes",
    (2, 8, 6),
    code=lambda self, x: self.c(self.b(F.relu(self.a(x)).transpose(1, 2)).flatten(0, 1)),
    layers=lambda: {"a": nn.Linear(6, 6), "b": nn.Linear(8, 5), "c": nn.Linear(5, 3)},
)
coded(
    "swapped-axes",
    (2, 6, 6),
    code=lambda self, x: self.b(F.relu(self.a(x)).transpose(1, 2)) + self.c(x),
    layers=lambda: {"a": nn.Linear(6, 6), "b": nn.Linear(6, 6), "c": nn.Linear(6, 6)},
)
coded(
    "batchnorm-on-steps",
    (2, 6, 6),
    code=lambda self, x: self.b(self.bn(torch.sigmoid(self.a(x)))),
    layers=lambda: {"a": nn.Linear(6, 6), "bn": nn.BatchNorm1d(6), "b": nn.Linear(6, 3)},
)
coded(
    "gru-two-layers",
    (2, 5, 6),
    code=lambda self, x: self.b(self.gru(F.relu(self.a(x)))[0]),
    layers=lambda: {"a": nn.Linear(6, 6), "gru": nn.GRU(6, 5, 2, batch_first=True), "b": nn.Linear(5, 3)},
)
coded(
    "gru-initial-state",
    (2, 5, 6),
    (1, 2, 5),
    code=lambda self, x, state: self.b(self.gru(F.relu(self.a(x)), torch.tanh(self.s(state)))[1][-1]),
    layers=lambda: {
        "a": nn.Linear(6, 6),
        "s": nn.Linear(5, 5),
        "gru": nn.GRU(6, 5, batch_first=True),
        "b": nn.Linear(5, 3),
    },
)
NETWORKS["embedding-max-norm"] = Case(
    lambda: Code(
        lambda self, x: self.b(F.relu(self.a(self.e(x)))),
        e=nn.Embedding(9, 6, max_norm=1.0),
        a=nn.Linear(6, 6),
        b=nn.Linear(6, 3),
    ),
    lambda: torch.randint(0, 9, (2, 4)),
)
coded(
    "functional-dropout",
    (3, 8),
    code=lambda self, x: self.b(F.dropout(F.relu(self.a(x)), 0.5, self.training).view(-1, 12)),
    layers=lambda: linears(8, 12, 3),
)
coded(
    "by-name",
    (3, 8),
    code=lambda self, x: self.b(input=F.relu(input=torch.cat(dim=1, tensors=[self.a(input=x), self.c(x)]))),
    layers=lambda: {"a": nn.Linear(8, 6), "c": nn.Linear(8, 6), "b": nn.Linear(12, 3)},
)
