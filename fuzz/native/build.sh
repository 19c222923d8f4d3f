#!/usr/bin/env bash
# Build the harnesses: fuzz/native/build.sh [FOLDER]
#
# Uses $CXX, $CXXFLAGS, $LIB_FUZZING_ENGINE and $OUT as OSS-Fuzz does. The defaults: Clang's libFuzzer with the address
# and undefined-behavior sanitizers, into FOLDER or fuzz/native/out. $HARNESSES selects some of the harnesses.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
native=$here/../../native
out=${OUT:-${1:-$here/out}}
cxx=${CXX:-clang++}
sanitize="-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all -fno-omit-frame-pointer"
flags=${CXXFLAGS:-"-O1 -g -fsanitize=fuzzer-no-link $sanitize"}
engine=${LIB_FUZZING_ENGINE--fsanitize=fuzzer}
mkdir -p "$out"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
case "$(uname -m)" in x86_64) avx2="-mavx2 -mfma -mf16c" ;; *) avx2="" ;; esac
cmake -DCOSTS="$here/../../runtime/costs.json" -DHEADER="$objects/kernel_costs.h" -P "$native/generate_costs.cmake"
# The AVX-512 loops are compiled for any processor.
for source in conv conv_plan cpu depthwise geometry gru kernels_portable kernels_avx2 kernels_avx512 layer_norm lstm matmul packed plan sparse_depthwise vector_plan; do
  extra=""
  [ $source = kernels_avx2 ] && extra=$avx2
  [ $source = kernels_avx512 ] && extra="-DRIGL_COMPRESS_WIDE -Wno-psabi"
  echo "$cxx $flags -std=c++17 -ffp-contract=fast $extra -I$objects -c $native/$source.cpp -o $objects/$source.o"
done | xargs -P 2 -d '\n' -n 1 bash -c
for name in ${HARNESSES:-$(cd "$here" && basename -s .cpp -a ./*_fuzzer.cpp)}; do
  echo "$cxx $flags -std=c++17 -I$objects $here/$name.cpp $objects/*.o $engine -pthread -o $out/$name"
  [ -d "$here/corpus/$name" ] && (cd "$here/corpus/$name" && python3 -m zipfile -c "$out/${name}_seed_corpus.zip" ./*) || true
done | xargs -P 2 -d '\n' -n 1 bash -c
