"""What to prune, how far, and how to write it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, get_args

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.exporters.onnx_export import Layout
from rigl_compress.exporters.random_inputs import Shape
from rigl_compress.onnx_pruning.calibration_samples import CalibrationConfig, Normalization
from rigl_compress.onnx_pruning.density_allocation import ALLOCATIONS, SPARSEST
from rigl_compress.onnx_pruning.one_shot_pruning import METHODS
from rigl_compress.pipeline.bench.timing import TimingPlan
from rigl_compress.pipeline.export.stage import PLAIN, TARGETS
from rigl_compress.runtime.sparse_runtime_export import TARGET
from rigl_compress.sparsity.budgets import TIMES, parse_budget

SPARSITY = 0.5
_NONE = type(None)
_TYPES: tuple[tuple[tuple[str, ...], tuple[type, ...], str], ...] = (
    (("sparsity",), (Real, _NONE), "a share such as 0.6"),
    (("budget",), (str, _NONE), "text such as 'speedup=2'"),
    (("method", "allocation"), (str, _NONE), "text"),
    (("encoding", "values", "target", "normalize"), (str,), "text"),
    (("samples", "threads"), (Integral,), "a whole number"),
    (("calibration",), (str, Path, Mapping, _NONE), "a path, or arrays by the names of the inputs"),
    (("dense",), (str, Sequence), "patterns of the names of weights"),
    (("shapes",), (Mapping,), "shapes by the names of the inputs"),
)


@dataclass(frozen=True)
class SparsifyConfig:
    """The settings of `sparsify_onnx`: a sparsity, 0.5 by default, or a budget such as "speedup=2".

    An empty method or allocation is chosen by whether there is calibration data. `method`: "obs" (second-order
    information) or "magnitude". `allocation` of weights among layers: "error" (least error of the outputs), "uniform",
    or "scaled" (by scaled magnitude). `dense`: patterns of weights that are not touched. Channels
    that have become dead are removed, unless `keep_dead_channels` is set.
    """

    sparsity: float | None = None
    budget: str = ""
    method: str = ""
    allocation: str = ""
    calibration: Path | str | Mapping[str, Any] | None = None  # a path, or arrays by the names of inputs
    samples: int = 256
    normalize: Normalization = "imagenet"
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    dense: tuple[str, ...] = ()
    keep_dead_channels: bool = False
    encoding: str = "compact"
    values: str = "fp32"
    target: str = PLAIN
    overwrite: bool = False
    threads: int = 1
    timing: TimingPlan | None = field(default_factory=lambda: TimingPlan(openings=3, rounds=15, seconds=6.0))

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "dense", (self.dense,) if isinstance(self.dense, str) else tuple(self.dense))
        if self.sparsity is not None and not 0 <= self.sparsity < 1:
            raise InputError(f"sparsity is {self.sparsity}, expected a share from 0 to below 1")
        if self.chosen_allocation == "error" and self.density < SPARSEST - 1e-9:
            raise InputError(
                f"sparsity {self.sparsity} is more than the largest, {1 - SPARSEST}, that errors are measured for: "
                "choose a smaller one, or allocation uniform or scaled"
            )
        if self.budget and (self.sparsity is not None or self.allocation not in ("", "error")):
            raise InputError("a budget decides the sparsity of every layer: leave out --sparsity and --allocation")
        if self.budget:
            parse_budget(self.budget)
        for kind, name, known in (
            ("method", self.method, METHODS),
            ("allocation", self.allocation, ALLOCATIONS),
            ("target", self.target, TARGETS),
            ("normalization", self.normalize, get_args(Normalization)),
        ):
            if name and name not in known:
                raise InputError(f"no {kind} {name!r}: {did_you_mean(name, known)}")
        if self.method == "obs" and self.calibration is None:
            raise InputError('method "obs" needs samples of the inputs: pass calibration data, or choose "magnitude"')
        if self.target == TARGET and self.values != "fp32":
            raise InputError(f"--target {TARGET} has weights of 32 bits: leave out --values")
        _ = self.layout

    def _check_types(self) -> None:
        """Raise `InputError` for values of other types, which Python callers can pass."""
        for names, kinds, wanted in _TYPES:
            for name in names:
                found = getattr(self, name)
                if isinstance(found, bool) or not isinstance(found, kinds):
                    raise InputError(f"{name} is {found!r} of type {type(found).__name__}, expected {wanted}")

    @property
    def chosen_method(self) -> str:
        """The method: second-order information if there is data."""
        return self.method or ("magnitude" if self.calibration is None else "obs")

    @property
    def chosen_allocation(self) -> str:
        """How weights are shared out: by measured errors if there is data."""
        return self.allocation or ("scaled" if self.calibration is None and not self.budget else "error")

    @property
    def density(self) -> float:
        """The share of weights to keep."""
        return 1 - (SPARSITY if self.sparsity is None else self.sparsity)

    @property
    def decides(self) -> dict[str, Any]:
        """What the densities of layers depend on; with a budget also how files are written, or timed."""
        kind = parse_budget(self.budget).kind if self.budget else ""
        more = {"size": ("encoding", "values", "target", "keep_dead_channels")}.get(kind, ())
        names = ("sparsity", "budget", "allocation", *more, *(("threads",) if kind in TIMES else ()))
        return {name: getattr(self, name) for name in names} | {"dense": list(self.dense)}

    @property
    def layout(self) -> Layout:
        """How weights are written."""
        return Layout(self.encoding, self.values)

    @property
    def samples_config(self) -> CalibrationConfig:
        """Where the samples come from."""
        path = Path(self.calibration) if isinstance(self.calibration, str | Path) else None
        arrays = self.calibration if isinstance(self.calibration, Mapping) else None
        return CalibrationConfig(path, self.samples, self.normalize, self.shapes, arrays)
