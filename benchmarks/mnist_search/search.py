"""Run trainer settings, append every result to a log, print the log as a Markdown table.

    search.py run --data DIR [-n JOBS] [--seeds 0,1,2] [--tag NAME] "lr=0.1|0.2 l2=1e-5" "momentum=0.95" ...
    search.py table [--log-order] [--top N] [key=value ...]

DIR holds the four idx.gz files of MNIST. The trainer is compiled first (g++, zlib's headers). Each argument of `run` is
one setting; `a|b` inside it makes a grid. What the log already holds is not run again, so a list may grow and be rerun.
`table` averages over seeds and shows only the keys that differ from the trainer's defaults; key=value arguments select
rows. The log of the search behind recipes/mnist-rigl.toml is committed beside this file.
"""

import argparse
import itertools
import json
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRAINER = HERE.parents[1] / "build" / "mnist-search" / "trainer"
RESULTS = ("updates", "error", "best", "train_loss", "architecture", "nnz", "kflops", "bytes", "seconds")
# The trainer's own defaults, i.e. the authors' settings, with a validation split.
DEFAULTS = {
    "holdout": 10000, "iterations": 120000, "batch": 100, "s1": 0.99, "s2": 0.891, "s3": 0, "fan": "dense", "init": 1,
    "lr": 0.2, "momentum": 0.9, "schedule": "step", "drops": "0.375,0.475", "factor": 3, "hold": 0, "lr_final": 0,
    "warmup": 0, "l2": 1e-4, "l2_1": "", "l2_2": "", "l2_3": "", "alpha": 0.3, "dT": 100, "T_end": 50000,
    "anneal": "cosine", "power": 3, "turn": 0, "stretch": 0, "move": 0, "copies": 24, "h1": 300, "h2": 100,
}  # fmt: skip


def number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return text


def expand(text):
    """'lr=1|2 l2=0' -> [{'lr': '1', 'l2': '0'}, {'lr': '2', 'l2': '0'}]"""
    pairs = [item.split("=", 1) for item in text.split()]
    grids = itertools.product(*(value.split("|") for _, value in pairs))
    return [dict(zip((key for key, _ in pairs), values, strict=True)) for values in grids]


def identity(settings):
    """What makes two runs the same run: every setting but the tag, numbers compared by value."""
    full = {**DEFAULTS, "seed": 0, **settings}
    return tuple(sorted((key, str(number(full[key]))) for key in (*DEFAULTS, "seed")))


def read_log(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(args):
    done = {identity(row) for row in read_log(args.log)}
    jobs = []
    for seed in args.seeds.split(","):
        for settings in itertools.chain.from_iterable(map(expand, args.settings)):
            job = {"seed": seed, "tag": args.tag, **settings}
            if unknown := set(job) - set(DEFAULTS) - {"seed", "tag"}:
                raise SystemExit(f"unknown settings: {sorted(unknown)}")
            if identity(job) not in done:
                done.add(identity(job))
                jobs.append(job)

    def execute(job):
        settings = (f"{key}={value}" for key, value in job.items())
        command = ["nice", "-n", "10", str(TRAINER), f"data={args.data}", *settings]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        with args.log.open("a") as log:  # one short write in append mode: safe between processes
            log.write(line)
        row = json.loads(line)
        shown = " ".join(f"{key}={value}" for key, value in job.items() if value != "")
        print(f"{row['error']:.2f} ({row['best']:.2f}) loss {row['train_loss']:.4f} {row['architecture']} "
              f"{row['kflops']:.2f}K {row['bytes']:.0f}B {row['seconds']:.0f}s  {shown}", flush=True)  # fmt: skip

    compile_trainer()
    with ThreadPoolExecutor(args.n) as pool:
        list(pool.map(execute, jobs))


def compile_trainer():
    TRAINER.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-O3", "-march=native", "-ffast-math", "-std=c++17", "-Wno-psabi"]
    subprocess.run(["g++", *flags, str(HERE / "trainer.cpp"), "-lz", "-o", str(TRAINER)], check=True)


def table(args):
    groups = {}
    chosen = dict(item.split("=", 1) for item in args.settings)
    for row in ({**DEFAULTS, **row} for row in read_log(args.log)):  # a log may be older than a setting
        if any(str(number(row.get(key))) != str(number(value)) for key, value in chosen.items()):
            continue
        if all(row[f"l2_{layer}"] != "" for layer in (1, 2, 3)):
            row["l2"] = DEFAULTS["l2"]  # overridden in every layer, so without effect
        differing = {k: row[k] for k in DEFAULTS if k != "holdout" and number(row[k]) != number(DEFAULTS[k])}
        key = (row["holdout"], tuple(differing.items()))
        groups.setdefault(key, {})[row["seed"]] = row
    lines = []
    for (holdout, differing), rows in groups.items():
        errors = [row["error"] for row in rows.values()]
        mean = {key: statistics.mean(row[key] for row in rows.values()) for key in RESULTS if key != "architecture"}
        spread = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
        architecture = next(iter(rows.values()))["architecture"] if len(rows) == 1 else "-".join(
            str(round(statistics.mean(int(row["architecture"].split("-")[i]) for row in rows.values())))
            for i in range(3))  # fmt: skip
        setting = ", ".join(f"{key} {value}" for key, value in differing) or "authors' settings"
        lines.append((mean["error"],
            f"| {setting} | {'validation' if holdout else 'test'} | {len(rows)} | {mean['error']:.3f}{spread} "
            f"| {mean['best']:.3f} | {mean['train_loss']:.4f} | {architecture} | {mean['kflops']:.2f} "
            f"| {mean['bytes']:.0f} |"))  # fmt: skip
    if not args.log_order:
        lines.sort()
    print("| setting (others as the authors') | set | seeds | final error % | best % | train loss | architecture "
          "| KFLOPs | bytes |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    print("\n".join(line for _, line in lines[: args.top]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, default=HERE / "log.jsonl")
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run", help="train and append to the log")
    runner.add_argument("-n", type=int, default=1, help="processes at a time")
    runner.add_argument("--seeds", default="0")
    runner.add_argument("--tag", default="")
    runner.add_argument("--data", type=Path, required=True, help="folder with MNIST's idx.gz files")
    runner.add_argument("settings", nargs="+")
    runner.set_defaults(function=run)
    printer = commands.add_parser("table", help="print the log as Markdown")
    printer.add_argument("--log-order", action="store_true", help="as run, not by error")
    printer.add_argument("--top", type=int, help="only the first rows")
    printer.add_argument("settings", nargs="*", help="key=value: only such rows")
    printer.set_defaults(function=table)
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    main()
