"""What the C++ sources promise to Python: the same structs, the same costs, no exception out of a thread."""

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rigl_compress.runtime import attention_kernel, kernels, lstm_kernel, norm_kernel
from rigl_compress.runtime.cost_tables import COSTS

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
NESTED = {"low": ("clip", 0), "high": ("clip", 4)}  # members of a struct within the struct


def checked_layouts() -> dict[str, tuple[int, dict[str, int]]]:
    """The size and the offsets of each struct, as static_assert has them in c_api.cpp."""
    source = (NATIVE / "c_api.cpp").read_text(encoding="utf-8")
    sizes = {name: int(size) for name, size in re.findall(r"sizeof\((\w+)\) == (\d+)", source)}
    offsets = re.findall(r"offsetof\((\w+), (\w+)\) == (\d+)", source)
    return {name: (size, {f: int(at) for of, f, at in offsets if of == name}) for name, size in sizes.items()}


STRUCTS = ("MatMulCall", "ConvCall", "GruShape", "GruCall", "LayerNormCall", "LstmShape", "LstmCall", "AttentionCall")


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_have_the_layout_that_c_plus_plus_checks(name: str) -> None:
    homes = (kernels, norm_kernel, lstm_kernel, attention_kernel)
    struct: type[ctypes.Structure] = next(vars(each)[f"_{name}"] for each in homes if f"_{name}" in vars(each))
    size, offsets = checked_layouts()[name]
    assert ctypes.sizeof(struct) == size
    for field, *_ in struct._fields_:
        outer, inner = NESTED.get(field, (field, 0))
        assert getattr(struct, field).offset == offsets[outer] + inner, field
    assert len({NESTED.get(field, (field, 0))[0] for field, *_ in struct._fields_}) == len(offsets)


def test_the_shape_of_a_convolution_is_two_axes() -> None:
    layouts = checked_layouts()
    assert ctypes.sizeof(kernels._ConvShape) == layouts["ConvShape"][0] == 2 * layouts["Axis"][0]
    assert list(layouts["Axis"][1].values()) == [8 * place for place in range(5)]


def generated_costs(folder: Path) -> Path:
    if shutil.which("cmake") is None:
        pytest.skip("there is no CMake")
    options = [f"-DCOSTS={COSTS}", f"-DHEADER={folder / 'kernel_costs.h'}"]
    subprocess.run(["cmake", *options, "-P", NATIVE / "generate_costs.cmake"], check=True)
    return folder / "kernel_costs.h"


def test_the_kernels_are_compiled_with_the_costs_of_the_cost_model(tmp_path: Path) -> None:
    header = generated_costs(tmp_path).read_text(encoding="utf-8")
    names = {kernel: list.split(", ") for list, kernel in re.findall(r"double ([\w, ]+);\n  } (\w+);", header)}
    found = {
        instruction_set: {
            kernel: dict(zip(names[kernel], map(float, values.split(", ")), strict=True))
            for values, kernel in re.findall(r"{([-+.\de, ]+)},  // (\w+)", body)
        }
        for instruction_set, body in re.findall(r'{"(\w+)",\n(.*?)\n     }}', header, re.DOTALL)
    }
    written = json.loads(COSTS.read_text(encoding="utf-8"))["instruction_sets"]
    assert found == {name: costs["kernels"] for name, costs in written.items()}


def test_exceptions_of_threads_reach_the_caller_and_plans_heed_their_groups(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    generated_costs(tmp_path)
    names = ("cpu", "kernels_avx2", "kernels_avx512", "kernels_portable", "matmul", "packed", "plan", "vector_plan")
    sources = [Path(__file__).with_name("parallel_loops.cpp"), *(NATIVE / f"{name}.cpp" for name in names)]
    options = ["-std=c++17", "-Wall", f"-I{NATIVE}", f"-I{tmp_path}", "-pthread"]
    subprocess.run([compiler, *options, "-o", tmp_path / "program", *sources], check=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "std::exception int \n1 4 2 \n")
