from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.topology import Topology, connections


def test_exact_counts_of_the_paper() -> None:
    counts = [connections(1 - s, n) for s, n in ((0.99, 235_200), (0.891, 30_000), (0.96, 40_800), (0.864, 6_900))]
    assert counts == [2352, 3270, 1632, 939]


@given(st.integers(0, 10_000), st.integers(1, 3_000_000))
def test_counts_are_what_the_floor_rule_leaves(per_myriad: int, size: int) -> None:
    zeros = per_myriad * size // 10_000  # floor(s · n) in whole numbers
    assert connections(1 - per_myriad / 10_000, size) == size - zeros


def some() -> Topology:
    rng = torch.Generator().manual_seed(0)
    masks = {name: torch.rand(s, generator=rng) < 0.3 for name, s in (("z.weight", (5, 7)), ("a.weight", (3, 2, 3, 3)))}
    return Topology.from_masks(masks)


def test_survives_disk_in_order_and_in_an_eighth_of_the_bytes(tmp_path: Path) -> None:
    topology = some()
    topology.save(tmp_path / "t.safetensors")
    again = Topology.load(tmp_path / "t.safetensors")
    assert again == topology
    assert list(again) == ["z.weight", "a.weight"]
    big = Topology.full({"w": (1000, 800)})
    big.save(tmp_path / "big.safetensors")
    assert (tmp_path / "big.safetensors").stat().st_size < 101_000


def test_statistics() -> None:
    topology = Topology.from_masks({"a": torch.eye(4, dtype=torch.bool), "b": torch.ones(2, 4, dtype=torch.bool)})
    assert (topology.active, topology.total, topology.sparsity) == (12, 24, 0.5)
    assert [(layer.name, layer.shape, layer.active, layer.sparsity) for layer in topology.layers] == [
        ("a", (4, 4), 4, 0.75),
        ("b", (2, 4), 8, 0.0),
    ]


def test_is_a_value() -> None:
    masks = {"a": torch.ones(2, 2, dtype=torch.bool)}
    topology = Topology.from_masks(masks)
    masks["a"][0, 0] = False
    assert topology.active == 4
    with pytest.raises(TypeError):
        topology["a"] = masks["a"]  # type: ignore[index]


def test_changed_counts_new_connections() -> None:
    one = Topology.from_masks({"a": torch.tensor([True, True, False])})
    other = Topology.from_masks({"a": torch.tensor([False, True, True])})
    assert one.changed(other) == other.changed(one) == 1


def test_applies_to_a_model_that_fits() -> None:
    model = nn.Linear(7, 5)
    topology = Topology.from_masks({"weight": torch.eye(5, 7, dtype=torch.bool)})
    topology.apply_to(model)
    assert int((model.weight != 0).sum()) == 5


@pytest.mark.parametrize(("shape", "name"), [((7, 5), "weight"), ((5, 7), "other.weight")])
def test_another_models_topology_is_refused(shape: tuple[int, int], name: str) -> None:
    with pytest.raises(InputError, match="another model"):
        Topology.full({name: shape}).check_fits(nn.Linear(7, 5))


def test_masks_must_be_boolean() -> None:
    with pytest.raises(InputError, match=r"dtype torch.float32, expected torch.bool"):
        Topology({"a": torch.ones(2)})
