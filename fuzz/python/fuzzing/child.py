"""The child process: libFuzzer's loop where atheris is installed, and a plain one where it is not."""

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NoReturn

from fuzzing.findings import Shelf
from fuzzing.journal import Journal, Totals
from fuzzing.outcomes import Reader, findings_of

MEMORY = 4 << 30  # bytes that a process may take
# Beyond what a child has when it begins; a request for more fails at once, and is a finding where nobody refused it.
ADDRESSES = 6 << 30
LONGEST = 1 << 18  # of an input, in bytes


@dataclass(frozen=True)
class Work:
    """What a child is to do: so many inputs of a reader, for so many seconds after its seeds, and not after `end`."""

    reader: Reader
    inputs: int
    seconds: float
    end: float  # of time.monotonic(), which a fork shares
    seed: int
    guided: bool
    seeds: tuple[Path, ...]
    new: Path  # the folder for inputs that reach something new


class Trial:
    """Tries inputs, and tells the journal and the shelf of findings about them."""

    def __init__(self, work: Work, journal: Journal, shelf: Shelf) -> None:
        self._work, self._journal, self._shelf = work, journal, shelf
        self._totals, self._mutated = Totals(), False
        self._deadline = work.end
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_fast_folder()))

    def mutate(self, data: bytes, most: int, seed: int) -> bytes:
        """Mutate an input as the reader's format asks for."""
        self._mutated = True
        changed = self._work.reader.mutate(data, Random(seed))
        return changed if len(changed) <= most else data[:most]

    def one_input(self, data: bytes) -> None:
        """Try an input in an empty folder."""
        began = _computed()
        if self._mutated and not self._totals.mutated:  # seeds are tried before, as many as there are
            self._deadline = min(time.monotonic() + self._work.seconds, self._work.end)
        self._totals.mutated += self._mutated
        self._mutated = False
        self._journal.begin(self._totals, data)
        found = findings_of(self._work.reader, data, self._empty_folder())
        for each in found:
            self._shelf.add(self._work.reader.name, each, data)
        self._totals.found += bool(found)
        self._totals.peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = _computed() - began
        if seconds > max(1.0, self._totals.slowest):
            self._shelf.keep_slowest(self._work.reader.name, data)
        self._journal.end(self._totals, seconds)
        if self._totals.mutated >= self._work.inputs or time.monotonic() > self._deadline:
            self.leave()
        if self._totals.peak_kib * 1024 > MEMORY:
            self._shelf.add_process(self._work.reader.name, "memory", data)
            self.leave()

    def _empty_folder(self) -> Path:
        for path in self._folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return self._folder

    def leave(self) -> NoReturn:
        """End without the destructors of libraries, some of which wait for threads that a fork does not have."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)


def _computed() -> float:
    """Return the seconds that processors have worked, those of ended processes of this one too."""
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def work(task: Work, journal: Journal, shelf: Shelf, log: Path) -> NoReturn:
    """Do the work of a child; never returns."""
    _redirect(log)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _addresses() + ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    trial = Trial(task, journal, shelf)
    loop: Callable[[Work, Trial], None] = _guided_loop if task.guided else _plain_loop
    try:
        loop(task, trial)
    finally:
        trial.leave()


def _addresses() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _redirect(log: Path) -> None:
    nothing, file = os.open(os.devnull, os.O_RDWR), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for place, target in ((0, nothing), (1, nothing), (2, file)):
        os.dup2(target, place)


def _guided_loop(task: Work, trial: Trial) -> None:
    import atheris

    signals = [f"-handle_{name}=0" for name in ("segv", "bus", "abrt", "ill", "fpe", "int", "term", "xfsz", "usr1")]
    options = [
        f"-seed={task.seed % 2**31 + 1}",
        f"-max_len={LONGEST}",
        "-timeout=1000000",
        "-rss_limit_mb=0",
        f"-artifact_prefix={tempfile.gettempdir()}/",
        "-len_control=0",
    ]
    listed = task.new.with_suffix(".seeds")
    listed.write_text(",".join(map(str, task.seeds)))
    arguments = [task.reader.name, *options, *signals, f"-seed_inputs=@{listed}", str(task.new)]
    atheris.Setup(arguments, trial.one_input, custom_mutator=trial.mutate)
    atheris.Fuzz()


def _plain_loop(task: Work, trial: Trial) -> None:
    """Mutate the corpus at random, a few times each: what can be done without knowing what an input reached."""
    rng = Random(task.seed)
    seeds = [file.read_bytes() for file in task.seeds]
    for data in seeds:
        trial.one_input(data)
    while True:
        data = rng.choice(seeds or [b""])
        for _ in range(rng.randint(1, 5)):
            data = trial.mutate(data, LONGEST, rng.getrandbits(32))
            trial.one_input(data)
