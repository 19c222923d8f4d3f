"""The kernels of sparse training against dense autograd in float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from rigl_compress.core.errors import InputError
from rigl_compress.models.training_kernels import LayerKernel, LayerShape, training_library, transposed

pytestmark = pytest.mark.skipif(training_library() is None, reason="installed without a C++ compiler")
DENSITIES = (0.0, 0.02, 0.3, 1.0)
BATCHES = (1, 2, 3, 16, 17, 33, 64, 65, 130)


def available() -> list[str]:
    library = training_library()
    names = ("portable", "avx2", "avx512")
    return [] if library is None else [name for name in names if library.rigl_has_kernels(name.encode())]


def pair(most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(1, most), st.integers(1, most))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[LayerShape, tuple[int, int]]:
    groups = draw(st.integers(1, 3))
    kernel, stride, dilation = draw(pair(4)), draw(pair(3)), draw(pair(2))
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    channels = (groups * draw(st.integers(1, 5)), groups * draw(st.integers(1, 6)))
    least = [max(1, dilation[a] * (kernel[a] - 1) + 1 - 2 * padding[a]) for a in range(2)]
    size = (draw(st.integers(least[0], least[0] + 6)), draw(st.integers(least[1], least[1] + 19)))
    return LayerShape(*channels, groups, kernel, stride, padding, dilation), size


features = (st.integers(1, 300), st.integers(1, 700))
linear = st.tuples(st.builds(LayerShape, *features, linear=st.just(True)), st.sampled_from([(1, 1), (2, 3)]))


@pytest.mark.parametrize("kernels", available())
@settings(max_examples=60, deadline=None)
@given(
    st.one_of(convolutions(), linear), st.sampled_from(DENSITIES), st.sampled_from(BATCHES), st.integers(0, 2**31 - 1)
)
def test_products_and_gradients_are_those_of_dense_autograd(
    kernels: str, layer: tuple[LayerShape, tuple[int, int]], density: float, batch: int, seed: int
) -> None:
    (shape, size), random = layer, torch.Generator().manual_seed(seed)
    weight = torch.randn(shape.outputs, shape.inputs // shape.groups, *shape.kernel, generator=random)
    mask = torch.rand(weight.shape, generator=random) < density
    weight, bias = (weight * mask).double().requires_grad_(), torch.randn(shape.outputs, generator=random)
    x = torch.randn(batch, shape.inputs, *size, generator=random).double().requires_grad_()
    y = F.conv2d(x, weight, bias.double(), shape.stride, shape.padding, shape.dilation, shape.groups)
    dy = torch.randn(y.shape, generator=random)
    y.backward(dy.double())

    positions = mask.reshape(-1).nonzero().squeeze(1)
    kernel = LayerKernel(shape, positions, kernels)
    places = positions[kernel.order]
    values = weight.detach().reshape(-1)[places].float()
    own_x, own_dy = (each.detach().float().permute(1, 2, 3, 0).contiguous() for each in (x, dy))
    found = kernel.forward(own_x, values, bias)
    dx, dvalues = kernel.backward(own_x, values, own_dy, needs_input=True, needs_values=True)
    assert weight.grad is not None
    for own, expected in (
        (found, y.detach().permute(1, 2, 3, 0)),
        (dx, x.grad.permute(1, 2, 3, 0)),
        (dvalues, weight.grad.reshape(-1)[places]),
    ):
        assert own is not None
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        torch.testing.assert_close(own.double(), expected, atol=1e-5 * (1 + largest), rtol=1e-4)


@pytest.mark.parametrize("kernels", available())
def test_threads_share_the_work(kernels: str) -> None:
    positions = (torch.rand(800 * 900, generator=torch.Generator().manual_seed(0)) < 0.2).nonzero().squeeze(1)
    kernel = LayerKernel(LayerShape(900, 800, linear=True), positions, kernels)
    x, dy, values = torch.randn(900, 1, 1, 400), torch.randn(800, 1, 1, 400), torch.randn(len(positions))
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            gradients = kernel.backward(x, values, dy, needs_input=True, needs_values=True)
            results.append([kernel.forward(x, values, None), *gradients])
    finally:
        torch.set_num_threads(before)
    for alone, shared in zip(*results, strict=True):
        assert alone is not None
        assert torch.equal(alone, shared)


@pytest.mark.parametrize(
    ("positions", "shape", "message"),
    [
        ([3, 2], LayerShape(4, 4), "do not ascend"),
        ([-1, 2], LayerShape(4, 4), "do not ascend"),
        ([16], LayerShape(4, 4), "within the weight"),
        ([0], LayerShape(4, 4, groups=3), "groups do not fit"),
        ([0], LayerShape(4, 4, stride=(0, 1)), "not positive"),
        ([0], LayerShape(4, 4, kernel=(256, 1)), "larger than 255"),
        ([0], LayerShape(4, 4, padding=(-1, 0)), "negative"),
        ([0], LayerShape(4, 4, kernel=(3, 1), linear=True), "no window"),
    ],
)
def test_invalid_layers_are_refused(positions: list[int], shape: LayerShape, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LayerKernel(shape, torch.tensor(positions))
    with pytest.raises(InputError, match="no kernels 'sse'"):
        LayerKernel(LayerShape(4, 4), torch.tensor([0]), "sse")


@given(st.integers(1, 70), st.integers(1, 70))
def test_transposed(rows: int, columns: int) -> None:
    matrix = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
    assert torch.equal(transposed(matrix), matrix.t())


def test_structs_have_the_size_that_c_plus_plus_checks() -> None:
    import ctypes

    from rigl_compress.models import training_kernels

    assert (ctypes.sizeof(training_kernels._Shape), ctypes.sizeof(training_kernels._Call)) == (96, 80)
