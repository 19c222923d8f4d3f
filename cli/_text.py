"""Text that is safe to print on a terminal. Does not import rich, so that errors appear at once."""

import json


def printable(text: str) -> str:
    r"""Escape control characters and invalid ones: names from a file must not control the terminal.

    >>> printable("fc1\x1b[31m"), printable("fc1.weight ×")
    ('fc1\\x1b[31m', 'fc1.weight ×')
    """
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def printable_json(text: str) -> str:
    r"""Do the same to a text in JSON, so that it stays one.

    >>> print(printable_json('{"name": "fc1\x9b31m"}'))
    {"name": "fc1\u009b31m"}
    """
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
