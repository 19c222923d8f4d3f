"""The graph of one run of a network, for code that `torch.fx` cannot trace symbolically.

The network runs on the example as it always does. Every call of a torch function and of a layer becomes a node, under
the name it would have in a symbolic trace. Sizes are plain numbers in such a graph, so they cannot be rewritten.
"""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from rigl_compress.models.fx_tracing import Tracer
from rigl_compress.models.nested_tensors import tensors_in
from rigl_compress.pruning.value_facts import note_facts, versions_of

_READS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "__array__", "is_nonzero")
_COMPARES = ("equal", "allclose", "__contains__")
# The operator of a method, and whether its sides are exchanged.
_OPERATORS: dict[str, tuple[Any, bool]] = {
    **{f"__{name}__": (getattr(operator, name), False) for name in ("add", "sub", "mul", "truediv", "matmul", "pow")},
    **{f"__r{name}__": (getattr(operator, name), True) for name in ("add", "sub", "mul", "truediv", "matmul", "pow")},
    **{f"__i{name}__": (getattr(operator, f"i{name}"), False) for name in ("add", "sub", "mul", "truediv")},
    "__rdiv__": (operator.truediv, True),
    "__neg__": (operator.neg, False),
    "__getitem__": (operator.getitem, False),
    "__setitem__": (operator.setitem, False),
}
_COMPOSITE = "torch.nn.modules.transformer"  # layers of layers, whose code branches on values


class ValueBranchError(Exception):
    """The code reads a value that depends on the network's input."""


class RecordedGraph(fx.GraphModule):
    """A graph for analysis alone: no code is made of it."""

    def recompile(self) -> Any:
        """Do nothing."""


