"""Small-dense: as many parameters as the sparse network has."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigl_compress.core.errors import InputError
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.pipeline.train.small_dense import parameter_count, width_for_density

LENET = ModelSpec("lenet-300-100")


def test_parameters_of_lenet() -> None:
    assert parameter_count(LENET) == 784 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10 == 266_610


@settings(max_examples=12)
@given(st.floats(0.02, 1.0))
def test_the_widest_that_is_not_too_large(density: float) -> None:
    width = width_for_density(LENET, density)
    count = parameter_count(LENET.with_options(width=width))
    assert count <= density * 266_610
    # One more neuron in each hidden layer would be too much.
    wider = parameter_count(LENET.with_options(width=width + 1 / 100))
    assert density == 1.0 or wider > density * 266_610


def test_the_width_grows_with_the_density() -> None:
    widths = [width_for_density(LENET, density) for density in (0.02, 0.05, 0.1, 0.5, 1.0)]
    assert widths == sorted(widths)
    assert widths[-1] == pytest.approx(1)


def test_other_options_stay() -> None:
    spec = ModelSpec("mlp", {"hidden": [64, 64], "classes": 3})
    assert parameter_count(spec.with_options(width=width_for_density(spec, 0.25))) <= parameter_count(spec) / 4


def test_a_wider_network_is_narrowed_from_its_own_width() -> None:
    wide = LENET.with_options(width=2.0)
    count = parameter_count(wide.with_options(width=width_for_density(wide, 0.9)))
    assert 0.89 * parameter_count(wide) < count <= 0.9 * parameter_count(wide)


def test_a_network_that_cannot_be_so_narrow() -> None:
    with pytest.raises(InputError, match=r"no width of lenet-300-100 has a share of 0.001 .*: lower the sparsity"):
        width_for_density(LENET, 0.001)
