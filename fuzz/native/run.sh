#!/usr/bin/env bash
# Run each harness for a number of seconds: fuzz/native/run.sh SECONDS [HARNESS...]
#
# Starts from the seeds in corpus/. Fails on a crash, a wrong output, or an input that takes more than 30 seconds or 3 GB;
# such an input is kept in the folder that is printed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:?expected the number of seconds per harness}
shift
out=${OUT:-$here/out}
[ -x "$out/packed_fuzzer" ] && [ -z "$(find "$here" "$here/../../native" -maxdepth 1 -newer "$out/packed_fuzzer" -name '*.[ch]*')" ] ||
  OUT=$out "$here/build.sh"
folder=$(mktemp -d)
status=0
for harness in ${@:-$(cd "$here" && basename -s .cpp -a ./*_fuzzer.cpp)}; do
  mkdir -p "$folder/$harness" "$here/corpus/$harness"
  if "$out/$harness" "$folder/$harness" "$here/corpus/$harness" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=3000 \
      -max_len=1024 -artifact_prefix="$folder/$harness-" -print_final_stats=1 > "$folder/$harness.log" 2>&1; then
    echo "$harness: $(grep -a number_of_executed_units "$folder/$harness.log" | grep -o '[0-9]*$') inputs, no failures"
  else
    tail -n 40 "$folder/$harness.log"
    echo "$harness: FAILED, see $folder"
    status=1
  fi
done
[ $status = 0 ] && rm -rf "$folder"
exit $status
