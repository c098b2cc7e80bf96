#!/bin/bash
# llm42-bench without a GPU: what is wrong on the command line, no device, no toolkit, no gnuplot:
# each by its exit code and its words; and the manual in step with --help.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-build}
[[ $build = /* ]] || build=$here/$build
bench=$build/llm42-bench
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CUDA_VISIBLE_DEVICES= # where there is a GPU, too
failed=0 n=0

# expect CODE WORDS COMMAND...: the exit code, and words somewhere in what it printed
expect() {
    local code=$1 words=$2 got
    shift 2
    n=$((n + 1))
    "$@" >"$dir/out" 2>&1 </dev/null
    got=$?
    if [[ $got -ne $code ]] || ! grep -qF -- "$words" "$dir/out"; then
        echo "FAIL: $* (exit $got, wanted $code and: $words)"
        head -5 "$dir/out"
        failed=$((failed + 1))
    fi
}

cd "$here" || exit 1
expect 0 "kernels" "$bench" --help
expect 2 "fly is no verb" "$bench" fly
expect 2 "one argument too many" "$bench" step twice
expect 2 "one argument too many" "$bench" experiment join twice
expect 2 "--repeats 0: a whole number, 1 to 100" "$bench" experiment join --repeats 0
expect 2 "--scale 2: a number, 0 to 1" "$bench" experiment join --scale 2
expect 7 "cannot reach llm42d at /nonexistent" "$bench" serve --socket /nonexistent
expect 2 "--rows 0: a whole number, 1 to 8192" "$bench" step --rows 0
expect 2 "--rows : a whole number" "$bench" step --rows 1,
expect 2 "--rows x: a whole number" "$bench" kernels --rows 1,x
expect 2 "--rows: 16 counts at most" "$bench" kernels --rows 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1
expect 2 "--pause x: a number, 0 to 1000" "$bench" kernels --pause x
expect 2 "--pause 1001: a number, 0 to 1000" "$bench" kernels --pause 1001
expect 2 "--context 0: a whole number, 1 to 131072" "$bench" step --context 0
expect 2 "--rows 2000: a step decodes 1024 at most" "$bench" step --rows 2000
expect 1 "llm42-bench: step: nemo is no geometry: llama-3.1-8b, smollm2-135m" \
    "$bench" step --geometry nemo
expect 1 "/nonexistent/config.json" "$bench" step --geometry /nonexistent
# What a verb has no use for.
expect 2 "--rows: not of engine" "$bench" engine --rows 3
expect 2 "--geometry: not of twin, engine" "$bench" --geometry smollm2-135m
expect 2 "--json: not of tune" "$bench" tune --json
expect 2 "--cache: not of report" "$bench" report "$dir" --cache "$dir"
expect 0 " ($("$build/llm42d" --version | sed 's/.*(\(.*\)).*/\1/'))" "$bench" --version
# A file that nothing was measured for is empty.
for words in "tune" "tune llama-9" "tune llama-3.1-8b"; do
    n=$((n + 1))
    # shellcheck disable=SC2086 # a verb and its argument
    "$bench" $words >"$dir/inc" 2>/dev/null && echo "FAIL: $words without a GPU" && failed=$((failed + 1))
    [[ ! -s $dir/inc ]] && continue
    echo "FAIL: $words failed and printed: $(head -1 "$dir/inc")"
    failed=$((failed + 1))
done
# No driver, no GPU, no toolkit: whichever, by name.
for verb in kernels step; do
    expect 1 "CUDA" "$bench" $verb
    expect 1 "llm42-bench: $verb: " "$bench" $verb --geometry tests/data/verse-4m
done
if "$bench" kernels 2>&1 | grep -q "built without"; then
    echo "built without CUDA: options of kernels are not looked at"
else
    expect 2 "--only attn: no family" "$bench" kernels --only gemm,attn
    expect 1 "nemo is no geometry" "$bench" kernels --geometry nemo
    expect 1 "gnuplot is not there" env PATH=/nonexistent "$bench" kernels --plot "$dir/x.svg"
    expect 1 "CUDA" env PATH=/nonexistent "$bench" kernels --plot "$dir/x.gp"
fi

for option in $("$bench" --help | grep -o -- '^  --[a-z-]*'); do
    n=$((n + 1))
    grep -qF -- "*$option*" docs/llm42-bench.1.scd && continue
    echo "FAIL: $option is not in the manual"
    failed=$((failed + 1))
done
echo "$n checked, $failed failed"
[[ $failed -eq 0 ]]
