"""The registry of networks: a decorated function is listed, trainable, exportable and tested."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError, did_you_mean, first_line, one_line
from rigl_compress.core.import_by_name import as_factory, is_reference
from rigl_compress.core.registry import Registry
from rigl_compress.models.factory_output import shown_once
from rigl_compress.models.prune_plan import PrunePlan

Builder = Callable[..., nn.Module]
Options = Mapping[str, Any]
_ANY = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
MOST_VALUES = 2**28  # of one sample, 1 GiB of floats: a file with more is damaged


@dataclass(frozen=True)
class Network:
    """A network: how to build it, its inputs and its outputs.

    `input_shape` is that of one sample. With a `vocabulary` the inputs are tokens, integers below it. For a function
    from outside of the package, shape and classes are unknown until there is data.

    The network of a `library` has `load`, which builds it with the library's own weights for it if the options ask
    for them (`loads`), and `complete`, which returns options by which `build` needs nothing from outside, those in
    `needs` among them. `given` returns the network as its options make it.
    """

    name: str
    build: Builder
    input_shape: tuple[int, ...] | None = None
    classes: int | None = None
    vocabulary: int | None = None
    classes_option: str = "classes"
    library: str = ""
    load: Builder | None = None
    loads: Callable[[Options], bool] | None = None
    given: Callable[[Options], "Network"] | None = None
    complete: Callable[[Options], Options] | None = None
    needs: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options of the builder."""
        return tuple(name for name, each in signature(self.build).parameters.items() if each.kind not in _ANY)

    def takes(self, option: str) -> bool:
        """Whether the builder has an option of this name, or takes any."""
        return option in self.options or any(
            each.kind is Parameter.VAR_KEYWORD for each in signature(self.build).parameters.values()
        )

    @property
    def is_ours(self) -> bool:
        """Whether the network is part of this package."""
        return not self.library and self.build.__module__.startswith("rigl_compress.")

    @property
    def summary(self) -> str:
        """The first line of the builder's docstring."""
        return (self.build.__doc__ or "").strip().splitlines()[0] if self.build.__doc__ else ""


def _as_network(name: str, found: Any) -> Network:
    """Return the network that a function builds, with what it was registered with, if it was."""
    if isinstance(found, Network):
        return replace(found, name=name)
    build = as_factory(found, f"model {name!r}", nn.Module, "torch.nn.Module")
    registered = next((each for each in MODELS.loaded.values() if each.build is build), Network(name, build))
    return replace(registered, name=name)


# A new family is one file and one line here.
MODELS: Registry[Network] = Registry(
    "model",
    group="rigl_compress.models",
    adapt=_as_network,
    modules=(
        "rigl_compress.models.networks.mlp",
        "rigl_compress.models.networks.lenet",
        "rigl_compress.models.networks.resnet",
        "rigl_compress.models.networks.wide_resnet",
        "rigl_compress.models.networks.mobilenet_v1",
        "rigl_compress.models.networks.mobilenet_v2",
        "rigl_compress.models.networks.char_gru",
        "rigl_compress.models.networks.vision_transformer",
        "rigl_compress.models.networks.bert",
    ),
    libraries={
        "hf": "rigl_compress.models.libraries.huggingface_models:network",
        "timm": "rigl_compress.models.libraries.timm_models:network",
        "torchvision": "rigl_compress.models.libraries.torchvision_models:network",
    },
)


def _short(value: Any) -> str:
    """Show an option; the table of a whole configuration is not shown.

    >>> _short(3), _short({"a": 1})
    ('3', '{…}')
    """
    return "{…}" if isinstance(value, Mapping) else repr(value)


def register_model(
    name: str, *, input_shape: tuple[int, ...], classes: int, vocabulary: int | None = None
) -> Callable[[Builder], Builder]:
    """Return a decorator that registers a function which builds a network.

    `input_shape` is that of one sample. With a `vocabulary` the inputs are tokens, whole numbers below it.
    """

    def decorate(build: Builder) -> Builder:
        MODELS.register(name, Network(name, build, input_shape, classes, vocabulary))
        return build

    return decorate


