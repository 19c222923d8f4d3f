"""Run a command as on an older processor: our kernels and ONNX Runtime use no newer instructions than a set has.

    python benchmarks/limit_instructions.py avx2 python benchmarks/sparse_inference.py --low

Our kernels have RIGL_COMPRESS_KERNELS for it, ONNX Runtime has no such option: its library asks the processor which
registers the system saves. The command gets a copy of the library with that answer instead of the question.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

# xor ecx, ecx; xgetbv; mov eax, eax
QUESTION = bytes.fromhex("31c9 0f01d0 89c0")
# The bits of registers that are saved: 1 of the x87, 2 of SSE, 4 of AVX; those of AVX-512 are left out.
REGISTERS = {"portable": 3, "avx2": 7}
LIMITED = "RIGL_COMPRESS_LIMITED"  # the variable that tells the command about its limit


def answered(code: bytes, registers: int) -> bytes:
    """Return the code of a library that takes the registers as given: xor ecx, ecx; mov eax, registers."""
    if QUESTION not in code:
        raise click.ClickException("this ONNX Runtime asks for the registers of the processor in another way")
    return code.replace(QUESTION, bytes.fromhex("31c9 b8") + registers.to_bytes(4, "little"))


def limited_copy(package: Path, folder: Path, registers: int) -> None:
    """Make a copy of the package in a folder: links, but for its library."""
    shutil.copytree(package, folder / package.name, copy_function=os.symlink)
    for library in (folder / package.name / "capi").glob("onnxruntime_pybind11_state*"):
        code = library.read_bytes()
        library.unlink()
        library.write_bytes(answered(code, registers))


def run_limited(kernels: str, command: Sequence[str]) -> int:
    """Run a command with the instructions of a set; return its exit code."""
    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    with TemporaryDirectory() as folder:
        limited_copy(Path(spec.origin).parent, Path(folder), REGISTERS[kernels])
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH", "")])]
        changed = {"PYTHONPATH": os.pathsep.join(paths), "RIGL_COMPRESS_KERNELS": kernels, LIMITED: kernels}
        return subprocess.run(command, env={**os.environ, **changed}, check=False).returncode


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("kernels", type=click.Choice(list(REGISTERS)))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(kernels: str, command: tuple[str, ...]) -> None:
    """Run COMMAND with no newer instructions than those of KERNELS."""
    sys.exit(run_limited(kernels, command))


if __name__ == "__main__":
    main()
