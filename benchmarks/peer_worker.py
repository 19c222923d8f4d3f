"""One runtime with one model, for `peers.py`: opens it, then times runs as they are ordered on the standard input.

Uses NumPy and the runtime alone, so that it runs in any environment in which the runtime can be installed.
"""

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

Run = Callable[[np.ndarray], np.ndarray]


def onnxruntime(path: str) -> Run:
    """Open a model in stock ONNX Runtime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {session.get_inputs()[0].name: x})[0]


def sparse(path: str) -> Run:
    """Open a model in `rc.InferenceSession`."""
    import onnxruntime as ort

    import rigl_compress as rc

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = rc.InferenceSession(path, options)
    return lambda x: session.run(None, {session.get_inputs()[0].name: x})[0]


def openvino(path: str) -> Run:
    """Open a model in OpenVINO."""
    import openvino as ov

    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda x: request.infer([x])[0]


def deepsparse(path: str) -> Run:
    """Open a model in DeepSparse."""
    from deepsparse import Engine

    engine = Engine(model=path, batch_size=1, num_cores=1)
    return lambda x: engine.run([x])[0]


def mnn(path: str) -> Run:
    """Open a converted model in MNN."""
    import MNN
    import MNN.expr as F
    import MNN.nn as nn

    manager = nn.create_runtime_manager(({"backend": "CPU", "numThread": 1, "precision": "high"},))
    net = nn.load_module_from_file(path, ["input"], ["output"], runtime_manager=manager)

    def run(x: np.ndarray) -> np.ndarray:
        placeholder = MNN.expr.const(x, list(x.shape), F.NCHW)
        return np.array(net.forward([placeholder])[0].read())

    return run


RUNTIMES = {each.__name__: each for each in (onnxruntime, sparse, openvino, deepsparse, mnn)}


def main() -> None:
    """Open the model, print its first output's sum, then time as many runs as each line of the input says."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("runtime", choices=sorted(RUNTIMES))
    parser.add_argument("model")
    parser.add_argument("shape", type=int, nargs="+")
    given = parser.parse_args()
    x = np.random.default_rng(0).random(given.shape, dtype=np.float32)
    run = RUNTIMES[given.runtime](given.model)
    outputs = np.asarray(run(x), dtype=np.float64).ravel()
    print("ready", *(f"{value:.6g}" for value in outputs[:4]), flush=True)
    for line in sys.stdin:
        start = time.process_time()
        for _ in range(int(line)):
            run(x)
        print((time.process_time() - start) / int(line), flush=True)


if __name__ == "__main__":
    main()
