"""Sparse inference sessions: `onnxruntime.InferenceSession` with sparse kernels where they are faster."""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import onnx
import onnxruntime as ort

from rigl_compress.core.errors import InputError, one_line
from rigl_compress.exporters.bounded_tensors import bytes_for, count_of
from rigl_compress.exporters.external_data import ExternalDataError
from rigl_compress.exporters.light_model import LightModel, light_model, outline
from rigl_compress.exporters.onnx_file import LARGEST_FILE
from rigl_compress.runtime.cost_model import profitable_layers, runs_faster, thread_count
from rigl_compress.runtime.cost_tables import costs_in_use
from rigl_compress.runtime.explain import left_dense
from rigl_compress.runtime.freed_memory import forget_bytes, give_back
from rigl_compress.runtime.io_bindings import MovableBinding
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.original_model import check_opens, reject_outside_files
from rigl_compress.runtime.rewrite import rewrite, sparse_outputs
from rigl_compress.runtime.rewritten_cache import Entry, Slot, slot_of
from rigl_compress.runtime.session_options import CPU, own_options, register

Open = Callable[..., ort.InferenceSession]
LARGE_MODEL = 2**22  # bytes of a rewritten model whose memory matters more than some allocations in each run
_LOG = logging.getLogger("rigl_compress.session_cache")
_WARNED: set[str] = set()


class InferenceSession:
    """A drop-in for `onnxruntime.InferenceSession` that runs sparse layers on sparse kernels.

    It opens any ONNX file: exported by this package in any encoding, or by another tool with zeros in its weights.
    Layers that would not be faster stay with ONNX Runtime. If the kernels are unavailable, the whole model does, with a
    warning.

    >>> import numpy as np
    >>> from onnx import helper, numpy_helper
    >>> weight = numpy_helper.from_array(np.eye(512, dtype=np.float32), "w")
    >>> values = [helper.make_tensor_value_info(name, 1, [64, 512]) for name in "xy"]
    >>> node = helper.make_node("MatMul", ["x", "w"], ["y"])
    >>> graph = helper.make_graph([node], "g", values[:1], values[1:], [weight])
    >>> model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    >>> session = InferenceSession(model.SerializeToString())
    >>> float(session.run(None, {"x": np.ones((64, 512), dtype=np.float32)})[0].sum())
    32768.0
    """

    def __init__(
        self,
        path_or_bytes: str | Path | bytes,
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        *,
        cache: bool = True,
        **others: Any,
    ) -> None:
        source = path_or_bytes if isinstance(path_or_bytes, bytes) else str(path_or_bytes)
        self._own = sess_options is None
        self._options = ort.SessionOptions() if sess_options is None else sess_options
        chosen = list(providers or [CPU])
        self.sparse_layers: tuple[str, ...] = ()
        self.session: ort.InferenceSession | None = None
        self._open: Open = lambda model, options: ort.InferenceSession(
            model, options, chosen, provider_options, **others
        )
        self._source: str | bytes | None = source
        self._plain: ort.InferenceSession | None = None
        self._opening = Lock()
        self._notes: list[str] = []  # on layers that stay dense
        self._planned = False  # whether the kernels have planned their layers: memory of that is free afterwards
        self._contained = False  # whether the model is known to read no files outside its folder
        reason = self._open_sparse(source, cache) if _only_cpu(chosen) else ""
        give_back()
        if self.session is None:
            if not self._contained:
                reject_outside_files(source, self._options)
            self.session = self._open(source, self._options)
        for note in self._notes:
            _warn(note, depth=3)
        if reason:  # after ONNX Runtime opened the file: one that it rejects is not slow
            _warn(f"sparse kernels unavailable, using onnxruntime: {reason}", depth=3)

    def _open_sparse(self, source: str | bytes, cache: bool) -> str:
        """Try to open the model with sparse kernels; return why that failed, or an empty string."""
        reason = unavailable_reason()
        if reason:
            return reason
        try:
            slot = slot_of(source, self._options.intra_op_num_threads, costs_in_use()) if cache else None
            if slot is None or not self._open_cached(slot):
                self._open_rewritten(source, slot)
        except ExternalDataError:
            raise
        except Exception as error:
            return one_line(error)
        return ""

    def _open_cached(self, slot: Slot) -> bool:
        """Open the model from the cache; return whether it was there."""
        entry = slot.load()
        if entry is None:
            return False
        try:
            self._use(entry)
        except Exception as error:
            _LOG.warning("%s is not used and will be made again: %s", slot.path, one_line(error))
            slot.drop()
            return False
        self._contained = True  # only models in one file are kept
        return True

    def _open_rewritten(self, source: str | bytes, slot: Slot | None) -> None:
        with light_model(source) as light:
            self._contained = True
            if written := sparse_outputs(light.model):
                self._use(Entry(b"", written), source)
                self._source = None  # a rewritten file has no plain form
                return
            check_opens(source, light.model)
            entry = sparse_model(light, self._options.intra_op_num_threads)
        self._use(entry)
        if slot is not None and light.single:
            slot.store(entry)

    def _use(self, entry: Entry, source: str | bytes = b"") -> None:
        """Open a rewritten model, if it has sparse layers."""
        model = source or entry.model
        if entry.layers:
            options = self._options if self._own else own_options(self._options, outline(model))
            register(options)
            if len(model) >= LARGE_MODEL and (self._own or options is not self._options):
                options.enable_mem_pattern = False  # or the memory of the first run is kept beside that of the others
            self.session = self._open(model, options)
            self.sparse_layers = entry.layers
            if model is entry.model:
                forget_bytes(self.session)
        self._notes = list(entry.notes)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
        """Run the model as `onnxruntime.InferenceSession.run` does.

        If the sparse operators reject inputs that the plain ones accept, of shapes other than the file declares, the
        plain session is used from then on, with a warning.
        """
        return self._run(lambda session: session.run(output_names, input_feed, run_options))

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> Any:
        """Run the model on `OrtValue`s, as `onnxruntime.InferenceSession.run_with_ort_values` does."""
        return self._run(lambda session: session.run_with_ort_values(output_names, input_dict_ort_values, run_options))

    def run_with_iobinding(self, iobinding: ort.IOBinding, run_options: Any = None) -> None:
        """Run the model on bound inputs and outputs, as `onnxruntime.InferenceSession.run_with_iobinding` does."""

        def call(session: ort.InferenceSession) -> None:
            if isinstance(iobinding, MovableBinding):
                iobinding.move_to(session)
            session.run_with_iobinding(iobinding, run_options)

        self._run(call)

    def io_binding(self) -> ort.IOBinding:
        """Return a binding of inputs and outputs, as `onnxruntime.InferenceSession.io_binding` does."""
        return MovableBinding(self.session)

    def _run(self, call: Callable[[ort.InferenceSession], Any]) -> Any:
        session = self.session
        assert session is not None
        try:
            outputs = call(session)
            if not self._planned:
                self._planned = True
                give_back()
            return outputs
        except Exception as error:
            if session is self._plain or not self._falls_back():
                raise
            reason = one_line(error)
        outputs = call(self._plain_session())  # ONNX Runtime reports inputs invalid for both
        self.session, self.sparse_layers = self._plain, ()
        _warn(f"sparse kernels unavailable, using onnxruntime: {reason}", depth=4)
        return outputs

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        """Open the model with other providers, as ONNX Runtime does: without sparse layers, which run on the CPU."""
        if self.sparse_layers and self._source is not None:
            if _only_cpu(list(providers or [CPU])):
                return
            self.session, self.sparse_layers = self._plain_session(), ()
        assert self.session is not None
        self.session.set_providers(providers, provider_options)

    def _falls_back(self) -> bool:
        """Check whether there is a plain session to fall back to: another thread may have opened it already."""
        return self._source is not None and (bool(self.sparse_layers) or self._plain is not None)

    def _plain_session(self) -> ort.InferenceSession:
        """Return the plain session; it is kept, as inputs invalid for both may be passed repeatedly."""
        with self._opening:
            if self._plain is None:
                self._plain = self._open(self._source, self._options)
            return self._plain

    def __getattr__(self, name: str) -> Any:
        if name == "session":
            raise AttributeError(name)
        return getattr(self.session, name)


