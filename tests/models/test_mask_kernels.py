"""Tensors times masks: every kernel gives the bits of torch's product of floats."""

import pytest
import torch
from torch import Tensor

from rigl_compress.models import mask_kernels
from rigl_compress.models.mask_kernels import multiply_by_masks
from rigl_compress.models.training_kernels import training_library

SHAPES = [(0,), (1,), (7,), (3, 5), (16, 16), (33, 65), (257, 511), (4, 3, 3, 3)]


def drawn(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    values = torch.randn(shape)
    for number, special in enumerate((-0.0, torch.inf, torch.nan, 1e-42)):
        values.view(-1)[number : number + 1] = special
    return values, torch.rand(shape) < 0.5


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


def assert_masked(pairs: list[tuple[Tensor, Tensor]], kernels: str = "") -> None:
    expected = [values * mask.to(values.dtype) for values, mask in pairs]
    multiply_by_masks(pairs, kernels)
    for (values, _), other in zip(pairs, expected, strict=True):
        assert torch.equal(bits(values.nan_to_num(7)), bits(other.nan_to_num(7)))


@pytest.mark.parametrize("kernels", ["portable", "avx2", "avx512"])
def test_the_bits_of_a_product(kernels: str) -> None:
    try:
        multiply_by_masks([drawn((3,))], kernels)
    except RuntimeError as error:
        pytest.skip(str(error))
    assert_masked([drawn(shape) for shape in SHAPES], kernels)


def test_tensors_that_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    transposed, (values, mask) = torch.randn(5, 3).t(), drawn((4, 3, 3, 3))
    laid_out = values.to(memory_format=torch.channels_last)
    assert_masked([(transposed, torch.rand(3, 5) < 0.5), (laid_out, mask), drawn((2, 2))])
    half, active = torch.randn(6).half(), torch.rand(6) < 0.5
    multiply_by_masks([(half, active)])
    assert not half[~active].any()
    monkeypatch.setattr(mask_kernels, "_library", lambda: None)
    assert_masked([drawn(shape) for shape in SHAPES])


def test_parts_for_several_threads() -> None:
    """More than 65,536 elements are several parts; millions are worth several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert_masked([drawn((65_537,)), drawn((1500, 1500)), drawn((9,))])
    finally:
        torch.set_num_threads(before)


def test_kernels_that_the_machine_lacks() -> None:
    if training_library() is None:
        pytest.skip("the package has no kernels")
    with pytest.raises(RuntimeError, match="no kernels 'riscv' on this machine"):
        multiply_by_masks([drawn((3,))], "riscv")
