"""FLOPs of a forward pass: the paper's MNIST table, brute force, and promises to the caller."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rigl_compress.core.errors import InputError
from rigl_compress.models.flop_counter import count_flops, layer_uses
from rigl_compress.models.layer_flops import FlopReport
from rigl_compress.models.topology import Topology

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rigl_paper_costs.json").read_text())


def mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mask(shape: tuple[int, ...], alive: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) < alive


def rows(report: FlopReport) -> dict[str, tuple[int, float]]:
    return {row.parameter: (row.positions, row.sparse_flops) for row in report.layers}


# ---- the paper's MNIST table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "printed"), [("sbp", "97.1"), ("l0", "53.3"), ("vib", "19.1")])
def test_the_mnist_table_s_dense_networks(name: str, printed: str) -> None:
    facts = GOLDEN["mnist"][name]
    report = count_flops(mlp(facts["arch"]), torch.zeros(1, facts["arch"][0]))
    assert report.dense / 1000 == report.sparse / 1000 == facts["infer_kflops"]
    assert f"{report.sparse / 1000:.1f}" == printed


@pytest.mark.parametrize(("name", "printed", "sparsity"), [("rigl", "12.6", "0.870"), ("rigl_plus", "6.2", "0.886")])
def test_the_mnist_table_s_sparse_networks(name: str, printed: str, sparsity: str) -> None:
    facts = GOLDEN["mnist"][name]
    pixels, first, second, classes = facts["final_arch"]
    last = second * classes  # dense; how the rest is spread over the first two layers does not matter
    masks = {
        "0.weight": mask((first, pixels), 100),
        "2.weight": mask((second, first), facts["nnz"] - last - 100),
    }
    report = count_flops(mlp(facts["final_arch"]), torch.zeros(1, pixels), Topology.from_masks(masks))
    assert report.sparse / 1000 == facts["infer_kflops"]
    assert f"{report.sparse / 1000:.1f}" == printed
    assert 1 - report.density == pytest.approx(facts["sparsity"], abs=1e-15)
    assert f"{1 - report.density:.3f}" == sparsity


# ---- layers, against brute force and formulas ------------------------------------------------------------------------


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Conv1d | nn.Conv2d, Tensor, Tensor]:
    """A convolution on the meta device, an input it accepts, and a mask of its weight."""
    rank = draw(st.sampled_from([1, 2]))
    groups = draw(st.sampled_from([1, 2, 4]))
    per_rank = st.tuples(*[st.integers(1, 3)] * rank)
    kernel, stride, dilation = draw(per_rank), draw(per_rank), draw(per_rank)
    padding = draw(st.tuples(*[st.integers(0, 2)] * rank))
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    sizes = [draw(st.integers(d * (k - 1) + 1, 10)) for k, d in zip(kernel, dilation, strict=True)]
    layer = (nn.Conv1d, nn.Conv2d)[rank - 1]
    conv = layer(inputs, outputs, kernel, stride, padding, dilation, groups, device="meta")
    alive = torch.tensor(draw(st.lists(st.booleans(), min_size=conv.weight.numel(), max_size=conv.weight.numel())))
    batch = draw(st.integers(1, 3))
    return conv, torch.empty(batch, inputs, *sizes, device="meta"), alive.reshape(conv.weight.shape)


@settings(deadline=None, max_examples=60)
@given(convolutions())
def test_a_convolution_multiplies_as_often_as_brute_force_counts(case: tuple[nn.Conv2d, Tensor, Tensor]) -> None:
    """Each output of a convolution of ones with a mask is the number of products that made it.

    The rule of all published tables: a product with the padding counts, hence the ones are padded with ones.
    """
    conv, image, alive = case
    assert isinstance(conv.padding, tuple)
    sides = [amount for padding in reversed(conv.padding) for amount in (padding, padding)]
    padded = F.pad(torch.ones(image.shape), sides, value=1.0)
    convolve = F.conv1d if image.dim() == 3 else F.conv2d
    products = convolve(padded, alive.float(), None, conv.stride, 0, conv.dilation, conv.groups).sum()
    report = count_flops(conv, image, {"weight": alive})
    assert report.sparse == 2 * products.item()
    assert report.layers[0].nonzeros == alive.sum()


def test_products_with_the_padding_count() -> None:
    conv, image = nn.Conv2d(1, 1, 3, padding=1), torch.zeros(1, 1, 4, 4)
    real = F.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3), padding=1).sum()
    assert count_flops(conv, image).sparse == 2 * 9 * 16 > 2 * real.item()


@settings(deadline=None, max_examples=30)
@given(leading=st.lists(st.integers(1, 4), max_size=3), inputs=st.integers(1, 5), outputs=st.integers(1, 5))
def test_a_linear_layer_may_have_any_leading_dimensions(leading: list[int], inputs: int, outputs: int) -> None:
    layer = nn.Linear(inputs, outputs, device="meta")
    report = count_flops(layer, torch.empty(*leading, inputs, device="meta"), convention="micronet")
    calls = torch.Size(leading).numel()
    assert report.layers[0].positions == calls
    assert report.dense == calls * (2 * inputs * outputs + outputs)


def test_dense_counts_agree_with_torch_s_own_counter() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.depthwise = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8)
            self.head = nn.Linear(8, 5)

        def forward(self, image: Tensor) -> Tensor:
            features: Tensor = self.depthwise(F.relu(self.stem(image)))
            return self.head(features.mean((2, 3)))  # type: ignore[no-any-return]

    net, image = Net(), torch.zeros(2, 3, 17, 13)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(image)
    assert count_flops(net, image).dense == counter.get_total_flops()


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_gru_by_its_formula(layers: int, bidirectional: bool) -> None:
    inputs, hidden, steps, batch = 5, 7, 11, 2
    directions = 1 + bidirectional
    gru = nn.GRU(inputs, hidden, layers, bidirectional=bidirectional)
    gates = 3  # reset, update, new: each hidden x (input + hidden), at every step
    widths = [inputs] + [directions * hidden] * (layers - 1)
    expected = sum(2 * directions * gates * hidden * (width + hidden) * steps * batch for width in widths)
    report = count_flops(gru, torch.zeros(steps, batch, inputs))
    assert report.dense == report.sparse == expected
    assert len(report.layers) == 2 * layers * directions
    assert {row.kind for row in report.layers} == {"recurrent"}


def test_a_gru_counts_the_non_zeros_of_each_gate() -> None:
    gru = nn.GRU(4, 6)
    per_gate = [5, 0, 24]
    gates = torch.cat([mask((6, 4), alive) for alive in per_gate])
    report = count_flops(gru, torch.zeros(10, 1, 4), {"weight_ih_l0": gates})
    assert rows(report) == {"weight_ih_l0": (10, 2 * 10 * sum(per_gate)), "weight_hh_l0": (10, 2 * 10 * 3 * 6 * 6)}


def test_the_sequence_length_comes_from_the_input() -> None:
    gru, batch_first = nn.GRU(4, 6), nn.GRU(4, 6, batch_first=True)
    packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(5, 2, 4), torch.tensor([5, 3]))
    steps = [
        count_flops(gru, torch.zeros(9, 4)).layers[0].positions,
        count_flops(gru, torch.zeros(9, 2, 4)).layers[0].positions,
        count_flops(batch_first, torch.zeros(2, 9, 4)).layers[0].positions,
        count_flops(gru, (packed,)).layers[0].positions,
    ]
    assert steps == [9, 18, 18, 8]


def test_an_lstm_has_four_gates_and_may_project() -> None:
    lstm, data = nn.LSTM(5, 7, proj_size=3, device="meta"), torch.zeros(11, 1, 5, device="meta")
    assert count_flops(lstm, data).dense == 2 * 11 * (4 * 7 * 5 + 4 * 7 * 3 + 3 * 7)


def test_an_embedding_costs_nothing_but_has_weights() -> None:
    net = nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 3))
    report = count_flops(net, torch.zeros(1, 6, dtype=torch.long), {"0.weight": 0.5}, "micronet")
    table, readout = report.layers
    assert (table.kind, table.dense_flops, table.extra, table.weights, table.nonzeros) == ("embedding", 0, 0, 200, 100)
    assert report.weights == 212
    assert report.dense == readout.dense_flops == 6 * (2 * 12 + 3)


def test_normalisation_pooling_and_activations_are_free() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1))
    report = count_flops(net, torch.zeros(1, 3, 5, 5))
    assert [row.name for row in report.layers] == ["0"]
    assert report.uncounted == ()


def test_bias_and_activation_are_the_extra_of_micronet() -> None:
    net, image = nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 6, 6)
    row = count_flops(net, image, {"weight": 0.25}, "micronet").layers[0]
    assert row.extra == 4 * 16
    assert row.sparse_flops == 2 * 27 * 16 + row.extra
    assert count_flops(net, image).layers[0].extra == 0


# ---- networks --------------------------------------------------------------------------------------------------------


def test_a_module_that_is_called_twice_counts_twice() -> None:
    shared = nn.Linear(4, 4)
    report = count_flops(nn.Sequential(shared, nn.ReLU(), shared), torch.zeros(1, 4), {"0.weight": 0.5})
    assert [row.name for row in report.layers] == ["0", "0"]
    assert (report.dense, report.sparse) == (64, 32)
    assert (report.weights, report.nonzeros) == (16, 8)
    assert [row.input_gradient for row in report.layers] == [False, True]


@pytest.mark.parametrize("alias", ["0.weight", "1.weight"])
def test_a_tied_weight_is_one_weight_under_any_of_its_names(alias: str) -> None:
    net = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    net[1].weight = net[0].weight
    report = count_flops(net, torch.zeros(1, 1, dtype=torch.long), {alias: mask((10, 4), 7)})
    assert (report.weights, report.nonzeros, report.sparse) == (40, 7, 14)


def test_only_layers_that_read_the_data_need_no_input_gradient() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.join = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, data: Tensor) -> Tensor:
            return self.join(F.relu(self.left(data)) + self.right(input=data.flip(0)))  # type: ignore[no-any-return]

    net = Branches().requires_grad_(False)  # a network loaded for inference is judged like any other
    with torch.inference_mode():
        uses = layer_uses(net, torch.zeros(1, 3))
    assert {use.name: use.input_gradient for use in uses} == {"left": False, "right": False, "join": True}


def test_what_follows_an_embedding_needs_an_input_gradient() -> None:
    net = nn.Sequential(nn.Embedding(9, 4), nn.GRU(4, 5))
    uses = layer_uses(net, torch.zeros(6, 1, dtype=torch.long))
    assert {use.parameter: use.input_gradient for use in uses} == {
        "0.weight": False,
        "1.weight_ih_l0": True,
        "1.weight_hh_l0": True,
    }


def test_only_the_lowest_input_weights_of_a_gru_read_the_data() -> None:
    uses = layer_uses(nn.GRU(4, 5, num_layers=2, bidirectional=True), torch.zeros(6, 1, 4))
    assert {use.parameter for use in uses if not use.input_gradient} == {"weight_ih_l0", "weight_ih_l0_reverse"}
    assert len(uses) == 8


def test_a_network_on_the_meta_device_costs_the_same() -> None:
    net, image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10)), torch.zeros(1, 3, 8, 8)
    expected = count_flops(net, image, {"0.weight": 0.3})
    assert count_flops(net.to("meta"), image.to("meta"), {"0.weight": 0.3}) == expected


class Fragile(nn.Module):
    """Draws random numbers, keeps part of itself in evaluation mode, and fails on request."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.fc = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)
        self.norm.eval()
        self.fc.weight.requires_grad_(False)

    def forward(self, data: Tensor, fail: bool = False) -> Tensor:
        if fail:
            raise RuntimeError("stop")
        noise = torch.rand(4)
        return self.fc(self.drop(self.norm(data.add_(1) + noise)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("fail", [False, True])
def test_the_model_is_left_as_it_was(fail: bool) -> None:
    net, data = Fragile(), torch.zeros(8, 4)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.get_rng_state()
    try:
        count_flops(net, (data, fail))
    except RuntimeError:
        assert fail
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in (net, net.norm, net.drop, net.fc)] == [True, False, True, True]
    assert [net.fc.weight.requires_grad, net.fc.bias.requires_grad] == [False, True]
    assert not any(module._forward_hooks for module in net.modules())
    assert torch.equal(data, torch.zeros(8, 4))
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_network_is_counted_in_evaluation_mode() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    count_flops(net, torch.zeros(1, 4))  # in training mode a batch of one is an error of the normalisation


def test_what_cannot_be_counted_is_named() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(4))
            self.pair = nn.Bilinear(4, 4, 4)
            self.slope, self.idle, self.fc = nn.PReLU(), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, data: Tensor) -> Tensor:
            mixed = self.pair(data, data + self.token) @ self.idle.weight
            return self.fc(self.slope(mixed))  # type: ignore[no-any-return]

    report = count_flops(Net(), torch.zeros(3, 1, 4), {"pair.weight": 0.5})
    assert [row.name for row in report.layers] == ["fc"]
    assert report.uncounted == ("Net", "pair", "slope", "idle")


