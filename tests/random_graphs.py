"""Hypothesis strategies for pruning: random networks as programs, and chains of layers for brute force."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import strategies  # noqa: F401  (loads the profile)
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

SIZE = 6  # of the images
Step = tuple[str, int, tuple[int, ...]]  # operation, number of its layer, numbers of its arguments

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": lambda one, other: one + other,
    "sub": lambda one, other: one - 0.5 * other,
    "mul": lambda one, other: one * torch.tanh(other),
    "cat": lambda one, other: torch.cat([one, other], 1),
    "first half": lambda one: one.chunk(2, 1)[0],
    "second half": lambda one: torch.split(one, (one.shape[1] + 1) // 2, 1)[1],
    "gate": lambda one: one * torch.sigmoid(one.mean((2, 3), keepdim=True)),
    "relu": lambda one: F.relu(one),
    "sigmoid": lambda one: torch.sigmoid(one),
    "softplus": lambda one: F.softplus(one),
    "relu in place": lambda one: F.relu(one * 1.0, inplace=True),
    "slice": lambda one: one[:, 1 : 1 + (one.shape[1] + 1) // 2],
    "stepped": lambda one: one[:, ::2],
    "narrow": lambda one: one.narrow(1, 0, 1),
    "glu": lambda one: F.glu(one, 1),
    "shuffle": lambda one: torch.channel_shuffle(one, 2),
    "shuffle by views": lambda one: (
        one.view(one.size(0), 2, one.size(1) // 2, SIZE, SIZE).transpose(1, 2).contiguous().flatten(1, 2)
    ),
    "pixels": lambda one: F.max_pool2d(F.pixel_shuffle(one, 2), 2),
    "unpixels": lambda one: F.pixel_unshuffle(F.interpolate(one, scale_factor=2.0, mode="nearest"), 2),
    "volume": lambda one: F.avg_pool3d(one.unsqueeze(2), (1, 3, 3), 1, (0, 1, 1)).squeeze(2),
}
# Number of channels before → after; 0: it does not fit.
COUNTS: dict[str, Callable[[int], int]] = {
    "first half": lambda count: (count + 1) // 2 if count > 1 else 0,
    "second half": lambda count: count // 2,
    "slice": lambda count: min(count - 1, (count + 1) // 2),
    "stepped": lambda count: (count + 1) // 2,
    "narrow": lambda count: 1,
    "glu": lambda count: 0 if count % 2 else count // 2,
    "shuffle": lambda count: 0 if count % 2 else count,
    "shuffle by views": lambda count: 0 if count % 2 or count < 4 else count,
    "pixels": lambda count: 0 if count % 4 else count // 4,
    "unpixels": lambda count: 4 * count if count < 4 else 0,
    "volume": lambda count: count,
}
PAIRS = ("add", "sub", "mul")  # of values with the same number of channels
SINGLES = ("gate", "relu", "sigmoid", "softplus", "relu in place")
LAYERS = (
    *("conv", "conv", "padded", "depthwise", "grouped", "bn", "gn", "max", "average", "average padded"),
    *("transposed", "transposed grouped", "transposed point"),
)


class Program(nn.Module):
    """A network as a list of steps; what the last step gives, and one more value, are read by linear layers."""

    def __init__(self, layers: list[nn.Module], steps: list[Step], heads: list[tuple[int, nn.Module]]) -> None:
        super().__init__()
        self.layers, self.heads = nn.ModuleList(layers), nn.ModuleList([head for _, head in heads])
        self.steps, self.read = steps, [value for value, _ in heads]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for name, layer, arguments in self.steps:
            call = FUNCTIONS.get(name) or self.layers[layer]
            values.append(call(*(values[argument] for argument in arguments)))
        return tuple(head(values[value].flatten(1)) for value, head in zip(self.read, self.heads, strict=True))


def _layer(name: str, channels: int, outputs: int, bias: bool) -> nn.Module:
    return {
        "conv": lambda: nn.Conv2d(channels, outputs, 1, bias=bias),
        "padded": lambda: nn.Conv2d(channels, outputs, 3, padding=1, bias=bias),
        "depthwise": lambda: nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=bias),
        "grouped": lambda: nn.Conv2d(channels, channels, 1, groups=2 - channels % 2, bias=bias),
        "transposed": lambda: nn.ConvTranspose2d(channels, outputs, 3, padding=1, bias=bias),
        "transposed grouped": lambda: nn.ConvTranspose2d(
            channels, 2 * channels, 3, padding=1, groups=2 - channels % 2, bias=bias
        ),
        "transposed point": lambda: nn.ConvTranspose2d(channels, outputs, 1, bias=bias),
        "bn": lambda: nn.BatchNorm2d(channels),
        "gn": lambda: nn.GroupNorm(2 - channels % 2, channels),
        "max": lambda: nn.MaxPool2d(3, 1, padding=1),
        "average": lambda: nn.AvgPool2d(3, 1, padding=1, count_include_pad=False),
        "average padded": lambda: nn.AvgPool2d(3, 1, padding=1),
    }[name]()


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random networks on images [3, SIZE, SIZE], in which every value can be used several times."""
    channels, steps, layers = [3], [], []
    for _ in range(draw(st.integers(2, 9))):
        name = draw(st.sampled_from((*LAYERS, *SINGLES, *PAIRS, *COUNTS, "cat")))
        first = draw(st.integers(max(0, len(channels) - 3), len(channels) - 1))
        count, arguments = channels[first], (first,)
        if name in LAYERS:
            layers.append(_layer(name, count, draw(st.integers(1, 6)), draw(st.booleans())))
            count = getattr(layers[-1], "out_channels", count)
        elif name in PAIRS:
            same = [value for value, channel in enumerate(channels) if channel == count]
            arguments = (first, draw(st.sampled_from(same)))
        elif name == "cat":
            arguments = (first, draw(st.integers(0, len(channels) - 1)))
            count += channels[arguments[1]]
        elif name in COUNTS:
            count = COUNTS[name](count)
            if not count:
                continue
        steps.append((name, len(layers) - 1, arguments))
        channels.append(count)
    read = [len(channels) - 1, draw(st.integers(0, len(channels) - 1))]
    return Program(layers, steps, [(value, nn.Linear(channels[value] * SIZE**2, 3)) for value in read])


