"""The error for bad input: a sentence with what was found, what was expected and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches

MOST_NAMES = 30  # a longer list is shown by its first names and a count
LONGEST_LINE = 200  # characters of a library's message


class InputError(ValueError):
    """Bad input. The command line prints the message on one line and exits with code 2."""


class StoppedError(Exception):
    """Training was stopped by a signal, after a checkpoint was written. The command line exits with code 143."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; without a message, the name of its type.

    >>> first_line(RuntimeError("shapes differ\\nat line 3")), first_line(RuntimeError())
    ('shapes differ', 'RuntimeError')
    """
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, shortened if it is long: libraries often break a message into lines.

    >>> one_line(RuntimeError("shapes\\n  differ"))
    'shapes differ'
    """
    text = " ".join(str(error).split())
    return (text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…") or type(error).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Name the nearest known name, and all of them.

    >>> did_you_mean("rigel", ["rigl", "set"])
    "did you mean 'rigl'? Known: rigl, set"
    >>> did_you_mean("xyz", ["rigl", "set"])
    'known: rigl, set'
    >>> did_you_mean("xyz", map(str, range(100, 150)))
    'known: 100, 101, 102 and 47 more'
    >>> did_you_mean("RIGL", ["RigL", "RigL, LeNet-5"])
    "did you mean 'RigL'? Known: RigL, 'RigL, LeNet-5'"
    >>> did_you_mean("xyz", ["Rig\\nL"])
    "known: 'Rig\\\\nL'"
    """
    names = sorted(known)
    folded = {each.casefold(): each for each in reversed(names)}
    alike = [folded[each] for each in get_close_matches(name.casefold(), folded, n=1)]
    nearest = get_close_matches(name, names, n=1) or alike
    written = [repr(each) if "," in each or not each.isprintable() else each for each in names]
    listing = ", ".join(written) if len(names) <= MOST_NAMES else f"{', '.join(written[:3])} and {len(names) - 3} more"
    return f"did you mean {nearest[0]!r}? Known: {listing}" if nearest else f"known: {listing}"