def test_positions_can_be_overridden() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3))
    report = count_flops(net, torch.zeros(1, 1, 8, 8), None, "micronet", {"0": 49})
    assert [row.positions for row in report.layers] == [49, 16]
    assert report.layers[0].dense_flops == 49 * (2 * 18 + 2)


def test_a_report_survives_json() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.PReLU())
    report = count_flops(net, torch.zeros(1, 3, 8, 8), {"0.weight": 0.3}, "micronet")
    content = report.to_json()
    assert content["format"] == 1
    assert report.uncounted == ("1",)
    assert FlopReport.from_json(json.loads(json.dumps(content))) == report
    with pytest.raises(InputError, match="has format 2, this version reads 1"):
        FlopReport.from_json(content | {"format": 2})


def test_a_network_without_counted_layers_has_nothing_to_save() -> None:
    report = count_flops(nn.ReLU(), torch.zeros(1))
    assert (report.dense, report.sparse, report.ratio, report.density) == (0, 0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"active": {"0.wieght": 0.5}}, "no parameter '0.wieght': did you mean '0.weight'"),
        ({"active": {"0.weight": mask((4, 3), 5)}}, r"shape \(4, 3\), expected \(3, 4\)"),
        ({"active": {"0.weight": torch.ones(3, 4)}}, "dtype torch.float32, expected torch.bool"),
        ({"active": {"0.weight": 1.5}}, "cannot have 18.0 non-zeros: expected 0 to its 12 weights"),
        ({"convention": "micro-net"}, "unknown FLOP convention 'micro-net': did you mean 'micronet'"),
        ({"positions": {"9": 4}}, "'9', which is not a layer"),
    ],
)
def test_bad_input_is_one_sentence(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        count_flops(nn.Sequential(nn.Linear(4, 3)), torch.zeros(1, 4), **arguments)  # type: ignore[arg-type]
