"""Loggers for the metrics of `rigl-compress train`: TensorBoard, Weights & Biases, MLflow, or a function of yours.

A logger is called with `(step, metrics)` after every epoch. If it has the methods `begin(name, settings)` and `end()`,
they are called before and after the training.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import time
from typing import Any

from rigl_compress.core.errors import InputError, one_line
from rigl_compress.core.import_by_name import is_reference, load_reference
from rigl_compress.core.optional_packages import optional_package

MetricLogger = Callable[[int, Mapping[str, Any]], None]
FORMS = "tensorboard[:FOLDER], wandb[:PROJECT], mlflow[:URI] or PACKAGE.MODULE:FUNCTION"
MOST_PARAMS = 100  # that MLflow takes at once
PROJECT = "rigl-compress"  # of Weights & Biases, and the experiment of MLflow


class TensorBoardLogger:
    """Writes event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._settings = folder, ""
        self._writer: Any = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Keep the settings until the first step is known."""
        self._settings = "\n".join([f"    {key} = {value!r}" for key, value in {"run": name, **settings}.items()])

    def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the metrics; the first ones hide those of an earlier run from this step on."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=step)
            self._writer.add_text("settings", self._settings, step)
        for key, value in numbers(metrics):
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def end(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class WandbLogger:
    """Logs to a project of Weights & Biases; `WANDB_MODE=offline` keeps the run on this machine."""

    def __init__(self, project: str) -> None:
        self._wandb = optional_package("wandb", "wandb")
        self._project = project
        self._run: Any = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start a run with the settings as its config."""
        own = self._wandb.Settings(console="off")  # the output of the command is its user's
        self._run = self._wandb.init(project=self._project, name=name, config=dict(settings), settings=own)

    def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics."""
        self._run.log(dict(numbers(metrics)), step=step, commit=True)

    def end(self) -> None:
        """Finish the run."""
        self._run.finish()


class MlflowLogger:
    """Logs to a tracking server or folder of MLflow; an empty URI is what MLflow is set to."""

    def __init__(self, uri: str) -> None:
        self._mlflow = optional_package("mlflow", "mlflow")
        self._client = _mlflow_client(self._mlflow, uri)
        self._run = ""

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start a run with the settings as its parameters."""
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = self._client.create_experiment(PROJECT) if found is None else found.experiment_id
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        params = [self._mlflow.entities.Param(key, str(value)[:500]) for key, value in settings.items()]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run, params=params[first : first + MOST_PARAMS])

    def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics."""
        now, entities = int(time() * 1000), self._mlflow.entities
        found = [entities.Metric(key, float(value), now, step) for key, value in numbers(metrics)]
        self._client.log_batch(self._run, metrics=found)

    def end(self) -> None:
        """Finish the run."""
        self._client.set_terminated(self._run)


def _mlflow_client(mlflow: Any, uri: str) -> Any:
    try:
        return mlflow.MlflowClient(tracking_uri=uri or None)
    except mlflow.exceptions.MlflowException as error:  # of a URI that it does not take
        raise InputError(
            f"MLflow cannot log to {uri or 'where it is set to'}: pass the address of a server, mlflow:http://…, or a "
            f"folder with MLFLOW_ALLOW_FILE_STORE=true set ({one_line(error)})"
        ) from None


def open_logger(text: str, run_folder: Path) -> MetricLogger:
    """Return the logger that a text names; TensorBoard writes into the run folder by default."""
    return logger_maker(text, run_folder)()


def logger_maker(text: str, run_folder: Path) -> Callable[[], MetricLogger]:
    """Return a function that opens a logger; what can be checked without writing anything is checked now."""
    name, _, rest = text.partition(":")
    makers: dict[str, Callable[[], MetricLogger]] = {
        "tensorboard": partial(TensorBoardLogger, Path(rest) if rest else run_folder / "tensorboard"),
        "wandb": partial(WandbLogger, rest or PROJECT),
        "mlflow": partial(MlflowLogger, rest),
    }
    if name in makers:
        optional_package(name, name)
        return makers[name]
    if not is_reference(text):
        raise InputError(f"unknown logger {text!r}: expected {FORMS}")
    found = _callable(load_reference(text, "logger"), text)
    return lambda: found


def _callable(found: Any, text: str) -> MetricLogger:
    if not callable(found):
        raise InputError(f"logger {text!r} is a {type(found).__name__}, expected a function of (step, metrics)")
    return found  # type: ignore[no-any-return]


def numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the metrics that are numbers: a figure that is not known yet is None.

    >>> dict(numbers({"epoch": 1, "error": None, "metric": "error"}))
    {'epoch': 1}
    """
    for key, value in metrics.items():
        if isinstance(value, int | float):
            yield key, value