class Recorder(TorchFunctionMode):
    """Records the calls of torch functions, and by `calling` those of layers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self._paths = {id(module): path for path, module in model.named_modules() if path}
        tensors = (*model.named_parameters(), *model.named_buffers())
        self._names = {id(tensor): name for name, tensor in tensors}
        self._nodes: dict[int, fx.Node] = {}  # by the id of the tensor
        self._held: list[Any] = []  # as long as a tensor is held, no other has its id
        self._varying: set[fx.Node] = set()  # values that depend on the network's input
        self._inside = False  # a recorded call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a call."""
        del types
        if self._inside:
            return func(*args, **(kwargs or {}))
        with self._not_looking():
            return self._called(*_named(func, args), lambda: func(*args, **(kwargs or {})), kwargs or {})

    def calling(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], call: Any) -> Any:
        """Record the call of a layer as one node; look into other modules."""
        path = self._paths.get(id(module))
        if self._inside or path is None or not is_leaf(module, path):
            return call(module, *args, **kwargs)

        with self._not_looking():
            return self._called("call_module", path, args, lambda: call(module, *args, **kwargs), kwargs)

    @contextmanager
    def _not_looking(self) -> Iterator[None]:
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def place(self, value: Any, name: str) -> None:
        """Make placeholders of the tensors in an input."""
        for tensor in tensors_in(value):
            node = self._known(tensor, self.graph.placeholder(name))
            self._varying |= {node} if tensor.is_floating_point() else set()

    def finish(self, value: Any) -> fx.Graph:
        """Return the graph of the run that produced this value."""
        node = self.graph.output(self._as_argument(tuple(tensors_in(value))))
        note_facts(node, None, [], [])
        return self.graph

    def _called(self, op: str, target: Any, args: Any, run: Any, kwargs: dict[str, Any]) -> Any:
        inputs = [*tensors_in((args, kwargs))]
        versions = versions_of(inputs)
        value = run()
        changed = versions_of(inputs) != versions
        if not any(True for _ in tensors_in(value)) and not changed:
            self._check_read(target, inputs)
            return value
        if inputs and value is inputs[0] and not changed:
            return value  # nothing happened
        node = self.graph.create_node(op, target, self._as_argument(args), self._as_argument(kwargs))
        written = inputs[0] if value is None else value  # x[0] = 1
        note_facts(node, written, inputs, versions)
        self._remember(node, written)
        if op == "call_module" or any(source in self._varying for source in node.all_input_nodes):
            self._varying |= {node, *_parts(node)}
        return value

    def _remember(self, node: fx.Node, value: Any) -> None:
        """Map the tensors of a value to its node, those of a tuple to its parts."""
        if isinstance(value, Tensor):
            self._known(value, node)
            return
        for index, part in enumerate(value) if isinstance(value, tuple | list) else ():
            if isinstance(part, Tensor | tuple | list):
                item = self.graph.call_function(operator.getitem, (node, index))
                note_facts(item, part, [], [])
                self._remember(item, part)  # the states of an LSTM are a tuple within a tuple

    def _known(self, tensor: Tensor, node: fx.Node) -> fx.Node:
        self._held.append(tensor)
        self._nodes[id(tensor)] = node
        if "shape" not in node.meta:
            note_facts(node, tensor, [], [])
        return node

    def _as_argument(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._nodes.get(id(value)) or self._known(value, self._constant(value))
        if isinstance(value, tuple | list):
            return (list if isinstance(value, list) else tuple)(map(self._as_argument, value))
        if isinstance(value, dict):
            return {key: self._as_argument(each) for key, each in value.items()}
        return value

    def _constant(self, tensor: Tensor) -> fx.Node:
        """Return the node of a parameter, a buffer, or a tensor from elsewhere."""
        name = self._names.get(id(tensor))
        return self.graph.call_function(constant) if name is None else self.graph.get_attr(name)

    def _check_read(self, target: Any, inputs: list[Tensor]) -> None:
        reads = str(getattr(target, "__name__", target)) in (*_READS, *_COMPARES)
        if reads and any(self._nodes.get(id(tensor)) in self._varying for tensor in inputs):
            raise ValueBranchError(f"{getattr(target, '__name__', target)} of a value that depends on the input")


def constant() -> None:
    """Stand for a tensor that is neither an input nor a parameter."""


def _named(func: Any, args: tuple[Any, ...]) -> tuple[str, Any, tuple[Any, ...]]:
    """Return kind, target and arguments of a call as a symbolic trace has them."""
    name = getattr(func, "__name__", "")
    if name == "__get__":  # of an attribute: x.mT
        return "call_function", getattr, (*args[:1], getattr(func.__self__, "__name__", ""))
    if name in _OPERATORS and (len(args) > 1 or name == "__neg__"):
        function, exchanged = _OPERATORS[name]
        return "call_function", function, args[::-1] if exchanged else args
    method = isinstance(func, MethodDescriptorType | WrapperDescriptorType) or getattr(Tensor, name, None) is func
    return ("call_method", name, args) if method else ("call_function", func, args)


def is_leaf(module: nn.Module, path: str) -> bool:
    """Return whether a module is recorded as a whole: layers of torch that are not made of layers."""
    composite = type(module).__module__ == _COMPOSITE
    return not composite and Tracer().is_leaf_module(module, path)


def has_composites(model: nn.Module) -> bool:
    """Return whether a network has torch's layers of layers, which a symbolic trace does not look into."""
    return any(type(module).__module__ == _COMPOSITE for module in model.modules())


@contextmanager
def _calls_seen_by(recorder: Recorder) -> Iterator[None]:
    """Let a recorder see the calls of all modules."""
    call = nn.Module.__call__

    def seen(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return recorder.calling(module, args, kwargs, call)

    nn.Module.__call__ = seen  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = call  # type: ignore[method-assign]


@torch.no_grad()
def recorded(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.GraphModule:
    """Run a network once in evaluation mode, and return the graph of what it did."""
    recorder = Recorder(model)
    for name, value in (*((f"input_{index}", value) for index, value in enumerate(args)), *kwargs.items()):
        recorder.place(value, name)
    with _calls_seen_by(recorder), recorder:
        value = model(*args, **kwargs)
    return RecordedGraph(model, recorder.finish(value), type(model).__name__)


def _parts(node: fx.Node) -> set[fx.Node]:
    """Return the nodes that take a value apart."""
    return {each for user in node.users for each in (user, *_parts(user))}
