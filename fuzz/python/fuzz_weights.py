"""Files of weights from elsewhere, as `start.weights` reads them: safetensors, and both formats of torch."""

from pathlib import Path

from fuzz_npz import mutate

from fuzzing.outcomes import Reader, attempt
from fuzzing.standalone import main


def consume(data: bytes, folder: Path) -> None:
    """Read the weights, and load them into a network."""
    for name in ("weights.safetensors", "weights.pt"):
        path = folder / name
        path.write_bytes(data)
        attempt(path.suffix, lambda path=path: _load(path))


def _load(path: Path) -> None:
    from torch import nn

    from rigl_compress.models.weight_files import read_weights
    from rigl_compress.models.weight_fitting import load_fitting

    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    load_fitting(model, read_weights(path).tensors, path.name, {}, ["1"])


READER = Reader("weights", consume, mutate, share=6)

if __name__ == "__main__":
    main(READER)
