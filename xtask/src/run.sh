#!/usr/bin/env bash
# Runs the parts below on this machine's GPU: ./run.sh [quick|full] [PART...]
# A part that fails does not keep the others from running; the exit status is 0 only when all that
# were asked for passed. Everything that they print goes to $OUT/run.log (OUT: ./out).
set -u

mode=full
case ${1-} in
quick | full)
    mode=$1
    shift
    ;;
esac
wanted=" $* "
OUT=${OUT:-$PWD/out}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
export OUT
cd "$(dirname "$0")" || exit 1
log=$OUT/run.log
: >"$log"
summary=
failed=0
passed=0
known=" "

# part NAME quick|full SECONDS COMMAND...
part() {
    local name=$1 needs=$2 seconds=$3 start status result elapsed
    shift 3
    known="$known$name "
    if [ "$wanted" != "  " ]; then
        case $wanted in
        *" $name "*) ;;
        *) return ;;
        esac
    elif [ "$mode" = quick ] && [ "$needs" = full ]; then
        return
    fi
    echo "== $name: $*"
    echo "== $name: $*" >>"$log"
    start=$(date +%s.%N)
    timeout -k 5 "$seconds" "$@" </dev/null >"$OUT/part.log" 2>&1
    status=$?
    elapsed=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
    cat "$OUT/part.log" >>"$log"
    if [ "$status" = 0 ]; then
        result=passed
        passed=$((passed + 1))
        tail -n 20 "$OUT/part.log"
    else
        result="FAILED (status $status)"
        [ "$status" = 124 ] && result="FAILED (not done after $seconds s)"
        failed=$((failed + 1))
        tail -n 60 "$OUT/part.log"
    fi
    rm -f "$OUT/part.log"
    echo "== $name: $result, $elapsed s" | tee -a "$log"
    summary="$summary$(printf '%-24s %8s s  %s' "$name" "$elapsed" "$result")
"
}

if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee -a "$log"
fi
if ! ./vmm-suite --probe cuda 2>&1 | tee -a "$log" | tee /dev/stderr | grep -q '^driver: '; then
    echo "no CUDA driver with a device here: nothing was run" | tee -a "$log"
    exit 1
fi
date -u | tee -a "$log"

@PARTS@

for name in $wanted; do
    case $known in
    *" $name "*) ;;
    *)
        summary="$summary$name: no part has this name
"
        failed=$((failed + 1))
        ;;
    esac
done
printf '\n%s%s\n' "$summary" "$passed passed, $failed failed" | tee -a "$log"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
