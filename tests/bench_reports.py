"""Reports made up for tests: figures that can be checked by head."""

from rigl_compress.exporters.onnx_costs import GraphCosts, NodeCost
from rigl_compress.pipeline.bench.bench_report import BenchedModel, Candidate, CompressionReport, Failure, Timing
from rigl_compress.pipeline.bench.footprint import Footprint
from rigl_compress.pipeline.bench.operator_profile import ProfileRow


def benched(label: str, size: int, alive: int, accuracy: float | None = None) -> BenchedModel:
    """A model of one layer of 100 weights, so many of them alive."""
    layer = NodeCost("the Gemm", "Gemm", "fc.weight", 100, alive, 200.0, 2.0 * alive)
    costs = GraphCosts((layer,), {"Relu": 2}, 110, alive + 10, 4.0 * alive + 52.5)
    facts = {} if accuracy is None else {"accuracy": accuracy}
    pixels = ((0, alive), (3, 1))
    return BenchedModel(label, f"{label}.onnx", size, costs, facts, Footprint(0.25, 4_000_000), pixels)


def timing(label: str, *openings: tuple[float, ...], backend: str = "onnxruntime", batch: int = 1) -> Timing:
    return Timing(Candidate(label, backend, batch, 1), openings)


def report(**changes: object) -> CompressionReport:
    """A dense model, one that is half as large and twice as fast, and one that failed."""
    content: dict[str, object] = {
        "baseline": "dense",
        "models": (benched("dense", 1000, 100, 98.5), benched("half", 500, 50, 98.25), benched("odd", 400, 10)),
        "timings": (
            timing("dense", (0.002, 0.002), (0.002, 0.004), (0.002, 0.002)),
            timing("half", (0.001, 0.001), (0.001, 0.002), (0.001, 0.001)),
        ),
        "failures": (Failure(Candidate("odd", "onnxruntime", 1, 1), "it would not"),),
        "profiles": {
            "half": (ProfileRow("fc.weight", "Gemm", 0.0006, 200.0, 100.0), ProfileRow("relu", "Relu", 0.0002))
        },
        "recipe": {"name": "made-up", "about": "A <recipe>."},
        "command": "rigl-compress bench dense.onnx half.onnx odd.onnx",
        "environment": {"cpu": "some processor", "cores": 2, "versions": {"onnxruntime": "1.0"}, "load": [0.5]},
    }
    return CompressionReport(**{**content, **changes})  # type: ignore[arg-type]
