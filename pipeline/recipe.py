"""Recipes: everything a run depends on, as TOML."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

import tomli_w

import rigl_compress
from rigl_compress.core.artifacts import read_small_text
from rigl_compress.core.dataclass_io import parse, plain
from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.trust import Call, FromFile, from_file, trusted_if_trained_here, trusting_code
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.pipeline.distill_config import DistillConfig
from rigl_compress.pipeline.learning_rate import LearningRate
from rigl_compress.pipeline.optimizers import OptimizerConfig
from rigl_compress.sparsity.initialization import InitConfig
from rigl_compress.sparsity.sparsity_config import SparsityConfig

RUN_WEIGHTS = ("initial", "final")  # of an earlier run
RUN_TOPOLOGIES = ("start", "end")
START_WEIGHTS = ("fresh", *RUN_WEIGHTS, "model")  # any other text is a file


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how many of the last training samples are held out and tested on instead of the test set."""

    name: str = "mnist"
    holdout: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # of the data set, e.g. the length of sequences


@dataclass(frozen=True)
class StartConfig:
    """The weights, connections or architecture to start from."""

    run: str | None = None  # folder of an earlier run
    weights: str = "fresh"  # "initial", "final": of the run; "model": as the network's code returns them; or a file
    topology: Literal["fresh", "start", "end", "magnitude", "magnitude-global", "obs"] = "fresh"
    architecture: Literal["same", "pruned"] = "same"  # pruned: without the earlier run's dead neurons (RigL+)
    rename: Mapping[str, str] = field(default_factory=dict)  # regular expressions in names of weights → replacements
    skip: tuple[str, ...] = ()  # parameters that stay as they are built, by name, module, glob or type
    samples: int = 512  # of training, that "obs" prunes with

    def __post_init__(self) -> None:
        for key, of_run in {"weights": RUN_WEIGHTS, "topology": RUN_TOPOLOGIES, "architecture": ("pruned",)}.items():
            if self.run is None and (value := getattr(self, key)) in of_run:
                raise InputError(f"start.{key} is {str(value)!r}, of an earlier run: name its folder with start.run")
        if self.samples < 1:
            raise InputError(f"start.samples is {self.samples}, expected 1 or more training samples")
        for key in ("rename", "skip"):
            if getattr(self, key) and self.weights in ("fresh", "model"):
                raise InputError(f"start.{key} is for weights that are loaded: set start.weights to a file")
        for pattern in self.rename:
            check_expression(pattern)

    @property
    def file(self) -> Path | None:
        """The file or folder of weights to start from."""
        return None if self.weights in START_WEIGHTS else Path(self.weights)


