"""Shares as people read them."""


def percent(share: float, digits: int = 2) -> str:
    """Write a share in per cent. All is said of all alone, and nothing of nothing: what rounds to them is cut instead.

    >>> percent(0.9), percent(1.0), percent(0.0), percent(0.999999), percent(1e-9, 1)
    ('90.00%', '100.00%', '0.00%', '99.99%', '0.1%')
    """
    least = 10.0 ** -(digits + 2)
    return f"{min(max(share, least), 1 - least) if 0 < share < 1 else share:.{digits}%}"
