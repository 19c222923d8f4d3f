"""Recurrent networks: every kind, several layers and directions, initial states, and all ways to read their answer."""

from collections.abc import Callable
from typing import Any

import torch
from prunable_registry import coded
from torch import Tensor, nn
from torch.nn import functional as F

KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "gru": nn.GRU,
    "lstm": nn.LSTM,
    "rnn": nn.RNN,
    "rnn-relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
SHAPES: dict[str, dict[str, Any]] = {
    "one": {},
    "no-bias": {"bias": False},
    "time-first": {"batch_first": False},
    "deep": {"num_layers": 3, "dropout": 0.1},
    "both-ways": {"bidirectional": True},
    "deep-both-ways": {"num_layers": 2, "bidirectional": True},
    "deep-both-ways-no-bias": {"num_layers": 2, "bidirectional": True, "bias": False, "batch_first": False},
}
WIDTH = 6


def state(answer: Any) -> Any:
    """The last hidden state of whatever a recurrent layer gives."""
    return answer[1][0] if isinstance(answer[1], tuple) else answer[1]


def reads_sequence(self: Any, x: Tensor) -> Tensor:
    return self.out(torch.tanh(self.rnn(F.relu(self.mix(x)))[0]))


def recurrent(kind: str, **options: Any) -> nn.RNNBase:
    return KINDS[kind](5, WIDTH, **{"batch_first": True, **options})


def outputs(options: Any) -> int:
    return WIDTH * (2 if options.get("bidirectional") else 1)


def layers_of(kind: str, options: Any) -> dict[str, nn.Module]:
    """A perceptron whose dead units are constants, a recurrent layer behind it, and one that reads its answer."""
    return {
        "mix": nn.Linear(7, 5),
        "rnn": recurrent(kind, **options),
        "out": nn.Linear(outputs(options), 3),
        "other": nn.Linear(WIDTH, 3),
    }


for kind in KINDS:
    for label, options in SHAPES.items():
        coded(
            f"{kind}-{label}-sequence",
            (3, 4, 7),
            code=reads_sequence,
            layers=lambda kind=kind, options=options: layers_of(kind, options),  # type: ignore[misc]
        )


# Last states


def reads_last(self: Any, x: Tensor) -> Tensor:
    _, last = self.rnn(torch.sigmoid(self.mix(x)))
    return self.other(last[-1])


def reads_last_of_lstm(self: Any, x: Tensor) -> Tensor:
    _, (hidden, memory) = self.rnn(torch.sigmoid(self.mix(x)))
    return self.other(hidden[-1]) + self.other2(memory[0])


def reads_both_directions(self: Any, x: Tensor) -> Tensor:
    sequence, last = self.rnn(torch.sigmoid(self.mix(x)))
    return self.out(torch.cat([last[-2], last[-1, :, :]], 1)) + self.other3(sequence[:, 0])


for kind in ("gru", "rnn"):
    for label, options in SHAPES.items():
        coded(
            f"{kind}-{label}-last",
            (3, 4, 7),
            code=reads_last,
            layers=lambda kind=kind, options=options: layers_of(kind, options),  # type: ignore[misc]
        )
    coded(
        f"{kind}-directions",
        (3, 4, 7),
        code=reads_both_directions,
        layers=lambda kind=kind: (  # type: ignore[misc]
            layers_of(kind, SHAPES["deep-both-ways"]) | {"other3": nn.Linear(2 * WIDTH, 3)}
        ),
    )
for label, options in SHAPES.items():
    coded(
        f"lstm-{label}-last",
        (3, 4, 7),
        code=reads_last_of_lstm,
        layers=lambda options=options: layers_of("lstm", options) | {"other2": nn.Linear(WIDTH, 3)},  # type: ignore[misc]
    )
for kind in ("gru", "lstm"):
    coded(
        f"{kind}-without-batch",
        (4, 7),
        code=lambda self, x: self.out(self.rnn(F.relu(self.mix(x)))[0]),
        layers=lambda kind=kind: layers_of(kind, SHAPES["deep-both-ways"]),  # type: ignore[misc]
    )

# Initial states


def starts(self: Any, x: Tensor, first: Tensor) -> Tensor:
    """A state made of the other input: [cells, N, units]."""
    sequence, _ = self.rnn(F.relu(self.mix(x)), torch.tanh(self.begin(first)))
    return self.out(sequence)


def starts_lstm(self: Any, x: Tensor, first: Tensor) -> Tensor:
    states = (torch.tanh(self.begin(first)), F.relu(self.begin2(first)))
    _, (hidden, memory) = self.rnn(F.relu(self.mix(x)), states)
    return self.other(hidden[0]) * self.other2(memory[-1])


for kind in ("gru", "rnn", "rnn-relu"):
    for label, cells in (("one", 1), ("no-bias", 1), ("deep-both-ways", 4)):
        coded(
            f"{kind}-{label}-begun",
            (3, 4, 7),
            (cells, 3, 5),
            code=starts,
            layers=lambda kind=kind, label=label: layers_of(kind, SHAPES[label]) | {"begin": nn.Linear(5, WIDTH)},  # type: ignore[misc]
        )
for label, cells in (("one", 1), ("deep", 3)):
    coded(
        f"lstm-{label}-begun",
        (3, 4, 7),
        (cells, 3, 5),
        code=starts_lstm,
        layers=lambda label=label: (  # type: ignore[misc]
            layers_of("lstm", SHAPES[label])
            | {"begin": nn.Linear(5, WIDTH), "begin2": nn.Linear(5, WIDTH), "other2": nn.Linear(WIDTH, 3)}
        ),
    )
for kind in ("gru", "lstm"):
    for label in ("one", "deep-both-ways"):
        coded(
            f"{kind}-{label}-encoder-decoder",
            (3, 4, 7),
            (3, 2, 5),
            code=lambda self, x, y: self.out(self.decoder(y, self.rnn(torch.sigmoid(self.mix(x)))[1])[0]),
            layers=lambda kind=kind, label=label: (  # type: ignore[misc]
                layers_of(kind, SHAPES[label]) | {"decoder": recurrent(kind, **SHAPES[label])}
            ),
        )

# What is kept

coded(
    "gru-state-from-outside",
    (3, 4, 7),
    (1, 3, WIDTH),
    code=lambda self, x, first: self.out(self.rnn(F.relu(self.mix(x)), first)[0]),
    layers=lambda: layers_of("gru", {}),
)
coded(
    "lstm-states-together",
    (3, 4, 7),
    code=lambda self, x: self.out(self.rnn(F.relu(self.mix(x)))[1][0].transpose(0, 1).flatten(1)),
    layers=lambda: layers_of("lstm", SHAPES["both-ways"]),
)
coded(
    "lstm-on-input",
    (3, 4, 5),
    code=lambda self, x: self.out(self.rnn(x)[0][:, -1]),
    layers=lambda: {"rnn": nn.LSTM(5, 8, 2, batch_first=True), "out": nn.Linear(8, 3)},
)
