"""Networks of transformers by name or folder: `hf:google/vit-base-patch16-224`, `hf:folder`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.optional_packages import optional_package
from rigl_compress.core.trust import code_is_trusted
from rigl_compress.models.libraries.huggingface_configs import changed, config_at, config_of, saved, without_output
from rigl_compress.models.libraries.huggingface_outputs import images, returns_tensor, tokens
from rigl_compress.models.libraries.image_normalisation import keep_normalisation, of_processor
from rigl_compress.models.libraries.library_ends import keep_ends_dense
from rigl_compress.models.libraries.library_weights import warn_of_random
from rigl_compress.models.model_registry import Network, Options

_OWN = ("config", "num_labels", "pretrained", "task")


@dataclass(frozen=True)
class Task:
    """What a network answers: the class of transformers that builds it, and the field of its outputs."""

    auto: str
    output: str = "logits"
    has_classes: bool = True


TASKS = {
    "image-classification": Task("AutoModelForImageClassification"),
    "text-classification": Task("AutoModelForSequenceClassification"),
    "masked-lm": Task("AutoModelForMaskedLM", has_classes=False),
    "features": Task("AutoModel", "last_hidden_state", has_classes=False),
}
_ENDINGS = {
    "ForImageClassification": "image-classification",
    "ForSequenceClassification": "text-classification",
    "ForMaskedLM": "masked-lm",
}


def network(name: str) -> Network:
    """Return a network of transformers. Options: `task`, `pretrained`, `num_labels`, fields of its configuration."""

    def build(**options: Any) -> nn.Module:
        return _Source(name, options).build()

    def load(**options: Any) -> nn.Module:
        return _Source(name, options).load()

    def given(options: Options) -> Network:
        return _Source(name, options).network(build, load)

    return Network(
        f"hf:{name}",
        build,
        library="transformers",
        load=load,
        loads=_asks_for_weights,
        given=given,
        complete=lambda options: _Source(name, options).options,
        needs=("config", "task"),
    )


def _asks_for_weights(options: Options) -> bool:
    return bool(options.get("pretrained", True))


class _Source:
    """A name and the options of a recipe, or of a saved network, which have the whole configuration."""

    def __init__(self, name: str, options: Options) -> None:
        self.name, self.what, self._options = name, f"model {f'hf:{name}'!r}", options
        self._library = optional_package("transformers", "huggingface", self.what)
        table = options.get("config")
        config = config_at(name, self.what) if table is None else config_of(table, name, self.what)
        self.task_name = _task(options.get("task"), config, self.what)
        self.task = TASKS[self.task_name]
        own = {key: value for key, value in options.items() if key not in _OWN}
        self.config = changed(config, own, options.get("num_labels"), self.what)

    @property
    def options(self) -> Options:
        """Options by which the network is built without its folder, or the network."""
        pretrained = _asks_for_weights(self._options)
        return {"task": self.task_name, "pretrained": pretrained, "config": saved(self.config)}

    def network(self, build: Any, load: Any) -> Network:
        """The network as these options make it."""
        seen = "num_labels" if self.task.has_classes and "config" not in self._options else ""
        side, channels = getattr(self.config, "image_size", None), getattr(self.config, "num_channels", 3)
        sides = (side, side) if isinstance(side, int) else tuple(side or ())
        return Network(
            f"hf:{self.name}",
            build,
            input_shape=(channels, *sides) if self._sees_images and sides else None,
            vocabulary=None if self._sees_images else self.config.vocab_size,
            classes_option=seen,
            library="transformers",
            load=load,
            loads=_asks_for_weights,
        )

    @property
    def _sees_images(self) -> bool:
        return getattr(self.config, "vocab_size", None) is None

    def build(self) -> nn.Module:
        """Build the network with random weights."""
        auto = getattr(self._library, self.task.auto)
        return self._adapted(auto.from_config(self.config, dtype=torch.float32, trust_remote_code=code_is_trusted()))

    def load(self) -> nn.Module:
        """Build the network with the weights of its folder or page: safetensors, never pickle."""
        auto = getattr(self._library, self.task.auto)
        with without_output(self._library):
            model, report = auto.from_pretrained(
                self.name,
                config=self.config,
                dtype=torch.float32,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                trust_remote_code=code_is_trusted(),
            )
        mismatched = [each[0] if isinstance(each, tuple) else each for each in report["mismatched_keys"]]
        warn_of_random([*report["missing_keys"], *mismatched], self.what)
        if self._sees_images:
            file = self._file("preprocessor_config.json")
            keep_normalisation(model, {} if file is None else of_processor(file))
        return self._adapted(model)

    def _file(self, name: str) -> Path | None:
        """Return a file of the folder, or of the page."""
        if Path(self.name).is_dir():
            return Path(self.name) / name
        missing = "_raise_exceptions_for_missing_entries", "_raise_exceptions_for_connection_errors"
        with without_output(self._library):
            found = self._library.utils.cached_file(self.name, name, **dict.fromkeys(missing, False))
        return None if found is None else Path(found)

    def _adapted(self, model: nn.Module) -> nn.Module:
        body = model.base_model  # the network itself where it has no part of that name, or no head
        keep_ends_dense(model, None if body is model and self.task.output == "logits" else body)  # type: ignore[arg-type]
        return returns_tensor(model, self.task.output, images if self._sees_images else tokens)


def _task(chosen: Any, config: Any, what: str) -> str:
    """Return the task that an option names, or that the network was saved with.

    >>> from types import SimpleNamespace
    >>> _task(None, SimpleNamespace(architectures=["BertForMaskedLM"]), "model 'hf:bert'")
    'masked-lm'
    """
    if chosen is not None:
        if chosen not in TASKS:
            raise InputError(f"{what} has no task {chosen!r}: {did_you_mean(str(chosen), TASKS)}")
        return str(chosen)
    saved_as = (getattr(config, "architectures", None) or ["Model"])[0]
    task = next((task for ending, task in _ENDINGS.items() if saved_as.endswith(ending)), None)
    if task is None and (re.search(r"For[A-Z]", saved_as) or saved_as.endswith("HeadModel")):
        raise InputError(
            f"{what} was saved as {saved_as}, whose head has no task here: set model.options.task to one of "
            f"{', '.join(TASKS)}; `features` drops the head"
        )
    return task or "features"
