"""Layers that keep the batch innermost compute what plain ones do."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rigl_compress.models.innermost_layout import batch_first, forget_layout, is_innermost, rows_of
from rigl_compress.models.innermost_modules import keep_layout
from rigl_compress.models.innermost_norm import InnermostBatchNorm2d, Normalised
from rigl_compress.models.norm_kernels import NormInput, norm_backward, norm_forward
from rigl_compress.models.plain_layers import with_plain_layers
from rigl_compress.models.sparse_modules import SparseConv2d, make_sparse
from rigl_compress.models.training_kernels import training_library

pytestmark = pytest.mark.skipif(training_library() is None, reason="installed without a C++ compiler")


def available() -> list[str]:
    library = training_library()
    names = ("portable", "avx2", "avx512")
    return [] if library is None else [name for name in names if library.rigl_has_kernels(name.encode())]


def innermost(images: Tensor) -> Tensor:
    return images.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)


class Residual(nn.Module):
    """A sparse convolution with all that comes between: shortcuts, strides, groups, pools, both kinds of ReLU."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norms = nn.ModuleList(
            [nn.BatchNorm2d(8), nn.BatchNorm2d(8, momentum=None), nn.BatchNorm2d(12, affine=False)]
        )
        self.convs = nn.ModuleList(
            [nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Conv2d(8, 12, 3, 2, 1, groups=2), nn.Conv2d(12, 12, 1)]
        )
        self.shortcut = nn.Conv2d(8, 12, 1, 2)
        self.pool, self.end = nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1)
        self.relu = nn.ReLU(in_place)

    def forward(self, x: Tensor) -> Tensor:
        """Return ten features of each image."""
        x = self.stem(x)
        first = self.relu(self.norms[0](x))
        x = x + self.convs[0](first)
        first = F.relu(self.norms[1](x))
        x = self.shortcut(first) + self.convs[1](first)
        out: Tensor = self.end(self.pool(self.convs[2](self.norms[2](x)).tanh()))
        return out.flatten(1)


def sparse_twin(plain: Residual) -> Residual:
    """Return a copy on sparse kernels; the weights of both have the same zeros."""
    with torch.no_grad():
        masks = [torch.rand(conv.weight.shape) < 0.4 for conv in plain.convs]
        for conv, mask in zip(plain.convs, masks, strict=True):
            conv.weight.mul_(mask)
    twin = copy.deepcopy(plain)
    for conv, mask in zip(twin.convs, masks, strict=True):
        make_sparse(conv, mask.flatten().nonzero().squeeze(1))
    assert len(keep_layout(twin.modules())) == 7
    return twin


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "innermost": innermost,
    "strided": lambda x: torch.cat([x, x], 3)[..., : x.shape[3]],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [1, 3, 16, 17, 33, 64])
