"""Random small graphs of the layers that the runtime rewrites, each described by a few plain numbers.

A description is a dictionary of JSON values: it can be logged, repeated and simplified. `draw` makes one, `build` gives
its ONNX model, `feeds` the inputs of one of its runs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]
Spec = dict[str, Any]
FLOAT = TensorProto.FLOAT
RUNS = 40  # of each graph
ACTIVATIONS = ("sigmoid", "tanh", "silu", "hard-swish", "gelu")


def draw(rng: np.random.Generator) -> Spec:
    """Draw a graph and the shapes with which it is run."""
    kind = str(rng.choice([*KINDS], p=[0.25, 0.15, 0.2, 0.1, 0.15, 0.1, 0.05]))
    shared = {"kind": kind, "seed": int(rng.integers(2**31)), "threads": int(rng.integers(1, 3))}
    shared |= {"density": float(rng.choice([0.0, 0.05, 0.3, 0.7, 1.0])), "callers": int(rng.choice([1, 1, 1, 3]))}
    spec = {**shared, **KINDS[kind][0](rng)}
    spec["runs"] = [[int(each) for each in KINDS[kind][1](rng)] for _ in range(RUNS)]
    return spec


def _flag(rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.5)


def _some(rng: np.random.Generator, choices: list[int], count: int) -> list[int]:
    return [int(each) for each in rng.choice(choices, count)]


def _draw_window(rng: np.random.Generator, axes: int) -> Spec:
    return {
        "kernel": _some(rng, [1, 1, 2, 3, 3, 5], axes),
        "strides": _some(rng, [1, 1, 1, 2, 2, 3, 7], axes),
        "dilations": _some(rng, [1, 1, 1, 2, 3, 11], axes),
        "pads": _some(rng, [0, 0, 1, 1, 2, 3, 9], 2 * axes),
    }


def _draw_tail(rng: np.random.Generator) -> Spec:
    tail = {"bias": _flag(rng), "norm": _flag(rng), "residual": _flag(rng)}
    return {**tail, "limits": str(rng.choice(["", "relu", "relu6", "below", *ACTIVATIONS]))}


def _draw_conv(rng: np.random.Generator) -> Spec:
    axes, groups = int(rng.choice([1, 2, 2, 2])), int(rng.choice([1, 1, 1, 2, 3]))
    # One channel in each group would be a depthwise layer, which has no sparse neighbour here.
    inputs, outputs = groups * int(rng.integers(1 + (groups > 1), 8)), groups * int(rng.integers(1, 12))
    sizes = {"axes": axes, "groups": groups, "inputs": inputs, "outputs": outputs}
    return {**sizes, **_draw_window(rng, axes), **_draw_tail(rng)}


def _draw_depthwise(rng: np.random.Generator) -> Spec:
    window = _draw_window(rng, 2)
    reach = [(size - 1) * step for size, step in zip(window["kernel"], window["dilations"], strict=True)]
    if rng.random() < 0.8:  # farther padding is not a depthwise layer to the runtime
        window["pads"] = [min(pad, far) for pad, far in zip(window["pads"], reach * 2, strict=True)]
    return {"inputs": int(rng.integers(2, 10)), "outputs": int(rng.integers(1, 9)), **window, **_draw_tail(rng)}


def _draw_products(rng: np.random.Generator) -> Spec:
    sizes = [int(rng.choice([1, 2, 7, 8, 9, 30, 100])) for _ in range(int(rng.integers(2, 5)))]
    forms = [str(rng.choice(["gemm", "matmul"])) for _ in sizes[1:]]
    end = str(rng.choice(["", "relu", *ACTIVATIONS]))
    return {"sizes": sizes, "forms": forms, "bias": _flag(rng), "limits": end, "rank": int(rng.choice([2, 2, 3]))}


def _draw_norms(rng: np.random.Generator) -> Spec:
    """A few products with residual sums and layer normalization, before or after."""
    sizes = {"width": int(rng.integers(1, 40)), "inner": int(rng.integers(1, 40)), "depth": int(rng.integers(1, 3))}
    return {**sizes, "limits": str(rng.choice(["", *ACTIVATIONS])), "before": _flag(rng), "bias": _flag(rng)}


def _draw_residual(rng: np.random.Generator) -> Spec:
    return {"channels": int(rng.integers(1, 12)), "depth": int(rng.integers(1, 4)), "kernel": int(rng.choice([1, 3]))}


def _draw_gru(rng: np.random.Generator) -> Spec:
    flags = {name: _flag(rng) for name in ("bias", "initial", "lengths", "reset_after", "last")}
    sizes = {"inputs": int(rng.integers(1, 12)), "size": int(rng.integers(1, 24))}
    return {**flags, **sizes, "direction": str(rng.choice(["forward", "reverse", "bidirectional"]))}


def _draw_lstm(rng: np.random.Generator) -> Spec:
    flags = {name: _flag(rng) for name in ("bias", "initial", "cell", "lengths", "last")}
    return {**_draw_gru(rng), **flags, "form": str(rng.choice(["LSTM", "LSTM", "RNN"]))}


def _draw_image(rng: np.random.Generator) -> list[int]:
    """Batch, height and width: often a pixel or two, sometimes none."""
    largest = int(rng.choice([2, 4, 12, 30]))
    sides = (max(int(each), int(rng.random() < 0.9)) for each in rng.integers(0, largest, 2))
    return [*_some(rng, [1, 1, 1, 2, 3, 0], 1), *sides]


def _draw_batch(rng: np.random.Generator) -> list[int]:
    return [*_some(rng, [1, 1, 2, 3, 7, 8, 16, 33, 70, 0], 1), int(rng.integers(0, 5)), int(rng.integers(1, 3))]


def _draw_sequence(rng: np.random.Generator) -> list[int]:
    """Batch and steps, at least one of each: without, ONNX Runtime's own GRU ends the process."""
    return [max(each, 1) for each in _draw_batch(rng)]


