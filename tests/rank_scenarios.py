"""Runs of several processes that go wrong, forked from one process that has imported everything; prints JSON.

pipeline/train/test_processes.py runs it as a script with a folder that has little data in it.
"""

import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import tiny

import rigl_compress
from rigl_compress.pipeline.train import launch_processes, rank_failures

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from reliability import commands
from reliability.ranks import fork_ranks
from reliability.soundness import leftovers
from torch.distributed import TCPStore

Words = list[object]


class Scenarios:
    """The runs, below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "tiny.toml").write_text(tiny.RECIPE, encoding="utf-8")
        tiny.write_mnist(root / "data" / "mnist")
        tiny.write_mnist(root / "other" / "mnist", train=tiny.TRAIN + 10)
        tiny.write_mnist(root / "damaged" / "mnist")
        (root / "damaged" / "mnist" / "train-labels-idx1-ubyte").write_bytes(b"no labels")
        os.environ |= {"RIGL_COMPRESS_STATE": str(root / "state"), "RIGL_COMPRESS_TIMEOUT": "30"}

    def train(self, *words: object, data: str = "data") -> Words:
        """The command, with a recipe of a few epochs."""
        common: Words = ["--data-dir", self.root / data, "--device", "cpu", *words]
        return ["train", *([] if "--resume" in words else ["--recipe", self.root / "tiny.toml"]), *common]

    def ranks(self, calls: Sequence[Words], before: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
        """Call one command in each rank, as torchrun does."""
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        together = {"WORLD_SIZE": len(calls), "MASTER_ADDR": "localhost", "MASTER_PORT": store.port}
        together |= {"TORCHELASTIC_USE_AGENT_STORE": True}
        begin = monotonic()
        children = []
        for rank, words in enumerate(calls):
            before(rank)
            children.append(self._started(words, {**together, "RANK": rank}))
        ended = [_ended(*child) for child in children]
        return {
            "codes": [code for code, _ in ended],
            "said": [said for _, said in ended],
            "seconds": monotonic() - begin,
        }

    def _started(self, words: Words, variables: dict[str, Any]) -> tuple[int, int]:
        with changed_environment(variables):
            return commands.start(words)

    # What goes wrong

    def recipes(self) -> dict[str, Any]:
        return self.ranks([self.train("-o", self.root / "recipes", "--seed", rank) for rank in (0, 1)])

    def data(self) -> dict[str, Any]:
        return self.ranks([self.train("-o", self.root / "data-run", data=data) for data in ("data", "other")])

    def code(self) -> dict[str, Any]:
        """Both ranks run from checkouts, whose folders are links; in that of rank 1 a file was changed."""
        here, folders = rigl_compress.__file__, [self._checkout(f"checkout-{rank}") for rank in (0, 1)]
        with (folders[1] / "sparsity" / "rewire.py").open("a") as file:
            file.write("# changed\n")

        def from_checkout(rank: int) -> None:
            rigl_compress.__file__ = str(folders[rank] / "__init__.py")

        try:
            return self.ranks([self.train("-o", self.root / "code")] * 2, before=from_checkout)
        finally:
            rigl_compress.__file__ = here

    def _checkout(self, name: str) -> Path:
        package, sources = self.root / name / "package", self.root / name / "sources"
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(Path(rigl_compress.__file__).parent, sources, ignore=ignored)
        package.mkdir()
        for each in sources.iterdir():
            (package / each.name).symlink_to(each)
        return package

    def damaged(self) -> dict[str, Any]:
        return self.ranks([self.train("-o", self.root / "damaged-run", data=data) for data in ("data", "damaged")])

    def batch(self) -> dict[str, Any]:
        return self.ranks([self.train("-o", self.root / "batch", "--set", "train.batch=1")] * 2)

    def occupied(self) -> dict[str, Any]:
        return self.ranks([self.train("-o", self.root / "data")] * 2)

    def port(self) -> dict[str, Any]:
        with socket.socket() as taken:
            taken.bind(("localhost", 0))
            taken.listen()
            variables = {"WORLD_SIZE": 2, "RANK": 0, "MASTER_ADDR": "localhost", "MASTER_PORT": taken.getsockname()[1]}
            code, said = _ended(*self._started(self.train("-o", self.root / "port"), variables))
        return {"codes": [code], "said": [said]}

    def other_command(self) -> dict[str, Any]:
        code, said = _ended(*self._started(["list"], {"WORLD_SIZE": 2, "RANK": 0}))
        return {"codes": [code], "said": [said]}

    # What is stopped, and goes on

    def whole(self) -> dict[str, Any]:
        ended = commands.call(*self.train("-o", self.root / "whole", "--processes", 2, "--set", "train.epochs=12"))
        return {"codes": [ended.code], "said": [ended.said]}

    def stopped(self) -> dict[str, Any]:
        return self._disturbed("stopped", lambda child: os.kill(child, signal.SIGTERM))

    def killed(self) -> dict[str, Any]:
        return self._disturbed("killed", lambda child: os.kill(_ranks(child)[1], signal.SIGKILL))

    def hanging(self) -> dict[str, Any]:
        """Rank 1 answers no more: rank 0 gives up after the time-out, the launcher ends both."""
        with changed_environment({"RIGL_COMPRESS_TIMEOUT": 5}):
            return self._disturbed("hanging", lambda child: os.kill(_ranks(child)[1], signal.SIGSTOP))

    def disk(self) -> dict[str, Any]:
        """Rank 0 reaches a limit on the size of files after an epoch: writing fails as it does on a full disk."""

        def fill(child: int) -> None:
            resource.prlimit(_ranks(child)[0], resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))

        return self._disturbed("disk", fill)

    def _disturbed(self, name: str, disturb: Callable[[int], None]) -> dict[str, Any]:
        """Do something to a run of two processes after its first epoch, and let the run go on when it has ended."""
        run = self.root / name
        child, reading = commands.start(self.train("-o", run, "--processes", 2, "--set", "train.epochs=12"))
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
            sleep(0.001)
        disturb(child)
        first = commands.wait(child, reading)
        found = {"done": (run / "result.json").exists(), "left": first.left, "files": leftovers(run)}
        second = commands.call(*self.train("--resume", run, "--processes", 2))
        return {"codes": [first.code, second.code], "said": [first.said, second.said], **found}


@contextmanager
def changed_environment(variables: Mapping[str, object]) -> Iterator[None]:
    """Set variables of the environment for what is started in the block."""
    before = dict(os.environ)
    os.environ |= {key: str(value) for key, value in variables.items()}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def _ranks(launcher: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


def _ended(child: int, reading: int) -> tuple[int, str]:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = os.read(reading, 65536).decode() if select.select([reading], [], [], 0)[0] else ""
    os.close(reading)
    return code, said


def main(root: Path) -> None:
    scenarios = Scenarios(root)
    fork_ranks()
    rank_failures.PATIENCE, launch_processes.GRACE = 2.0, 8.0  # seconds: a rank that hangs costs less time
    commands.import_what_is_imported_by(scenarios.train("-o", root / "warm", "--set", "train.epochs=1"))
    agreeing = ("recipes", "data", "code", "damaged", "batch", "occupied", "port", "other_command")
    names = (*agreeing, "whole", "stopped", "killed", "hanging", "disk")
    found = {}
    for name in names:
        print(name, file=sys.stderr, flush=True)
        found[name] = getattr(scenarios, name)()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