@pytest.mark.parametrize("in_place", [False, True])
def test_networks_train_alike(layout: str, batch: int, in_place: bool) -> None:
    plain = Residual(in_place)
    twin = sparse_twin(plain)
    images = LAYOUTS[layout](torch.randn(batch, 3, 9, 10))
    for training in (True, True, False):
        results = []
        for model in (plain.train(training), twin.train(training)):
            model.zero_grad()
            x = images.clone().requires_grad_()
            y = model(x)
            (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
            results.append(
                [y, x.grad, *(each.grad for each in model.parameters() if each.dim() != 1 or len(each) < 13)]
            )
        for expected, found in zip(*results, strict=False):
            if expected.shape == found.shape:
                torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)
        for conv, own in zip(plain.convs, twin.convs, strict=True):
            assert isinstance(own, SparseConv2d)
            gradient = own.wiring.gather(conv.weight.grad)
            torch.testing.assert_close(own.weight.grad, gradient, atol=1e-4, rtol=1e-3)
        for (name, expected), found in zip(plain.named_buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(twin(images), plain(images), atol=2e-4, rtol=1e-3)


def test_the_layout_is_kept_between_sparse_layers() -> None:
    twin, seen = sparse_twin(Residual(False)), []
    for module in (*twin.norms, twin.pool, twin.stem, twin.shortcut):
        module.register_forward_hook(lambda _, given, output: seen.append((given[0], output)))
    twin(torch.randn(32, 3, 8, 8))
    assert len(seen) == 6
    assert all(is_innermost(output) for _, output in seen)


def test_plain_layers_come_back() -> None:
    plain = Residual(False)
    twin = sparse_twin(plain)
    assert [type(each) for each in with_plain_layers(twin).modules()] == [type(each) for each in plain.modules()]
    assert isinstance(twin.norms[0], InnermostBatchNorm2d)
    forget_layout(twin.modules())
    assert type(twin.norms[0]) is nn.BatchNorm2d


def test_a_normalised_tensor_that_was_changed_is_like_any_other() -> None:
    plain, x = nn.BatchNorm2d(4), innermost(torch.randn(8, 4, 3, 3)).requires_grad_()
    own = copy.deepcopy(plain)
    keep_layout([own])
    gradients = []
    for norm in (plain, own):
        y = norm(x)
        y.mul_(-2)
        gradients.append(torch.autograd.grad(y.relu().square().sum(), x)[0])
    assert isinstance(own(x), Normalised)
    assert type(own(x) + 1) is Tensor
    assert type(own(x).relu()) is Tensor
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_an_output_that_is_used_beside_its_relu() -> None:
    plain, x = nn.BatchNorm2d(4), innermost(torch.randn(8, 4, 3, 3)).requires_grad_()
    own = copy.deepcopy(plain)
    keep_layout([own])
    gradients = [torch.autograd.grad((y.relu() * y + y.sin()).sum(), x)[0] for y in (norm(x) for norm in (plain, own))]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_one_value_per_channel_is_an_error() -> None:
    norm = nn.BatchNorm2d(4)
    keep_layout([norm])
    with pytest.raises(ValueError, match="more than 1 value"):
        norm(torch.randn(1, 4, 1, 1))


@pytest.mark.parametrize("kernels", available())
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(2, 9000), st.booleans(), st.booleans(), st.integers(0, 2**31 - 1))
def test_normalization_is_that_of_float64(
    kernels: str, channels: int, size: int, affine: bool, clipped: bool, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    x, dy = (torch.randn(channels, size, generator=random) * 3 + 1 for _ in range(2))
    weight, bias = (torch.randn(channels, generator=random) if affine else None for _ in range(2))
    exact = [None if each is None else each.double().requires_grad_() for each in (x, weight, bias)]
    y = F.batch_norm(exact[0][None], None, None, exact[1], exact[2], True, 0.1, 1e-5)[0]
    (y.relu() if clipped else y).backward(dy.double())
    statistics = NormInput(x, weight, bias, torch.empty(channels), torch.empty(channels), 1e-5)
    found = norm_forward(statistics, kernels)
    torch.testing.assert_close(found.double(), y.detach(), atol=1e-4, rtol=1e-4)
    near = (y.detach().abs() < 1e-4).any(1)  # one flipped ReLU is no error
    gradients = norm_backward(statistics, dy, clipped=clipped, kernels=kernels)
    for own, expected in zip(gradients, exact, strict=True):
        if expected is not None and expected.grad is not None:
            wanted = expected.grad[~near] if clipped else expected.grad
            scale = 1 + float(wanted.abs().max()) if wanted.numel() else 1.0
            torch.testing.assert_close((own[~near] if clipped else own).double(), wanted, atol=2e-4 * scale, rtol=1e-3)


def test_layouts_convert() -> None:
    images = torch.randn(5, 3, 4, 2)
    for each in (images, innermost(images), images.contiguous(memory_format=torch.channels_last)):
        assert torch.equal(rows_of(each), images.permute(1, 2, 3, 0))
    assert torch.equal(batch_first(rows_of(images)), images)
