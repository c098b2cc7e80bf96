# What the service tests share; sourced.  Uses passed, failed, pid, helpers and dir of the test.
# shellcheck shell=bash disable=SC2034,SC2154

finish() {
    for p in $pid "${helpers[@]}"; do kill -KILL "$p" 2> /dev/null; done
    wait 2> /dev/null
    rm -rf "$dir"
}
is() { # what, wanted, got
    if [ "$2" = "$3" ]; then passed=$((passed + 1)); return; fi
    echo "FAIL: $1: wanted '$2', got '$3'"
    failed=$((failed + 1))
}
has() { # what, pattern, file
    if grep -q -- "$2" "$3"; then passed=$((passed + 1)); return; fi
    echo "FAIL: $1: no '$2' in:"; tail -20 "$3"
    failed=$((failed + 1))
}
until_true() { # command...; 15 s at most
    for _ in $(seq 300); do "$@" > /dev/null 2>&1 && return 0; sleep 0.05; done
    return 1
}
