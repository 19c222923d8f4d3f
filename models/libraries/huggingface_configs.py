"""Configurations of transformers as plain tables: read from a folder, changed by options, kept with a saved network."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rigl_compress.core.errors import InputError, did_you_mean, first_line
from rigl_compress.core.optional_packages import optional_package
from rigl_compress.core.trust import code_is_trusted

# What makes transformers import code, or download: kernels, quantizers, the weights of another network.
_LEFT_OUT = (
    "auto_map",
    "custom_pipelines",
    "kernel",
    "implementation",
    "quantization",
    "_name_or_path",
    "_commit_hash",
)
_REFUSED = ("backbone", "use_pretrained_backbone", "use_timm_backbone")


def config_at(name: str, what: str) -> Any:
    """Return the configuration in a folder, or of a name on the Hugging Face hub; no code of theirs is run."""
    transformers = optional_package("transformers", "huggingface", what)
    _check_folder(name, what)
    try:
        with without_output(transformers):
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=code_is_trusted())
    except Exception as error:  # the library raises anything: no network, no such page, not JSON, code of theirs
        where = "" if Path(name).is_dir() else f"no folder {name} is here, and "
        raise InputError(f"{what} has no configuration that can be read: {where}{_reason(error)}") from error
    return config if code_is_trusted() else config_of(json.loads(config.to_json_string()), name, what)


def _check_folder(name: str, what: str) -> None:
    if not name:
        raise InputError(f"{what} has no name: write hf:NAME of the Hugging Face hub, or hf:FOLDER")
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(f"{what}: the folder {folder} has no config.json: name what `save_pretrained` has written")
    if not folder.is_dir() and (name.startswith((".", "/", "~")) or folder.exists()):
        raise InputError(f"{what}: {name} is not a folder: name what `save_pretrained` has written")


def _reason(error: Exception) -> str:
    """Return the first sentence of an error, with a cure where it is one of code that is not trusted."""
    found = first_line(error).rstrip(".")
    return f"{found}; add --trust-code if you trust its code" if "trust_remote_code" in str(error) else found


def config_of(table: Any, name: str, what: str) -> Any:
    """Return the configuration of a table, by classes of transformers alone; `auto_map` counts if code is trusted."""
    if not isinstance(table, Mapping) or not isinstance(table.get("model_type"), str):
        raise InputError(f"{what}: its config is not a table with a model_type: it is damaged")
    transformers = optional_package("transformers", "huggingface", what)
    if code_is_trusted() and "auto_map" in table:
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=True)
    if found := [key for key in _keys(table) if key in _REFUSED]:
        raise InputError(
            f"{what}: networks with another one inside ({found[0]}) are not supported: name that one itself"
        )
    kind = str(table["model_type"])
    content = {key: value for key, value in _clean(table).items() if key != "model_type"}
    try:
        with without_output(transformers):
            return transformers.AutoConfig.for_model(kind, **content)
    except Exception as error:
        raise InputError(f"{what}: transformers does not take its config of type {kind!r}: {_reason(error)}") from error


def _keys(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        yield key
        yield from _keys(value) if isinstance(value, Mapping) else ()


def _clean(table: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what would import or download, in tables of tables too.

    >>> _clean({"hidden_size": 8, "auto_map": {}, "text_config": {"_attn_implementation": "someone/kernel"}})
    {'hidden_size': 8, 'text_config': {}}
    """
    kept = {key: value for key, value in table.items() if not any(word in key for word in _LEFT_OUT)}
    return {key: _clean(value) if isinstance(value, Mapping) else _plain(value) for key, value in kept.items()}


def _plain(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, str) else value  # without the mark of the file it stands in


def changed(config: Any, options: Mapping[str, Any], labels: Any, what: str) -> Any:
    """Set fields of a configuration, the number of classes among them."""
    known = {key for key in vars(config) if not key.startswith("_")}
    for key, value in options.items():
        if key not in known or any(word in key for word in _LEFT_OUT):
            raise InputError(f"{what} has no option {key!r}: {did_you_mean(key, known)}")
        setattr(config, key, _plain(value))
    if labels is not None and labels != config.num_labels:
        config.num_labels = labels
    config.dtype = "float32"
    return config


def saved(config: Any) -> dict[str, Any]:
    """Return a configuration as plain JSON values, from which `config_of` makes it again."""
    content: dict[str, Any] = json.loads(config.to_json_string())
    return content if "auto_map" in content and code_is_trusted() else _clean(content)


@contextmanager
def without_output(transformers: Any) -> Iterator[None]:
    """Silence the library's messages and progress bars: rigl-compress reports what matters."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
