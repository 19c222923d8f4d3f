"""Whose word a text is: what a file says is its author's, and code that only a file names is not run."""

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

from rigl_compress.models.errors import InputError

ENVIRONMENT = "RIGL_COMPRESS_STATE"
FORMAT = 1
DEEPEST = 64  # tables in tables; ours have 5
Call = tuple[str, Mapping[str, Any]]  # a reference, and the options it is called with

_word: ContextVar[bool] = ContextVar("the user's word for code", default=False)
_named: ContextVar[set[str] | None] = ContextVar("the references that the user named; None: not counted", default=None)


class FromFile(str):
    """A text that was read from a file. It goes along with recipes and networks, also to other processes."""

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
    token = _word.set(trusted or _word.get())
    try:
        yield
    finally:
        _word.reset(token)


def code_is_trusted() -> bool:
    """Whether the user gave the word for all code that files name."""
    return _word.get()


@contextmanager
def only_named(texts: Iterable[str] | None) -> Iterator[None]:
    """Import nothing but the references that stand in these texts, beside those of a block around this one.

    A command knows all that the user named: here a text that lost its mark on its way is refused too. None changes
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
    """Give the references that may be imported, for other processes; None: all that no file names."""
    return _named.get()


def may_run(reference: str) -> bool:
    """Say whether the user gave the word for a reference.

    >>> may_run("mynet:small"), may_run(FromFile("mynet:small", "a.toml"))
    (True, False)
    """
    allowed = _named.get()
    return code_is_trusted() or not (
        isinstance(reference, FromFile) or (allowed is not None and reference not in allowed)
    )


def check_trusted(reference: str, kind: str) -> None:
    """Refuse a reference that only a file names; within `only_named`, all that it does not have."""
    if not may_run(reference):
        where = f"of {reference.file}" if isinstance(reference, FromFile) else "that no option of the command names"
        raise InputError(
            f"{kind} {str(reference)!r} {where} is code that would be imported and run: "
            "add --trust-code (in Python trust_code=True) if you trust the file"
        )


# What the user trained here. It is kept outside of the run folder, where nobody else can have written it.


def remember(folder: Path, calls: Iterable[Call]) -> None:
    """Note that the user had these calls made for the run in a folder; raises OSError where nothing can be kept."""
    content = {"format": FORMAT, "folder": str(folder.resolve()), "calls": [_described(*call) for call in calls]}
    file = _memory(folder)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(file)


def vouched(reference: str, options: Mapping[str, Any], file: Path) -> str:
    """Give a reference without its mark if the user trained the run, in whose folder the file lies, with this call."""
    if isinstance(reference, FromFile) and ":" in reference and _described(reference, options) in _calls(file.parent):
        if (allowed := _named.get()) is not None:
            allowed.add(str.__str__(reference))
        return str.__str__(reference)
    return reference


def _calls(folder: Path) -> list[Any]:
    with suppress(OSError, ValueError, KeyError, TypeError):  # without a memory nothing is vouched for
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
