"""What the function that builds a network prints and warns: shown the first time, not each time it is called again."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import TextIOBase
from typing import Any, TextIO

_shown: dict[str, set[str]] = {}  # by network


class _NewLines(TextIOBase):
    """A stream that passes on the lines that it has not passed on before."""

    def __init__(self, shown: set[str], out: TextIO) -> None:
        self._shown, self._out, self._rest = shown, out, ""

    def write(self, text: str) -> int:
        """Pass on the lines that are complete; a progress bar ends its lines with a carriage return."""
        *lines, self._rest = _split(self._rest + text)
        for line in lines:
            self._show(line)
        return len(text)

    def _show(self, line: str) -> None:
        if line not in self._shown:
            self._shown.add(line)
            self._out.write(line)

    def close(self) -> None:
        """Pass on a last line that does not end."""
        self._show(self._rest)
        self._rest = ""


def _split(text: str) -> list[str]:
    """Split a text into its lines and what follows the last of them.

    >>> _split("one\\ntwo\\rth")
    ['one\\n', 'two\\r', 'th']
    >>> _split("one\\n")
    ['one\\n', '']
    """
    lines = text.splitlines(keepends=True)
    return lines if lines and lines[-1][-1] not in "\r\n" else [*lines, ""]


@contextmanager
def shown_once(name: str) -> Iterator[None]:
    """Show what the block prints (on stderr, stdout is for results) and warns, unless it was shown for this name.

    >>> for _ in range(2):
    ...     with redirect_stderr(sys.stdout), shown_once("doctest"):
    ...         print("loading weights")
    loading weights
    """
    shown = _shown.setdefault(name, {""})
    stream = _NewLines(shown, sys.stderr)
    with warnings.catch_warnings(), redirect_stdout(stream), redirect_stderr(stream):
        warnings.showwarning = _unless_shown(shown, warnings.showwarning)
        try:
            yield
        finally:
            stream.close()


def _unless_shown(shown: set[str], show: Any) -> Any:
    def once(message: Warning | str, *where: Any, **how: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            show(message, *where, **how)

    return once