def sparse_model(source: LightModel | onnx.ModelProto, threads: int = 0) -> Entry:
    """Rewrite a model to sparse operators."""
    model = source if isinstance(source, onnx.ModelProto) else source.model
    count = thread_count(threads)
    found = rewrite(
        source,
        lambda layer, graph: runs_faster(layer, graph, count),
        threads,
        lambda chosen, layers, graph: profitable_layers(chosen, layers, graph, count),
    )
    if found.layers and (names := _sparse_tensor_outputs(model)):
        raise InputError(
            f"the sparse initializer {names[0]!r} is an output, which ONNX Runtime returns as a sparse tensor"
        )
    if found.layers and sum(map(_bytes_of, found.model.graph.initializer)) > LARGEST_FILE:
        raise InputError("the rewritten model is larger than 2 GiB, the limit for a model in memory")
    layers = tuple(layer.output for layer in found.layers)
    note = left_dense(found)
    return Entry(found.model.SerializeToString() if layers else b"", layers, (note,) if note else ())


def _bytes_of(tensor: onnx.TensorProto) -> int:
    return bytes_for(count_of(tensor), tensor.data_type)


def _sparse_tensor_outputs(model: onnx.ModelProto) -> list[str]:
    weights = {each.values.name for each in model.graph.sparse_initializer}
    return [each.name for each in model.graph.output if each.name in weights]


def _only_cpu(providers: Sequence[Any]) -> bool:
    names = [each if isinstance(each, str) else each[0] for each in providers]
    return names == [CPU]


def _warn(message: str, depth: int) -> None:
    if message not in _WARNED:
        _WARNED.add(message)
        warnings.warn(message, stacklevel=depth)
