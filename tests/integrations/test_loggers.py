"""The metrics of a run in TensorBoard, Weights & Biases, MLflow and a function of one's own."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import Cli, Trainer, recipe

from rigl_compress.core.errors import InputError
from rigl_compress.integrations.loggers import MetricLogger, open_logger
from rigl_compress.pipeline.train.stage import train
from rigl_compress.pipeline.workspace import Run

FOREIGN = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def logged(trainer: Trainer, *loggers: MetricLogger, log: Any = None, **more: Any) -> Run:
    """Train two epochs with loggers."""
    environment = replace(trainer.here(), loggers=loggers, **({} if log is None else {"log": log}))
    train(recipe("train.epochs=2"), trainer.root / "run", environment, **more)
    return Run.open(trainer.root / "run")


def rows(run: Run) -> list[dict[str, Any]]:
    found = list(run.metrics())
    assert len(found) == 2
    return found


class Kept:
    """Keeps everything that it is called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        self.calls.append((name, dict(settings)))

    def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.calls.append((step, dict(metrics)))

    def end(self) -> None:
        self.calls.append("end")


def test_a_logger_gets_the_settings_and_every_line_of_the_metrics(trainer: Trainer) -> None:
    kept = Kept()
    run = logged(trainer, kept)
    (name, settings), *lines, end = kept.calls
    assert name == str(run.path)
    assert (settings["sparsity.method"], settings["train.epochs"], settings["seed"]) == ("rigl", 2, 0)
    assert lines == [(row["step"], row) for row in rows(run)]
    assert end == "end"


def test_a_function_is_enough(trainer: Trainer) -> None:
    steps: list[int] = []
    run = logged(trainer, lambda step, metrics: steps.append(step))
    assert steps == [row["step"] for row in rows(run)]


def test_a_logger_that_fails_is_named_once_and_loses_nothing(trainer: Trainer) -> None:
    class Broken(Kept):
        def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
            self.calls.append(step)
            raise ConnectionError("the server is gone\nfor good")

    said: list[str] = []
    kept, broken = Kept(), Broken()
    run = logged(trainer, broken, kept, log=said.append)
    warned = [line for line in said if "logger" in line]
    assert len(warned) == 1
    assert "gets no more metrics, it failed: ConnectionError: the server is gone" in warned[0]
    assert "Broken" in warned[0]
    assert len(rows(run)) == len(kept.calls) - 2
    assert [call[0] for call in broken.calls[:1]] == [str(run.path)]
    assert len(broken.calls) == 2  # its beginning and the first epoch
    assert run.result()["steps"] > 0


def test_without_a_listener_a_failure_is_a_warning(trainer: Trainer) -> None:
    def broken(step: int, metrics: Mapping[str, Any]) -> None:
        raise RuntimeError

    with pytest.warns(UserWarning, match="logger .*broken gets no more metrics"):
        logged(trainer, broken)


def test_loggers_end_with_a_training_that_is_stopped(trainer: Trainer) -> None:
    class Stopping(Kept):
        def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
            raise KeyboardInterrupt

    stopping = Stopping()
    with pytest.raises(KeyboardInterrupt):
        logged(trainer, stopping)
    assert stopping.calls[-1] == "end"


# The packages themselves


@FOREIGN
def test_tensorboard(trainer: Trainer) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = logged(trainer, open_logger("tensorboard", trainer.root / "run"))
    read = EventAccumulator(str(run.path / "tensorboard")).Reload()
    for key in ("train_loss", "error", "sparsity", "learning_rate", "changed"):
        expected = [(row["step"], pytest.approx(row[key])) for row in rows(run)]
        assert [(each.step, each.value) for each in read.Scalars(key)] == expected
    assert "sparsity.method = 'rigl'" in read.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()


@FOREIGN
def test_tensorboard_shows_a_run_that_was_started_again_once(trainer: Trainer) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for overwrite in (False, True):
        run = logged(trainer, open_logger("tensorboard", trainer.root / "run"), overwrite=overwrite)
    read = EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert [each.step for each in read.Scalars("error")] == [row["step"] for row in rows(run)]


