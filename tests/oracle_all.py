#!/usr/bin/env python3
"""Every comparison with other implementations, one after the other; `make check-oracle`.

    tests/oracle_all.py [--tokens N] [--text FILE ...] [--models FOLDER ...] [--quick]

Scores N tokens of real text (by default the licence texts of a Debian system, English prose) with
each model through a private daemon, and compares with transformers; then tokenizers and
safetensors verdicts.  Prints a line a comparison and exits with 1 if any failed."""

import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def daemon(model, folder):
    command = [f"{ROOT}/build/llm42d"]
    for setting in (
        f"model.path={os.path.realpath(model)}",
        f"server.socket={folder}/d.sock",
        f"server.admin_socket={folder}/a.sock",
        "engine.step_tokens=512",
    ):
        command += ["--set", setting]
    open(f"{folder}/empty", "w", encoding="utf-8").close()
    process = subprocess.Popen(command + ["--config", f"{folder}/empty"], stderr=subprocess.DEVNULL)
    for _ in range(300):
        if ctl(["health", "--socket", f"{folder}/d.sock"]).returncode == 0:
            return process
        if process.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit("oracle_all: the daemon does not start")


def ctl(arguments, **more):
    return subprocess.run([f"{ROOT}/build/llm42ctl"] + arguments, capture_output=True, check=False, **more)


def scores(model, text, n_tokens, n_context, out):
    """Our logprobs of the text's first n_tokens ids, in pieces of n_context."""
    with tempfile.TemporaryDirectory() as folder:
        process = daemon(model, folder)
        socket = ["--socket", f"{folder}/d.sock"]
        try:
            ids = []
            for at in range(0, len(text), 100000):  # tokenize takes what fits in a frame
                answer = ctl(["tokenize", "--json", "--raw", "-"] + socket, input=text[at : at + 100000].encode())
                answer.check_returncode()
                piece = json.loads(answer.stdout)
                ids += piece["tokens"] if isinstance(piece, dict) else piece
                if len(ids) >= n_tokens:
                    break
            ids = ids[:n_tokens]
            lines = f"{folder}/lines.jsonl"
            with open(lines, "w", encoding="utf-8") as file:
                for at in range(0, len(ids) - 1, n_context):
                    if len(ids[at : at + n_context]) > 1:
                        file.write(json.dumps({"tokens": ids[at : at + n_context]}) + "\n")
            start = time.time()
            answer = ctl(["score", "--json", "--file", lines] + socket)
            if answer.returncode:
                sys.exit("oracle_all: " + answer.stderr.decode())
            with open(out, "wb") as file:
                file.write(answer.stdout)
            print(f"{os.path.basename(model)}: scored {len(ids)} tokens in {time.time() - start:.0f} s", flush=True)
        finally:
            process.terminate()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20480)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--text", nargs="*", default=sorted(glob.glob("/usr/share/common-licenses/*")))
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--quick", action="store_true", help="logprobs alone")
    a = parser.parse_args()
    os.chdir(ROOT)
    models = a.models
    if models is None:
        models = ["tests/data/verse-4m"] + [m for m in ("models/SmolLM2-135M-Instruct",) if os.path.isdir(m)]
    text, seen = "", set()
    for name in a.text:
        name = os.path.realpath(name)
        if name not in seen:
            seen.add(name)
            with open(name, encoding="utf-8", errors="replace") as file:
                text += file.read()
    failed = []
    for model in models:
        os.makedirs("build", exist_ok=True)
        out = f"build/scores-{os.path.basename(model)}.jsonl"
        scores(model, text, a.tokens, a.context, out)
        if subprocess.run([sys.executable, "tests/oracle_model.py", model, out], check=False).returncode:
            failed.append(f"logprobs of {model}")
    if not a.quick:
        for script in ("oracle_token.py", "oracle_weights.py"):
            if subprocess.run([sys.executable, f"tests/{script}"], check=False).returncode:
                failed.append(script)
    print("failed: " + ", ".join(failed) if failed else "all comparisons hold")
    sys.exit(1 if failed else 0)


main()
