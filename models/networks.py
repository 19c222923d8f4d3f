"""The registry of networks: a decorated function is listed, trainable, exportable and tested."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import signature
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.prune_plan import PrunePlan
from rigl_compress.models.references import is_reference, load_factory
from rigl_compress.models.registry import Registry

Builder = Callable[..., nn.Module]
MOST_VALUES = 2**28  # of one sample, 1 GiB of floats: a file that asks for more is damaged


@dataclass(frozen=True)
class Network:
    """A network: how to build it, and what goes in and comes out.

    `input_shape` is that of one sample. With a `vocabulary` the inputs are tokens, whole numbers below it. Of a plain
    function that somebody brings along, neither the shape nor the classes are known before there are data.
    """

    name: str
    build: Builder
    input_shape: tuple[int, ...] | None = None
    classes: int | None = None
    vocabulary: int | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """What can be asked for when it is built."""
        return tuple(signature(self.build).parameters)

    @property
    def is_ours(self) -> bool:
        """Whether it comes with this package."""
        return self.build.__module__.startswith("rigl_compress.")

    @property
    def summary(self) -> str:
        """The first line of the builder's docstring."""
        return (self.build.__doc__ or "").strip().splitlines()[0] if self.build.__doc__ else ""


MODELS: Registry[Network] = Registry("model")
# Where the networks live; a new family is one file and one line here.
_FAMILIES = (
    "rigl_compress.models.mlp",
    "rigl_compress.models.lenet",
    "rigl_compress.models.resnet",
    "rigl_compress.models.wide_resnet",
    "rigl_compress.models.mobilenet_v1",
    "rigl_compress.models.mobilenet_v2",
    "rigl_compress.models.char_gru",
)


def register_model(
    name: str, *, input_shape: tuple[int, ...], classes: int, vocabulary: int | None = None
) -> Callable[[Builder], Builder]:
    """Register a function that builds a network."""

    def decorate(build: Builder) -> Builder:
        MODELS.register(name, Network(name, build, input_shape, classes, vocabulary))
        return build

    return decorate


def all_models() -> Registry[Network]:
    """Give the registry with every family loaded."""
    for family in _FAMILIES:
        import_module(family)
    return MODELS


def find_network(name: str) -> Network:
    """Find a network by its registered name, or by the reference `package.module:factory` of somebody's own.

    >>> find_network("lenet-5").input_shape, find_network("torch.nn:Bilinear").options[:2]
    ((1, 28, 28), ('in1_features', 'in2_features'))
    """
    if not is_reference(name):
        return all_models()[name]
    build = load_factory(name, "model", nn.Module, "torch.nn.Module")
    registered = next((network for network in MODELS.values() if network.build is build), Network(name, build))
    return replace(registered, name=name)


@dataclass(frozen=True)
class ModelSpec:
    """How to rebuild a network: its name or reference, its options, and what was cut away since (a prune plan).

    `input_shape` is that of the samples it is trained on, where it is not the registered one. Plain JSON, so that it
    can be saved.
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
        """The network of that name."""
        return find_network(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        shape = self.network.input_shape if self.input_shape is None else self.input_shape
        if shape is None:
            raise InputError(f"the shape of the samples of model {self.name!r} is not known: give model.input_shape")
        return shape

    def build(self) -> nn.Module:
        """Build the network with freshly drawn weights."""
        plan = None if self.plan is None else PrunePlan.from_json(self.plan)
        whole = self._build_whole(self.network)
        return whole if plan is None else self._reshaped(whole, plan)

    def _reshaped(self, whole: nn.Module, plan: PrunePlan) -> nn.Module:
        try:
            return plan.reshape(whole)
        except InputError:
            raise
        except Exception as error:  # sizes and places that such a network does not have
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise InputError(f"the prune plan does not fit model {self.name!r}: {reason}") from error

    def _build_whole(self, network: Network) -> nn.Module:
        for option in self.options:
            if option not in network.options:
                known = did_you_mean(option, network.options) if network.options else "it has none"
                raise InputError(f"model {self.name!r} has no option {option!r}: {known}")
        try:
            whole = network.build(**self.options)
        except InputError:
            raise
        except Exception as error:  # of what people bring along, anything can happen
            asked = ", ".join(f"{name} = {value!r}" for name, value in self.options.items()) or "no options"
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise InputError(f"model {self.name!r} cannot be built with {asked}: {reason}") from error
        if not isinstance(whole, nn.Module):
            raise InputError(f"model {self.name!r} gives a {type(whole).__name__}, expected a torch.nn.Module")
        return whole

    def outline(self) -> tuple[nn.Module, Tensor]:
        """Build the network and an input for counting: ours without memory for their weights, on `meta`.

        What people bring along is built as it is: reading a value or loading weights fails or warns on `meta`.

        >>> ModelSpec("resnet-50").outline()[0].fc.weight.device, ModelSpec("torch.nn:Tanh").network.is_ours
        (device(type='meta'), False)
        """
        with torch.device("meta") if self.network.is_ours else nullcontext():
            model = self.build()
        return model, self.example().to("meta" if self.network.is_ours else "cpu")

    def example(self, batch: int = 1, seed: int = 0) -> Tensor:
        """Give random inputs that the network takes, always the same ones, on the CPU.

        >>> ModelSpec("lenet-5").example().shape, ModelSpec("char-gru", {"classes": 5}).example(2).max()
        (torch.Size([1, 1, 28, 28]), tensor(4))
        """
        shape = (batch, *self.shape)
        random = torch.Generator().manual_seed(seed)
        if self.network.vocabulary is None:
            return torch.rand(shape, generator=random, device="cpu")
        tokens = self.options.get("classes", self.network.vocabulary)
        return torch.randint(tokens, shape, generator=random, device="cpu")

    def with_options(self, **options: Any) -> "ModelSpec":
        """Give the same network with some options changed."""
        return replace(self, options={**self.options, **options})

    def taking(self, input_shape: tuple[int, ...]) -> "ModelSpec":
        """Give the same network for samples of this shape."""
        own = is_reference(self.name)  # its shape is to be known without its code
        return replace(self, input_shape=None if not own and input_shape == self.network.input_shape else input_shape)

    def pruned(self, plan: PrunePlan) -> "ModelSpec":
        """Give the network that a plan leaves of this one."""
        earlier = PrunePlan() if self.plan is None else PrunePlan.from_json(self.plan)
        return replace(self, plan=earlier.then(plan).to_json())

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values."""
        shape = None if self.input_shape is None else list(self.input_shape)
        return {"name": self.name, "options": dict(self.options), "plan": self.plan, "input_shape": shape}
