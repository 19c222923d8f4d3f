"""Weights that fit a network after renaming and skipping, and the list of those that do not."""

import pytest
import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.weight_fitting import load_fitting


def network(classes: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), nn.Linear(3, classes))


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in model.state_dict().items()}


def load(model: nn.Module, weights: dict[str, Tensor], rename: dict[str, str] | None = None, *skip: str) -> list[str]:
    return load_fitting(model, weights, "w.pt", rename or {}, skip)


def refusal(model: nn.Module, weights: dict[str, Tensor], rename: dict[str, str] | None = None, *skip: str) -> str:
    before = weights_of(model)
    with pytest.raises(InputError) as caught:
        load(model, weights, rename, *skip)
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items()), "nothing is loaded"
    return str(caught.value)


def test_all_of_it() -> None:
    source, model = network(), network()
    source[0][1].running_mean.fill_(3)  # type: ignore[index, union-attr, operator]
    assert load(model, weights_of(source)) == []
    assert all(torch.equal(each, source.state_dict()[name]) for name, each in model.state_dict().items())


def test_a_new_head_stays_as_it_was_built() -> None:
    source, model = network(classes=1000), network(classes=2)
    head = model[1].weight.detach().clone()  # type: ignore[union-attr, operator]
    assert load(model, weights_of(source), {}, "1") == ["1.weight", "1.bias"]
    assert torch.equal(model[1].weight, head)  # type: ignore[arg-type]
    assert torch.equal(model[0][0].weight, source[0][0].weight)  # type: ignore[index, union-attr, arg-type]


@pytest.mark.parametrize("pattern", ["1", "1.*", "last", "1.weight"])
def test_ways_to_skip(pattern: str) -> None:
    skip = [pattern, "1.bias"] if pattern == "1.weight" else [pattern]
    assert load(network(2), weights_of(network(9)), {}, *skip) == ["1.weight", "1.bias"]


def test_a_type_skips_its_buffers_too() -> None:
    source, model = network(), network()
    source[0][1].running_mean.fill_(3)  # type: ignore[index, union-attr, operator]
    assert "0.1.running_mean" in load(model, weights_of(source), {}, "BatchNorm1d")
    assert not model[0][1].running_mean.any()  # type: ignore[index, union-attr, operator]


def test_what_only_the_file_has_can_be_skipped() -> None:
    assert load(network(), weights_of(network()) | {"aux.weight": torch.zeros(2)}, {}, "aux.*") == []


def test_names_are_changed_by_regular_expressions_in_their_order() -> None:
    source, model = network(), network()
    told = {f"backbone.layer{name}".replace("weight", "w"): each for name, each in weights_of(source).items()}
    load(model, told, {r"^backbone\.": "", r"^layer(\d)": r"\1", r"\.w$": ".weight"})
    assert torch.equal(model[1].weight, source[1].weight)  # type: ignore[arg-type]


def test_halves_become_floats_and_counters_may_lack() -> None:
    source, model = network(), network()
    half = {name: each.half() if each.is_floating_point() else each for name, each in weights_of(source).items()}
    del half["0.1.num_batches_tracked"]
    load(model, half)
    assert model[1].weight.dtype == torch.float32  # type: ignore[union-attr]
    assert torch.equal(model[1].weight, source[1].weight.half().float())  # type: ignore[arg-type, union-attr, operator]


def test_a_tied_weight_stands_in_the_file_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

    source, model = Tied(), Tied()
    load(model, {"embedding.weight": source.embedding.weight.detach().clone()})
    assert torch.equal(model.head.weight, source.embedding.weight)


# What does not fit


def test_everything_is_listed_with_counts_and_a_cure() -> None:
    weights = weights_of(network(classes=9))
    weights["extra.weight"] = weights.pop("0.0.bias")
    message = refusal(network(), weights)
    assert message == (
        "w.pt: the weights do not fit the model (1 missing: 0.0.bias; 1 unexpected: extra.weight; 2 of another shape: "
        "1.weight is 9×3, expected 2×3, 1.bias is 9, expected 2); change names with start.rename, or leave layers as "
        'they are built with start.skip = ["0.0", "extra", "1"]'
    )


def test_long_lists_are_cut() -> None:
    message = refusal(network(), {f"x{index}": torch.zeros(1) for index in range(100)})
    assert "100 unexpected: x0, x1, x2, x3, …" in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("before", "after", "cure"),
    [("", "model.", r"start.rename = {'^model\.' = ''}"), ("0.", "", "start.rename = {'^' = '0.'}")],
)
def test_a_prefix_is_suggested(before: str, after: str, cure: str) -> None:
    model = network()
    weights = {f"{after}{name.removeprefix(before)}": each for name, each in weights_of(model).items()}
    assert cure in refusal(model, weights)


def test_layers_of_other_names_are_not_to_be_skipped() -> None:
    """Skipping all of them would throw the weights away."""
    weights = {f"part{index}": each for index, each in enumerate(weights_of(network()).values())}
    assert refusal(network(), weights).endswith("; the file has other names: change them with start.rename")


def test_numbers_of_another_kind() -> None:
    weights = weights_of(network()) | {"1.weight": torch.zeros(2, 3, dtype=torch.int8)}
    assert "1.weight is torch.int8, expected torch.float32" in refusal(network(), weights)


def test_numbers_of_eight_bits() -> None:
    weights = weights_of(network()) | {"1.weight": torch.zeros(2, 3).to(torch.float8_e4m3fn)}
    assert "'1.weight' is torch.float8_e4m3fn, w.pt needs torch.float32" in refusal(network(), weights)


def test_numbers_that_are_none() -> None:
    weights = weights_of(network()) | {"1.weight": torch.full((2, 3), torch.nan)}
    assert "'1.weight' has infinite or undefined numbers" in refusal(network(), weights)


def test_a_huge_shape_over_little_memory_is_never_copied() -> None:
    weights = weights_of(network()) | {"1.weight": torch.zeros(1).expand(2**20, 2**20)}
    assert "1.weight is 1048576×1048576, expected 2×3" in refusal(network(), weights)


@pytest.mark.parametrize(
    ("rename", "skip", "message"),
    [
        ({"^nothing": "x"}, (), "start.rename: '^nothing' matches no name: they are like 0.0.weight, 0.0.bias"),
        ({r"\.\w+$": ".same"}, (), "start.rename gives several weights the name '0.0.same'"),
        ({"^0": r"\7"}, (), r"start.rename: '\\7' does not fit '^0' (invalid group reference 7"),
        ({}, ("fc",), "layer 'fc' matches nothing"),
    ],
)
def test_patterns_that_do_nothing_or_too_much(rename: dict[str, str], skip: tuple[str, ...], message: str) -> None:
    assert message in refusal(network(), weights_of(network()), rename, *skip)
