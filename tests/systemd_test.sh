#!/bin/bash
# Shows the installed units under the real systemd, in a sandbox that shares nothing with this
# machine: start returns when a request succeeds, a request starts the service through its socket,
# hardening leaves it able to work, a failure restarts it or does not, stop drains.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}

if [ "${1:-}" != --inside ]; then
    [ -x "$build/llm42d" ] || { echo "skipped: $build/llm42d is not built"; exit 77; }
    command -v python3 > /dev/null || { echo "skipped: needs python3"; exit 77; }
    # The units can be judged anywhere.
    dir=$(mktemp -d /tmp/llm42d-systemd.XXXXXX)
    trap 'rm -rf "$dir"' EXIT
    cp systemd/llm42d*.service systemd/llm42d*.socket "$dir"
    sed -i 's|^ExecStart=.*|ExecStart=/bin/true|' "$dir/llm42d.service"
    # Alone, and with the drop-in for a GPU.
    SYSTEMD_UNIT_PATH=$dir: systemd-analyze verify --man=no "$dir"/llm42d* ||
        { echo "FAIL: systemd-analyze verify"; exit 1; }
    install -D -m 644 systemd/llm42d-cuda.conf "$dir/llm42d.service.d/cuda.conf"
    SYSTEMD_UNIT_PATH=$dir: systemd-analyze verify --man=no "$dir"/llm42d.service 2>&1 | grep . &&
        { echo "FAIL: systemd-analyze verify with llm42d-cuda.conf"; exit 1; }
    systemd-analyze security --offline=true --threshold=10 --no-pager systemd/llm42d.service \
        > "$dir/security" 2>&1 || { tail -1 "$dir/security"; echo "FAIL: exposure"; exit 1; }
    tail -1 "$dir/security"
    mkdir "$dir/bound"
    make -s BUILD="$build" "$build/tests/llm42d-fault" || exit 1
    cp "$build/tests/llm42d-fault" "$dir/bound"
    if "$build/llm42d" --version | grep -q 'devices:.*cuda'; then
        make -s BUILD="$build" "$build/tests/cuda_stub_test" || exit 1
        cp -r "$build/tests/stub_cuda" "$dir/bound"
    fi
    cp -r "$build/llm42d" systemd tests/service.py tests/data/verse-4m tests/systemd_test.sh \
        tests/systemd-sandbox "$dir/bound"
    cd "$dir/bound" && ./systemd-sandbox ./systemd_test.sh --inside
    exit
fi

# ---- inside: this root is an overlay, and goes with the sandbox
cd /bound || exit 1
failed=0 passed=0
is() {
    if [ "$2" = "$3" ]; then passed=$((passed + 1)); return; fi
    echo "FAIL: $1: wanted '$2', got '$3'"
    failed=$((failed + 1))
}
until_true() { for _ in $(seq 200); do "$@" > /dev/null 2>&1 && return 0; sleep 0.05; done; return 1; }
show() { systemctl show -P "$1" llm42d.service; }
ask() { python3 service.py generate /run/llm42/llm42d.sock "$1"; }

