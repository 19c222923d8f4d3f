"""Networks that move channels about, and layers of one and three dimensions and upwards in size."""

from collections.abc import Callable
from typing import Any

import torch
from prunable_registry import IMAGE, Code, case, coded, conv
from torch import Tensor, nn
from torch.nn import functional as F

# Transposed convolutions

TRANSPOSED: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"stride": 2},
    "padded": {"stride": 2, "padding": 1, "output_padding": 1},
    "dilated": {"dilation": 2, "padding": 1},
    "no-bias": {"stride": 2, "bias": False},
    "grouped": {"groups": 2, "stride": 2},
    "depthwise": {"groups": 8},
}
for label, options in TRANSPOSED.items():
    case(f"transposed-{label}", (2, 3, 5, 5))(
        lambda options=options: nn.Sequential(  # type: ignore[misc]
            *(
                conv(3, 8, padding=1),
                nn.Sigmoid(),
                nn.ConvTranspose2d(8, 8, 3, **options),
                nn.BatchNorm2d(8),
                nn.Tanh(),
            ),
            *(nn.ConvTranspose2d(8, 4, 3, **{**options, "groups": 1}), nn.Softplus(), conv(4, 3)),
        )
    )
case("transposed-1d", (2, 4, 7))(
    lambda: nn.Sequential(
        *(nn.Conv1d(4, 8, 3), nn.Sigmoid(), nn.ConvTranspose1d(8, 6, 4, 2, 1), nn.ReLU(), nn.ConvTranspose1d(6, 6, 3)),
        *(nn.Sigmoid(), nn.Conv1d(6, 3, 3, padding=1)),
    )
)
case("transposed-points", (2, 3, 5, 5))(
    lambda: nn.Sequential(
        *(conv(3, 8), nn.Sigmoid(), nn.ConvTranspose2d(8, 8, 1, bias=False), nn.Sigmoid()),
        *(nn.ConvTranspose2d(8, 6, 1), nn.ReLU(), conv(6, 3, 1)),
    )
)
case("transposed-on-input", (2, 4, 5, 5))(
    lambda: nn.Sequential(nn.ConvTranspose2d(4, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 5, 2, 2), conv(5, 3))
)
case("decoder-unflatten", (3, 7))(
    lambda: nn.Sequential(
        *(nn.Linear(7, 36), nn.Unflatten(1, (9, 2, 2)), nn.ReLU(), nn.ConvTranspose2d(9, 6, 3, 2), nn.Sigmoid()),
        nn.ConvTranspose2d(6, 3, 4, 2),
    )
)
coded(
    "decoder-view",
    (3, 7),
    code=lambda self, x: self.b(torch.sigmoid(self.a(self.fc(x).view(-1, 9, 2, 2)))),
    layers=lambda: {
        "fc": nn.Linear(7, 36),
        "a": nn.ConvTranspose2d(9, 6, 3, stride=2),
        "b": nn.ConvTranspose2d(6, 3, 3, stride=2, padding=1),
    },
)
coded(
    "unet",
    (2, 3, 8, 8),
    code=lambda self, x: self.out(
        torch.cat([h := F.relu(self.down(x)), torch.sigmoid(self.up(F.max_pool2d(torch.sigmoid(self.low(h)), 2)))], 1)
    ),
    layers=lambda: {
        "down": conv(3, 6, padding=1),
        "low": conv(6, 8, padding=1),
        "up": nn.ConvTranspose2d(8, 6, 2, 2),
        "out": conv(12, 3, padding=1),
    },
)

# Three dimensions

POOLS: dict[str, Callable[[], nn.Module]] = {
    "max": lambda: nn.MaxPool3d(2),
    "average-padded": lambda: nn.AvgPool3d(2, padding=1),
    "average-divisor": lambda: nn.AvgPool3d(2, divisor_override=3),
    "adaptive": lambda: nn.AdaptiveAvgPool3d(2),
    "adaptive-max": lambda: nn.AdaptiveMaxPool3d(2),
    "f-average": lambda: Code(lambda self, x: F.avg_pool3d(x, 2, 2, 1)),
    "f-max": lambda: Code(lambda self, x: F.max_pool3d(x, 2)),
    "upsample": lambda: nn.Upsample(scale_factor=2),
    "pad": lambda: nn.ConstantPad3d(1, 0.5),
}
for label, pool in POOLS.items():
    case(f"volume-{label}", (2, 2, 5, 5, 5))(
        lambda pool=pool: nn.Sequential(  # type: ignore[misc]
            *(nn.Conv3d(2, 8, 2), nn.Sigmoid(), pool(), nn.Conv3d(8, 6, 3, padding=1), nn.BatchNorm3d(6), nn.SiLU()),
            *(nn.Conv3d(6, 6, 1, groups=2, bias=False), nn.Tanh(), nn.Conv3d(6, 4, 1, bias=False)),
            *(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3)),
        )
    )
