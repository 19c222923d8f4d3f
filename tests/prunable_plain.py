"""Perceptrons and plain convolutional networks."""

from collections.abc import Callable
from typing import Any

import torch
from prunable_registry import IMAGE, Code, case, coded, conv
from torch import Tensor, nn
from torch.nn import functional as F

# Perceptrons

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    **{kind.__name__: kind for kind in (nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.SELU)},
    **{kind.__name__: kind for kind in (nn.LeakyReLU, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Mish, nn.Hardtanh)},
    "PReLU": nn.PReLU,
    "PReLU-each": lambda: nn.PReLU(12),
    "ReLU-inplace": lambda: nn.ReLU(inplace=True),
    "Dropout": lambda: nn.Sequential(nn.Sigmoid(), nn.Dropout(0.5)),
}
for label, activation in ACTIVATIONS.items():
    case(f"mlp-{label}", (3, 2, 10))(
        lambda activation=activation: nn.Sequential(  # type: ignore[misc]
            *(nn.Flatten(), nn.Linear(20, 12), activation(), nn.Linear(12, 12), activation(), nn.Linear(12, 5)),
        )
    )
case("mlp-batchnorm", (3, 16))(
    lambda: nn.Sequential(
        *(nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 12, bias=False), nn.BatchNorm1d(12)),
        *(nn.Tanh(), nn.Dropout(), nn.Linear(12, 4, bias=False)),
    )
)
case("mlp-no-bias", (3, 16))(
    lambda: nn.Sequential(
        nn.Linear(16, 12), nn.Sigmoid(), nn.Linear(12, 10, bias=False), nn.SiLU(), nn.Linear(10, 4, bias=False)
    )
)
case("linear-on-sequence", (2, 5, 8))(
    lambda: nn.Sequential(nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 6), nn.Tanh(), nn.Flatten(), nn.Linear(30, 3))
)

# Plain convolutional networks


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "valid": {},
    "padded": {"padding": 1},
    "same": {"padding": "same"},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "replicate": {"padding": 1, "padding_mode": "replicate"},
    "strided": {"stride": 2, "padding": 1},
    "dilated": {"dilation": 2, "padding": 2},
    "no-bias": {"padding": (1, 0), "bias": False},
    "no-bias-valid": {"bias": False},
}
for label, options in CONVOLUTIONS.items():
    case(f"cnn-{label}", IMAGE)(
        lambda options=options: nn.Sequential(  # type: ignore[misc]
            *(conv(3, 8, **options), nn.Sigmoid(), conv(8, 8, **options), nn.ReLU(), conv(8, 6, 1)),
            *(nn.BatchNorm2d(6), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4)),
        )
    )
POOLS: dict[str, Callable[[], nn.Module]] = {
    "max": lambda: nn.MaxPool2d(2),
    "max-padded-ceil": lambda: nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
    "average": lambda: nn.AvgPool2d(2),
    "average-padded": lambda: nn.AvgPool2d(3, 2, padding=1),
    "average-not-counting": lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
    "average-ceil": lambda: nn.AvgPool2d(2, ceil_mode=True),
    "average-divisor": lambda: nn.AvgPool2d(2, divisor_override=3),
    "adaptive-max": lambda: nn.AdaptiveMaxPool2d(3),
    "upsample": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "zero-pad": lambda: nn.ZeroPad2d(1),
    "f-average-padded": lambda: Code(lambda self, x: F.avg_pool2d(x, 3, stride=2, padding=1)),
    "f-average-divisor": lambda: Code(lambda self, x: F.avg_pool2d(x, 2, divisor_override=5)),
    "f-max": lambda: Code(lambda self, x: F.max_pool2d(x, kernel_size=2, padding=1)),
    "f-pad": lambda: Code(lambda self, x: F.pad(x, (1, 0, 1, 2))),
    "f-pad-value": lambda: Code(lambda self, x: F.pad(x, (1, 1, 1, 1), value=0.5)),
    "f-pad-reflect": lambda: Code(lambda self, x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "f-interpolate": lambda: Code(lambda self, x: F.interpolate(x, size=x.shape[2:], mode="nearest")),
}
for label, pool in POOLS.items():
    case(f"pool-{label}", IMAGE)(
        lambda pool=pool: nn.Sequential(  # type: ignore[misc]
            *(conv(3, 8), nn.Sigmoid(), pool(), conv(8, 8, 3, padding=1), nn.Tanh(), pool()),
            *(conv(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
        )
    )
FLATTENS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch": lambda x: torch.flatten(x, 1),
    "method": lambda x: x.flatten(start_dim=1),
    "view-constant": lambda x: x.view(-1, 72),
    "view-tuple": lambda x: x.view((-1, 72)),
    "view-size": lambda x: x.view(x.size(0), -1),
    "view-products": lambda x: x.view(x.shape[0], x.shape[1] * x.shape[2] * x.shape[3]),
    "view-twice": lambda x: x.view(-1, 8, 9).view(-1, 72).view(x.size(0), 72),
    "reshape": lambda x: x.reshape(x.shape[0], 72),
    "reshape-function": lambda x: torch.reshape(x, shape=(-1, 72)),
    "unpacked": lambda x: x.reshape(len_of(x), -1),
    "permuted": lambda x: x.permute(0, 2, 3, 1).flatten(1),
    "transposed": lambda x: x.flatten(2).transpose(dim0=1, dim1=2).reshape(-1, 72),
}


def len_of(x: Tensor) -> Any:
    batch, _, _, _ = x.shape
    return batch


for label, flatten in FLATTENS.items():
    coded(
        f"flatten-{label}",
        IMAGE,
        code=lambda self, x, flatten=flatten: self.fc2(F.relu(self.fc(flatten(self.front(x))))),
        layers=lambda: {
            "front": nn.Sequential(conv(3, 8), nn.Sigmoid(), conv(8, 8, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(3)),
            "fc": nn.Linear(72, 10),
            "fc2": nn.Linear(10, 3),
        },
    )
case("conv1d", (2, 4, 16))(
    lambda: nn.Sequential(
        *(nn.Conv1d(4, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 8, 3, padding=2)),
        *(nn.Sigmoid(), nn.AvgPool1d(2, padding=1), nn.Conv1d(8, 6, 1), nn.AdaptiveAvgPool1d(2), nn.Flatten()),
        nn.Linear(12, 3),
    )
)
case("conv-without-batch", (3, 9, 9))(
    lambda: nn.Sequential(conv(3, 6), nn.ReLU(), conv(6, 6, padding=1), nn.MaxPool2d(2), conv(6, 4), nn.Flatten(0))
)