def check_expression(pattern: str) -> None:
    """Raise for a text that is no regular expression.

    >>> check_expression("(")
    Traceback (most recent call last):
    rigl_compress.core.errors.InputError: start.rename: '(' is no regular expression (missing ), unterminated \
subpattern at position 0): write a backslash before characters that mean themselves
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(
            f"start.rename: {str(pattern)!r} is no regular expression ({error}): write a backslash before characters "
            "that mean themselves"
        ) from None


@dataclass(frozen=True)
class TrainConfig:
    """The settings of training."""

    epochs: int = 10
    batch: int = 100
    multiplier: float = 1.0  # M× training: epochs, learning-rate anchors and T_end are all scaled
    label_smoothing: float = 0.0
    clip_gradient: float = 0.0  # largest norm of the gradient; 0: not clipped
    accumulate: int = 1  # batches per optimizer step
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = False
    channels_last: bool = False  # images and filters with their channels together in memory
    evaluate_every: int = 1  # epochs
    checkpoint_every: int = 1  # epochs
    checkpoint_steps: int = 0  # also after so many optimizer steps; 0: at the end of epochs only
    checkpoint_minutes: float = 0.0  # also after so many minutes
    sync_batch_norm: bool = False  # with several processes: normalise over the whole batch, not each part by itself
    freeze_batch_norm: bool = False  # normalise with the running statistics in training too
    recalibrate_batch_norm: int = 0  # training batches that statistics are estimated from after updates; 0: never

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "accumulate", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InputError(f"train.{name} is {getattr(self, name)}, expected 1 or more")
        if not 0 < self.multiplier < inf:
            raise InputError(f"train.multiplier is {self.multiplier}, expected a factor above 0")
        if not 0 <= self.label_smoothing <= 1:
            raise InputError(f"train.label_smoothing is {self.label_smoothing}, expected a share between 0 and 1")
        if self.recalibrate_batch_norm < 0:
            raise InputError(
                f"train.recalibrate_batch_norm is {self.recalibrate_batch_norm}, expected a number of batches, or 0"
            )
        if self.checkpoint_steps < 0 or not 0 <= self.checkpoint_minutes < inf:
            raise InputError(
                f"train.checkpoint_steps is {self.checkpoint_steps} and train.checkpoint_minutes "
                f"{self.checkpoint_minutes}, expected 0 (at the end of epochs only) or more"
            )
        if not self.clip_gradient >= 0:
            raise InputError(f"train.clip_gradient is {self.clip_gradient}, expected a norm, or 0 for no clipping")

    @property
    def all_epochs(self) -> int:
        """Epochs of the whole run, the multiplier included."""
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
    distill: DistillConfig | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}, expected a whole number from 0 to 2^63 - 1")
        if not isinstance(self.sparsity.method, str):  # a recipe is a text
            raise InputError(
                f"sparsity.method is a Method, expected its name: register it with register_method, and write "
                f"{self.sparsity.method.name!r}, or package.module:NAME"
            )

    @property
    def references(self) -> list[Call]:
        """What may be code from outside of the package, with its options: model, data, method, distribution, decay."""
        sparsity = self.sparsity
        return [
            (self.model.name, self.model.options),
            (self.data.name, self.data.options),
            (sparsity.method_name, sparsity.options),
            (sparsity.distribution, {}),
            (sparsity.decay, {}),
        ]

    @property
    def scaled_sparsity(self) -> SparsityConfig:
        """The sparse training with T_end scaled to M× training; ΔT stays (paper, §4)."""
        end = self.sparsity.end
        return self.sparsity if end is None else replace(self.sparsity, end=round(end * self.train.multiplier))

    def to_toml(self) -> str:
        """Write the recipe out in full, defaults included."""
        return tomli_w.dumps(plain(self))


def check_name(name: str) -> None:
    """Raise for a name that is a path: run folders are named after it.

    >>> check_name("mnist-rigl")
    >>> check_name("../elsewhere")
    Traceback (most recent call last):
    rigl_compress.core.errors.InputError: name is '../elsewhere', expected a folder name without slashes
    """
    if not name.strip(". ") or any(each in "/\\:" or not each.isprintable() for each in name):
        raise InputError(f"name is {name!r}, expected a folder name without slashes")


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
        if len(nested) != 1:  # a comment, or several lines
            raise ValueError
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
    except (ValueError, RecursionError) as error:
        if text.startswith(("{", "[", '"')):
            raise InputError(f"{text} is not valid TOML: {error}") from None
        return text  # a bare word is a string


def whole_number_part(text: str) -> str:
    """Add the zero that TOML requires before a decimal point; any other text is unchanged.

    >>> whole_number_part(".9"), whole_number_part("-.5e-3"), whole_number_part("../runs")
    ('0.9', '-0.5e-3', '../runs')
    """
    return re.sub(r"^([+-]?)(\.\d+(?:[eE][+-]?\d+)?)$", r"\g<1>0\2", text)


def shipped_files() -> dict[str, Path]:
    """Return the shipped files by name: recipes, and comparisons of several runs."""
    folder = Path(rigl_compress.__file__).parent / "recipes"  # an editable install has resources in two places
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def shipped_recipes() -> dict[str, Path]:
    """Return the shipped recipes by name."""
    return {name: path for name, path in shipped_files().items() if "\n[[row]]" not in path.read_text(encoding="utf-8")}


def load_recipe(source: str, overrides: Iterable[str] = (), *, trust_code: bool = False) -> Recipe:
    """Load a recipe by the name of a shipped one or by the path of a file.

    `trust_code`: the code that the file names, for its model, data or method, may be imported and called.
    """
    path = shipped_files().get(source, Path(source))
    if not path.is_file():
        raise InputError(
            f"no recipe {source!r}: pass the path of a TOML file or a name; {did_you_mean(source, shipped_recipes())}"
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
    model, data, method, distribution, decay = (trusted_if_trained_here(*call, path) for call in recipe.references)
    return replace(
        recipe,
        model=replace(recipe.model, name=model),
        data=replace(recipe.data, name=data),
        sparsity=replace(recipe.sparsity, method=method, distribution=distribution, decay=decay),
    )
