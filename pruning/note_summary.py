"""One note for everything that is kept for the same reason."""

from collections.abc import Iterable

SHOWN = 2  # names in a summary


def summarised(notes: Iterable[str]) -> tuple[str, ...]:
    """Return the notes, "name: reason", with one for each reason.

    >>> summarised(["norm1: LayerNorm reads all channels", "add: is odd", "norm2: LayerNorm reads all channels"])
    ('LayerNorm reads all channels: in 2 places (norm1, norm2)', 'add: is odd')
    """
    names: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        name, _, reason = note.partition(": ")
        names.setdefault(reason, []).append(name)
    return tuple(_summary(each, reason) for reason, each in names.items())


def _summary(names: list[str], reason: str) -> str:
    if len(names) == 1:
        return f"{names[0]}: {reason}"
    shown = ", ".join([*names[:SHOWN], *(["…"] if len(names) > SHOWN else [])])
    return f"{reason}: in {len(names)} places ({shown})"
