"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown.

    >>> print(markdown(["a", "b"], [["1", "2|3"]]))
    | a | b |
    |---|---|
    | 1 | 2\\|3 |
    """
    table = [[_cell(cell) for cell in line] for line in (columns, *lines)]
    text = [f"| {' | '.join(line)} |" for line in table]
    return "\n".join([text[0], "|---" * len(columns) + "|", *text[1:]])


def _cell(text: str) -> str:
    """Return a text that is no HTML and ends no row: names come from foreign files.

    >>> _cell("fc1<script>\\n| 2")
    'fc1&lt;script> \\\\| 2'
    """
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").splitlines())
