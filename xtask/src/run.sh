#!/usr/bin/env bash
# Runs the parts below on this machine's GPU. A part that fails does not keep the others from running.
set -u

usage() {
    cat <<'END'
usage: ./run.sh [quick|full] [PART...]

Runs every part on this machine's GPU (full, which is the default), those that take seconds (quick), or
the parts that are named. The exit status is 0 only when all of them passed.
Everything that they print goes to $OUT/run.log (OUT: ./out).

parts:
END
    sed -n 's/^part \([a-z0-9A-Z-]*\) \([a-z]*\) [0-9]* \(.*\)/  \1\t\2\t\3/p' "$0" | expand -t 20,28
}

mode=full
case ${1-} in
-h | --help)
    usage
    exit 0
    ;;
-*)
    echo "$1: there is no such option (./run.sh --help)" >&2
    exit 2
    ;;
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
probe=$(./vmm-suite --probe cuda 2>&1)
printf '%s\n' "$probe" | tee -a "$log"
case $probe in
*"software emulator"*)
    # What it passes would say nothing of a GPU.
    echo "the emulator was found where a CUDA driver was wanted: nothing was run" | tee -a "$log"
    exit 1
    ;;
"driver: "* | *"
driver: "*) ;;
*)
    echo "no CUDA driver with a device here: nothing was run" | tee -a "$log"
    exit 1
    ;;
esac
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
