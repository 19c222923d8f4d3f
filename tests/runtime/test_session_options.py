"""The caller's options stay as they are, and every way to run a session falls back, from many threads at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime.kernel_library import kernels_library, unavailable_reason
from rigl_compress.runtime.session import InferenceSession
from rigl_compress.runtime.session_options import ENTRIES, entries_of, own_options

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
X = {"x": np.linspace(-1, 1, 2000, dtype=np.float32).reshape(2, 1000)}
CPU = ["CPUExecutionProvider"]


def settings(options: ort.SessionOptions) -> dict[str, Any]:
    names = [name for name in dir(options) if isinstance(getattr(ort.SessionOptions, name, None), property)]
    return {name: getattr(options, name) for name in names} | dict(entries_of(options))


def unusual() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 2, 1
    options.enable_mem_pattern = False
    options.logid = "mine"
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def test_options_are_not_changed(layer: Path) -> None:
    options = unusual()
    before = settings(options)
    for _ in range(2):
        assert InferenceSession(layer, options).sparse_layers
    assert settings(options) == before
    options.register_custom_ops_library(str(kernels_library()))  # raises for a library that is registered already
    ort.InferenceSession(layer, options, providers=CPU)


def test_the_copy_holds_what_the_options_hold() -> None:
    options = unusual()
    assert settings(own_options(options, onnx_layer(sparse_weight()))) == settings(options)
    assert settings(own_options(ort.SessionOptions(), None)) == settings(ort.SessionOptions())


def test_names_of_entries_stand_once() -> None:
    assert len(set(ENTRIES)) == len(ENTRIES)


def test_overridden_axes_reach_the_session(layer: Path) -> None:
    options = ort.SessionOptions()
    free = ort.InferenceSession(layer, providers=CPU).get_inputs()[0].shape[0]
    options.add_free_dimension_override_by_name(free, 2)
    session = InferenceSession(layer, options)
    assert session.sparse_layers
    assert session.get_inputs()[0].shape == [2, 1000]


def test_models_with_operators_of_other_libraries_use_the_callers_options() -> None:
    model = onnx_layer(sparse_weight())
    model.opset_import.append(helper.make_opsetid("mine", 1))
    options = ort.SessionOptions()
    assert own_options(options, model) is options


def broadcasting() -> bytes:
    """A residual that the file declares in full size; callers may pass one that is broadcast."""
    conv = helper.make_node("Conv", ["x", "w"], ["c"])
    add = helper.make_node("Add", ["r", "c"], ["y"])
    values = [helper.make_tensor_value_info(name, 1, ["n", 64, 14, 14]) for name in "xry"]
    weight = numpy_helper.from_array(sparse_weight(0.97, (64, 64, 1, 1)), "w")
    graph = helper.make_graph([conv, add], "g", values[:2], values[2:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


RNG = np.random.default_rng(0)
FULL = {name: RNG.standard_normal((4, 64, 14, 14)).astype(np.float32) for name in "xr"}
BROADCAST = {**FULL, "x": FULL["x"][:1]}


def plain(session: InferenceSession, feed: dict[str, Any]) -> Any:
    return session.run(None, feed)[0]


def on_values(session: InferenceSession, feed: dict[str, Any]) -> Any:
    given = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feed.items()}
    return session.run_with_ort_values(None, given)[0].numpy()


def bound(session: InferenceSession, feed: dict[str, Any]) -> Any:
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    session.run_with_iobinding(binding)  # after the plain session took over, a binding made before still works
    return binding.copy_outputs_to_cpu()[0]


@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("run", [plain, on_values, bound])
def test_every_way_to_run_falls_back(run: Callable[..., Any]) -> None:
    session, theirs = InferenceSession(broadcasting()), ort.InferenceSession(broadcasting(), providers=CPU)
    assert largest_difference([run(session, FULL)], theirs.run(None, FULL)) < 1e-5
    assert session.sparse_layers
    with pytest.warns(UserWarning, match="sparse kernels unavailable, using onnxruntime"):
        found = run(session, BROADCAST)
    assert largest_difference([found], theirs.run(None, BROADCAST)) < 1e-5
    assert session.sparse_layers == ()


@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("run", [plain, on_values, bound])
def test_inputs_that_fit_neither_are_an_error(run: Callable[..., Any]) -> None:
    session = InferenceSession(broadcasting())
    with pytest.raises(Exception, match=r"[Ii]nvalid|dimension|INVALID"):
        run(session, {**FULL, "x": FULL["x"][:, :7]})
    assert session.sparse_layers


@pytest.mark.parametrize("threads", [1, 3])
def test_many_threads_run_one_session(threads: int) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    model = onnx_layer(sparse_weight(0.95, (1000, 1000))).SerializeToString()
    session, theirs = InferenceSession(model, options), ort.InferenceSession(model, providers=CPU)
    feeds = [{"x": RNG.standard_normal((1 + number % 9, 1000)).astype(np.float32)} for number in range(48)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda feed: session.run(None, feed), feeds))
    for feed, outputs in zip(feeds, found, strict=True):
        assert largest_difference(outputs, theirs.run(None, feed)) < 1e-5


@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.filterwarnings("ignore:sparse kernels unavailable")
def test_many_threads_fall_back_at_once() -> None:
    session, theirs = InferenceSession(broadcasting()), ort.InferenceSession(broadcasting(), providers=CPU)
    feeds = [BROADCAST if number % 3 else FULL for number in range(48)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda feed: session.run(None, feed), feeds))
    for feed, outputs in zip(feeds, found, strict=True):
        assert largest_difference(outputs, theirs.run(None, feed)) < 1e-5
