#!/usr/bin/env bash
# GPU tests and benchmarks in under nine minutes, for a machine that is lent for ten: benchmarks/gpu_suite.sh [--dry-run]
#
# Writes ONE Markdown file, ${OUT:-benchmarks/results}/gpu_suite_<device>_<date>.md; with OUT set the JSON files of the
# parts go there too. A part that fails or runs out of its time is named in the file and does not stop the others.
# Exit status: 0 when all parts are well, 1 when one is not, 2 without a CUDA device. --dry-run runs the quick modes on
# whatever device there is, to prove this script.
set -u
if [ -n "${OUT:-}" ]; then
  mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 1
fi
cd "$(dirname "$0")/.." || exit 1

PYTHON=${PYTHON:-python}
RESULTS=benchmarks/results
FOLDER=${OUT:-$RESULTS}
DRY_RUN=
if [ "${1:-}" = --dry-run ]; then
  DRY_RUN=1
elif [ $# -gt 0 ]; then
  echo "gpu_suite.sh was called with $1, expected nothing or --dry-run; leave it out" >&2
  exit 2
fi

# Name, seconds and command of each part, in order of value; the seconds add up to 525.
PARTS=(
  "tests|90|$PYTHON -m pytest tests/gpu -q -p no:cacheprovider"
  "step|180|$PYTHON benchmarks/step.py"
  "blocks|60|$PYTHON benchmarks/blocks.py"
  "layers|110|$PYTHON benchmarks/layers.py"
  "embedding|40|$PYTHON benchmarks/embedding.py"
  "scaling|45|$PYTHON benchmarks/scaling.py"
)
if [ -n "$DRY_RUN" ]; then
  PARTS=(
    "tests|60|$PYTHON -m pytest tests/gpu -q -p no:cacheprovider"
    "step|90|$PYTHON benchmarks/step.py --quick"
    "blocks|60|$PYTHON benchmarks/blocks.py --quick"
    "layers|60|$PYTHON benchmarks/layers.py --quick"
    "embedding|60|$PYTHON benchmarks/embedding.py --quick"
    "scaling|90|$PYTHON benchmarks/scaling.py --quick"
  )
elif ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "no CUDA device was found, but these benchmarks measure one; run them on a GPU machine, or with --dry-run" >&2
  exit 2
fi

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
  touch "$work/start"
  started=$SECONDS
  # shellcheck disable=SC2086  # a command of several words
  timeout --kill-after=10 "$seconds" $command >"$work/$name.log" 2>&1
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
  if [ -n "$DRY_RUN" ]; then
    rm -f "$RESULTS/scaling_quick.json" # the one quick mode that writes its figures
  fi
done
echo "written: $report"
exit $status
