"""How long does opening a sparse network take, and how much memory does it need, beside stock ONNX Runtime?

    python benchmarks/open_session.py [--only resnet-50] [--markdown docs/results/opening.md]

Each row is a fresh process: it imports what it needs, opens the file, and runs it four times with one thread. `first`
rewrites the model, `again` finds it in the cache of rewritten models, `off` opens it with `cache=False`. Medians of
several processes.
"""

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

ABOUT = """# Opening a session

Time and memory of a process that opens a network of 90 % zeros and runs it four times at batch 1 with one thread,
beside stock ONNX Runtime with the same file. `first` rewrites the model to sparse operators and keeps the result in the
cache of rewritten models, `again` finds it there, `off` is `cache=False`. `open`: seconds until the session exists.
`peak`: the most memory at any time. `resident`: after the runs. `imports`: of that, before the file was opened.
Measured with
"""
HEAD = "| network | session | open s | peak MB | resident MB | imports MB |\n|---|---|---|---|---|---|"
KINDS = ("onnxruntime", "first", "again", "off")
NETWORKS = ("resnet-50", "mobilenet-v1", "bert", "mlp-1024")


def memory(name: str) -> float:
    """Return a figure of this process in megabytes: VmRSS, or VmHWM for the highest so far."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def child(kind: str, path: str) -> None:
    """Open and run a file in this process, and print what it took."""
    import numpy as np
    import onnxruntime as ort

    if kind == "onnxruntime":
        opens: Any = lambda options: ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])  # noqa: E731
    else:
        from rigl_compress.runtime.session import InferenceSession

        opens = lambda options: InferenceSession(path, options, cache=kind != "off")  # noqa: E731
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    found, start = {"imports": memory("VmRSS")}, time.perf_counter()
    session = opens(options)
    found["open"] = time.perf_counter() - start
    value = session.get_inputs()[0]
    shape = [side if isinstance(side, int) else 1 for side in value.shape]
    for _ in range(4):
        session.run(None, {value.name: np.zeros(shape, np.float32)})
    found |= {"peak": memory("VmHWM"), "resident": memory("VmRSS")}
    sys.stdout.write(json.dumps(found))


def measured(kind: str, path: Path, repeats: int) -> dict[str, float]:
    """Return the medians over some processes."""
    with TemporaryDirectory() as folder:
        runs = []
        for number in range(repeats + (kind == "again")):
            place = f"{folder}/{number if kind == 'first' else 0}"
            found = subprocess.run(
                [sys.executable, __file__, "--child", kind, str(path)],
                env={**os.environ, "RIGL_COMPRESS_SESSION_CACHE": place},
                **{"check": True, "capture_output": True, "text": True},
            )
            runs.append(json.loads(found.stdout))
    return {name: median(run[name] for run in runs[kind == "again" :]) for name in runs[0]}


def parsed() -> Namespace:
    """Return the options of the command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--repeats", type=int, default=3, help="processes for each row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", type=Path, help="also write the table into this file")
    return parser.parse_args()


def row(label: str, kind: str, found: dict[str, float]) -> str:
    cells = (f"{found['open']:.2f}", *(f"{found[name]:.0f}" for name in ("peak", "resident", "imports")))
    return f"| {label} | {kind} | {' | '.join(cells)} |"


def main() -> None:
    """Print a row for each network and way to open it."""
    # Imported here: the processes that are measured do without torch.
    from inference_networks import CASES, masked

    from rigl_compress.core.provenance import environment
    from rigl_compress.exporters.torch_to_onnx import export_graph

    given = parsed()
    print(HEAD, flush=True)
    rows = []
    for name in (name for name in NETWORKS if given.only in name):
        case = next(case for case in CASES if case.name.startswith(name) and 0.9 in case.sparsities)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            path.write_bytes(export_graph(*masked(case, 0.9, given.seed)).SerializeToString())
            os.utime(path, (1, 1))  # a file that was changed just now is hashed in every opening
            for kind in KINDS:
                rows.append(row(case.name, kind, measured(kind, path, given.repeats)))
                print(rows[-1], flush=True)
    if given.markdown:
        facts = environment()
        where = f"{facts['cpu']}, {facts['cores']} cores, onnxruntime {facts['versions']['onnxruntime']}"
        command = f"`python benchmarks/open_session.py --repeats {given.repeats} --seed {given.seed}`"
        table = "\n".join(rows)
        made = f"{command} on {facts['date'][:10]}: {where}."
        given.markdown.write_text(f"{ABOUT}{made}\n\n{HEAD}\n{table}\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:4])
    else:
        main()
