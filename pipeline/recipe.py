"""Recipes: everything a run depends on, as TOML."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from re import sub
from typing import Any, Literal

import tomli_w

import rigl_compress
from rigl_compress.models.artifacts import read_small_text
from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.networks import ModelSpec
from rigl_compress.models.settings import parse, plain
from rigl_compress.models.trust import FromFile, from_file, trusting_code, vouched
from rigl_compress.pipeline.train.config import SparsityConfig
from rigl_compress.pipeline.train.initialize import InitConfig
from rigl_compress.pipeline.train.learning_rate import LearningRate
from rigl_compress.pipeline.train.optimizers import OptimizerConfig


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how many of the last training samples are held out and tested on instead of the test set."""

    name: str = "mnist"
    holdout: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # of the data set, e.g. the length of sequences


@dataclass(frozen=True)
class StartConfig:
    """An earlier run to start from."""

    run: str  # its folder
    weights: Literal["fresh", "initial", "final"] = "fresh"
    topology: Literal["fresh", "begin", "end"] = "fresh"
    architecture: Literal["same", "alive"] = "same"  # alive: without the earlier run's dead neurons (RigL+)


@dataclass(frozen=True)
class TrainConfig:
    """The length and the manner of training."""

    epochs: int = 10
    batch: int = 100
    multiplier: float = 1.0  # M× training: epochs, learning-rate anchors and T_end are all scaled
    label_smoothing: float = 0.0
    clip_gradient: float = 0.0  # largest norm of the gradient; 0: not clipped
    accumulate: int = 1  # batches per optimizer step
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = False
    evaluate_every: int = 1  # epochs
    checkpoint_every: int = 1  # epochs

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "accumulate", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InputError(f"train.{name} is {getattr(self, name)}, expected 1 or more")
        if not 0 < self.multiplier < inf:
            raise InputError(f"train.multiplier is {self.multiplier}, expected a factor above 0")
        if not 0 <= self.label_smoothing <= 1:
            raise InputError(f"train.label_smoothing is {self.label_smoothing}, expected a share between 0 and 1")
        if not self.clip_gradient >= 0:
            raise InputError(f"train.clip_gradient is {self.clip_gradient}, expected a norm, or 0 for no clipping")

    @property
    def all_epochs(self) -> int:
        """Epochs of the whole run, the multiplier counted in."""
        return max(1, round(self.epochs * self.multiplier))


@dataclass(frozen=True)
class Recipe:
    """A whole run."""

    name: str
    format: Literal[1] = 1
    about: str = ""
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelSpec = field(default_factory=lambda: ModelSpec("lenet-300-100"))
    init: InitConfig = field(default_factory=InitConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    learning_rate: LearningRate = field(default_factory=LearningRate)
    train: TrainConfig = field(default_factory=TrainConfig)
    sparsity: SparsityConfig = field(default_factory=SparsityConfig)
    start: StartConfig | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}, expected a whole number from 0 to 2^63 - 1")

    @property
    def scaled_sparsity(self) -> SparsityConfig:
        """The sparse training with T_end scaled to M× training; ΔT stays (paper, §4)."""
        end = self.sparsity.end
        return self.sparsity if end is None else replace(self.sparsity, end=round(end * self.train.multiplier))

    def to_toml(self) -> str:
        """Write the recipe out in full, defaults included."""
        return tomli_w.dumps(plain(self))


def check_name(name: str) -> None:
    """Refuse a name that would be a path: folders of runs are called after it.

    >>> check_name("mnist-rigl")
    >>> check_name("../elsewhere")
    Traceback (most recent call last):
    rigl_compress.models.errors.InputError: name is '../elsewhere', expected one without slashes that a folder can have
    """
    if not name.strip(". ") or any(each in "/\\:" or not each.isprintable() for each in name):
        raise InputError(f"name is {name!r}, expected one without slashes that a folder can have")


def parse_recipe(text: str, where: str, overrides: Iterable[str] = ()) -> Recipe:
    """Parse a recipe; `overrides` are `key=value` with dots in the key and a TOML value.

    >>> parse_recipe('name = "mine"', "mine.toml", ["train.epochs=3", "data.name=mnist"]).train.epochs
    3
    """
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not valid TOML: {error}") from None
    content = from_file(content, where)
    for override in overrides:
        _override(content, override)
    if "row" in content:
        raise InputError(f"{where} is a comparison of several runs: use `rigl-compress compare --recipe {where}`")
    try:
        return parse(Recipe, content)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _override(content: dict[str, Any], override: str) -> None:
    path, equals, value = override.partition("=")
    if not equals or not path.strip():
        raise InputError(f"override {override!r} is not of the form key=value, e.g. train.epochs=10")
    *tables, key = _keys(path.strip())
    for table in tables:
        content = content.setdefault(table, {})
        if not isinstance(content, dict):
            raise InputError(f"override {override!r} goes into {table!r}, which is not a table")
    new = _value(value.strip())
    content[key] = from_file(new, override.file) if isinstance(override, FromFile) else new  # of a comparison's row


def _keys(path: str) -> list[str]:
    try:  # TOML's own rules for dotted and quoted keys
        nested: Any = tomllib.loads(f"{path} = 0")
    except (ValueError, RecursionError):
        raise InputError(f"{path!r} is not a key: write table.key, with quotes around names that hold dots") from None
    keys = []
    while isinstance(nested, Mapping):
        ((key, nested),) = nested.items()
        keys.append(key)
    return keys


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {whole_number_part(text)}")["value"]
    except (ValueError, RecursionError):
        return text  # a bare word is a text


def whole_number_part(text: str) -> str:
    """Write the zero that TOML wants before a decimal point; anything but such a number stays as it is.

    >>> whole_number_part(".9"), whole_number_part("-.5e-3"), whole_number_part("../runs")
    ('0.9', '-0.5e-3', '../runs')
    """
    return sub(r"^([+-]?)(\.\d+(?:[eE][+-]?\d+)?)$", r"\g<1>0\2", text)


def shipped_files() -> dict[str, Path]:
    """All that the folder of recipes holds, by name: recipes, and comparisons of several runs."""
    folder = Path(rigl_compress.__file__).parent / "recipes"  # resources of an editable install lie in two places
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    return {name: path for name, path in shipped_files().items() if "\n[[row]]" not in path.read_text(encoding="utf-8")}


def load_recipe(source: str, overrides: Iterable[str] = (), *, trust_code: bool = False) -> Recipe:
    """Load a recipe by the name of a shipped one or by the path of a file.

    `trust_code`: the functions that the file names, for its model or its data, may be imported and called.
    """
    path = shipped_files().get(source, Path(source))
    if not path.is_file():
        raise InputError(
            f"no recipe {source!r}: give the path of a TOML file or a name; {did_you_mean(source, shipped_recipes())}"
        )
    with trusting_code(trust_code):
        return read_recipe(path, source, overrides)


def read_recipe(path: Path, where: str, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe from a file."""
    try:
        text = read_small_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {where}: {error}; a recipe is a text file in TOML") from None
    recipe = parse_recipe(text, where, overrides)
    model = replace(recipe.model, name=vouched(recipe.model.name, recipe.model.options, path))
    data = replace(recipe.data, name=vouched(recipe.data.name, recipe.data.options, path))
    return replace(recipe, model=model, data=data)