install -D -m 755 llm42d /usr/sbin/llm42d
install -D -m 644 -t /usr/lib/systemd/system systemd/llm42d.service systemd/*.socket
install -D -m 644 systemd/llm42d.sysusers /usr/lib/sysusers.d/llm42d.conf
install -D -m 644 systemd/llm42d.tmpfiles /usr/lib/tmpfiles.d/llm42d.conf
install -D -m 644 systemd/llm42d.conf /usr/lib/llm42/llm42d.conf
systemd-sysusers llm42d.conf
systemd-tmpfiles --create llm42d.conf
cp -r verse-4m /var/lib/llm42/models/default
chmod -R a+rX /var/lib/llm42
install -d /etc/llm42
printf '[engine]\nthreads=1\n[server]\ndrain_timeout=2s\n' > /etc/llm42/llm42d.conf
systemctl daemon-reload

is "start" 0 "$(systemctl start llm42d.service; echo $?)"
is "active when start returns" active "$(systemctl is-active llm42d.service)"
is "and the first request succeeds" "length 5" "$(ask 5)"
is "mode and group of the socket" "660 llm42" "$(stat -c '%a %G' /run/llm42/llm42d.sock)"
is "mode and group of the other" "660 llm42-admin" "$(stat -c '%a %G' /run/llm42/admin.sock)"
is "not root" yes "$([ "$(stat -c %u /proc/"$(show MainPID)")" != 0 ] && echo yes)"
case $(show StatusText) in *fingerprint*) passed=$((passed + 1)) ;; *) is status fingerprint "$(show StatusText)" ;; esac
is "others are kept out" 1 \
    "$(setpriv --reuid=65534 --clear-groups --regid=65534 python3 service.py generate /run/llm42/llm42d.sock 1 > /dev/null 2>&1; echo $?)"
is "reload" 0 "$(systemctl reload llm42d.service; echo $?)"
is "active after reload" active "$(systemctl is-active llm42d.service)"
until_true eval 'journalctl -q --no-pager LLM42_UID=0 | grep -q "request 1 "'
is "the request is in the journal, by uid" yes \
    "$(journalctl -q --no-pager LLM42_UID=0 2> /dev/null | grep -q 'request 1 ' && echo yes)"

# Killed: the sockets stay, and it comes back.
pid=$(show MainPID)
kill -KILL "$pid"
is "after a kill a request waits and succeeds" "length 5" "$(ask 5)"
is "in another process" yes "$([ "$(show MainPID)" != "$pid" ] && echo yes)"

# Stop drains: a request at hand is finished, one that cannot end gets an error in time.
ask 300 > out &
sleep 0.3
is "stop at work" 0 "$(systemctl stop llm42d.socket llm42d-admin.socket llm42d.service; echo $?)"
wait
is "its request was finished" "length 300" "$(tail -1 out)"
is "result" success "$(show Result)"
systemctl start llm42d.socket llm42d-admin.socket
is "started by a request" "length 5" "$(ask 5)"
sleep 60 | python3 service.py hold /run/llm42/llm42d.sock credit > held &
until_true grep -q held held
from=$(date +%s)
is "stop with a request that cannot end" 0 \
    "$(systemctl stop llm42d.socket llm42d-admin.socket llm42d.service; echo $?)"
is "within its bound" yes "$([ $(($(date +%s) - from)) -le 8 ] && echo yes)"
is "each of its requests is in the journal" 8 \
    "$(journalctl -q --no-pager -u llm42d.service | grep -c 'cancelled, plain')"
is "told" yes "$(until_true grep -q 'error 13' held && echo yes)"

# Settings that cannot be: an exit code of their own, and no second try.
printf '[engine]\nwindow=0\n' > /etc/llm42/llm42d.conf
systemctl start llm42d.service 2> /dev/null
sleep 3
is "exit code of bad settings" 6 "$(show ExecMainStatus)"
is "not tried again" "failed 0" "$(systemctl is-active llm42d.service) $(show NRestarts)"

# A device that hangs or is lost: killed by the watchdog or ended with 81, and started again.
printf '[engine]\nthreads=1\n[server]\ndrain_timeout=2s\n' > /etc/llm42/llm42d.conf
drop=/etc/systemd/system/llm42d.service.d
mkdir -p "$drop"
printf '[Service]\nWatchdogSec=1\nRestartSec=1\nEnvironment=LLM42_FAULT=/var/lib/llm42/fault\n' > "$drop/fault.conf"
install -m 755 llm42d-fault /usr/sbin/llm42d
again() { # what is written, wanted result and code
    systemctl daemon-reload
    systemctl reset-failed llm42d.service 2> /dev/null
    systemctl start llm42d.service
    ask 5 > /dev/null
    pid=$(show MainPID)
    echo "$1" > /var/lib/llm42/fault
    chmod a+r /var/lib/llm42/fault
    ask 100 > answer 2>&1 &
    asker=$!
    until_true eval '[ "$(show MainPID)" != "$pid" ]'
    is "$1: how it ended" "$2" "$(show Result) $(show ExecMainStatus)"
    is "$1: a request afterwards" "length 5" "$(ask 5)"
    is "$1: started again by systemd" 1 "$(show NRestarts)"
    wait "$asker"
}
again "hang 60000" "watchdog 6"
is "a request that hung has no answer" failed "$(cut -c1-6 answer)"
again lost "exit-code 81"
is "a request of the lost" "error 15" "$(cut -c1-8 answer)"
systemctl stop llm42d.socket llm42d-admin.socket llm42d.service
rm "$drop/fault.conf"

# The unit for a GPU, with a driver that computes nothing: compiled kernels are kept, the self-test
# refuses, and nothing tries again; without a driver it is tried again.
install -m 755 llm42d /usr/sbin/llm42d
printf '[engine]\nthreads=1\ndevice=cuda\n' > /etc/llm42/llm42d.conf
install -m 644 systemd/llm42d-cuda.conf "$drop/cuda.conf"
if [ -d stub_cuda ]; then
    cp -r stub_cuda /usr/lib/llm42/stub
    printf '[Service]\nRestartSec=500ms\nEnvironment=LD_LIBRARY_PATH=/usr/lib/llm42/stub\n' > "$drop/stub.conf"
    systemctl daemon-reload
    systemctl reset-failed llm42d.service 2> /dev/null
    systemctl start llm42d.service 2> /dev/null
    sleep 1.5
    is "exit code of other bits" 82 "$(show ExecMainStatus)"
    is "not tried again either" "failed 0" "$(systemctl is-active llm42d.service) $(show NRestarts)"
    is "kernels are kept" yes "$([ "$(find /var/cache/private/llm42 -name '*.cubin' | wc -l)" -gt 10 ] && echo yes)"
    is "for the daemon alone" 700 "$(stat -c %a /var/cache/private/llm42)"
    printf '[Service]\nRestartSec=500ms\nEnvironment=LD_LIBRARY_PATH=/usr/lib/llm42/stub STUB_CUDA=devices=0\n' > "$drop/stub.conf"
    systemctl daemon-reload
    systemctl reset-failed llm42d.service 2> /dev/null
    systemctl start llm42d.service 2> /dev/null
    until_true eval '[ "$(show NRestarts) $(show ExecMainStatus)" = "1 80" ]'
    is "exit code of no GPU" 80 "$(show ExecMainStatus)"
    is "tried again" yes "$([ "$(show NRestarts)" -ge 1 ] && echo yes)"
    systemctl stop llm42d.service
fi

[ "$failed" -eq 0 ] || journalctl -q --no-pager -u llm42d.service | tail -30
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
