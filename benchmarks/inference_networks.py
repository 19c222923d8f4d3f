"""The networks of `sparse_inference.py`: those of the package, and some that people bring, with random masks."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import click
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_parameters import shapes_of, sparse_parameters
from rigl_compress.sparsity.distributions import DISTRIBUTIONS

Built = tuple[nn.Module, Tensor]


class Recurrent(nn.Module):
    """One recurrent layer of 512."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM]) -> None:
        super().__init__()
        self.cells = kind(512, 512, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """[N, steps, 512] → [N, steps, 512]."""
        states: Tensor = self.cells(x)[0]
        return states


class EncoderLayer(nn.Module):
    """A layer of BERT, or with the normalisation first, of a vision transformer."""

    def __init__(self, width: int = 768, heads: int = 12, *, first: bool = False) -> None:
        super().__init__()
        self.heads, self.norm_first = heads, first
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, tokens, width] → [N, tokens, width]."""
        if self.norm_first:
            x = x + self.attention(self.first(x))
            return x + self.perceptron(self.second(x))
        x = self.first(x + self.attention(x))
        return self.second(x + self.perceptron(x))

    def perceptron(self, x: Tensor) -> Tensor:
        """Four times as wide inside."""
        found: Tensor = self.narrow(F.gelu(self.wide(x)))
        return found

    def attention(self, x: Tensor) -> Tensor:
        """Every token looks at all."""
        query, key, value = (self.split(each(x)) for each in (self.query, self.key, self.value))
        shares = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).softmax(dim=-1)
        found: Tensor = self.mix((shares @ value).transpose(1, 2).flatten(2))
        return found

    def split(self, x: Tensor) -> Tensor:
        """[N, tokens, width] → [N, heads, tokens, width / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class VisionTransformer(nn.Module):
    """ViT-S: patches of 16, twelve layers of 384."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 384, 16, 16)
        self.layers = nn.Sequential(*(EncoderLayer(384, 6, first=True) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(384), nn.Linear(384, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 224, 224] → [N, 1000]."""
        found: Tensor = self.head(self.norm(self.layers(self.patches(x).flatten(2).transpose(1, 2))).mean(1))
        return found


class SqueezeExcite(nn.Module):
    """A factor for each channel, from the mean of all."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels."""
        return x * self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))).sigmoid()


class InvertedResidual(nn.Module):
    """The block of EfficientNet."""

    def __init__(self, inputs: int, outputs: int, grow: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = inputs * grow
        wide = [] if grow == 1 else [nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU()]
        depthwise = nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False)
        self.body = nn.Sequential(
            *wide,
            *(depthwise, nn.BatchNorm2d(inner), nn.SiLU(), SqueezeExcite(inner, max(1, inputs // 4))),
            *(nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Add the block to its input where the shapes are the same."""
        y: Tensor = self.body(x)
        return x + y if self.adds else y


# Of EfficientNet-B0: growth, outputs, blocks, first stride, kernel.
_STAGES = (
    *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
    *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
)


def efficientnet_b0() -> Built:
    """SiLU and squeeze-excite, 5.3 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU()]
    inputs = 32
    for grow, outputs, count, stride, kernel in _STAGES:
        for number in range(count):
            layers.append(InvertedResidual(inputs, outputs, grow, kernel, 1 if number else stride))
            inputs = outputs
    layers += [nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.SiLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1280, 1000)), torch.rand(1, 3, 224, 224)


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    steps = [
        step
        for width in (inputs, outputs)
        for step in (nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
    ]
    return nn.Sequential(*steps)


class UNet(nn.Module):
    """Four levels of 32 to 256 channels, transposed convolutions on the way up."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 256)
        self.down = nn.ModuleList(_twice(a, b) for a, b in pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(width, width // 2, 2, 2) for width in widths[:1:-1])
        self.join = nn.ModuleList(_twice(width, width // 2) for width in widths[:1:-1])
        self.last = nn.Conv2d(32, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] → [N, 2, H, W]."""
        seen = []
        for number, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if number else x)
            seen.append(x)
        for up, join, beside in zip(self.up, self.join, seen[-2::-1], strict=True):
            x = join(torch.cat([beside, up(x)], 1))
        found: Tensor = self.last(x)
        return found


def audio() -> Built:
    """Eight convolutions over a second of sound."""
    layers: list[nn.Module] = [nn.Conv1d(1, 64, 80, 16, 32, bias=False), nn.BatchNorm1d(64), nn.ReLU()]
    for inputs, outputs, stride in (
        (64, 64, 1),
        (64, 128, 2),
        (128, 128, 1),
        (128, 256, 2),
        (256, 256, 1),
        (256, 512, 2),
    ):
        layers += [nn.Conv1d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(512, 35)), torch.rand(1, 1, 16000)


def registered(name: str) -> Callable[[], Built]:
    """Return the maker of a network of the package."""
    return lambda: (ModelSpec(name).build(), ModelSpec(name).example())


def perceptron() -> Built:
    """1024-4096-4096-1024."""
    layers = [nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024)]
    return nn.Sequential(*layers), torch.rand(1, 1024)


def encoder(layers: int, width: int, heads: int) -> Callable[[], Built]:
    """Return the maker of an encoder over 128 tokens."""
    return lambda: (nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers))), torch.randn(1, 128, width))


