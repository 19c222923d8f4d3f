"""The costs of the cost model, by instruction set: those of the package, and the user's own, which are preferred."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.kernels import chosen_set
from rigl_compress.runtime.user_costs import user_costs

COSTS = Path(__file__).with_name("costs.json")
# Numbers in a vector of the kernels.
LANES = {"portable": 4, "avx2": 8, "avx512": 16}
Families = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class Split:
    """How work is split among threads: from which amount on, what each thread adds, and what it costs."""

    work: float  # for every so many nanoseconds a thread is used
    share: float  # of the speed of a thread that each one after the first adds
    start: float  # nanoseconds until the threads have started and ended together


@dataclass(frozen=True)
class ThreadCosts:
    """How the operators of ONNX Runtime and the kernels are split; a single vector is split sooner."""

    dense: Split
    sparse: Split
    vector: Split


def instruction_set() -> str:
    """Return the instruction set of the kernels in use; without kernels, the one that gains least."""
    return "portable" if unavailable_reason() else chosen_set()


@lru_cache
def package_costs(name: str) -> Mapping[str, Any]:
    """Return the costs of an instruction set that come with the package."""
    content: dict[str, Any] = json.loads(COSTS.read_text(encoding="utf-8"))["instruction_sets"][name]
    return content


@lru_cache
def coefficients() -> Families:
    """Return nanoseconds per unit of work, by family, dense and sparse: measured on this machine if they were."""
    families: Families = package_costs(instruction_set())["families"]
    return user_costs(families) or families


@lru_cache
def thread_costs(name: str = "") -> ThreadCosts:
    """Return how work is split with an instruction set, by default the one in use.

    >>> thread_costs("avx2").vector.work <= thread_costs("avx2").sparse.work
    True
    """
    costs = package_costs(name or instruction_set())
    work, shared = costs["kernels"]["threads"], costs["threads"]["sparse"]
    sparse, vector = (Split(work[name], **shared) for name in ("work", "vector_work"))
    return ThreadCosts(Split(**costs["threads"]["dense"]), sparse, vector)


def costs_in_use() -> dict[str, Any]:
    """Return all costs by which layers are chosen: what was chosen by others is not used again."""
    return {"families": coefficients(), "threads": asdict(thread_costs())}
