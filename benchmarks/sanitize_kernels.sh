#!/usr/bin/env bash
# Test the kernels under sanitizers: operators called by several threads at once under the thread sanitizer, then the
# kernel tests and $RANDOM_RUNS runs of random layers under the address and undefined-behavior sanitizers. Nothing is
# installed: the library is built in a temporary folder, which the tests find through RIGL_COMPRESS_LIBRARY.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# A program without Python and ONNX Runtime, which are not instrumented and would cause false reports.
CXX=${CXX:-c++} CXXFLAGS="-O1 -g -fsanitize=thread" LIB_FUZZING_ENGINE="" HARNESSES=threads OUT="$folder" fuzz/native/build.sh
TSAN_OPTIONS=halt_on_error=1 "$folder/threads"
# On processors without AVX-512, its loops are compiled for the available instructions.
grep -q avx512bw /proc/cpuinfo && wide=OFF || wide=ON
flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
cmake -S . -B "$folder" -DRIGL_COMPRESS_WIDE=$wide -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_MODULE_LINKER_FLAGS="$flags" > "$folder/log"
cmake --build "$folder" --target rigl_kernels >> "$folder/log" || { cat "$folder/log"; exit 1; }
# Python is not instrumented, and never frees some of its memory.
export RIGL_COMPRESS_LIBRARY="$folder/native/rigl_kernels.so" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
preload="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libubsan.so)"
# Tests skip if the library does not load: fail instead.
LD_PRELOAD="$preload" "$python" -c "import rigl_compress; rigl_compress.kernels_library()"
LD_PRELOAD="$preload" "$python" fuzz/layers/run.py --runs "${RANDOM_RUNS:-2000}"
LD_PRELOAD="$preload" "$python" -m pytest tests/runtime/test_kernels.py tests/runtime/test_extreme_windows.py \
  tests/runtime/test_packed_fuzz.py tests/runtime/test_activations.py tests/models/test_training_kernels.py \
  tests/models/test_sparse_runs.py tests/models/test_growth_bound.py tests/models/test_innermost_modules.py \
  tests/models/test_mask_kernels.py tests/runtime/test_narrow_weights.py tests/runtime/test_folded_gate.py \
  tests/runtime/test_depthwise_fusion.py tests/runtime/test_attention_kernel.py -q -p no:randomly "$@"
