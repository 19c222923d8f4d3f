"""The choice of an encoding for each tensor that gives the smallest file; tensors can share constants.

A choice is improved tensor by tensor until no change makes the file smaller. It starts from the results of all simpler
choices (one encoding for all, no bits lost), so it is never larger than any of these.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rigl_compress.exporters.encodings import SHARED, Encoded
from rigl_compress.exporters.index_encoding import NAME as STEPS
from rigl_compress.exporters.negative_zeros import NAME as SIGNED

Choice = dict[str, str]


@dataclass(frozen=True)
class Cost:
    """The bytes of a tensor in one encoding: its own, and those of shared constants and operators."""

    own: int
    shared: Mapping[str, int] = field(default_factory=dict)


Costs = Mapping[str, Mapping[str, Cost]]  # by tensor, by label


def cost_of(name: str, label: str, encoded: Encoded) -> Cost:
    """Return the bytes of an encoded tensor in a file, with its entry in the metadata."""
    sizes = [(_name(part), _entry(part)) for part in _parts(encoded)]
    metadata = len(json.dumps({name: label}, ensure_ascii=False).encode()) if encoded.nodes else 0
    own = sum(size for part, size in sizes if not part.startswith(SHARED))
    return Cost(own + metadata, {part: size for part, size in sizes if part.startswith(SHARED)})


def _parts(encoded: Encoded) -> Iterator[Any]:
    yield from encoded.initializers
    yield from encoded.sparse
    yield from encoded.nodes
    yield from encoded.shapes


def _name(part: Any) -> str:
    return str(part.output[0] if hasattr(part, "output") else getattr(part, "name", ""))


def _entry(part: Any) -> int:
    """Return the bytes of an entry of a repeated field: a tag, the length in groups of seven bits, and the content."""
    size = int(part.ByteSize())
    return 1 + max(1, -(-size.bit_length() // 7)) + size


def smallest_choice(costs: Costs, encodings: Sequence[str], *, lossy: bool) -> Choice:
    """Return the label of each tensor, chosen among some encodings.

    >>> shared = {"rigl/axis": 60}
    >>> costs = {name: {"dense": Cost(100), "gap8": Cost(50, shared)} for name in ("v", "w")}
    >>> smallest_choice(costs, ("dense", "gap8"), lossy=False)
    {'v': 'gap8', 'w': 'gap8'}
    """
    allowed = {
        name: {label: cost for label, cost in found.items() if _allowed(label, encodings, lossy)}
        for name, found in costs.items()
    }
    starts = [_each(allowed, with_shared=True), _each(allowed, with_shared=False)]
    if lossy:
        starts.append(smallest_choice(costs, encodings, lossy=False))
    if len(encodings) > 2:
        starts += [smallest_choice(costs, ("dense", each), lossy=lossy) for each in encodings]
    return min((_improved(allowed, start) for start in starts), key=lambda choice: _total(allowed, choice))


def _allowed(label: str, encodings: Sequence[str], lossy: bool) -> bool:
    if label == STEPS:
        return "gap8" in encodings
    encoding, _, values = label.partition("+")
    return encoding in encodings and (lossy or values in ("", SIGNED))


def _each(costs: Costs, *, with_shared: bool) -> Choice:
    def alone(cost: Cost) -> int:
        return cost.own + (sum(cost.shared.values()) if with_shared else 0)

    return {name: min(found, key=lambda label: alone(found[label])) for name, found in costs.items()}


def _total(costs: Costs, choice: Choice) -> int:
    shared = {part: size for name in choice for part, size in costs[name][choice[name]].shared.items()}
    return sum(costs[name][label].own for name, label in choice.items()) + sum(shared.values())


def _improved(costs: Costs, start: Choice) -> Choice:
    """Set the label of each tensor in turn to the smallest given those of the others, until none changes."""
    choice, users = dict(start), Counter[str]()
    for name, label in choice.items():
        users.update(costs[name][label].shared.keys())
    changed = True
    while changed:
        changed = False
        for name, found in costs.items():
            users.subtract(found[choice[name]].shared.keys())
            best = min(found, key=lambda label: (_added_bytes(found[label], users), label != choice[name]))
            changed = changed or best != choice[name]
            choice[name] = best
            users.update(found[best].shared.keys())
    return choice


def _added_bytes(cost: Cost, users: Mapping[str, int]) -> int:
    return cost.own + sum(size for part, size in cost.shared.items() if not users[part])
