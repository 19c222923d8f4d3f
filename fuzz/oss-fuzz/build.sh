#!/bin/bash -eu
# Called by OSS-Fuzz: builds every target into $OUT, with its seeds and every past finding beside it.
cd "$SRC/rigl-compress"
pip3 install --constraint constraints.txt torch
pip3 install --constraint constraints.txt . pillow

for target in fuzz/python/fuzz_*.py; do
  name=$(basename "$target" .py)
  reader=${name#fuzz_}
  # Everything is imported by name while it runs, and the kernels are a plain library: the packager sees neither.
  compile_python_fuzzer "$target" --paths fuzz/python --collect-all rigl_compress --collect-all onnx \
    --collect-all onnxruntime --hidden-import fuzzing.sessions
  seeds=fuzz/corpus/$reader
  [ "$reader" = session ] && seeds=fuzz/corpus/onnx
  (cd "$seeds" && zip -q "$OUT/${name}_seed_corpus.zip" -- *)
  if [ -d "fuzz/findings/$reader" ]; then
    (cd "fuzz/findings/$reader" && zip -q "$OUT/${name}_seed_corpus.zip" -- *)
  fi
done

# The kernels, under libFuzzer itself.
if [ -x fuzz/native/build.sh ]; then
  fuzz/native/build.sh "$OUT"
fi
