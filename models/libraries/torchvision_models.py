"""Classifiers of torchvision by name: `torchvision:resnet50`."""

from typing import Any

from torch import nn

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.optional_packages import optional_package
from rigl_compress.models.libraries.image_normalisation import keep_normalisation
from rigl_compress.models.libraries.library_ends import keep_ends_dense
from rigl_compress.models.libraries.library_weights import load_fitting
from rigl_compress.models.model_registry import Network, Options

_OWN = ("pretrained", "weights")
_WITH_SECOND_OUTPUTS = ("googlenet", "inception_v3")  # in training, unless they are built without


def network(name: str) -> Network:
    """Return a classifier of torchvision. Options: `pretrained`, or `weights` by name, and those of its builder."""

    def build(**options: Any) -> nn.Module:
        return _build(name, options)

    def load(**options: Any) -> nn.Module:
        return _load(name, options)

    title = f"torchvision:{name}"
    return Network(
        title, build, classes_option="num_classes", library="torchvision", load=load, loads=_asks_for_weights
    )


def _asks_for_weights(options: Options) -> bool:
    return bool(options.get("weights")) or bool(options.get("pretrained", False))


def _models(name: str) -> Any:
    """Return `torchvision.models`, which holds the classifiers; detectors and others are in its sub-packages."""
    what = f"model {f'torchvision:{name}'!r}"
    models = optional_package("torchvision.models", "torchvision", what)
    if name not in (known := models.list_models(module=models)):
        raise InputError(f"{what} is not a classifier of torchvision: {did_you_mean(name, known)}")
    return models


def _further(name: str, options: Options) -> dict[str, Any]:
    """Return the options of the builder."""
    single = {"aux_logits": False} if name in _WITH_SECOND_OUTPUTS else {}
    return single | {key: value for key, value in options.items() if key not in _OWN}


def _build(name: str, options: Options) -> nn.Module:
    model: nn.Module = _models(name).get_model(name, weights=None, **_further(name, options))
    keep_ends_dense(model)
    if _asks_for_weights(options) and "transform_input" not in options and hasattr(model, "transform_input"):
        # As torchvision does with its weights for GoogLeNet and Inception.
        model.transform_input = True  # type: ignore[assignment]
    return model


def _load(name: str, options: Options) -> nn.Module:
    """Build the network with the library's weights, for any number of classes: torchvision itself refuses others."""
    model, what, models = _build(name, options), f"model {f'torchvision:{name}'!r}", _models(name)
    known = models.get_model_weights(name).__members__
    chosen = options.get("weights") or "DEFAULT"
    if chosen not in known:
        raise InputError(f"{what} has no weights {chosen!r}: {did_you_mean(str(chosen), known)}")
    others = {key: value for key, value in _further(name, options).items() if key != "num_classes"}
    load_fitting(model, models.get_model(name, weights=known[chosen], **others).state_dict(), what)
    views = known[chosen].transforms()
    keep_normalisation(model, {key: getattr(views, key, None) for key in ("mean", "std")})
    return model
