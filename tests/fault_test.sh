#!/bin/bash
# Shows the daemon with a device that is not there, does not fit, computes other bits, is lost or
# hangs: the exit code and the line for each, that every client is told and nobody gets text, and
# that systemd's watchdog is fed while steps end and not while one does not.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
daemon=$build/llm42d fault=$build/tests/llm42d-fault
model=$PWD/tests/data/verse-4m
[ -x "$daemon" ] || { echo "skipped: $daemon is not built"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: needs python3"; exit 77; }
has_cuda=$("$daemon" --version | grep -c 'devices:.*cuda')
make -s BUILD="$build" "$fault" "$build/tests/llm42d-nocuda" || exit 1
[ "$has_cuda" = 0 ] || make -s BUILD="$build" "$build/tests/cuda_stub_test" || exit 1

dir=$(mktemp -d /tmp/llm42d-fault.XXXXXX)
socket=$dir/data admin=$dir/admin
pid='' failed=0 passed=0 helpers=()
client() { python3 tests/fault.py "$@"; }

# shellcheck source=tests/shell_checks.sh
. tests/shell_checks.sh
trap finish EXIT

least() { # what, least, got
    [ "$3" -ge "$2" ] || { echo "FAIL: $1: $3, not $2 at least"; failed=$((failed + 1)); return; }
    passed=$((passed + 1))
}
settings=(--set "model.path=$model" --set "server.socket=$socket" --set "server.admin_socket=$admin"
    --set engine.threads=1 --set "engine.kernel_cache=$dir/kernels")
mkdir "$dir/kernels"

# ---- a device that does not come up
code() { "$@" > "$dir/log" 2>&1; echo $?; }
refused() { # what, exit code, words, command...
    local what=$1 want=$2 words=$3
    shift 3
    is "$what" "$want" "$(code timeout 20 "$@" "${settings[@]}" --set engine.device=cuda)"
    has "$what, in words" "$words" "$dir/log"
    is "$what, in one line" 1 "$(wc -l < "$dir/log")"
    is "$what: no socket is left" no "$([ -e "$socket" ] || [ -e "$admin" ] && echo yes || echo no)"
}
stub() { # settings of the stub, more arguments for env...
    local rules=$1
    shift
    echo env "LD_LIBRARY_PATH=$build/tests/stub_cuda" "STUB_CUDA=$rules" "$@" "$daemon"
}
refused "built without CUDA" 5 "built without CUDA" "$build/tests/llm42d-nocuda"
is "which says so" 1 "$("$build/tests/llm42d-nocuda" --version | grep -c 'devices: cpu$')"
if [ "$has_cuda" != 0 ]; then
    if ! ldconfig -p | grep -q libcuda.so.1 && [ ! -e /usr/local/nvidia ]; then
        refused "no driver" 80 "cannot load libcuda.so.1" "$daemon"
    fi
    # shellcheck disable=SC2046 # words of a command
    {
        refused "no GPU" 80 "start the driver" $(stub devices=0)
        refused "not that GPU" 80 "no GPU 3, there are 1" $(stub devices=1) --set engine.gpu=3
        refused "another GPU" 80 "compute capability 10.0: the contract" $(stub major=10)
        refused "an old driver" 80 "12.4 is the oldest" $(stub version=12020)
        refused "no compiler" 80 "does not say its version" \
            $(stub devices=1 STUB_NVRTC=fail=nvrtcVersion:1:5)
        refused "a kernel does not compile" 6 "sm90_[a-z0-9_]* does not compile" \
            $(stub devices=1 STUB_NVRTC=fail=nvrtcCompileProgram:2:6) --set engine.kernel_cache=/nonexistent
        refused "too little memory" 6 "MiB short; most goes to work" $(stub free=300000000)
        refused "memory that another took" 6 "CUDA: [a-z].*: " $(stub fail=cuMemAlloc_v2:1:2)
        # It computes nothing, and what it brings back is zeros.
        refused "other bits" 82 "self-test: .* the contract's is" $(stub devices=1)
        for rule in cuLibraryLoadData:3:700 cuLaunchKernelEx:40:719 cuStreamSynchronize:9:999; do
            is "lost while it starts, $rule" 81 \
                "$(code $(stub fail=$rule) "${settings[@]}" --set engine.device=cuda)"
            has "in words" "CUDA: " "$dir/log"
        done
    }
fi

# ---- a device that is lost, and one that hangs
rm -f "$dir/notify" "$dir/told"
: > "$dir/told"
python3 tests/service.py notify "$dir/notify" "$dir/told" > "$dir/notify.out" 2>&1 &
helpers+=($!)
until_true test -S "$dir/notify"
start() { # more settings...
    : > "$dir/told"
    rm -f "$dir/fault"
    LLM42_FAULT=$dir/fault NOTIFY_SOCKET=$dir/notify WATCHDOG_USEC=600000 \
        "$fault" "${settings[@]}" "$@" 2> "$dir/log" &
    pid=$!
    until_true grep -q READY=1 "$dir/told" || { echo "FAIL: not ready"; cat "$dir/log"; exit 1; }
}
stopped() { # what, wanted exit code, most ms since $from
    local code=0 took
    wait "$pid" || code=$?
    took=$(($(date +%s%3N) - from))
    pid=''
    is "$1: exit code" "$2" "$code"
    [ "$took" -le "$3" ] || { echo "FAIL: $1: took $took ms of $3"; failed=$((failed + 1)); }
}
fed() { grep -c WATCHDOG=1 "$dir/told"; }
arm() { echo "$1" > "$dir/fault.new" && mv "$dir/fault.new" "$dir/fault"; }

# Three run and five wait; tokens are on their way.
start --set engine.max_requests=3
client live "$socket" 8 "$dir/fault" lost > "$dir/live" &
helper=$!
until_true test -e "$dir/fault"
from=$(date +%s%3N)
stopped "lost at work" 81 2000
wait "$helper"
has "all requests are told" "requests: 8 error 15 " "$dir/live"
has "the connection too" "connection: error 15 " "$dir/live"
has "and one that asked for nothing yet" "beside: 0 error 15 " "$dir/live"
is "nothing comes behind an end" 1 "$(grep -c 'frames behind an end: 0' "$dir/live")"
is "nothing else comes beside it" 1 "$(grep -c beside: "$dir/live")"
is "nobody answers afterwards" nobody "$(client again "$socket")"
has "it is in the log" "the device is lost; every request fails" "$dir/log"
is "each request has its line" 8 "$(grep -c 'request [0-9]* (conn.*device' "$dir/log")"
is "no socket is left" no "$([ -e "$socket" ] && echo yes || echo no)"

# Lost when nobody asks: the first to ask is told.
start
arm lost
from=$(date +%s%3N)
client again "$socket" > "$dir/again"
is "the first request" "1 error 15" "$(head -1 "$dir/again" | cut -c1-10)"
stopped "lost when idle" 81 3000

# A client that reads nothing does not hold up the end for long.
start
python3 tests/service.py hold "$socket" slow > "$dir/held" 2>&1 < <(sleep 60) &
helpers+=($!)
until_true grep -q held "$dir/held"
arm lost
from=$(date +%s%3N)
stopped "lost with a client that never reads" 81 5000

# A step of 6 s: ten times the watchdog's time.  The loop lives, and says nothing to the watchdog.
start
sleep 0.7
least "fed when idle" 2 "$(fed)"
client live "$socket" 2 "$dir/fault" "hang 6000" > "$dir/live" &
helper=$!
until_true test -e "$dir/fault"
sleep 0.6
n=$(fed)
sleep 1
took=$(client ping "$socket")
least "a ping within 200 ms" 0 $((200 - took))
sleep 0.4
is "not fed while a step hangs" "$n" "$(fed)"
wait "$helper"
is "and then all goes on" "requests: 2 length" "$(cat "$dir/live")"
least "fed again" $((n + 2)) "$(fed)"
from=$(date +%s%3N)
kill -TERM "$pid"
stopped "stop after that" 0 3000

# Asked to stop while a step hangs for longer than anybody waits.
start --set server.drain_timeout=1s
client live "$socket" 2 "$dir/fault" "hang 60000" > "$dir/live" &
helpers+=($!)
until_true test -e "$dir/fault"
sleep 0.3
from=$(date +%s%3N)
kill -TERM "$pid"
stopped "stop while a step hangs" 0 7000
is "no socket is left then either" no "$([ -e "$socket" ] && echo yes || echo no)"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