@FOREIGN
def test_wandb(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "DIR": str(trainer.root), "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("WANDB_DATA_DIR", str(trainer.root))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(trainer.root))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(trainer.root))
    logger: Any = open_logger("wandb:mine", trainer.root / "run")
    summary: dict[str, Any] = {}
    finish = logger.end
    monkeypatch.setattr(logger, "end", lambda: (summary.update(logger._run.summary), finish()))
    run = logged(trainer, logger)
    assert summary["error"] == pytest.approx(rows(run)[-1]["error"])
    assert logger._run.config["sparsity.method"] == "rigl"
    assert logger._run.project == "mine"
    assert list((trainer.root / "wandb").glob("offline-run-*/*.wandb"))


@FOREIGN
def test_mlflow(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (trainer.root / "tracked").as_uri()
    run = logged(trainer, open_logger(f"mlflow:{uri}", trainer.root / "run"))
    client = mlflow.MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("rigl-compress").experiment_id])
    assert found.data.params["sparsity.method"] == "rigl"
    assert found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [(each.step, each.value) for each in history] == [(row["step"], row["train_loss"]) for row in rows(run)]


@FOREIGN
@pytest.mark.parametrize("uri", ["nowhere://at/all", ""])
def test_mlflow_says_what_it_does_not_take(uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")

    def refuse(**_: Any) -> None:
        raise mlflow.exceptions.MlflowException("unsupported\nURI")

    monkeypatch.setattr(mlflow, "MlflowClient", refuse)
    with pytest.raises(InputError, match=r"MLflow cannot log to .*mlflow:http://.*\(unsupported URI\)"):
        open_logger(f"mlflow:{uri}", tmp_path)


# The command line

WRITER = """
import json


def write(step, metrics):
    with open("metrics.txt", "a") as file:
        file.write(json.dumps({"step": step, **metrics}) + "\\n")


number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "writer_of_metrics.py").write_text(WRITER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("writer_of_metrics", None)


@pytest.mark.parametrize("command", ["train", "run"])
def test_the_command_line_takes_a_function(command: str, cli: Cli, folder: Path, data_dir: Path) -> None:
    quick = ["--data-dir", data_dir, "--set", "train.epochs=2", "--set", "train.batch=20", "--set", "sparsity.end=5"]
    more = ["--until", "train"] if command == "run" else []
    logging = ["--log-to", "writer_of_metrics:write"]
    done = cli(command, "--recipe", "mnist-methods", "-o", "run", *quick, *more, *logging)
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in (folder / "metrics.txt").read_text(encoding="utf-8").splitlines()]
    assert lines == list(Run.open(folder / "run").metrics())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorbord", r"unknown logger 'tensorbord': expected tensorboard\[:FOLDER\], wandb"),
        ("writer_of_metrics:number", "is a int, expected a function"),
        ("writer_of_metrics:writ", "did you mean 'write'"),
        ("no_such_module:write", "no module 'no_such_module'"),
    ],
)
def test_what_is_no_logger(text: str, message: str, folder: Path) -> None:
    with pytest.raises(InputError, match=message):
        open_logger(text, folder)


def test_a_bad_logger_is_an_error_before_anything_is_written(cli: Cli, folder: Path) -> None:
    done = cli("train", "--recipe", "mnist-methods", "-o", "run", "--log-to", "tensorbord")
    assert done.code == 2
    assert "unknown logger 'tensorbord'" in done.err
    assert not (folder / "run").exists()


@FOREIGN
@pytest.mark.parametrize("command", ["train", "run"])
def test_a_dry_run_checks_loggers_and_writes_nothing(
    command: str, cli: Cli, folder: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    words = [command, "--recipe", "mnist-methods", "-o", "run", "--data-dir", data_dir, "--dry-run"]
    before = sorted(path.name for path in folder.iterdir())
    for text in ("tensorboard", f"mlflow:{(folder / 'tracked').as_uri()}", "writer_of_metrics:write"):
        assert cli(*words, "--log-to", text).code == 0
    assert cli(*words, "--log-to", "tensorbord").code == 2
    assert [path for path in sorted(folder.iterdir()) if path.name not in (*before, "__pycache__")] == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_package_that_is_missing_is_named_with_its_extra(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"{name} is not installed: pip install 'rigl-compress\[{name}\]'"):
        open_logger(name, tmp_path)


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("lightning", "lightning", "lightning"), ("huggingface", "transformers", "huggingface")],
)
def test_a_framework_that_is_missing_is_named_with_its_extra(
    module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import import_module

    for name in [each for each in sys.modules if each.partition(".")[0] in (package, "pytorch_lightning")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"rigl_compress.integrations.{module}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'rigl-compress\[{extra}\]'"):
        import_module(f"rigl_compress.integrations.{module}")