case("volume-transposed", (2, 2, 3, 3, 3))(
    lambda: nn.Sequential(
        *(nn.Conv3d(2, 6, 2), nn.Sigmoid(), nn.ConvTranspose3d(6, 6, 2, 2), nn.Sigmoid(), nn.Dropout3d()),
        nn.ConvTranspose3d(6, 2, 2, groups=2),
    )
)

# Pixel shuffles

coded(
    "pixel-shuffle",
    (2, 3, 5, 5),
    code=lambda self, x: self.out(torch.sigmoid(self.up(self.b(torch.sigmoid(self.a(x)))))),
    layers=lambda: {"a": conv(3, 8), "b": conv(8, 24, 1), "up": nn.PixelShuffle(2), "out": conv(6, 3, padding=1)},
)
coded(
    "pixel-unshuffle",
    (2, 3, 6, 6),
    code=lambda self, x: self.out(F.pixel_unshuffle(torch.sigmoid(self.a(x)), 2)) + self.out2(self.down(self.b(x))),
    layers=lambda: {
        "a": conv(3, 8, padding=1),
        "b": conv(3, 4, 1),
        "down": nn.PixelUnshuffle(2),
        "out": conv(32, 3, padding=1),
        "out2": conv(16, 3, padding=1),
    },
)
coded(
    "pixel-there-and-back",
    (2, 3, 5, 5),
    code=lambda self, x: self.out(F.pixel_unshuffle(F.relu(F.pixel_shuffle(self.a(x), 2)), 2)),
    layers=lambda: {"a": conv(3, 16, bias=False), "out": conv(16, 3, padding=1)},
)

# Slices of channels

