#!/bin/bash
# Experiments in small on the CPU twin: columns, a row a run, digests that are checked, a reference
# that was changed and is noticed, SIGINT and going on from there, what is refused by name, the page.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-build}
[[ $build = /* ]] || build=$here/$build
bench=$build/llm42-bench
dir=$(mktemp -d)
export TMPDIR=$dir
trap 'rm -rf "$dir"' EXIT
failed=0 n=0
cd "$here" || exit 1

fail() {
    echo "FAIL: $*"
    failed=$((failed + 1))
}

# expect CODE WORDS COMMAND...: the exit code, and words somewhere in what it printed
expect() {
    local code=$1 words=$2 got
    shift 2
    n=$((n + 1))
    "$@" >"$dir/out" 2>&1 </dev/null
    got=$?
    if [[ $got -ne $code ]] || ! grep -qF -- "$words" "$dir/out"; then
        fail "$* (exit $got, wanted $code and: $words)"
        tail -8 "$dir/out"
    fi
}

# check FILE EXPRESSION: true of rows (a list of dicts) and notes (lines with #)
check() {
    n=$((n + 1))
    python3 - "$@" <<'EOF' || fail "$1: $2"
import csv, sys
lines = open(sys.argv[1]).read().splitlines()
notes = [l for l in lines if l.startswith('#')]
rows = list(csv.DictReader(l for l in lines if not l.startswith('#')))
of = lambda **k: [r for r in rows if all(r[c] == str(v) for c, v in k.items())]
num = lambda r, c: float(r[c])
sys.exit(not eval(sys.argv[2]))
EOF
}

x() { "$bench" experiment "$@" --scale 0.05 --repeats 1; }
export -f x
systems=nondet,canonical,auto,stock,paper,paper+mismatch
export bench systems

# ---- A daemon is left nobody's mailbox ----
cat >"$dir/daemon" <<EOF
#!/bin/bash
folder=\${NOTIFY_SOCKET%/*}
while [[ -e \$folder/conf ]]; do
    [[ -S \$folder/sock && ! -e \$NOTIFY_SOCKET && -S \$folder/sock ]] && touch "$dir/closed"
    sleep 0.01
done &
exec "$build/llm42d" "\$@"
EOF
chmod +x "$dir/daemon"
expect 0 "READY=1" "$bench" start --pings 20000 --daemon "$dir/daemon"
n=$((n + 1))
[[ -e $dir/closed ]] || fail "a daemon that serves still has a socket that nobody reads"

# A name of a figure is one figure's.
n=$((n + 1))
"$bench" start --json --pings 10 >"$dir/out" 2>&1 </dev/null
python3 - "$dir/out" <<'EOF' || fail "start --json: a name twice, or none"
import json, sys
objects = [json.loads(l) for l in open(sys.argv[1])]
names = [o['name'] for o in objects if o['kind'] == 'figure']
assert objects[0]['commit'] and 'start.rss' in names and 'start.loaded_rss' in names
assert len(names) == len(set(names)), names
EOF

# ---- What is wrong on the command line ----
expect 2 "fly is no experiment: join, spans, window, ablation, offline, online, gemm, norm, invariance, verify-cost" x fly --out "$dir/a"
expect 2 "experiment: a name is wanted: join, spans" "$bench" experiment
expect 2 "--out DIR is wanted" x offline
expect 2 "--systems sglang: no system; there are nondet, nondet-stock" x offline --out "$dir/a" --systems sglang
expect 2 "--workloads chat: no workload" x offline --out "$dir/a" --workloads chat
expect 2 "--workloads fixed:0/2: no workload" x offline --out "$dir/a" --workloads fixed:0/2
expect 2 "--workloads trace: --trace FILE is wanted" x offline --out "$dir/a" --workloads trace
expect 2 "--shares 101: a number, 0 to 100" x offline --out "$dir/a" --shares 0,101
expect 2 "--windows 1.5: a whole number, 1 to 256" x offline --out "$dir/a" --windows 1.5
expect 2 "--groups: one, or as many as --windows" x offline --out "$dir/a" --windows 8 --groups 1,2
expect 2 "the lists ask twice for sharegpt,auto,5,at-once,0,64,8,0,4096,0" \
    x offline --out "$dir/a" --workloads sharegpt --shares 5,5.0
expect 2 "--rates: not of offline" x offline --out "$dir/a" --rates 3
expect 2 "--shares: not of join" x join --out "$dir/a" --shares 3
expect 2 "--arrivals sometimes: poisson or recorded" x online --out "$dir/a" --arrivals sometimes
expect 2 "--set engine.policy=auto: the experiment sets it by itself" \
    x offline --out "$dir/a" --set engine.policy=auto
expect 2 "/nonexistent: No such file" x offline --out "$dir/a" --trace /nonexistent \
    --workloads trace
expect 1 "/nonexistent" x offline --out "$dir/a" --model /nonexistent
expect 1 "/nonexistent/x: No such file" x offline --out /nonexistent/x
expect 2 "report: of which folder" "$bench" report
expect 2 "no folder /nonexistent" "$bench" report /nonexistent
expect 2 "nothing in $dir: no experiment" "$bench" report "$dir"
expect 2 "--rows: not of offline" x offline --out "$dir/a" --rows 3
expect 2 "--geometry: not of offline" x offline --out "$dir/a" --geometry smollm2-135m
[[ ! -s $dir/a/offline.csv ]] || fail "rows after what was refused"

# ---- Offline: every system, digests, the price of forced mismatches ----
offline() {
    x offline --out "$dir/x" --requests 6 --workloads sharegpt,upto:512/256 --shares 0,50 \
        --windows 4 --groups 2 --mismatches 400000 --systems "$systems" "$@"
}
export -f offline
export dir
expect 0 "18 runs; 0 were there, 18 done, 0 void" offline
csv=$dir/x/offline.csv
check "$csv" "len(rows) == 18 and list(rows[0])[:10] == 'workload system share arrivals rate window group mismatch_ppm requests repeat'.split()"
check "$csv" "all(f'{t}_ms_{k}_{q}' in rows[0] for t in ('ttft', 'gap', 'e2e') for k in ('flagged', 'unflagged', 'pooled') for q in ('p50', 'p90', 'p99'))"
check "$csv" "all(num(r, 'done') == 6 and num(r, 'total_tok_s') > 0 for r in rows)"
check "$csv" "all(r['digests_equal'] == r['flagged'] == str({'0': 0, '50': 3, '100': 6}[r['share']]) for r in rows)"
check "$csv" "all(r['rollbacks'] == r['windows'] == '0' for r in of(system='canonical') + of(system='nondet'))"
check "$csv" "all(num(r, 'certified') == num(r, 'output_tokens') for r in of(system='canonical'))"
check "$csv" "all(num(r, 'rollbacks') > 0 and num(r, 'recomputed_pct') > 0 and num(r, 'no_rollback_pct') < 100 for r in of(system='paper+mismatch'))"
# This model is in no table: what is tuned is canonical, what is stock never.
check "$csv" "all(num(r, 'windows') > 0 for r in of(system='stock', share=50)) and all(num(r, 'steps_same') > 0 and num(r, 'steps_tuned') == 0 for r in of(system='auto')) and all(num(r, 'steps_same') == 0 for r in of(system='stock') + of(system='paper+mismatch'))"
# The paper's mechanism certifies first tokens alone: each request's, one.
check "$csv" "all(num(r, 'certified') == 6 and num(r, 'windows') > 0 for r in of(system='paper', share=50))"
check "$csv" "all(num(r, 'steps_canonical') > 0 and num(r, 'steps_tuned') == 0 for r in of(system='canonical')) and all(num(r, 'steps_canonical') == 0 and num(r, 'steps_tuned') > 0 for r in of(system='nondet'))"
check "$csv" "len({r['output_tokens'] for r in of(workload='sharegpt')}) == 1"
check "$csv" "any(l.startswith('# fingerprint: ') and len(l) == 79 for l in notes) and '# seed: 1' in notes and '# trace: none' in notes"

# ---- Again: nothing to do; another setting: by name; half a line: that run again ----
cp "$csv" "$dir/before"
expect 0 "18 were there, 0 done" offline
n=$((n + 1))
cmp -s "$csv" "$dir/before" || fail "a file changed where nothing was to be done"
expect 2 "its rows are of seed 1, not 2: take another --out" offline --seed 2
expect 2 "its rows are of settings none, not engine.step_tokens=64" offline --set engine.step_tokens=64
expect 2 "its rows are of temperature 0, not 0.7" offline --temperature 0.7
truncate -s -20 "$csv"
expect 0 "17 were there, 1 done" offline
check "$csv" "len(rows) == 18 and all(r['digests_equal'] for r in rows)"
expect 0 "24 runs; 18 were there, 6 done" offline --shares 0,50,100
check "$csv" "len(rows) == 24 and len(of(share=100, system='auto')) == 2"

exec 9<"$csv"
flock 9
expect 2 "x/offline.csv: another llm42-bench is at work on it" offline
exec 9<&-

# ---- A reference that is not what is answered voids the run ----
mkdir "$dir/v"
void() { x offline --out "$dir/v" --requests 4 --workloads fixed:200/100 --systems nondet,canonical "$@"; }
export -f void
expect 0 "2 done, 0 void" void
for file in "$dir"/v/reference-*.txt; do
    cp "$file" "$dir/reference"
    awk 'NR == 2 { $2 = (substr($2, 1, 1) == "0" ? "1" : "0") substr($2, 2) } { print }' \
        "$dir/reference" >"$file"
done
sed -i '/,canonical/d' "$dir/v/offline.csv"
expect 1 "VOID fixed:200/100,canonical,100,at-once,0,0,0,0,4,0: 1 of 4 digests are not the reference's; the first: request 0" void
check "$dir/v/offline.csv" "len(rows) == 1 and any(l.startswith('# void: fixed:200/100,canonical') for l in notes)"
expect 0 "index.html" "$bench" report "$dir/v"
n=$((n + 1))
grep -q '1 runs were void' "$dir/v/index.html" || fail "the page does not tell of a void run"
cp "$dir/reference" "$file"
expect 0 "1 were there, 1 done, 0 void" void
echo "nonsense" >>"$file"
sed -i '/,canonical/d' "$dir/v/offline.csv"
expect 1 "not a reference of 4 requests" void

# ---- SIGINT in the middle, then on: the same rows as without ----
stop() {
    "$bench" experiment offline --out "$dir/s" --requests 6 --workloads sharegpt --shares 0,50 \
        --windows 4 --groups 2 --mismatches 400000 --systems "$systems" --scale 0.05 --repeats 1
}
export -f stop
n=$((n + 1))
"$bench" experiment offline --out "$dir/s" --requests 6 --workloads sharegpt --shares 0,50 \
    --windows 4 --groups 2 --mismatches 400000 --systems "$systems" --scale 0.05 --repeats 1 >"$dir/out" 2>&1 </dev/null &
pid=$!
for _ in $(seq 600); do
    [[ -f $dir/s/offline.csv && $(grep -c '^[^#w]' "$dir/s/offline.csv") -ge 2 ]] && break
    sleep 0.05
done
folder=
for _ in $(seq 200); do # there is none for a moment between two
    child=$(cat /proc/$pid/task/$pid/children)
    child=${child%% *}
    [[ -n $child ]] &&
        folder=$(tr '\0' '\n' <"/proc/$child/cmdline" | grep -o '^/tmp/llm42-bench[^/]*' | head -1)
    [[ -n $folder ]] && break
    sleep 0.01
done
kill -INT $pid
wait $pid
code=$?
[[ $code -eq 130 ]] || fail "exit $code after SIGINT, wanted 130"
grep -q "interrupted; the same command goes on" "$dir/out" || fail "SIGINT is not told"
[[ ! -d /proc/$child ]] || fail "a daemon is left after SIGINT"
n=$((n + 1))
[[ -n $folder && ! -d $folder ]] || fail "the daemon's folder '$folder' is left after SIGINT"
check "$dir/s/offline.csv" "2 <= len(rows) < 9"
expect 0 "9 runs; " stop
n=$((n + 1))
keys() { grep '^sharegpt' "$1" | cut -d, -f1-10 | sort; }
keys "$dir/s/offline.csv" >"$dir/keys"
keys "$dir/before" | cmp -s - "$dir/keys" || fail "other rows after SIGINT than without"

# ---- The others ----
printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n' >"$dir/trace.csv"
for i in 0 1 2 3 4; do
    printf '2023-11-16 18:15:4%d.%d500000,%d,%d\n' 6 "$((i * 2))" $((400 + i)) 100 >>"$dir/trace.csv"
done
expect 0 "5 runs; 0 were there, 5 done" x join --out "$dir/x" --requests 3 --workloads fixed:512/256 \
    --systems nondet,canonical,auto,paper --windows 8 --groups 1
check "$dir/x/join.csv" "[r['requests'] for r in of(system='nondet')] == ['3', '4'] and all(r['flagged'] == r['digests_equal'] == '1' for r in of(share='last')) and len(of(share='last')) == 2"
expect 0 "2 done" x spans --out "$dir/x" --requests 4 --rates 50 --reference 4 --bound 100000
check "$dir/x/spans.csv" "of(system='canonical')[0]['same_pct'] == '100' and len(rows[0]['span1_cdf'].split(';')) == 21 and all(num(r, 'diverged_256_pct') + num(r, 'same_pct') == 100 and num(r, 'goodput_s') > 0 for r in rows)"
expect 0 "2 done" x window --out "$dir/x" --requests 4 --rates 50 --windows 4,8 --systems stock
check "$dir/x/window.csv" "[r['window'] for r in rows] == ['4', '8'] and all(len(r['rollbacks_cdf'].split(';')) == 21 for r in rows)"
expect 0 "3 done" x ablation --out "$dir/x" --requests 4 --rates 50 --windows 4,64 --groups 8,32 \
    --systems paper
check "$dir/x/ablation.csv" "[(r['window'], r['group']) for r in rows] == [('4', '8'), ('4', '32'), ('64', '8')]"
expect 0 "2 done" x online --out "$dir/x" --requests 5 --trace "$dir/trace.csv" --arrivals recorded \
    --systems nondet,auto --shares 40
check "$dir/x/online.csv" "all(num(r, 'seconds') >= 0.8 and r['arrivals'] == 'recorded' for r in rows) and [r['flagged'] for r in rows] == ['0', '2'] and rows[0]['prompt_tokens'] == '100'"
expect 2 "fewer rows than requests" x online --out "$dir/y" --requests 6 --trace "$dir/trace.csv" \
    --arrivals recorded --systems nondet
printf 'prompt,output\n9,9\n' >"$dir/plain.csv"
expect 2 "no column of arrivals" x online --out "$dir/y" --requests 1 --trace "$dir/plain.csv" \
    --arrivals recorded --systems nondet
printf 'arrival_s,prompt,output\nnow,9,9\n' >"$dir/plain.csv"
expect 2 "plain.csv:2: a time is neither" x online --out "$dir/y" --requests 1 \
    --trace "$dir/plain.csv" --systems nondet

# Repeats: A B, A B, each with an order and deterministic requests of its own.
expect 0 "4 runs; 0 were there, 4 done" "$bench" experiment online --out "$dir/r" --requests 4 \
    --workloads fixed:100/40 --systems nondet,auto --shares 50 --rates 0 --scale 0.2 --repeats 2
check "$dir/r/online.csv" "[(r['system'], r['repeat']) for r in rows] == [('nondet', '0'), ('auto', '0'), ('nondet', '1'), ('auto', '1')] and all(r['arrivals'] == 'at-once' for r in rows)"

# ---- In this process: stages of a tiny model, bits and times; and the table of tune ----
mkdir "$dir/tiny"
python3 - "$dir/tiny/config.json" <<'EOF'
import json, sys
c = json.load(open('tests/data/verse-4m/config.json'))
c.update(hidden_size=128, intermediate_size=256, head_dim=32, vocab_size=512, num_hidden_layers=1)
json.dump(c, open(sys.argv[1], 'w'))
EOF
lab() { "$bench" experiment "$@" --geometry "$dir/tiny/"; }
export -f lab
expect 2 "--out DIR is wanted" lab gemm
expect 2 "no geometry" "$bench" experiment gemm --out "$dir/x" --geometry llama-9
expect 0 "0 rows were there, 45 done, 0 wrong" lab gemm --out "$dir/x" --rows 1,8,64
check "$dir/x/gemm.csv" "all(r['differ_from_alone'] == '0' for r in of(schedules='canonical')) and {r['segments'] for r in of(op='o', schedules='stock')} == {'2'} and all(num(r, 'stage_us') > 0 for r in rows)"
expect 0 "45 rows were there, 0 done" lab gemm --out "$dir/x" --rows 1,8,64
expect 0 "45 rows were there, 15 done" lab gemm --out "$dir/x" --rows 1,8,64,16
expect 2 "its rows are of seed 1, not 2" lab gemm --out "$dir/x" --seed 2
expect 0 "6 done, 0 wrong" lab norm --out "$dir/x" --rows 1,64
check "$dir/x/norm.csv" "[r['run'] for r in of(schedules='stock')] == ['8', '4'] and {r['run'] for r in of(schedules='tuned')} == {'1'}"
expect 0 "25 done, 0 wrong" lab invariance --out "$dir/x" --rows 1,33,128,256
check "$dir/x/invariance.csv" "all(r['position_invariant'] == 'yes' for r in rows) and all(r['batch_invariant'] == 'yes' for r in of(schedules='canonical')) and any(r['batch_invariant'] == 'no' and num(r, 'ulp_max') > 0 for r in of(schedules='stock'))"
expect 0 "4 done, 0 wrong" lab verify-cost --out "$dir/x" --windows 4 --groups 1,4
check "$dir/x/verify-cost.csv" "[(r['context'], r['rows']) for r in rows] == [('64', '4'), ('64', '16'), ('512', '4'), ('512', '16')] and all(num(r, 'pass_ms') > 0 for r in rows)"
# What tune prints is a table that compiles, and says which build printed it.
mkdir -p "$dir/inc/runtime"
n=$((n + 1))
"$bench" tune --device cpu "$dir/tiny/" >"$dir/inc/runtime/schedule_sm90.inc" 2>"$dir/out" &&
    cc -std=c11 -fsyntax-only -Wall -Wextra -Werror -I"$dir/inc" -I. runtime/schedule_tuned.c &&
    [[ $(grep -c '^PRODUCT(.*)\|^NORM(.*)\|^SPLIT(.*)' "$dir/inc/runtime/schedule_sm90.inc") -ge 10 ]] &&
    head -1 "$dir/inc/runtime/schedule_sm90.inc" | grep -qE '`llm42-bench tune` [0-9.]+ \([0-9a-z]+\), 20' ||
    fail "the table of tune"
expect 2 "no geometry" "$bench" tune --device cpu llama-9
expect 2 "--device gpu: cpu or cuda" "$bench" tune --device gpu "$dir/tiny/"
expect 2 "--reference-device gpu: cpu or cuda" x offline --out "$dir/a" --reference-device gpu
expect 2 "--device gpu: cpu or cuda" lab gemm --out "$dir/a" --device gpu

expect 2 "--rows 257: up to 256 here" lab gemm --out "$dir/a" --rows 1,257
expect 2 "--rows 257: up to 256 here" lab invariance --out "$dir/a" --rows 257
expect 2 "--rows: 8 is asked for twice" lab norm --out "$dir/a" --rows 8,1,8
expect 2 "--rows: not of verify-cost" lab verify-cost --out "$dir/a" --rows 8
expect 2 "--windows: not of gemm" lab gemm --out "$dir/a" --windows 8
expect 2 "--trace: not of gemm" lab gemm --out "$dir/a" --trace "$dir/trace.csv"
expect 2 "--requests: not of invariance" lab invariance --out "$dir/a" --requests 8
expect 2 "--systems: not of norm" lab norm --out "$dir/a" --systems auto
expect 2 "--windows 8,x: whole numbers, 1 to 256" lab verify-cost --out "$dir/a" --windows 8,x
expect 2 "--groups 0: whole numbers, 1 to 64" lab verify-cost --out "$dir/a" --groups 0
expect 2 "--windows: 8 is asked for twice" lab verify-cost --out "$dir/a" --windows 8,4,8
expect 2 "none of what is asked for fits" lab verify-cost --out "$dir/a" --windows 256 --groups 64
# A context that is shorter than the stages want.
mkdir "$dir/short"
sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 64/' "$dir/tiny/config.json" \
    >"$dir/short/config.json"
short() { "$bench" experiment "$@" --out "$dir/short" --geometry "$dir/short/"; }
export -f short
expect 0 "12 done, 0 wrong" short gemm --rows 256
expect 0 "25 done, 0 wrong" short invariance --rows 2

# A table with zeros in it, as a crash of the machine leaves it, is told and not written behind.
mkdir "$dir/zero"
cp "$dir/x/norm.csv" "$dir/zero"
head -c 64 /dev/zero >>"$dir/zero/norm.csv"
echo >>"$dir/zero/norm.csv"
cp "$dir/zero/norm.csv" "$dir/before"
expect 1 "norm.csv: a zero byte after" lab norm --out "$dir/zero" --rows 1,64
n=$((n + 1))
cmp -s "$dir/zero/norm.csv" "$dir/before" || fail "a table with zeros was changed"

# Weights that were not written to their end have not the name of those that were.
if "$bench" weights 2>&1 </dev/null | grep -q "DIR is wanted"; then
    n=$((n + 1))
    (trap '' XFSZ && ulimit -f 64 && "$bench" weights --out "$dir/weights" --geometry "$dir/tiny/") \
        >"$dir/out" 2>&1 </dev/null
    [[ -e $dir/weights/model.safetensors.part && ! -e $dir/weights/model.safetensors ]] ||
        fail "half a file of weights: $(ls "$dir/weights")"
    if [[ -e $build/tests/stub_cuda/libcuda.so.1 ]]; then
        LD_LIBRARY_PATH=$build/tests/stub_cuda "$bench" weights --out "$dir/weights" \
            --geometry "$dir/tiny/" >"$dir/out" 2>&1 </dev/null
        [[ $(ls "$dir/weights") = model.safetensors ]] || fail "weights: $(ls "$dir/weights")"
    fi
fi

# The same for a GPU, over a driver that computes nothing: what is asked of it is what it takes.
if [[ -e $build/tests/stub_cuda/libcuda.so.1 ]]; then
    stub() { LD_LIBRARY_PATH=$build/tests/stub_cuda STUB_CUDA="free=150000000000" "$bench" "$@"; }
    export -f stub
    export build
    expect 0 "PRODUCT(HEAD, 128256, 4096, 256, " stub tune llama-3.1-8b
    expect 0 "66 done, 0 wrong" stub experiment verify-cost --device cuda --geometry smollm2-135m \
        --out "$dir/stub"
    expect 0 "25 done, 0 wrong" stub experiment invariance --device cuda --geometry smollm2-135m \
        --out "$dir/stub"
fi

# ---- The page ----
well_formed() {
    python3 -c 'import sys, xml.dom.minidom as m
for f in sys.argv[1:]: m.parse(f)
print("well formed")' "$@"
}
export -f well_formed
expect 0 "x/index.html" env PATH=/nonexistent "$bench" report "$dir/x"
expect 0 "well formed" well_formed "$dir/x/index.html"
n=$((n + 3))
grep -q 'gnuplot is not there: no pictures' "$dir/x/index.html" || fail "no word of gnuplot"
for words in '<td>0.688</td>' '<td>0.641</td>' '<h2>join</h2>' '<h2>online</h2>' '<h2>invariance</h2>' '<th>batch_invariant</th>' 'of nondet, in the paper'; do
    grep -qF "$words" "$dir/x/index.html" || fail "the page has no $words"
done
# Medians, spread and ratios of two repeats, computed here once more.
expect 0 "r/index.html" "$bench" report "$dir/r"
n=$((n + 1))
python3 - "$dir/r" <<'EOF' || fail "the page's figures are not those of the rows"
import csv, statistics, sys
rows = list(csv.DictReader(l for l in open(sys.argv[1] + '/online.csv') if l[0] != '#'))
page = open(sys.argv[1] + '/index.html').read()
of = lambda s: [float(r['total_tok_s']) for r in rows if r['system'] == s]
a, n = of('auto'), of('nondet')
m = statistics.median
assert len(a) == 2 and a[0] != a[1]
assert f'<td>{m(a):.5g} <small>{min(a):.5g} to {max(a):.5g}</small></td>' in page
assert f'<td>{m(a) / m(n):.3f}</td>' in page
EOF
# What a session on a GPU gives its daemons: without a cache each start compiles all kernels.
printf '#!/bin/sh\necho "$@"\n' >"$dir/says"
chmod +x "$dir/says"
for part in join sharegpt workloads saturated long online; do
    expect 0 "exit 0" env BENCH="$dir/says" tools/experiments "$dir/session" "$part" 60
    for words in engine.max_requests=256 engine.kv_tokens=600000 model.random_seed=1 \
        "engine.kernel_cache=$dir/session/cache" '--device cuda'; do
        n=$((n + 1))
        tail -1 "$dir/session/log.txt" | grep -qF -- "$words" || fail "$part without $words"
    done
done
# The forced rates, and not what made-up weights roll back by themselves in their place.
for part in sharegpt workloads online saturated long; do
    rates=(3000 5000)
    [[ $part = saturated || $part = long ]] && rates=(3000)
    rm "$dir/session/log.txt"
    expect 0 "exit 0" env BENCH="$dir/says" tools/experiments "$dir/session" "$part" 60
    for ppm in "${rates[@]}"; do
        n=$((n + 1))
        grep 'paper+mismatch' "$dir/session/log.txt" |
            grep -qE -- "--mismatches ([0-9]+,)*$ppm( |,|$)" || fail "$part without $ppm of a million"
    done
done
# What failed says where to read why, and its last words.
printf '#!/bin/sh\necho "no room"\nexit 1\n' >"$dir/fails"
chmod +x "$dir/fails"
expect 1 "$dir/session/log.txt: no room" env BENCH="$dir/fails" tools/experiments "$dir/session" join 60
if gnuplot --version >/dev/null 2>&1; then
    expect 0 "x/index.html" "$bench" report "$dir/x"
    expect 0 "well formed" well_formed "$dir"/x/*.svg "$dir/x/index.html"
    for e in join spans window ablation offline online gemm norm verify-cost; do
        n=$((n + 1))
        [[ -s $dir/x/$e-1.svg ]] && grep -q "$e-1.svg" "$dir/x/index.html" || fail "no picture of $e"
    done
fi
echo "$n checked, $failed failed"
[[ $failed -eq 0 ]]