@dataclass(frozen=True)
class ModelSpec:
    """How to rebuild a network: its name or reference, its options, and the prune plan applied since.

    `input_shape` is that of the samples it is trained on, if it differs from the registered one. All values are plain
    JSON, so that it can be saved.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None
    input_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.input_shape is not None:
            object.__setattr__(self, "input_shape", tuple(self.input_shape))  # JSON has lists
            if min(self.input_shape, default=1) < 1 or prod(self.input_shape) > MOST_VALUES:
                raise InputError(
                    f"input_shape is {list(self.input_shape)}, expected lengths of 1 or more, "
                    f"and at most {MOST_VALUES:,} values in a sample"
                )

    @property
    def network(self) -> Network:
        """The network of that name, as the options make it."""
        found = MODELS[self.name]
        return found if found.given is None else found.given(self.options)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        shape = self.network.input_shape if self.input_shape is None else self.input_shape
        if shape is None:
            raise InputError(f"the input shape of model {self.name!r} is unknown: set model.input_shape")
        return shape

    def build(self) -> nn.Module:
        """Build the network with random weights; what a function from outside has loaded stays."""
        network = self.network
        plan = None if self.plan is None else PrunePlan.from_json(self.plan)
        whole = self._build_whole(network, network.build)
        return whole if plan is None else self._reshaped(whole, plan)

    @property
    def is_pretrained(self) -> bool:
        """Whether `build_loaded` takes weights that the library of the network has for it."""
        loads = MODELS[self.name].loads
        return loads is not None and self.plan is None and loads(self.options)

    def build_loaded(self) -> nn.Module:
        """Build the network with the weights that its library has for it, if the options ask for them.

        Only training begins so: a network that is opened again has weights of its own.
        """
        network = self.network
        return self._build_whole(network, network.load) if network.load and self.is_pretrained else self.build()

    def with_classes(self, classes: int) -> "ModelSpec":
        """Return the spec for so many classes, if the network has an option for them that is not set.

        >>> ModelSpec("lenet-5").with_classes(7).options, ModelSpec("lenet-5", {"classes": 3}).with_classes(7).options
        ({'classes': 7}, {'classes': 3})
        """
        network = self.network
        option = network.classes_option
        known = bool(option) and (network.takes(option) if network.library else option in network.options)
        return self.with_options(**{option: classes}) if known and option not in self.options else self

    def completed(self) -> "ModelSpec":
        """Return the spec with all that is needed to build the network without the folder or the page it comes from."""
        complete = MODELS[self.name].complete
        return self if complete is None else replace(self, options=complete(self.options))

    def check_complete(self) -> None:
        """Raise for a spec of a saved network that would be read from elsewhere."""
        if missing := [option for option in MODELS[self.name].needs if option not in self.options]:
            raise InputError(f"model {self.name!r} is saved without its {' and '.join(missing)}: train it again")

    def _reshaped(self, whole: nn.Module, plan: PrunePlan) -> nn.Module:
        try:
            return plan.reshape(whole)
        except InputError:
            raise
        except Exception as error:  # sizes and positions that the network does not have
            reason = first_line(error)
            raise InputError(f"the prune plan does not fit model {self.name!r}: {reason}") from error

    def _build_whole(self, network: Network, build: Builder) -> nn.Module:
        for option in self.options:
            if not network.takes(option):
                known = did_you_mean(option, network.options) if network.options else "it has none"
                raise InputError(f"model {self.name!r} has no option {option!r}: {known}")
        try:
            with nullcontext() if network.is_ours else shown_once(network.name):
                whole = build(**self.options)
        except InputError:
            raise
        except Exception as error:  # code from outside this package can raise anything
            given = ", ".join(f"{name} = {_short(value)}" for name, value in self.options.items()) or "no options"
            raise InputError(
                f"model {self.name!r} cannot be built with {given}: {one_line(error)}{self._advice(build)}"
            ) from error
        if not isinstance(whole, nn.Module):
            raise InputError(f"model {self.name!r} returns a {type(whole).__name__}, expected a torch.nn.Module")
        return whole

    def _advice(self, build: Builder) -> str:
        """Name the options that a function needs and was not given."""
        parameters = signature(build).parameters.items()
        needed = [name for name, each in parameters if each.default is Parameter.empty and each.kind not in _ANY]
        missing = [f"model.options.{name}" for name in needed if name not in self.options]
        return f"; set {' and '.join(missing)}" if missing else ""

    def outline(self) -> tuple[nn.Module, Tensor]:
        """Build the network and an input for counting; networks of this package on the `meta` device, without memory.

        Others are built as usual: reading a value or loading weights fails or warns on `meta`.

        >>> ModelSpec("resnet-50").outline()[0].fc.weight.device, ModelSpec("torch.nn:Tanh").network.is_ours
        (device(type='meta'), False)
        """
        with torch.device("meta") if self.network.is_ours else nullcontext():
            model = self.build()
        return model, self.example().to("meta" if self.network.is_ours else "cpu")

    def example(self, batch: int = 1, seed: int = 0) -> Tensor:
        """Return random inputs that fit the network, the same for the same seed, on the CPU.

        >>> ModelSpec("lenet-5").example().shape, ModelSpec("char-gru", {"classes": 5}).example(2).max()
        (torch.Size([1, 1, 28, 28]), tensor(4))
        """
        shape = (batch, *self.shape)
        random = torch.Generator().manual_seed(seed)
        if self.network.vocabulary is None:
            return torch.rand(shape, generator=random, device="cpu")
        option = "vocabulary" if "vocabulary" in self.network.options else "classes"  # a language model scores tokens
        tokens = self.options.get(option, self.network.vocabulary)
        drawn = torch.randint(tokens, shape, generator=random, device="cpu")
        if len(self.shape) > 1:  # tokens, then flags for each of them: see huggingface_outputs
            drawn[:, 1:] = 1 - drawn[:, 1:] % 2
        return drawn

    def with_options(self, **options: Any) -> "ModelSpec":
        """Return the spec with some options changed."""
        return replace(self, options={**self.options, **options})

    def taking(self, input_shape: tuple[int, ...]) -> "ModelSpec":
        """Return the spec for samples of this shape."""
        own = is_reference(self.name)  # its shape is then known without running its code
        return replace(self, input_shape=None if not own and input_shape == self.network.input_shape else input_shape)

    def pruned(self, plan: PrunePlan) -> "ModelSpec":
        """Return the spec of the network after a prune plan."""
        earlier = PrunePlan() if self.plan is None else PrunePlan.from_json(self.plan)
        return replace(self, plan=earlier.then(plan).to_json())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        shape = None if self.input_shape is None else list(self.input_shape)
        return {"name": self.name, "options": dict(self.options), "plan": self.plan, "input_shape": shape}