PICKS: dict[str, Callable[[Tensor], Tensor]] = {
    "front": lambda x: x[:, :5],
    "middle": lambda x: x[:, 3:7],
    "end": lambda x: x[:, -4:, 1:],
    "stepped": lambda x: x[:, 1::2],
    "backwards-list": lambda x: x[:, [9, 8, 1, 1, 4]],
    "ellipsis": lambda x: x[..., 2:8, :, :],
    "computed": lambda x: x[:, : x.shape[1] // 2],
    "narrow": lambda x: x.narrow(1, 2, 6),
    "narrow-function": lambda x: torch.narrow(x, dim=-3, start=4, length=5),
    "twice": lambda x: x[:, 1:9][:, 2:6],
}
for label, picks in PICKS.items():
    count = picks(torch.zeros(1, 10, 5, 5)).shape[1]
    coded(
        f"slice-{label}",
        IMAGE,
        code=lambda self, x, picks=picks: (
            self.out(picks(h := torch.sigmoid(self.a(x)))).mean((2, 3)) + self.out2(h).amax((2, 3))
        ),
        layers=lambda count=count: {  # type: ignore[misc]
            "a": conv(3, 10, padding=1),
            "out": conv(count, 3, padding=1),
            "out2": conv(10, 3),
        },
    )


class Selected(nn.Module):
    """Channels picked by a stored index, and one half in another network."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 10), nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("index", torch.tensor([7, 0, 3, 3]))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sigmoid(self.a(x))
        return self.out(torch.index_select(h, 1, self.index) + self.b(h.index_select(-1, self.index)))


case("slice-index-select", (3, 6))(Selected)

# Channel shuffles


def shuffle(x: Tensor, groups: int) -> Tensor:
    """As in ShuffleNet."""
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(batch, channels, height, width)


SHUFFLES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "views": lambda self, x: shuffle(x, 2),
    "three-groups": lambda self, x: shuffle(x, 3),
    "literal": lambda self, x: x.reshape(-1, 2, 6, 9, 9).permute(0, 2, 1, 3, 4).reshape(-1, 12, 9, 9),
    "flattened": lambda self, x: x.view(x.size(0), 2, -1, x.size(2), x.size(3)).transpose(1, 2).flatten(1, 2),
    "layer": lambda self, x: self.shuffle(x),
    "function": lambda self, x: torch.channel_shuffle(x, 4),
}
for label, shuffles in SHUFFLES.items():
    coded(
        f"shuffle-{label}",
        IMAGE,
        code=lambda self, x, shuffles=shuffles: self.out(
            torch.sigmoid(self.c(shuffles(self, torch.cat([torch.sigmoid(self.a(x)), F.relu(self.b(x))], 1))))
        ),
        layers=lambda: {
            "a": conv(3, 6, padding=1),
            "b": conv(3, 6, padding=1, bias=False),
            "shuffle": nn.ChannelShuffle(3),
            "c": conv(12, 8, padding=1),
            "out": conv(8, 3),
        },
    )


def shuffle_unit(self: Any, x: Tensor) -> Tensor:
    """The basic unit of ShuffleNet v2: one half stays, the other goes through the branch."""
    h = F.relu(self.stem(x))
    one, other = h.chunk(2, dim=1)
    h = shuffle(torch.cat((one, self.branch(other)), dim=1), 2)
    return self.head(h).mean((2, 3))


coded(
    "shufflenet-v2",
    IMAGE,
    code=shuffle_unit,
    layers=lambda: {
        "stem": conv(3, 12, padding=1),
        "branch": nn.Sequential(
            *(conv(6, 6, 1), nn.BatchNorm2d(6), nn.ReLU(), conv(6, 6, 3, padding=1, groups=6), nn.BatchNorm2d(6)),
            *(conv(6, 6, 1), nn.ReLU()),
        ),
        "head": conv(12, 3, 1),
    },
)

# Gated linear units

coded(
    "glu",
    (3, 7),
    code=lambda self, x: self.out(F.glu(self.b(self.gate(torch.sigmoid(self.a(x)))))),
    layers=lambda: {"a": nn.Linear(7, 16), "gate": nn.GLU(), "b": nn.Linear(8, 12), "out": nn.Linear(6, 3)},
)
coded(
    "glu-image",
    IMAGE,
    code=lambda self, x: self.out(F.glu(self.b(F.glu(self.a(x), dim=1)), dim=-2)),
    layers=lambda: {"a": conv(3, 12, bias=False), "b": conv(6, 8, 2), "out": conv(8, 3, padding=1)},
)

# Norms of groups


def group_normed(groups: int, channels: int, affine: bool) -> nn.Module:
    return nn.Sequential(
        *(conv(3, channels), nn.GroupNorm(groups, channels, affine=affine), nn.Sigmoid(), conv(channels, 8, padding=1)),
        *(nn.ReLU(), nn.GroupNorm(4, 8), nn.Tanh(), conv(8, 3, padding=1)),
    )


for groups, channels, affine in ((3, 6, True), (6, 12, False), (5, 15, True)):
    case(f"group-norm-{groups}-of-{channels}", IMAGE)(
        lambda groups=groups, channels=channels, affine=affine: group_normed(groups, channels, affine)  # type: ignore[misc]
    )

# Joined with the network's input

coded(
    "input-joined",
    (3, 8),
    code=lambda self, x: self.b(torch.cat([x, F.relu(self.a(x)), torch.sigmoid(self.c(x))], dim=-1)),
    layers=lambda: {"a": nn.Linear(8, 10), "c": nn.Linear(8, 6), "b": nn.Linear(24, 3)},
)
coded(
    "input-joined-image",
    IMAGE,
    code=lambda self, x: self.c(torch.sigmoid(self.b(torch.cat((torch.sigmoid(self.a(x)), x), 1)))),
    layers=lambda: {"a": conv(3, 8, padding=1), "b": conv(11, 8, padding=1), "c": conv(8, 3)},
)
coded(
    "input-joined-twice",
    (3, 4),
    (3, 5),
    code=lambda self, x, y: self.b(torch.cat([torch.tanh(self.a(torch.cat([x, y], 1))), x * 2, y - x.mean()], 1)),
    layers=lambda: {"a": nn.Linear(9, 10), "b": nn.Linear(19, 3)},
)
