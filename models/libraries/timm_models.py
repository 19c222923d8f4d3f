"""Networks of timm by name: `timm:resnet50.a1_in1k`."""

import warnings
from typing import Any

from torch import nn

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.optional_packages import optional_package
from rigl_compress.models.libraries.image_normalisation import keep_normalisation
from rigl_compress.models.libraries.library_ends import keep_ends_dense
from rigl_compress.models.model_registry import Network, Options

# Files that timm would unpickle, and places it would download from: `start.weights` reads files without pickle.
_REFUSED = ("cache_dir", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")


def network(name: str) -> Network:
    """Return a network of timm. Options are those of `timm.create_model`, which knows them."""

    def build(**options: Any) -> nn.Module:
        return _create(name, {**options, "pretrained": False})

    def load(**options: Any) -> nn.Module:
        model = _with_warning(_create(name, options), name, options)
        if _asks_for_weights(options):
            keep_normalisation(model, getattr(model, "pretrained_cfg", {}))
        return model

    return Network(
        f"timm:{name}", build, classes_option="num_classes", library="timm", load=load, loads=_asks_for_weights
    )


def _asks_for_weights(options: Options) -> bool:
    return bool(options.get("pretrained", False))


def _with_warning(model: nn.Module, name: str, options: Options) -> nn.Module:
    """Warn of a head that timm leaves random because the pretrained network has other classes."""
    own = getattr(model, "pretrained_cfg", {}).get("num_classes")
    if own is not None and options.get("num_classes", own) != own:
        what = f"model {f'timm:{name}'!r}: the pretrained network has {own} classes, this one {options['num_classes']}"
        warnings.warn(f"{what}: its head is random at first", stacklevel=2)
    return model


def _create(name: str, options: Options) -> nn.Module:
    what = f"model {f'timm:{name}'!r}"
    timm = optional_package("timm", "timm", what)
    for option in _REFUSED:
        if option in options:
            raise InputError(f"{what} takes no {option} here: load weights of a file with start.weights")
    if ":" in name or "/" in name or not timm.is_model(name):  # hf-hub: and local-dir: name files, not code of timm
        raise InputError(f"{what} is not a network of timm: {did_you_mean(name, timm.list_models())}")
    built: nn.Module = timm.create_model(name, **options)
    keep_ends_dense(built)
    return built
