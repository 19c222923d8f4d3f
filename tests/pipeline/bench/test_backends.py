"""Every backend: the outputs of torch, or a reason why it is not there."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import Trainer

from rigl_compress.core import registry
from rigl_compress.core.errors import InputError
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.bench.backends import BACKENDS, Backend, Setup, needs, usable_backend
from rigl_compress.pipeline.bench.bench_sources import Source, opened_sources
from rigl_compress.pipeline.workspace import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Run:
    return Trainer(tmp_path_factory.mktemp("runs"), data_dir)("train.epochs=1")


def opened(name: str, source: Source, setup: Setup) -> list[np.ndarray]:
    backend = BACKENDS[name]
    if reason := backend.missing():
        pytest.skip(reason)
    runner = backend.open(source, setup)
    runner.run()
    return runner.outputs()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what compilers say is theirs to mend
def test_outputs_are_those_of_torch(name: str, run: Run) -> None:
    inputs = np.random.default_rng(0).random((3, 1, 28, 28), dtype=np.float32)
    with opened_sources([run.path]) as (source,):
        (found,) = opened(name, source, Setup({"input": inputs}))
        assert source.network is not None
        with torch.no_grad():
            expected = SparseModel.load(source.network).build().eval()(torch.from_numpy(inputs))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_says_what_it_is(name: str) -> None:
    assert BACKENDS[name].summary


@pytest.mark.parametrize("name", ["torch", "torch-compile"])
def test_torch_runs_networks_not_files(name: str, run: Run) -> None:
    with opened_sources([run.path]) as (source,), pytest.raises(InputError, match="pass the run folder instead"):
        opened(name, Source("file", source.path), Setup({}))


def test_a_backend_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Backend(
        "absent", "", needs("no_such_module", "pip install 'rigl-compress[absent]'"), BACKENDS["torch"].open
    )
    monkeypatch.setattr(BACKENDS, "_items", {**BACKENDS, "absent": absent})
    with pytest.raises(InputError, match=r"no_such_module is not installed: pip install 'rigl-compress\[absent\]'"):
        usable_backend("absent")


def test_a_backend_of_another_package(registries: None, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = Backend("foreign", "from elsewhere", lambda: "", BACKENDS["torch"].open)

    class Entry:
        name = "foreign"

        def load(self) -> Backend:
            return foreign

    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry()] if group == "rigl_compress.backends" else [])
    monkeypatch.setattr(BACKENDS, "_entry_points_loaded", False)
    assert BACKENDS["foreign"] is foreign


def test_a_provider_that_is_not_there(run: Run) -> None:
    with (
        opened_sources([run.path]) as (source,),
        pytest.raises(InputError, match="did you mean 'CPUExecutionProvider'"),
    ):
        opened("onnxruntime", source, Setup({}, providers=("CPUExecutionProvidr",)))