KINDS: dict[str, tuple[Callable[..., Spec], Callable[..., list[int]]]] = {
    "conv": (_draw_conv, _draw_image),
    "depthwise": (_draw_depthwise, _draw_image),
    "products": (_draw_products, _draw_batch),
    "residual": (_draw_residual, _draw_image),
    "gru": (_draw_gru, _draw_sequence),
    "lstm": (_draw_lstm, _draw_sequence),
    "norms": (_draw_norms, _draw_batch),
}


class _Model:
    """Operators and weights in the making."""

    def __init__(self, spec: Spec) -> None:
        self.rng, self.density = np.random.default_rng(spec["seed"]), spec["density"]
        self.nodes: list[Any] = []
        self.tensors: dict[str, Array] = {}

    def weight(self, *shape: int, dense: bool = False) -> str:
        array = self.rng.standard_normal(shape).astype(np.float32)
        if not dense:
            array[self.rng.random(shape) >= self.density] = 0
        return self.constant(array)

    def constant(self, array: Any) -> str:
        name = f"w{len(self.tensors)}"
        self.tensors[name] = np.asarray(array, np.float32)
        return name

    def add(self, kind: str, *inputs: str, outputs: list[str] | None = None, **settings: Any) -> str:
        names = outputs or [f"v{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **settings))
        return next(name for name in names if name)

    def norm(self, x: str, channels: int) -> str:
        parts = [self.weight(channels, dense=True) for _ in range(3)]
        return self.add("BatchNormalization", x, *parts, self.constant(0.5 + self.rng.random(channels)))

    def limits(self, x: str, kind: str) -> str:
        if kind in ("relu", "sigmoid", "tanh"):
            return self.add(kind.capitalize(), x)
        if kind in ("silu", "hard-swish"):
            gate = {"silu": "Sigmoid", "hard-swish": "HardSigmoid"}[kind]
            return self.add("Mul", x, self.add(gate, x, **({} if kind == "silu" else {"alpha": 1 / 6})))
        if kind == "gelu":
            inner = self.add("Erf", self.add("Div", x, self.constant(2**0.5)))
            product = self.add("Mul", x, self.add("Add", inner, self.constant(1.0)))
            return self.add("Mul", product, self.constant(0.5))
        ends = {"relu6": [0.0, 6.0], "below": [-0.5]}.get(kind)
        return x if ends is None else self.add("Clip", x, *(self.constant(end) for end in ends))

    def done(self, y: str, inputs: dict[str, tuple[int, list[Any]]]) -> ModelProto:
        self.nodes.append(helper.make_node("Identity", [y], ["y"]))
        values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
        tensors = [numpy_helper.from_array(array, name) for name, array in self.tensors.items()]
        graph = helper.make_graph(self.nodes, "g", values, [helper.make_tensor_value_info("y", FLOAT, None)], tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def build(spec: Spec) -> ModelProto:
    """Return the model of a description."""
    makers = {"conv": _conv, "depthwise": _depthwise, "products": _products, "residual": _residual, "gru": _gru}
    makers |= {"lstm": _lstm, "norms": _norms}
    return makers[spec["kind"]](spec)


def _windowed(model: _Model, spec: Spec, x: str, shape: tuple[int, ...], groups: int) -> str:
    bias = [model.weight(shape[0], dense=True)] if spec["bias"] else []
    settings = {name: spec[name] for name in ("strides", "dilations", "pads")}
    y = model.add("Conv", x, model.weight(*shape, dense=groups == shape[0]), *bias, group=groups, **settings)
    return model.norm(y, shape[0]) if spec["norm"] else y


def _image(spec: Spec, axes: int = 2) -> dict[str, tuple[int, list[Any]]]:
    return {"x": (FLOAT, ["n", spec["inputs"], *["h", "w"][-axes:]])}


def _conv(spec: Spec) -> ModelProto:
    model, outputs = _Model(spec), spec["outputs"]
    y = _windowed(model, spec, "x", (outputs, spec["inputs"] // spec["groups"], *spec["kernel"]), spec["groups"])
    if spec["residual"]:  # of the same shape by its making
        other = {**spec, "bias": False, "norm": False}
        shape = (outputs, spec["inputs"] // spec["groups"], *spec["kernel"])
        y = model.add("Add", y, model.add("Sin", _windowed(model, other, "x", shape, spec["groups"])))
    return model.done(model.limits(y, spec["limits"]), _image(spec, spec["axes"]))


def _depthwise(spec: Spec) -> ModelProto:
    """A pointwise layer, a depthwise one, and another pointwise one, with what follows them."""
    model, inputs = _Model(spec), spec["inputs"]
    x = model.add("Conv", "x", model.weight(inputs, inputs, 1, 1))
    y = _windowed(model, spec, x, (inputs, 1, *spec["kernel"]), inputs)
    y = model.add("Conv", model.limits(y, spec["limits"]), model.weight(spec["outputs"], inputs, 1, 1))
    if spec["residual"]:
        other = model.add("Conv", model.nodes[-1].input[0], model.weight(spec["outputs"], inputs, 1, 1))
        y = model.add("Add", y, other)
    return model.done(y, _image(spec))


def _products(spec: Spec) -> ModelProto:
    model, y, sizes = _Model(spec), "x", spec["sizes"]
    for form, columns, rows in zip(spec["forms"], sizes, sizes[1:], strict=False):
        bias = [model.weight(rows, dense=True)] if spec["bias"] else []
        if form == "gemm" and spec["rank"] == 2:
            y = model.add("Gemm", y, model.weight(rows, columns), *bias, transB=1)
        else:
            y = model.add("MatMul", y, model.weight(columns, rows))
            y = model.add("Add", y, *bias) if bias else y
        y = model.limits(y, spec["limits"])
    return model.done(y, {"x": (FLOAT, ["n", *["t"] * (spec["rank"] - 2), sizes[0]])})


def _norms(spec: Spec) -> ModelProto:
    model, y, width, inner = _Model(spec), "x", spec["width"], spec["inner"]

    def norm(x: str) -> str:
        given = [model.weight(width, dense=True) for _ in range(1 + spec["bias"])]
        return model.add("LayerNormalization", x, *given)

    for _ in range(spec["depth"]):
        wide = model.limits(
            model.add("MatMul", norm(y) if spec["before"] else y, model.weight(width, inner)), spec["limits"]
        )
        y = model.add("Add", model.add("MatMul", wide, model.weight(inner, width)), y)
        y = y if spec["before"] else norm(y)
    return model.done(y, {"x": (FLOAT, ["n", "t", width])})


def _residual(spec: Spec) -> ModelProto:
    """Normalised, cut off, convolved and added to what there was, some times over."""
    model, channels, side = _Model(spec), spec["channels"], spec["kernel"]
    y = model.add("Conv", "x", model.weight(channels, channels, 1, 1))
    for _ in range(spec["depth"]):
        inner = model.limits(model.norm(y, channels), "relu")
        shape = (channels, channels, side, side)
        y = model.add("Add", model.add("Conv", inner, model.weight(*shape), pads=[side // 2] * 4), y)
    return model.done(y, {"x": (FLOAT, ["n", channels, "h", "w"])})


def _gru(spec: Spec) -> ModelProto:
    model, size = _Model(spec), spec["size"]
    ways = 2 if spec["direction"] == "bidirectional" else 1
    weights = [model.weight(ways, 3 * size, columns) for columns in (spec["inputs"], size)]
    bias = model.weight(ways, 6 * size, dense=True) if spec["bias"] else ""
    inputs = {"x": (FLOAT, ["t", "n", spec["inputs"]])}
    inputs |= {"lengths": (TensorProto.INT32, ["n"])} if spec["lengths"] else {}
    inputs |= {"initial": (FLOAT, [ways, "n", size])} if spec["initial"] else {}
    given = ["x", *weights, bias, "lengths" if spec["lengths"] else "", "initial" if spec["initial"] else ""]
    settings = {"direction": spec["direction"], "hidden_size": size, "linear_before_reset": int(spec["reset_after"])}
    return model.done(model.add("GRU", *given, outputs=["", "z"] if spec["last"] else ["z"], **settings), inputs)


def _lstm(spec: Spec) -> ModelProto:
    model, size, gates = _Model(spec), spec["size"], 4 if spec["form"] == "LSTM" else 1
    ways = 2 if spec["direction"] == "bidirectional" else 1
    weights = [model.weight(ways, gates * size, columns) for columns in (spec["inputs"], size)]
    bias = model.weight(ways, 2 * gates * size, dense=True) if spec["bias"] else ""
    states = [name for name in ("initial", "cell") if spec[name] and (name == "initial" or gates == 4)]
    inputs = {"x": (FLOAT, ["t", "n", spec["inputs"]]), **{name: (FLOAT, [ways, "n", size]) for name in states}}
    inputs |= {"lengths": (TensorProto.INT32, ["n"])} if spec["lengths"] else {}
    given = ["x", *weights, bias, *(name if name in inputs else "" for name in ("lengths", "initial", "cell"))]
    settings = {"direction": spec["direction"], "hidden_size": size}
    outputs = ["", "z"] if spec["last"] else ["z"]
    return model.done(model.add(spec["form"], *given[: 7 if gates == 4 else 6], outputs=outputs, **settings), inputs)


def feeds(spec: Spec, number: int) -> dict[str, Array]:
    """Return the inputs of one run."""
    rng, run = np.random.default_rng([spec["seed"], number]), spec["runs"][number]

    def floats(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    if spec["kind"] == "norms":
        return {"x": floats(run[0], run[1], spec["width"])}
    if spec["kind"] == "products":
        steps = [run[1]] if spec["rank"] == 3 else []
        return {"x": floats(run[0], *steps, spec["sizes"][0])}
    if spec["kind"] not in ("gru", "lstm"):
        channels = spec["channels"] if spec["kind"] == "residual" else spec["inputs"]
        return {"x": floats(run[0], channels, *run[1:][-spec.get("axes", 2) :])}
    ways = 2 if spec["direction"] == "bidirectional" else 1
    found = {"x": floats(run[1], run[0], spec["inputs"])}
    found |= {"lengths": rng.integers(0, run[1] + 1, run[0]).astype(np.int32)} if spec["lengths"] else {}
    names = [name for name in ("initial", "cell") if spec.get(name) and (name == "initial" or spec["form"] == "LSTM")]
    return found | {name: floats(ways, run[0], spec["size"]) for name in names}
