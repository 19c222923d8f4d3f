"""Trust in code by its origin: what the user names is imported, what only a file names is not."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import sha256
from importlib.machinery import PathFinder
from importlib.util import find_spec
from os import environ
from pathlib import Path
from typing import Any

from platformdirs import user_state_path

from rigl_compress.core.errors import InputError

ENVIRONMENT = "RIGL_COMPRESS_STATE"
FORMAT = 1
DEEPEST = 64  # tables in tables; ours have 5
Call = tuple[str, Mapping[str, Any]]  # a reference, and the options it is called with

_trusting: ContextVar[bool] = ContextVar("code that files name is trusted", default=False)
_named: ContextVar[set[str] | None] = ContextVar("the references that the user named; None: not counted", default=None)


class FromFile(str):
    """A text that was read from a file. The mark stays with it in recipes and networks, also in other processes."""

    file: str

    def __new__(cls, text: str, file: str) -> "FromFile":
        """Mark a text with the file that it stands in."""
        marked = super().__new__(cls, text)
        marked.file = file
        return marked

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # of str: the text alone
        return str.__str__(self), self.file


def from_file(content: Any, file: str, depth: int = 0) -> Any:
    """Mark every text of nested plain data, unless the user trusts the code that files name.

    >>> from_file({"model": {"name": "mynet:small"}}, "a.toml")["model"]["name"].file
    'a.toml'
    """
    if depth > DEEPEST:
        raise InputError(f"{file} has tables in tables, {DEEPEST} deep and more: it is damaged")
    if isinstance(content, str):
        return content if code_is_trusted() else FromFile(content, file)
    if isinstance(content, Mapping):
        return {key: from_file(value, file, depth + 1) for key, value in content.items()}
    return [from_file(value, file, depth + 1) for value in content] if isinstance(content, list) else content


@contextmanager
def trusting_code(trusted: bool = True) -> Iterator[None]:
    """Run the code that files name, as long as the block lasts: `--trust-code`.

    >>> with trusting_code():
    ...     code_is_trusted()
    True
    """
    token = _trusting.set(trusted or _trusting.get())
    try:
        yield
    finally:
        _trusting.reset(token)


def code_is_trusted() -> bool:
    """Whether the user trusts all code that files name."""
    return _trusting.get()


@contextmanager
def only_named(texts: Iterable[str] | None) -> Iterator[None]:
    """Import nothing but the references that stand in these texts, beside those of a block around this one.

    A command knows all references of its command line, so a text that lost its mark is refused too. None changes
    nothing.

    >>> with only_named(["model.name=mynet:small"]):
    ...     named()
    {'mynet:small'}
    """
    before = _named.get()
    found = None if texts is None else {each for text in texts for each in re.findall(r"[\w.]+:\w+", text)}
    token = _named.set(before if found is None else found | (before or set()))
    try:
        yield
    finally:
        _named.reset(token)


def named() -> set[str] | None:
    """Return the references that may be imported, for other processes; None: all that no file names."""
    return _named.get()


def may_import(reference: str) -> bool:
    """Whether a reference may be imported.

    >>> may_import("mynet:small"), may_import(FromFile("mynet:small", "a.toml"))
    (True, False)
    """
    allowed = _named.get()
    return code_is_trusted() or not (
        isinstance(reference, FromFile) or (allowed is not None and reference not in allowed)
    )


def check_trusted(reference: str, kind: str) -> None:
    """Raise for a reference that only a file names; within `only_named`, for all others than those."""
    if not may_import(reference):
        where = f"of {reference.file}" if isinstance(reference, FromFile) else "that no option of the command names"
        raise InputError(
            f"{kind} {str(reference)!r} {where} is code that would be imported and run: "
            "add --trust-code (in Python trust_code=True) if you trust the file"
        )


# What the user trained here is recorded outside of the run folder, which may come from another author.


def record_trained_code(folder: Path, calls: Iterable[Call]) -> None:
    """Record that the user trained the run in a folder with these calls; raise OSError where that fails."""
    content = {"format": FORMAT, "folder": str(folder.resolve()), "calls": [_described(*call) for call in calls]}
    file = _memory(folder)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(file)


def trusted_if_trained_here(reference: str, options: Mapping[str, Any], file: Path) -> str:
    """Return a reference without its mark if the user trained the run in the file's folder with this call."""
    if isinstance(reference, FromFile) and ":" in reference and _described(reference, options) in _calls(file.parent):
        if (allowed := _named.get()) is not None:
            allowed.add(str.__str__(reference))
        return str.__str__(reference)
    return reference


def _calls(folder: Path) -> list[Any]:
    with suppress(OSError, ValueError, KeyError, TypeError):  # without a record nothing is trusted
        content = json.loads(_memory(folder).read_text(encoding="utf-8"))
        return list(content["calls"]) if content["format"] == FORMAT else []
    return []


def _described(reference: str, options: Mapping[str, Any]) -> dict[str, Any]:
    plain = json.loads(json.dumps(dict(options), default=str))
    return {"reference": str.__str__(reference), "options": plain, "source": source_of(reference)}


def source_of(reference: str) -> str:
    """Find the file of the package that a reference begins with, and import nothing: another folder may have its own.

    >>> source_of("json.decoder:JSONDecoder").endswith("__init__.py")
    True
    """
    package = reference.partition(":")[0].partition(".")[0]
    with suppress(ValueError, ImportError, AttributeError):
        found = find_spec(package) or PathFinder.find_spec(package, [str(Path.cwd())])
        if found is not None:
            return str(found.origin or next(iter(found.submodule_search_locations or ()), ""))
    return ""


def _memory(folder: Path) -> Path:
    own = environ.get(ENVIRONMENT, "")
    state = Path(own) if own else user_state_path("rigl-compress", appauthor=False)
    return state / "trained-here" / f"{sha256(str(folder.resolve()).encode()).hexdigest()[:32]}.json"
