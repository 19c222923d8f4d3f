"""Compare our session with stock ONNX Runtime on random layers.

    python fuzz/layers/run.py [--runs 200000] [--seconds 600] [--jobs 2] [--seed 0] [--log FILE]

Each graph is drawn from the seed and its number, opened once in either session and run with 40 sets of inputs, whose
shapes change from run to run; a quarter of the graphs is run from three threads at once. Every run is one comparison of
all outputs; runs that both refuse are counted apart. Parts of 50 graphs are worked on by processes of their own, with
one set of kernels each: those that the processor has, and the loops for AVX-512 compiled for it where it has none. With
--log what is done is kept, and a later call goes on from there. A graph that is wrong is simplified and printed with
the options that run it again.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import click
import numpy as np

HERE = Path(__file__).parent
GRAPHS = 50  # of a part
COUNTED = ("graphs", "layers", "runs", "refused")


def nothing(seed: int, part: int) -> dict[str, Any]:
    """Return what is counted of a part, before anything is done."""
    return {"seed": seed, "part": part, **dict.fromkeys(COUNTED, 0), "wrong": []}


def work(seed: int, part: int) -> dict[str, Any]:
    """Compare the graphs of one part."""
    from compare import compare, described, simplified, take_every_layer
    from graphs import draw

    take_every_layer()
    done = nothing(seed, part)
    for number in range(part * GRAPHS, (part + 1) * GRAPHS):
        spec = draw(np.random.default_rng([seed, number]))
        found = compare(spec)
        for name in COUNTED[1:]:
            done[name] += getattr(found, name)
        done["graphs"] += 1
        if found.wrong:
            simple = described(simplified(spec, found.wrong))
            done["wrong"].append({"number": number, "what": found.wrong, "graph": simple})
    return done


def sets_of_kernels(folder: Path, only: str | None) -> dict[str, dict[str, str]]:
    """Return the environment of each set of kernels; loops for AVX-512 are compiled where the processor lacks it."""
    from rigl_compress.runtime.kernels import kernel_sets

    sets = {name: {"RIGL_COMPRESS_KERNELS": name} for name in kernel_sets() if only in (None, name)}
    if only in (None, "avx512") and "avx512" not in sets and "RIGL_COMPRESS_LIBRARY" not in os.environ:
        build = ["cmake", "-S", HERE.parents[1], "-B", folder, "-DRIGL_COMPRESS_WIDE=ON", "-DCMAKE_BUILD_TYPE=Release"]
        for command in (build, ["cmake", "--build", folder, "--target", "rigl_kernels"]):
            subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
        library = str(folder / "native" / "rigl_kernels.so")
        sets["avx512"] = {"RIGL_COMPRESS_KERNELS": "avx512", "RIGL_COMPRESS_LIBRARY": library}
    return sets


def run_part(seed: int, part: int, name: str, environment: dict[str, str]) -> dict[str, Any]:
    """Work on one part in a process of its own."""
    command = [sys.executable, str(HERE / "run.py"), "--seed", str(seed), "--part", str(part)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        what = f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
        wrong = {"number": part * GRAPHS, "what": what, "graph": f"part {part}"}
        return {**nothing(seed, part), "kernels": name, "wrong": [wrong]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "kernels": name}


def done_before(log: Path | None, seed: int) -> list[dict[str, Any]]:
    """Read what was done; a part whose process ended before its time is to be done again."""
    lines = log.read_text(encoding="utf-8").splitlines() if log is not None and log.exists() else []
    found = [json.loads(line) for line in lines]
    return [each for each in found if each["seed"] == seed and each["graphs"]]


def work_through(options: dict[str, Any], sets: dict[str, dict[str, str]], log: Path | None) -> list[dict[str, Any]]:
    """Hand out parts until enough runs are made or time is up."""
    seed, names, start = options["seed"], [*sets], monotonic()
    done = done_before(log, seed)
    known = {found["part"] for found in done}
    parts = (part for part in range(10**9) if part not in known)
    with ThreadPoolExecutor(options["jobs"]) as pool:

        def submit() -> Any:
            part = next(parts)
            name = names[part % len(names)]
            return pool.submit(run_part, seed, part, name, sets[name])

        waiting = {submit() for _ in range(options["jobs"])} if made(done) < options["runs"] else set()
        while waiting:
            finished = next(as_completed(waiting))
            waiting.remove(finished)
            done.append(finished.result())
            if log is not None:
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(done[-1]) + "\n")
            if made(done) < options["runs"] and monotonic() - start < options["seconds"]:
                waiting.add(submit())
    return done


def made(done: list[dict[str, Any]]) -> int:
    """Count the runs."""
    return sum(int(found["runs"]) for found in done)


def row(done: list[dict[str, Any]], options: dict[str, Any]) -> str:
    """Return a row of a Markdown table."""
    total = {name: sum(found[name] for found in done) for name in COUNTED}
    wrong = sum(len(found["wrong"]) for found in done)
    machine = next((line.split(":")[1].strip() for line in _cpu() if line.startswith("model name")), "unknown")
    kernels = ", ".join(sorted({found["kernels"] for found in done}))
    command = f"`python fuzz/layers/run.py --runs {options['runs']} --seed {options['seed']}`"
    counted = f"{total['runs']:,} runs of {total['graphs']:,} graphs with {total['layers']:,} layers on our kernels"
    alike = f"{total['refused']:,} more refused by both"
    return f"| {command} | {counted}, {alike} | {wrong} wrong | {kernels} | {machine} | {date.today()} |"


def _cpu() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@click.command(help=__doc__)
@click.option("--runs", default=20_000, show_default=True, help="Runs to make in all.")
@click.option("--seconds", default=600.0, show_default=True, help="Start no further part after so many.")
@click.option("--jobs", default=1, show_default=True, help="Processes at a time.")
@click.option("--seed", default=0, show_default=True)
@click.option("--log", type=click.Path(path_type=Path, dir_okay=False), help="What is done, one line for each part.")
@click.option("--kernels", help="Only these kernels: portable, avx2 or avx512.")
@click.option("--part", type=int, hidden=True)
@click.option("--graph", help="Run one graph, described as it was printed.")
def main(log: Path | None, kernels: str | None, part: int | None, graph: str | None, **options: Any) -> None:
    """Draw, compare, count."""
    if part is not None:
        print(json.dumps(work(options["seed"], part)))
        return
    with TemporaryDirectory() as folder:
        sets = sets_of_kernels(Path(folder), kernels)
        if not sets:
            raise click.UsageError(f"no kernels {kernels!r} here: choose portable, avx2 or avx512")
        if graph is not None:
            command = [sys.executable, "-c", ONE, str(HERE), graph]
            sys.exit(max(subprocess.run(command, env={**os.environ, **each}).returncode for each in sets.values()))
        done = work_through(options, sets, log)
    for found in done:
        for wrong in found["wrong"]:
            again = f"--kernels {found['kernels']} --graph '{wrong['graph']}'"
            print(f"graph {wrong['number']}: {wrong['what']}\n  {again}", file=sys.stderr)
    print(row(done, options))
    sys.exit(any(found["wrong"] for found in done))


ONE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from compare import compare, take_every_layer
take_every_layer()
found = compare(json.loads(sys.argv[2]))
print(found)
sys.exit(bool(found.wrong))
"""

if __name__ == "__main__":
    main()
