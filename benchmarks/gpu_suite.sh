#!/usr/bin/env bash
# GPU tests and benchmarks in under nine minutes: benchmarks/gpu_suite.sh [--dry-run] [--within SECONDS]
#
# Writes ONE Markdown file, ${OUT:-benchmarks/results}/gpu_suite_<device>_<date>.md; with OUT set the JSON files of the
# parts go there too. A part that fails or runs out of its time is named in the file and does not stop the others.
# Exit status: 0 when all parts are well, 1 when one is not, 2 without a CUDA device. --dry-run runs the quick modes on
# whatever device there is, to prove this script. --within ends all parts so many seconds after the start, for a machine
# that is lent for less; the last parts have less time then, or none. A machine of several GPUs also has
# benchmarks/scaling.py to run.
set -u
if [ -n "${OUT:-}" ]; then
  mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 1
fi
cd "$(dirname "$0")/.." || exit 1

PYTHON=${PYTHON:-$(command -v python || command -v python3)}
RESULTS=benchmarks/results
FOLDER=${OUT:-$RESULTS}
DRY_RUN=
WITHIN=540
while [ $# -gt 0 ]; do
  if [ "$1" = --dry-run ]; then
    DRY_RUN=1
  elif [ "$1" = --within ] && [[ ${2:-} =~ ^[1-9][0-9]*$ ]]; then
    WITHIN=$2
    shift
  else
    echo "gpu_suite.sh was called with $*, expected --dry-run or --within SECONDS; leave the rest out" >&2
    exit 2
  fi
  shift
done

if ! "$PYTHON" -c 'import deepspeed, opt_einsum, pydantic, pytest, rich, torch' >/dev/null; then
  echo "${PYTHON:-python} cannot import what the benchmarks need; install this repository there, or set PYTHON" >&2
  exit 2
fi

# Name, seconds and command of each part, in order of value; the seconds add up to 525. Parts that run out of time
# report what they have finished. Kernels are tested last, because building them takes long. Tests run side by side,
# because they mostly wait for Python; tests of a file share fixtures, those of kernels do not.
TESTS="$PYTHON -m pytest -q -p no:cacheprovider -n 6"
KERNEL=tests/gpu/test_gpu_bottleneck_kernel.py
PARTS=(
  "tests|130|$TESTS --dist loadfile tests/gpu --ignore=$KERNEL"
  "step|215|$PYTHON benchmarks/step.py"
  "blocks|30|$PYTHON benchmarks/blocks.py"
  "embedding|20|$PYTHON benchmarks/embedding.py"
  "layers|60|$PYTHON benchmarks/layers.py"
  "kernel|70|$TESTS $KERNEL"
)
if [ -n "$DRY_RUN" ]; then
  PARTS=(
    "tests|60|$TESTS --dist loadfile tests/gpu --ignore=$KERNEL"
    "step|90|$PYTHON benchmarks/step.py --quick"
    "blocks|60|$PYTHON benchmarks/blocks.py --quick"
    "layers|60|$PYTHON benchmarks/layers.py --quick"
    "embedding|60|$PYTHON benchmarks/embedding.py --quick"
    "kernel|60|$TESTS $KERNEL"
  )
elif ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "no CUDA device was found, but these benchmarks measure one; run them on a GPU machine, or with --dry-run" >&2
  exit 2
fi

# The signal for a part that has run out of time: pytest shows what has failed so far if it is interrupted.
signal() {
  case $1 in
    tests | kernel) echo INT ;;
    *) echo TERM ;;
  esac
}

# How a part ended, in words.
verdict() {
  case $1 in
    0) echo "done" ;;
    124 | 137) echo "stopped after $2 s" ;;
    *) echo "failed with status $1" ;;
  esac
}

mkdir -p "$FOLDER" || exit 1
# Lines about the machine, and last the device's name as part of a file name.
facts=$("$PYTHON" benchmarks/machine.py) || exit 1
device=${facts##*$'\n'}
report="$FOLDER/gpu_suite_${device}_$(date +%F).md"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
{
  echo "# GPU suite${DRY_RUN:+ (dry run)}, $(date '+%F %T')"
  echo
  echo "${facts%$'\n'*}"
} >"$report"

for part in "${PARTS[@]}"; do
  IFS='|' read -r name seconds command <<<"$part"
  left=$((WITHIN - SECONDS))
  if [ $left -lt 5 ]; then
    echo "$name: not started"
    printf '\n## %s: not started within %s s\n' "$name" "$WITHIN" >>"$report"
    continue
  fi
  [ "$left" -ge "$seconds" ] || seconds=$left
  touch "$work/start"
  started=$SECONDS
  # shellcheck disable=SC2086  # a command of several words
  timeout --signal="$(signal "$name")" --kill-after=10 "$seconds" $command >"$work/$name.log" 2>&1
  code=$?
  [ $code -eq 0 ] || status=1
  ended=$(verdict $code "$seconds")
  echo "$name: $ended ($((SECONDS - started)) s)"
  files=()
  while IFS= read -r file; do files+=("$file"); done < <(find "$RESULTS" -name '*.json' -newer "$work/start" | sort)
  {
    printf '\n## %s: %s (%s s)\n\n' "$name" "$ended" "$((SECONDS - started))"
    if [ ${#files[@]} -gt 0 ]; then
      "$PYTHON" benchmarks/markdown.py "${files[@]}"
    fi
    if [ ${#files[@]} -eq 0 ] || [ $code -ne 0 ]; then
      printf '```text\n%s\n```\n' "$(tail -n 60 "$work/$name.log")"
    fi
  } >>"$report"
  if [ ${#files[@]} -gt 0 ] && [ -n "${OUT:-}" ]; then
    cp "${files[@]}" "$OUT"
  fi
done
echo "written: $report"
exit $status