class Recurrent(nn.Module):
    """A layer, a recurrent layer, and readers of its sequence and of some of its last states."""

    def __init__(self, rnn: nn.RNNBase, mix: nn.Linear, begin: nn.Linear | None, read: list[int]) -> None:
        super().__init__()
        self.mix, self.rnn, self.begin, self.read = mix, rnn, begin, read
        width = rnn.hidden_size * (2 if rnn.bidirectional else 1)
        self.out = nn.Linear(width, 2)
        self.heads = nn.ModuleList([nn.Linear(rnn.hidden_size, 2) for _ in read])

    def forward(self, x: Tensor, first: Tensor) -> tuple[Tensor, ...]:
        state = None if self.begin is None else torch.tanh(self.begin(first))
        lstm = isinstance(self.rnn, nn.LSTM)
        sequence, last = self.rnn(torch.sigmoid(self.mix(x)), (state, state) if lstm and self.begin else state)
        states = last[1] if lstm else last
        return (self.out(sequence), *(head(states[cell]) for head, cell in zip(self.heads, self.read, strict=True)))


@st.composite
def recurrent(draw: st.DrawFn) -> tuple[Recurrent, tuple[Tensor, Tensor]]:
    """Random recurrent networks, and an example for each."""
    kind = draw(st.sampled_from((nn.GRU, nn.LSTM, nn.RNN)))
    options: dict[str, Any] = {
        "num_layers": draw(st.integers(1, 3)),
        "bidirectional": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
    }
    if kind is nn.RNN:
        options["nonlinearity"] = draw(st.sampled_from(("tanh", "relu")))
    features, hidden = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rnn, cells = kind(features, hidden, **options), options["num_layers"] * (1 + options["bidirectional"])
    begin = draw(st.sampled_from((None, nn.Linear(2, hidden))))
    read = draw(st.lists(st.integers(0, cells - 1), max_size=2)) if cells > 1 else []
    model = Recurrent(rnn, nn.Linear(3, features, bias=draw(st.booleans())), begin, read)
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch = 4 if options["batch_first"] else 5
    shapes = ((4, 5, 3), (cells, batch, 2))
    x, first = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes)
    return model, (x, first)


@dataclass(frozen=True)
class Chain:
    """Linear layers with activations between them; some add what went into them: the width is then the same."""

    widths: tuple[int, ...]
    skips: tuple[bool, ...]
    activation: str
    density: float
    seed: int


class Stack(nn.Module):
    """h → act(layer(h)), or h + act(layer(h)); the last layer has no activation."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        pairs = zip(chain.widths, chain.widths[1:], strict=False)
        self.layers = nn.ModuleList([nn.Linear(*pair) for pair in pairs])
        self.skips, self.act = chain.skips, FUNCTIONS[chain.activation]

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for number, layer in enumerate(list(self.layers)[:-1]):
            new = self.act(layer(h))
            h = h + new if number and self.skips[number] else new
        result: Tensor = self.layers[-1](h)
        return result


@st.composite
def chains(draw: st.DrawFn, skips: bool = False) -> Chain:
    """Perceptrons with up to four layers; with `skips` all hidden layers have the same width and some add."""
    depth = draw(st.integers(2, 5))
    widths: Any = st.lists(st.integers(1, 5), min_size=depth + 1, max_size=depth + 1)
    if skips:
        ends, hidden = st.integers(1, 5), st.integers(1, 5)
        widths = st.builds(lambda first, each, last: [first, *[each] * (depth - 1), last], ends, hidden, ends)
    return Chain(
        tuple(draw(widths)),
        tuple(draw(st.lists(st.booleans() if skips else st.just(False), min_size=depth, max_size=depth))),
        draw(st.sampled_from(("sigmoid", "softplus"))),
        draw(st.sampled_from((0.1, 0.25, 0.5, 0.8))),
        draw(st.integers(0, 2**31)),
    )
