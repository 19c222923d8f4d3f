"""Attention between sparse products becomes one operator, however it is written; anything else stays."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import sparse_weight
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.exporters.torch_to_onnx import export_graph
from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime import session as module
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.rewrite import rewrite
from rigl_compress.runtime.session import InferenceSession

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
WIDTH, HEADS, TOKENS = 24, 4, 10


@pytest.fixture(autouse=True)
def every_layer_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers gain nothing; here they are to run all the same."""
    monkeypatch.setattr(module, "runs_faster", lambda *_: True)
    monkeypatch.setattr(module, "profitable_layers", lambda chosen, *_: chosen)


class Written(nn.Module):
    """Attention with three products of the input, or with one, and its softmax written out or not."""

    def __init__(self, *, one: bool, fused: bool) -> None:
        super().__init__()
        self.one, self.fused = one, fused
        self.inputs = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH if one else WIDTH) for _ in range(1 if one else 3))
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[N, tokens, width] → [N, tokens, width]."""
        if self.one:
            q, k, v = self.inputs[0](x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.inputs)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.transpose(-1, -2) / 3 + x.mean(-1)[:, None, None]).softmax(-1) @ v
        found: Tensor = self.mix(y.transpose(1, 2).flatten(2))
        return found


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in rewrite(model, lambda *_: True).model.graph.node)


def assert_same(model: onnx.ModelProto, **inputs: Any) -> None:
    content = model.SerializeToString()
    ours, plain = InferenceSession(content, cache=False), ort.InferenceSession(content)
    assert ours.sparse_layers
    assert largest_difference(ours.run(None, inputs), plain.run(None, inputs)) < 1e-5
    assert ours.sparse_layers, "the operators accept the inputs"


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_forms_that_torch_writes(one: bool, fused: bool) -> None:
    torch.manual_seed(0)
    example = torch.randn(2, TOKENS, WIDTH)
    model = export_graph(Written(one=one, fused=fused).eval(), example)
    found = kinds(model)
    assert found["Attention"] == 1
    assert not found["Softmax"] + found["Transpose"] + found["Reshape"]
    for batch in (1, 5):
        assert_same(model, input=np.random.default_rng(0).standard_normal((batch, TOKENS, WIDTH), np.float32))


SPLIT = "Reshape {0} split -> {0}1; Transpose {0}1 -> {0}2"
PLAIN = f"""MatMul x wq -> q; MatMul x wk -> k; MatMul x wv -> v; {SPLIT.format("q")}; {SPLIT.format("k")};
    {SPLIT.format("v")}; Transpose_turned k2 -> k3; MatMul q2 k3 -> s; Mul s half -> t; Softmax t -> p;
    MatMul p v2 -> o; Transpose_back o -> o1; Reshape o1 join -> z"""


def net(lines: str, **changed: Any) -> onnx.ModelProto:
    """A network of lines such as "MatMul x w -> p"."""
    weights = {f"w{name}": sparse_weight(0.5, (WIDTH, WIDTH)) for name in "qkv"}
    settings = {
        **{"split": np.array([0, 0, HEADS, WIDTH // HEADS]), "join": np.array([0, 0, WIDTH])},
        **{"half": np.float32(0.5), "two": np.array([2, 2, 1, 1], np.float32)},
        **{
            "turned": [0, 1, 3, 2],
            "back": [0, 2, 1, 3],
            "perm": [0, 2, 1, 3],
            "axis": -1,
            "outputs": ["z"],
            "x": ["n", "t", WIDTH],
            **changed,
        },
    }
    nodes = []
    for line in lines.replace("\n", " ").split(";"):
        (kind, *inputs), outputs = (side.split() for side in line.split("->"))
        kind, _, form = kind.partition("_")
        options = {"Transpose": {"perm": settings[form or "perm"]}, "Softmax": {"axis": settings["axis"]}}
        nodes.append(helper.make_node(kind, inputs, outputs, **options.get(kind, {})))
    names = {name for node in nodes for name in node.input}
    arrays = {**weights, **{name: each for name, each in settings.items() if isinstance(each, np.ndarray | np.generic)}}
    shapes = {"x": settings["x"], "m": ["n", 1, 1, "s"]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in ("x", "m") if name in names],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in settings["outputs"]],
        [numpy_helper.from_array(np.asarray(each), name) for name, each in arrays.items() if name in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def inputs(batch: int = 3, tokens: int = TOKENS) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal((batch, tokens, WIDTH), np.float32)


def test_any_number_of_samples_and_tokens() -> None:
    model = net(PLAIN)
    assert kinds(model)["Attention"] == 1
    for batch, tokens in ((1, 1), (2, 200), (3, 17)):
        assert_same(model, x=inputs(batch, tokens))


def test_a_mask() -> None:
    model = net(PLAIN.replace("Softmax t", "Add t m -> u; Softmax u"))
    assert kinds(model)["Attention"] == 1
    mask = np.where(np.arange(TOKENS) < 4, 0, -1e9).astype(np.float32).reshape(1, 1, 1, -1)
    assert_same(model, x=inputs(), m=np.repeat(mask, 3, 0))


def test_a_computed_split() -> None:
    lines = "Shape x -> h; Gather h zero -> n; Gather h one -> t; Concat n t four six -> split; "
    lines = lines.replace("Concat", "Concat")
    model = net(
        lines + PLAIN.replace("; Mul s half -> t", "").replace("Softmax t", "Softmax s"),
        **{"zero": np.array([0]), "one": np.array([1]), "four": np.array([HEADS]), "six": np.array([WIDTH // HEADS])},
    )
    del model.graph.initializer[[each.name for each in model.graph.initializer].index("split")]
    next(node for node in model.graph.node if node.op_type == "Concat").attribute.append(
        helper.make_attribute("axis", 0)
    )
    assert kinds(model)["Attention"] == 1
    assert_same(model, x=inputs())


OTHERS = {
    "scores are an output": net(PLAIN, outputs=["z", "s"]),
    "shares are used twice": net(PLAIN + "; Exp p -> e", outputs=["z", "e"]),
    "another axis": net(PLAIN, axis=2, x=["n", 6, WIDTH]),
    "heads and tokens change places": net(PLAIN, perm=[0, 1, 2, 3], x=["n", HEADS, WIDTH], join=np.array([0, 0, 24])),
    "heads are interleaved": net(PLAIN, split=np.array([0, 0, 6, 4]), perm=[0, 3, 1, 2]),
    "samples are mixed": net(PLAIN, split=np.array([-1, 5, 4, 6])),
    "a factor for each sample": net(PLAIN.replace("Mul s half", "Mul s two"), x=[2, TOKENS, WIDTH]),
    "values are scaled": net(PLAIN.replace("MatMul p v2", "Mul v2 half -> v3; MatMul p v3")),
    "keys are not turned": net(PLAIN, turned=[0, 1, 2, 3], x=["n", 6, WIDTH]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    assert not kinds(OTHERS[name])["Attention"]


@pytest.mark.parametrize("name", ["scores are an output", "shares are used twice", "heads are interleaved"])
def test_others_give_the_same(name: str) -> None:
    assert_same(OTHERS[name], x=inputs())


def test_without_sparse_products_attention_stays() -> None:
    found = rewrite(net(PLAIN), lambda *_: False).model.graph.node
    assert "Attention" not in {node.op_type for node in found}


def test_a_mask_of_another_shape_is_run_by_onnxruntime() -> None:
    model = net(PLAIN.replace("Softmax t", "Add t m -> u; Softmax u"))
    session = InferenceSession(model.SerializeToString(), cache=False)
    mask = np.zeros((4, 1, 1, TOKENS), np.float32)  # repeats the single sample
    with pytest.warns(UserWarning, match="the mask does not have the shape"):
        found = session.run(None, {"x": inputs(1), "m": mask})
    assert found[0].shape == (4, TOKENS, WIDTH)
