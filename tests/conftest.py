"""What all tests share: one thread, the same random numbers, and fixtures around `tiny`."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from in_threads import ThreadInstead
from tiny import Cli, Spoken, Trainer, write_mnist

from rigl_compress.cli.main import main

# Modules that tests import have no tests, and are not to be imported a second time for doctests.
collect_ignore_glob = [path.name for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")]
# No deadline: a busy machine is not an error. The same examples every time: what passed passes again.
settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
# `pytest --hypothesis-profile explore` looks for new ones.
settings.register_profile("explore", deadline=None, max_examples=1000, derandomize=False)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="Write the golden files of tests/golden again.")


def pytest_configure(config: pytest.Config) -> None:
    """Leave only the order of tests to pytest-randomly: without it the numbers are to be the same too."""
    if hasattr(config.option, "randomly_reset_seed"):
        config.option.randomly_reset_seed = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before any fixture: a test draws the same numbers alone, in any order (a new one each time) and on any worker."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def single_thread() -> Iterator[None]:
    """Tiny tensors on several threads, beside other tests on the same cores, are ten times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def nothing_shown_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What functions of other tests printed and warned counts for nothing."""
    monkeypatch.setattr("rigl_compress.models.factory_output._shown", {})


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests train and open is not remembered among what the user did here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIGL_COMPRESS_STATE", str(tmp_path_factory.mktemp("state")))
        patch.setenv("RIGL_COMPRESS_SESSION_CACHE", "0")
        patch.setenv("RIGL_COMPRESS_CONFIG", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small learnable data set under the names of MNIST."""
    return write_mnist(tmp_path_factory.mktemp("data") / "mnist").parent


@pytest.fixture
def trainer(tmp_path: Path, data_dir: Path) -> Trainer:
    """Train tiny recipes below tmp_path: trainer("sparsity.method=set", run="one")."""
    return Trainer(tmp_path, data_dir)


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    from rigl_compress.data.dataset_registry import DATASETS
    from rigl_compress.exporters.encodings import ENCODINGS
    from rigl_compress.models.model_registry import MODELS
    from rigl_compress.pipeline.bench.backends import BACKENDS
    from rigl_compress.sparsity.distributions import DISTRIBUTIONS
    from rigl_compress.sparsity.methods import METHODS
    from rigl_compress.sparsity.schedules import DECAYS

    for registry in (METHODS, DISTRIBUTIONS, DECAYS, ENCODINGS, BACKENDS, MODELS, DATASETS):
        monkeypatch.setattr(registry, "_items", dict(registry))  # type: ignore[call-overload]


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trials of an experiment are threads of this process."""
    monkeypatch.setattr("rigl_compress.experiments.scheduler._start_process", ThreadInstead)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call the command line as the console script does: cli("train", "--recipe", "x")."""
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # `main` sets it: not for the tests that follow

    def call(*arguments: object) -> Spoken:
        monkeypatch.setattr(sys, "argv", ["/usr/bin/rigl-compress", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Spoken(code, *capsys.readouterr())

    return call
