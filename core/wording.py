"""Shares and names in messages and tables."""

from collections.abc import Mapping, Sequence


def percent(share: float, digits: int = 2) -> str:
    """Write a share in per cent. Only 0 and 1 are shown as 0 % and 100 %: what would round to them is truncated.

    >>> percent(0.9), percent(1.0), percent(0.0), percent(0.999999), percent(1e-9, 1)
    ('90.00%', '100.00%', '0.00%', '99.99%', '0.1%')
    """
    least = 10.0 ** -(digits + 2)
    return f"{min(max(share, least), 1 - least) if 0 < share < 1 else share:.{digits}%}"


def some(names: Sequence[str], most: int = 3) -> str:
    """Write names, the first few of them.

    >>> some(["a", "b"]), some(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def listed(sizes: Mapping[str, int], most: int = 8) -> str:
    """Write names with sizes, the first few of them.

    >>> listed({"a": 1000, "b": 2, "c": 3}, most=2)
    'a (1,000 weights), b (2 weights) and 1 more'
    """
    shown = ", ".join(f"{name} ({size:,} weights)" for name, size in [*sizes.items()][:most])
    return shown if len(sizes) <= most else f"{shown} and {len(sizes) - most} more"
