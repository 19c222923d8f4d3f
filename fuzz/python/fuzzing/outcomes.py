"""What may come of an input: success, or an error of one sentence. Everything else is a finding."""

import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[3]
OURS = ("cli", "pipeline", "runtime", "exporters", "models")


@dataclass(frozen=True)
class Reader:
    """A fuzz target: what is done with an input (in an empty folder), and how inputs are mutated.

    `share` is its part of all inputs, in relation to the others; `seeds` names the corpus, if it is another's.
    """

    name: str
    consume: Callable[[bytes, Path], None]
    mutate: Callable[[bytes, Random], bytes]
    share: int = 1
    seeds: str = ""

    @property
    def corpus(self) -> str:
        """The folder of its seeds."""
        return self.seeds or self.name


@dataclass(frozen=True)
class Finding:
    """An exception that no user should see. `where`: the deepest line of ours; `key` tells findings apart."""

    step: str
    kind: str
    where: str
    text: str

    @property
    def key(self) -> str:
        """Return a name for files."""
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in f"{self.kind}-{self.where}-{self.step}")[:150]


class MismatchError(AssertionError):
    """Our session and ONNX Runtime do not agree."""


class Attempts:
    """Runs steps one after the other: a finding in one does not hide those of the next."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def __call__(self, step: str, action: Callable[[], object]) -> object:
        """Run a step; return its result, or None where it was refused in one of the documented ways."""
        from rigl_compress.core.errors import InputError

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return action()
        except InputError as error:
            if not str(error) or "\n" in str(error).strip():
                self.findings.append(Finding(step, "NotOneSentence", where(error), str(error)[:2000]))
        except OSError:
            return None  # the command line explains it with the file's name
        except Exception as error:
            text = "".join(traceback.format_exception(error))[-4000:]
            self.findings.append(Finding(step, type(error).__name__, where(error), text))
        return None


attempt = Attempts()


def where(error: BaseException) -> str:
    """Return the deepest line of ours in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if _relative(frame.filename)]
    return f"{_relative(ours[-1].filename)}:{ours[-1].lineno}" if ours else "elsewhere"


def _relative(name: str) -> str:
    """Return the path of one of our files below its folder at the root; nothing for those of others."""
    parts = Path(name).parts
    if "rigl_compress" in parts:
        inner = parts[len(parts) - 1 - parts[::-1].index("rigl_compress") + 1 :]
        return "/".join(inner) if inner and inner[0] in OURS else ""
    try:
        inner = Path(name).resolve().relative_to(ROOT).parts
    except ValueError:
        return ""
    return "/".join(inner) if inner[0] in OURS else ""


def findings_of(reader: Reader, data: bytes, folder: Path) -> list[Finding]:
    """Take an input through its reader, and give what was found."""
    attempt.findings.clear()
    reader.consume(data, folder)
    return list(attempt.findings)
