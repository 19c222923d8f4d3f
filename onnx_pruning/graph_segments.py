"""Parts of a graph between two places, as models of their own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from rigl_compress.exporters.ort_sessions import open_session, session_options
from rigl_compress.exporters.protobuf_walk import parts_of_type

Array = NDArray[Any]
Values = dict[str, Array]


@dataclass(frozen=True)
class Cuts:
    """The values that cross each place of a graph; places do not change when weights do."""

    model: onnx.ModelProto

    @cached_property
    def reads(self) -> list[set[str]]:
        """What each node reads, its sub-graphs included."""
        return [set(_names(node)) for node in self.model.graph.node]

    @cached_property
    def made_at(self) -> dict[str, int]:
        """The node that makes each value; -1 for inputs."""
        made = {value.name: -1 for value in self.model.graph.input}
        made |= {name: place for place, node in enumerate(self.model.graph.node) for name in node.output if name}
        return {name: place for name, place in made.items() if name not in self._stored}

    @cached_property
    def _stored(self) -> dict[str, onnx.TensorProto]:
        return {each.name: each for each in self.model.graph.initializer}

    def stored(self, names: Sequence[str], weights: Mapping[str, onnx.TensorProto]) -> Values:
        """Return the values that no node makes, as they are stored, or as given by `weights`."""
        found = {name: weights.get(name, self._stored[name]) for name in names if name in self._stored}
        return {name: numpy_helper.to_array(each) for name, each in found.items()}

    @cached_property
    def _last_read(self) -> dict[str, int]:
        last = {name: place for place, names in enumerate(self.reads) for name in names}
        return last | {value.name: len(self.reads) for value in self.model.graph.output}

    def live(self, place: int) -> list[str]:
        """Return the values made before a place that are read there or later."""
        return sorted(name for name, made in self.made_at.items() if made < place <= self._last_read.get(name, -1))

    def needed(self, begin: int, end: int, wanted: Sequence[str]) -> list[int]:
        """Return the nodes between two places that the wanted values depend on."""
        names, kept = set(wanted), []
        for place in reversed(range(begin, end)):
            if names & set(self.model.graph.node[place].output):
                kept.append(place)
                names |= self.reads[place]
        return kept[::-1]


def _names(node: onnx.NodeProto) -> Iterator[str]:
    yield from (name for each in parts_of_type(node, onnx.NodeProto) for name in each.input if name)
    yield from (value.name for each in parts_of_type(node, onnx.GraphProto) for value in each.output)


@dataclass(frozen=True)
class Segment:
    """The nodes between two places that some values need."""

    cuts: Cuts
    begin: int
    end: int
    wanted: tuple[str, ...]

    @cached_property
    def places(self) -> list[int]:
        """The nodes of the segment."""
        return self.cuts.needed(self.begin, self.end, self.wanted)

    @cached_property
    def inputs(self) -> list[str]:
        """The values that it reads, made before it."""
        names = {name for place in self.places for name in self.cuts.reads[place]}
        return sorted(name for name in names if self.cuts.made_at.get(name, self.end) < self.begin)

    @cached_property
    def outputs(self) -> list[str]:
        """The wanted values that it makes; others are there already, or stored."""
        return [name for name in self.wanted if self.cuts.made_at.get(name, -1) >= self.begin]

    def model(self, weights: Mapping[str, onnx.TensorProto], kinds: Mapping[str, np.dtype[Any]]) -> onnx.ModelProto:
        """Return the segment as a model, with these weights, for inputs of these types."""
        graph = self.cuts.model.graph
        used = {name for place in self.places for name in self.cuts.reads[place]}
        given = [helper.make_tensor_value_info(name, _element(kinds[name]), None) for name in self.inputs]
        part = helper.make_graph(
            [graph.node[place] for place in self.places],
            "segment",
            given,
            [onnx.ValueInfoProto(name=name) for name in self.outputs],
            [weights.get(each.name, each) for each in graph.initializer if each.name in used],
        )
        made = helper.make_model(part, opset_imports=self.cuts.model.opset_import, functions=self.cuts.model.functions)
        made.ir_version = max(self.cuts.model.ir_version, 4)
        return made


def _element(kind: np.dtype[Any]) -> int:
    return int(helper.np_dtype_to_tensor_dtype(kind))


def open_segment(model: onnx.ModelProto, threads: int = 0, *, once: bool = False) -> ort.InferenceSession:
    """Open a segment, without an arena, which keeps the most that any input needed.

    With `once`, opening is to be fast rather than running: weights are not packed, and no operators fused.
    """
    options = session_options(threads)
    options.enable_cpu_mem_arena = False
    if once:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    return open_session(model, options)
