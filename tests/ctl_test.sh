#!/bin/bash
# llm42ctl against a private daemon on the bundled model: every verb, each exit code, bad input by
# its words, an interrupt, receipts that are altered, and the manual in step with --help.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-build}
[[ $build = /* ]] || build=$here/$build
dir=$(mktemp -d)
export LLM42_SOCKET=$dir/llm42d.sock
ctl=$build/llm42ctl
failed=0 n=0

finish() {
    [[ -n ${daemon:-} ]] && kill "$daemon" 2>/dev/null && wait "$daemon"
    rm -rf "$dir"
}
trap finish EXIT

# expect CODE WORDS COMMAND...: the exit code, and words somewhere in what it printed
expect() {
    local code=$1 words=$2 got
    shift 2
    n=$((n + 1))
    "$@" >"$dir/out" 2>&1 </dev/null
    got=$?
    if [[ $got -ne $code ]] || { [[ -n $words ]] && ! grep -qF -- "$words" "$dir/out"; }; then
        echo "FAIL: $* (exit $got, wanted $code and: $words)"
        head -5 "$dir/out"
        failed=$((failed + 1))
    fi
}
same() {
    n=$((n + 1))
    [[ $2 == "$3" ]] && return
    echo "FAIL: $1: '$2' is not '$3'"
    failed=$((failed + 1))
}
get() { # get FILE KEY...: a value of a JSON object
    python3 -c 'import json, sys
v = json.load(open(sys.argv[1]))
for key in sys.argv[2:]: v = v[key]
print(v)' "$@"
}

# ---- without a daemon ----
expect 2 "a verb is needed" "$ctl"
expect 2 "frobnicate is no verb" "$ctl" frobnicate
expect 0 "generate" "$ctl" --help
expect 2 "--bogus: no such option" "$ctl" generate --bogus
expect 2 "-x: no such option" "$ctl" generate -x
expect 2 "not an option of this verb" "$ctl" ping --seed 1
expect 2 "--json takes no value" "$ctl" ping --json=1
expect 2 "--seed needs a value" "$ctl" generate --seed
expect 2 "it must be a whole number, 0 .. 18446744073709551615" "$ctl" generate --seed 1x a
expect 2 "it must be" "$ctl" generate --seed 18446744073709551616 a
expect 2 "it must be" "$ctl" generate --seed -1 a
expect 2 "it must be 0 or 0.0078125 .. 128" "$ctl" generate --temperature nan a
expect 2 "it must be 0 or 0.0078125 .. 128" "$ctl" generate --temperature 0.0078124 a
expect 2 "it must be above 0" "$ctl" generate --top-p 0 a
expect 2 "it must be 0 .. 1" "$ctl" generate --min-p 1.5 a
expect 2 "0 .. 20" "$ctl" generate --logprobs 21 a
expect 2 "1 .. 4294967295" "$ctl" generate --max-tokens 0 a
expect 2 "1 .. 256 bytes" "$ctl" generate --stop "" a
expect 2 "--stream goes with --json" "$ctl" generate --stream a
expect 2 "two prompts" "$ctl" generate --tokens x a
expect 2 "No such file" "$ctl" generate --file "$dir/none"
expect 2 "--receipt /nonexistent/r: No such file" "$ctl" generate --receipt /nonexistent/r a
expect 2 "--receipt $dir: Is a directory" "$ctl" generate --receipt "$dir" a
expect 7 "cannot reach" "$ctl" generate --receipt "$dir/unasked" a
same "no receipt of what was not asked" "$(ls "$dir/unasked" 2>/dev/null)" ""
expect 2 "b is one more" "$ctl" generate a b
expect 2 "replay needs a receipt" "$ctl" replay
expect 2 "cancel needs" "$ctl" cancel 0
expect 7 "$LLM42_SOCKET: No such file or directory" "$ctl" health
expect 7 "Connection refused" "$ctl" ping --socket "$(python3 -c 'import socket, sys
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); print(sys.argv[1])' "$dir/dead.sock")"
expect 7 "File name too long" "$ctl" ping --socket "/$(printf 'x%.0s' {1..120})"

# Each option of --help stands in the manual, and none of the manual is without one.
for verb in generate chat score tokenize detokenize status info schedules cancel replay health ping; do
    "$ctl" $verb --help | sed -n 's/^  --\([a-z-]*\).*/\1/p'
done | sort -u >"$dir/help"
grep -o '\*--[a-z-]*\*' "$here/docs/llm42ctl.1.scd" | tr -d '*' | cut -c3- | grep -vx version |
    sort -u >"$dir/man"
same "options of --help and of the manual" "$(cat "$dir/help")" "$(cat "$dir/man")"

# ---- with one ----
"$build/llm42d" --set model.path="$here/tests/data/verse-4m" --set server.socket="$LLM42_SOCKET" \
    --set server.admin_socket="$dir/admin.sock" >"$dir/log" 2>&1 &
daemon=$!
for ((i = 0; i < 300; i++)); do
    "$ctl" health >/dev/null 2>&1 && break
    sleep 0.1
done
expect 0 "ok" "$ctl" health
expect 0 "median" "$ctl" ping --count 100
expect 0 "median_us" "$ctl" ping --count 100 --json
expect 0 "serving" "$ctl" status
expect 0 '"fingerprint":' "$ctl" info --json
expect 0 "stock 1024" "$ctl" schedules
expect 0 "has the full context" "$ctl" schedules
expect 0 "A step that need not be canonical is tuned." "$ctl" schedules
expect 0 "rows that are canonical as they are" "$ctl" schedules

"$ctl" tokenize "Shall I compare" >"$dir/ids"
expect 0 "Shall I compare" "$ctl" detokenize --tokens "$dir/ids"
read -ra ids <"$dir/ids"
expect 0 "Shall I compare" "$ctl" detokenize "${ids[@]}"
expect 2 "is no token id" "$ctl" detokenize 1 two
expect 3 "field ids" "$ctl" detokenize 4294967295
same "detokenize reads a JSON array" "$(echo "[$(tr ' ' ',' <"$dir/ids")]" | "$ctl" detokenize)" \
    "$("$ctl" detokenize --tokens "$dir/ids")"

ask=(generate --deterministic --max-tokens 12 --seed 7 --temperature 0.8)
"$ctl" "${ask[@]}" --json --receipt "$dir/r" "Shall I compare" >"$dir/a"
"$ctl" "${ask[@]}" --json --tokens "$dir/ids" >"$dir/b"
same "text and its ids" "$(get "$dir/a" determinism digest)" "$(get "$dir/b" determinism digest)"
same "temperature as given" "$(get "$dir/a" parameters temperature)" 0.8
same "tokens" "$(get "$dir/a" usage completion_tokens)" 12
same "text without --json" "$("$ctl" "${ask[@]}" "Shall I compare"; echo .)" "$(get "$dir/a" text)"$'\n.'
"$ctl" "${ask[@]}" --json --stream "Shall I compare" >"$dir/s"
same "the stream's ids are the whole's" \
    "$(python3 -c 'import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
print(sum((l["tokens"] for l in lines[:-1]), []) == lines[-1]["tokens"],
      "".join(l["text"] for l in lines[:-1]) == lines[-1]["text"])' "$dir/s")" "True True"
expect 3 "too_long (class client, field max_tokens)" "$ctl" generate --max-tokens 100000 a
expect 3 "an empty prompt" "$ctl" generate ""
expect 3 "template (class unsupported" "$ctl" chat hello
expect 2 "/nonexistent: No such file" "$build/llm42-bench" serve --pings 10 --trace /nonexistent
expect 3 "no_request" "$ctl" cancel --admin-socket "$dir/admin.sock" 999999
expect 1 "no answer in time" "$ctl" generate --timeout 1 --ignore-eos --max-tokens 2000 a

# ---- receipts ----
expect 0 "equal" "$ctl" replay "$dir/r"
sed 's/"seed":7/"seed":8/' "$dir/r" >"$dir/r2"
expect 1 "differs: " "$ctl" replay "$dir/r2"
expect 1 '"equal":false' "$ctl" replay --json "$dir/r2"
sed 's/"digest":"./"digest":"g/' "$dir/r" >"$dir/r2"
expect 2 '"digest" is missing or not' "$ctl" replay "$dir/r2"
sed 's/"finish_reason":"length"/"finish_reason":"stop"/' "$dir/r" >"$dir/r2"
expect 1 "its digest is not that of what it holds" "$ctl" replay "$dir/r2"
python3 -c 'import json, sys
r = json.load(open(sys.argv[1])); r["fingerprint"] = "00" * 32; json.dump(r, open(sys.argv[2], "w"))' \
    "$dir/r" "$dir/r2"
expect 1 "differs: fingerprint" "$ctl" replay "$dir/r2"

# ---- score: the logprobs of generating are those of the text ----
python3 -c 'import json, sys
a = json.load(open(sys.argv[1])); ids = [int(i) for i in open(sys.argv[2]).read().split()]
print(json.dumps({"tokens": ids + a["tokens"]}))' "$dir/a" "$dir/ids" >"$dir/f"
"$ctl" score --json --file "$dir/f" >"$dir/score"
same "score and generate" "$(python3 -c 'import json, sys
a, s = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
print(s["logprob_bits"][-12:] == a["logprob_bits"], s["logprobs"][0])' "$dir/a" "$dir/score")" "True None"
"$ctl" score --json --logprobs 3 "The king" >"$dir/score3"
same "score with the most probable" "$(python3 -c 'import json, sys
s = json.load(open(sys.argv[1]))
print([len(t) for t in s["top_logprobs"][1:]] == [3] * (len(s["tokens"]) - 1),
      [t[0]["id"] for t in s["top_logprobs"][1:]] == s["top_ids"][1:])' "$dir/score3")" "True True"
expect 3 "too_long" "$ctl" score "$(printf 'word %.0s' {1..5000})"

# ---- files: in their order, each as it is alone ----
for i in {1..20}; do
    echo "{\"prompt\": \"Line $i\", \"max_tokens\": $((i % 7 + 1)), \"deterministic\": true, \"seed\": $i}"
done >"$dir/f"
"$ctl" generate --json --file "$dir/f" >"$dir/all"
same "lines" "$(wc -l <"$dir/all")" 20
"$ctl" generate --json --deterministic --seed 20 --max-tokens 7 "Line 20" >"$dir/one"
tail -1 "$dir/all" >"$dir/last"
same "beside others and alone" "$(get "$dir/one" determinism digest)" "$(get "$dir/last" determinism digest)"
while IFS='|' read -r words line; do
    printf '{"prompt": "a"}\n\n%s\n' "$line" >"$dir/f"
    expect 2 ":3: $words" "$ctl" generate --file "$dir/f"
done <<'END'
unknown key "foo"|{"prompt": "x", "foo": 1}
"prompt" and "tokens" are two prompts|{"prompt": "x", "tokens": [1]}
"seed" must be a whole number|{"prompt": "x", "seed": -1}
"top_k" must be a whole number|{"prompt": "x", "top_k": 1.5}
"deterministic" must be true or false|{"prompt": "x", "deterministic": 1}
"tokens" must be a whole number|{"tokens": ["AI"]}
"messages" must be an array of 1 .. 1024|{"messages": []}
"role" must be system, user or assistant|{"messages": [{"role": "bot", "content": "x"}]}
"stop" must be strings of 1 .. 256|{"prompt": "x", "stop": [""]}
no "prompt", "tokens" or "messages"|{"max_tokens": 1}
duplicate object key|{"prompt": "x", "prompt": "y"}
not a JSON object|[1]
END
printf '{"prompt": "ok", "max_tokens": 2}\n{"tokens": [4294967295]}\n' >"$dir/f"
expect 3 "request 2 refused: prompt" "$ctl" generate --json --file "$dir/f"
same "the neighbour of a refused one" "$(head -1 "$dir/out" | grep -c '"finish_reason"')" 1

# ---- an interrupt, and a cancel from outside ----
# In the background SIGINT is ignored, and what is ignored stays so: a shell of its own.
python3 -c 'import signal, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
first = p.stdout.read(1)
p.send_signal(signal.SIGINT)
rest = p.stdout.read()
print(p.wait(), len(first + rest) > 0)' "$ctl" generate --ignore-eos --max-tokens 2000 The >"$dir/int"
same "interrupted" "$(cat "$dir/int")" "130 True"
"$ctl" generate --json --stream --ignore-eos --max-tokens 2000 The >"$dir/c" &
job=$!
for ((i = 0; i < 200; i++)); do
    [[ -s $dir/c ]] && break
    sleep 0.05
done
head -1 "$dir/c" >"$dir/first"
expect 0 "" "$ctl" cancel --admin-socket "$dir/admin.sock" "$(get "$dir/first" server_id)"
wait $job
tail -1 "$dir/c" >"$dir/last"
same "cancelled from outside" "$(get "$dir/last" finish_reason)" cancelled

# ---- the daemon goes: clients are told ----
kill "$daemon"
wait "$daemon"
daemon=
expect 7 "cannot reach llm42d" "$ctl" health

# ---- daemons that lie, break off or talk nonsense ----
cat >"$dir/fake.py" <<'END'
import hashlib, os, socket, struct, sys
path, part = sys.argv[1:]
frame = lambda kind, request, data: struct.pack("<IHHQ", len(data), kind, 0, request) + data
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(1)
print("ready", flush=True)
s = listener.accept()[0]
hello = struct.pack("<HHIQQIIIIIHH", 1, 20, 65536, 0, 7, 1 << 20, 64, 256, 8, 1 << 20, 4, 0)
s.sendall(frame(0x8001, 0, hello + bytes(32) + b"fake"))
data = b""
def take():
    global data
    while len(data) < 16 or len(data) < 16 + struct.unpack_from("<I", data)[0]:
        more = s.recv(65536)
        if not more: os._exit(0)
        data += more
    n, kind, _, request = struct.unpack_from("<IHHQ", data)
    data = data[16 + n:]
    return kind, request
kind = 0
while kind != 3: kind, request = take()
accepted = struct.pack("<QQIIfffIIIIIHHB3x", 1, 5, 32, 4, 0, 1, 0, 0, 1, 0, 0, 1, 1, 0, 0)
record = b"\2" + struct.pack("<IIH", 65, 0xbf800000, 0)
digest = hashlib.sha256(b"llm42 digest v1\0" + record + b"\3\2").digest()
if part == "lie": digest = bytes(32)
text = b"\x1b[31mA" if part == "escape" else b"A"
stream = frame(0x8003, request, struct.pack("<IIII", 0, 1, len(text), 65) + text)
stream += frame(0x8004, request, struct.pack("<IIHHII", 0, 1, 0, 0, 65, 0xbf800000))
done = struct.pack("<BBHIIIIIII", 2, 0, 0, 1, 1, 0, 0, 0, 0, 0) + digest + bytes(64)
if part == "early": s.sendall(stream)
else: s.sendall(frame(0x8002, request, accepted))
if part == "error":
    s.sendall(frame(0x8007, request, struct.pack("<HBBI", 5, 1, 0, 5) + b"\x1b[31mred"))
if part == "unknown":
    s.sendall(frame(0x8007, request, struct.pack("<HBBI", 999, 99, 0, 999)))
if part == "fatal": s.sendall(frame(0x8007, 0, struct.pack("<HBBI", 17, 5, 0, 0) + b"asleep"))
if part in ("true", "lie", "escape"): s.sendall(stream + frame(0x8006, request, done))
if part == "junk": s.sendall(b"\xff" * 64)
if part != "close": s.recv(1)
END
fake() { # fake PART CODE WORDS
    rm -f "$dir/fake.sock" "$dir/told"
    mkfifo "$dir/told"
    python3 "$dir/fake.py" "$dir/fake.sock" "$1" >"$dir/told" &
    read -r _ <"$dir/told"
    expect "$2" "$3" "$ctl" generate --socket "$dir/fake.sock" hello
    wait $!
}
fake true 0 "A"
fake lie 1 "the digest of DONE is not that of what came"
fake early 1 "TOKENS before ACCEPTED"
fake error 3 "refused: field (class client, field top_p): ?[31mred"
fake unknown 3 "refused: unknown (class unknown, field unknown): "
fake fatal 1 "slow (class fatal): asleep"
fake junk 1 "bytes that cannot be a frame"
fake close 1 "the server closed the connection"

echo "ctl: $n checks, $failed failed"
[[ $failed -eq 0 ]]
