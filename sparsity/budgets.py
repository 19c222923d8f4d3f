"""Budgets as people type them: so many times faster, or at most so many seconds, bytes or FLOPs."""

from collections.abc import Callable
from dataclasses import dataclass

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.unit_factors import UNITS

Cost = Callable[[float], float]  # of a density
TIMES = ("speedup", "latency")
KINDS = (*TIMES, "size", "flops")
_UNITS = {  # of each kind; "" stands for none
    "speedup": ("", "x"),
    "latency": ("us", "µs", "ms", "s"),
    "size": ("", "B", "kB", "MB", "GB", "KiB", "MiB", "GiB"),
    "flops": ("", "K", "M", "G"),
}
_GAP, _VALUE = 1, 4  # bytes


@dataclass(frozen=True)
class Budget:
    """A wish: so many times faster, or at most so many seconds, bytes or FLOPs."""

    kind: str
    value: float

    def __str__(self) -> str:
        """Return it as it is typed."""
        return f"{self.kind}={self.value:g}"


def parse_budget(text: str) -> Budget:
    """Read a budget.

    >>> parse_budget("speedup=2"), parse_budget("latency=8ms").value, parse_budget("size=4MB").value
    (Budget(kind='speedup', value=2.0), 0.008, 4000000.0)
    """
    kind, _, amount = (part.strip() for part in text.partition("="))
    if kind not in KINDS:
        raise InputError(f"budget {text!r} is of no known kind: {did_you_mean(kind, KINDS)}")
    number = amount.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZµ")
    factor = _factor(text, kind, amount[len(number) :])
    try:
        value = float(number) * factor
    except ValueError:
        raise InputError(f"budget {text!r} has no number: write e.g. speedup=2, latency=8ms, size=4MB") from None
    if not 0 < value < float("inf"):
        raise InputError(f"budget {text!r} is not above 0")
    return Budget(kind, value)


def _factor(text: str, kind: str, unit: str) -> float:
    """Return what a unit stands for; raise for one of another kind, and for a time without one."""
    if unit not in _UNITS[kind]:
        known = ", ".join(filter(None, _UNITS[kind])) + (" or none" if "" in _UNITS[kind] else "")
        found = f"the unit {unit!r}" if unit else "no unit"
        raise InputError(f"budget {text!r} has {found}, expected one of {kind}: {known}")
    return 1.0 if unit == "x" else UNITS[unit]


def byte_cost(size: int) -> Cost:
    """Return the bytes of a weight in the smallest of the encodings; about, as gaps over 255 take more.

    >>> byte_cost(1000)(1.0), byte_cost(1000)(0.5), byte_cost(1000)(0.01)
    (4000, 2125.0, 50.0)
    """

    def cost(density: float) -> float:
        count = density * size
        return min(_VALUE * size, _VALUE * count + size / 8, (_VALUE + _GAP) * count)

    return cost
