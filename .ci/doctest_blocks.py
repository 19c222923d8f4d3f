"""Show the examples of docstrings as code on the documentation site (an extension of Griffe, which reads them)."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", flags=re.MULTILINE)


def fenced(text: str) -> str:
    r"""Put each example, up to the next empty line, into a block of code.

    >>> fenced("Add.\n\n>>> 1 + 1\n2\n\nMore.")
    'Add.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore.'
    """
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)


class DoctestBlocks(griffe.Extension):
    """Fences the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
