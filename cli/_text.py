"""What a terminal may be given. Without rich: the first word of an error must not wait for it."""


def printable(text: str) -> str:
    r"""Write control characters and broken ones as escapes: names from a foreign file must not steer a terminal.

    >>> printable("fc1\x1b[31m"), printable("fc1.weight ×")
    ('fc1\\x1b[31m', 'fc1.weight ×')
    """
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)
