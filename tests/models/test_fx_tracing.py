"""Tracing: in evaluation mode, with defaults, and the same names every time."""

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rigl_compress.models.fx_tracing import evaluating, sized_nodes, traced, written_sizes


class Options(nn.Module):
    """Branches on its optional arguments and on its mode."""

    def forward(self, x: Tensor, scale: Tensor | None = None, flag: bool = False, much: float = 2.0) -> Tensor:
        if scale is not None:
            x = x * scale
        if flag:
            x = -x
        return F.dropout(x * much, 0.5, self.training)


def functions(graph: fx.GraphModule) -> list[str]:
    return [
        str(getattr(node.target, "__name__", node.target)) for node in graph.graph.nodes if node.op == "call_function"
    ]


def test_arguments_that_nobody_gives_have_their_defaults() -> None:
    alone, scaled = traced(Options(), 1), traced(Options(), 2)
    assert functions(alone).count("mul") == 1
    assert functions(scaled).count("mul") == 2
    x = torch.ones(3)
    assert torch.equal(traced(Options())(x), 2 * x)
    assert torch.equal(scaled(x, 3 * x), 6 * x)


def test_the_graph_is_that_of_evaluation() -> None:
    model = Options().train()
    assert torch.equal(traced(model)(torch.ones(9)), 2 * torch.ones(9))
    assert model.training


def test_every_module_gets_its_own_mode_back() -> None:
    one, other = nn.Sequential(nn.ReLU(), nn.Dropout()), nn.ReLU()
    one[1].eval()
    with evaluating(one, other):
        assert not any(module.training for module in (*one.modules(), other))
    assert [module.training for module in (*one.modules(), other)] == [True, True, False, True]


class Sizes(nn.Module):
    """All that has sizes written out, and what has not."""

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.view(-1, 6).chunk(2, 1)
        parts = torch.split(torch.reshape(one, (-1, 3)), [1, 2], dim=1)
        return torch.cat([parts[1], other], 1).expand(-1, 5).flatten(1)


def test_sizes_have_the_same_names_in_a_graph_of_a_graph() -> None:
    first = traced(Sizes())
    assert list(sized_nodes(first.graph)) == ["view 1", "split 2", "view 3", "split 4", "view 5"]
    assert list(sized_nodes(traced(first).graph)) == list(sized_nodes(first.graph))
    sizes = {name: written_sizes(node) for name, node in sized_nodes(first.graph).items() if name.startswith("view")}
    assert sizes == {"view 1": (-1, 6), "view 3": (-1, 3), "view 5": (-1, 5)}
