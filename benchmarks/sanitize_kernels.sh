#!/usr/bin/env bash
# The kernel tests with address and undefined-behaviour sanitizers. Nothing is installed: the library stands in a folder
# of its own, and the tests find it through RIGL_COMPRESS_LIBRARY.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
cmake -S . -B "$folder" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_MODULE_LINKER_FLAGS="$flags" > "$folder/log"
cmake --build "$folder" --target rigl_kernels >> "$folder/log" || { cat "$folder/log"; exit 1; }
# Python itself is not instrumented and never frees some of its memory.
RIGL_COMPRESS_LIBRARY="$folder/native/rigl_kernels.so" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
  LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libubsan.so)" \
  "$python" -m pytest tests/runtime/test_kernels.py -q -p no:randomly "$@"
