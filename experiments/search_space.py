"""The space of a search: for each key of a recipe the values that it can take, as `--space KEY=VALUES` writes them."""

from dataclasses import dataclass
from math import isfinite
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from rigl_compress.core.errors import InputError
from rigl_compress.experiments.grid import full_key, grid_values
from rigl_compress.pipeline.recipe import Recipe

FORMS = "LOW:HIGH, LOW:HIGH:STEP, log:LOW:HIGH or A,B,C"
DATA = ("data.holdout", "data.name")  # figures of trials with other data cannot be compared


@dataclass(frozen=True)
class Axis:
    """One key of the space: choices, or a range of numbers with its ends."""

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether the range has whole numbers only."""
        return isinstance(self.low, int)

    @property
    def ends(self) -> tuple[str, ...]:
        """The settings with the outermost values, or all choices."""
        return tuple(f"{self.key}={value}" for value in self.choices or (self.low, self.high))

    def suggest(self, trial: Any) -> Any:
        """Let a trial of Optuna choose a value; a trial that has one already keeps it."""
        if self.choices:
            return trial.suggest_categorical(self.key, self.choices)
        if self.whole:
            return trial.suggest_int(self.key, self.low, self.high, step=self.step or 1, log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)


def parse_axis(option: str) -> Axis:
    """Parse one option of a space.

    >>> parse_axis("peak=log:1e-3:1e-1")
    Axis(key='learning_rate.peak', choices=(), low=0.001, high=0.1, step=None, log=True)
    >>> parse_axis("train.batch=32:256:32").step, parse_axis("method=rigl,set").choices
    (32, ('rigl', 'set'))
    """
    key, _, text = option.partition("=")
    if not key or not text:
        raise _malformed(option)
    key = full_key(key)
    if key in DATA:
        raise InputError(f"space {option!r} changes the data, so that trials cannot be compared: use --set {key}=…")
    if "," in text:
        return _choice(key, tuple(dict.fromkeys(grid_values(f"{key}={text}")[1])), option)
    return _range(key, text, option)


def parse_space(options: tuple[str, ...]) -> tuple[Axis, ...]:
    """Parse all options of a space, each key once."""
    axes = tuple(map(parse_axis, options))
    keys = [axis.key for axis in axes]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise InputError(f"the space has {twice} twice: give each key once")
    if not axes:
        raise InputError(f"a search without a space: add --space KEY=VALUES, the values as {FORMS}")
    return axes


def _choice(key: str, values: tuple[str, ...], option: str) -> Axis:
    if len(values) < 2:
        raise InputError(f"space {option!r} has one value, expected two or more: use --set for a fixed value")
    return Axis(key, values)


def _range(key: str, text: str, option: str) -> Axis:
    log, parts = text.startswith("log:"), text.removeprefix("log:").split(":")
    try:
        low, high, *step = (_number(part, whole=_is_whole(key, parts)) for part in parts)
    except ValueError:
        raise _malformed(option) from None
    if len(step) > 1 or (log and step):
        raise _malformed(option)
    if not low < high or (log and low <= 0) or (step and step[0] <= 0):
        positive = "0 < LOW < HIGH" if log else "LOW < HIGH and STEP > 0"
        raise InputError(f"space {option!r} is empty, expected {positive}: correct its ends")
    return Axis(key, (), low, high, step[0] if step else None, log)


def _number(text: str, *, whole: bool) -> float:
    """Read a number.

    >>> _number("32", whole=True), _number("1e-3", whole=False)
    (32, 0.001)
    """
    value = int(text) if whole else float(text)
    if not isfinite(value):
        raise ValueError(text)
    return value


def _is_whole(key: str, parts: list[str]) -> bool:
    """Whether a key takes whole numbers; of keys that a recipe does not declare, whether they are written as such.

    >>> _is_whole("learning_rate.peak", ["0", "1"]), _is_whole("train.batch", ["8", "64"])
    (False, True)
    >>> _is_whole("model.options.width", ["1", "4"])
    True
    """
    kinds = _kinds(key)
    if kinds & {int, float}:
        return float not in kinds
    return all(part.strip().lstrip("+-").isdigit() for part in parts)


def _kinds(key: str) -> set[Any]:
    kind: Any = Recipe
    for name in key.split("."):
        kind = get_type_hints(kind).get(name) if isinstance(kind, type) else None
        if get_origin(kind) is UnionType:
            tables = [each for each in get_args(kind) if hasattr(each, "__dataclass_fields__")]
            kind = tables[0] if tables else kind
    return set(get_args(kind)) if get_origin(kind) is UnionType else {kind}


def _malformed(option: str) -> InputError:
    return InputError(f"space {option!r} is not of the form KEY=VALUES, with the values as {FORMS}")