@dataclass(frozen=True)
class Case:
    """A network, its batch, and the sparsities to try."""

    name: str
    build: Callable[[], Built]
    batch: int
    sparsities: tuple[float, ...] = (0.9,)
    distribution: str = "uniform"

    @property
    def label(self) -> str:
        """What the table says."""
        return f"{self.name}, batch {self.batch}, {self.distribution}"


MOST = (0.8, 0.9, 0.95)
CASES = (
    Case("resnet-50", registered("resnet-50"), 1, (*MOST, 0.98)),
    Case("resnet-50", registered("resnet-50"), 1, MOST, "erk"),
    Case("mobilenet-v1", registered("mobilenet-v1"), 1, MOST),
    Case("mobilenet-v2", registered("mobilenet-v2"), 1),
    Case("efficientnet-b0", efficientnet_b0, 1),
    Case("wrn-22-2", registered("wrn-22-2"), 1, MOST),
    Case("wrn-22-2", registered("wrn-22-2"), 16, MOST),
    Case("resnet-18", registered("resnet-18"), 1),
    Case("u-net", lambda: (UNet(), torch.rand(1, 3, 128, 128)), 1),
    Case("conv1d audio", audio, 1),
    *(Case("bert 6 × 384, 128 tokens", encoder(6, 384, 6), batch) for batch in (1, 8)),
    *(Case("vit-s, 224", lambda: (VisionTransformer(), torch.rand(1, 3, 224, 224)), batch) for batch in (1, 8)),
    Case("mlp-1024-4096-4096-1024", perceptron, 64, (*MOST, 0.98)),
    Case("mlp-1024-4096-4096-1024", perceptron, 1, (*MOST, 0.98)),
    Case("lenet-300-100", registered("lenet-300-100"), 128, MOST),
    Case("gru-512, 32 steps", lambda: (Recurrent(nn.GRU), torch.rand(1, 32, 512)), 1, MOST),
    Case("lstm-512, 32 steps", lambda: (Recurrent(nn.LSTM), torch.rand(1, 32, 512)), 1, MOST),
)

# The picture of the README: one line per network.
PICTURE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
PICTURE_CASES = (
    Case("resnet-50", registered("resnet-50"), 1, PICTURE),
    Case("mobilenet-v1", registered("mobilenet-v1"), 1, PICTURE),
    Case("bert-base, 128 tokens", encoder(12, 768, 12), 1, PICTURE),
)


def masked(case: Case, sparsity: float, seed: int) -> Built:
    """Build a network and set weights to zero at random, then let its normalisation see the sizes of its signals."""
    torch.manual_seed(seed)
    model, example = case.build()
    parameters = sparse_parameters(model.eval())
    shapes = shapes_of(parameters)
    first = next(iter(shapes))
    kept = {name for name, shape in shapes.items() if len(shape) in (3, 4) and (shape[1] == 1 or name == first)}
    kept = kept if case.distribution == "uniform" else set()
    densities = DISTRIBUTIONS[case.distribution].share(shapes, 1 - sparsity)
    for name, parameter in parameters.items():
        if name not in kept and densities[name] < 1:
            parameter.data.masked_fill_(torch.rand_like(parameter) >= densities[name], 0)
            parameter.data.mul_(densities[name] ** -0.5)
    return settled(model, example), example


def settled(model: nn.Module, example: Tensor) -> nn.Module:
    """Set the statistics of normalisation from one batch: freshly drawn, deep networks let next to nothing through."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.rand(4, *example.shape[1:]))
    return model.eval()


@click.command()
def main() -> None:
    """Print the names of the networks."""
    click.echo("\n".join(case.label for case in CASES))


if __name__ == "__main__":
    main()
