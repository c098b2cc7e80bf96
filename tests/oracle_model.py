#!/usr/bin/env python3
"""oracle_model - our logprobs beside those of another implementation.

    oracle_model.py MODEL SCORES.jsonl

A line of SCORES is what `llm42ctl score --json` prints of one text: "tokens", the ids; "logprobs",
of each given those before it, null for the first; and, where it is there, "top_ids", the most
probable id in each place, null for the first.

The transformers run twice on the CPU: in binary32, all weights widened, and in bf16 with the head
in binary32.  Our distance from the first should be that of the second, as both round alike: a
ratio of the mean distances of 1.1 at most, and a perplexity within half a per cent.  Where our
first choice is that of neither, the binary32 run must hold it for a near tie.

Exits with 1 where a target is missed, 2 where the input is no such thing.  Packages:
tests/oracle-requirements.txt."""

import argparse
import json
import math
import sys

import torch
import transformers

RATIO_MAX = 1.1
PERPLEXITY_MAX = 0.005
GAP_MAX = 2.0**-4
SHOWN = 20  # positions listed at most
HEAD_ROWS = 256  # positions whose logits are held at a time


def refuse(text):
    print(f"oracle_model: {text}", file=sys.stderr)
    sys.exit(2)


def read_scores(path, config):
    """The sequences of the file, each checked for what the runs rely on."""
    sequences = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                one = json.loads(line)
                tokens, logprobs, top_ids = one["tokens"], one["logprobs"], one.get("top_ids")
            except (ValueError, KeyError, TypeError) as error:
                refuse(f"{path}:{number}: {error!r}")
            n = len(tokens)
            if not 2 <= n <= config.max_position_embeddings:
                refuse(f"{path}:{number}: {n} tokens, not 2 to {config.max_position_embeddings}")
            if any(not 0 <= t < config.vocab_size for t in tokens + (top_ids or [])[1:]):
                refuse(f"{path}:{number}: a token outside the vocabulary")
            if len(logprobs) != n or (top_ids is not None and len(top_ids) != n):
                refuse(f"{path}:{number}: not as many logprobs or top_ids as the {n} tokens")
            if logprobs[0] is not None or not all(
                isinstance(p, (int, float)) and math.isfinite(p) for p in logprobs[1:]
            ):
                refuse(f"{path}:{number}: logprobs are null, then numbers")
            sequences.append((tokens, logprobs, top_ids))
    if not sequences:
        refuse(f"{path}: no line in it")
    return sequences


def load(folder, dtype):
    # Not "eager", which rounds attention scores to bf16 and so is an easier mark by a sixth.
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True, attn_implementation="sdpa"
    )
    return model.eval()


@torch.inference_mode()
def logits_of(model, tokens):
    """The logits in binary32 that predict tokens[1:], some rows at a time."""
    hidden = model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0, :-1]
    head = model.get_output_embeddings().weight.float()
    for at in range(0, len(hidden), HEAD_ROWS):
        yield at, hidden[at : at + HEAD_ROWS].float() @ head.T


def run(model, sequences, other=None):
    """Of each sequence: the logprobs, the first choices, and how far our choices, and those of
    another run, are from the top."""
    results = []
    for number, (tokens, _, top_ids) in enumerate(sequences):
        logprobs, choices, gaps, other_gaps = [], [], [], []
        for at, logits in logits_of(model, tokens):
            n = len(logits)
            every = torch.log_softmax(logits.double(), dim=-1)
            next_ids = torch.tensor(tokens[at + 1 : at + 1 + n])
            logprobs += every.gather(1, next_ids[:, None])[:, 0].tolist()
            top, choice = logits.max(dim=-1)
            choices += choice.tolist()
            if top_ids is not None:
                ours = torch.tensor(top_ids[at + 1 : at + 1 + n])
                gaps += (top - logits.gather(1, ours[:, None])[:, 0]).tolist()
            if other is not None:
                theirs = torch.tensor(other[number][1][at : at + n])
                other_gaps += (top - logits.gather(1, theirs[:, None])[:, 0]).tolist()
        results.append((logprobs, choices, gaps, other_gaps))
    return results


def mean(values):
    return math.fsum(values) / len(values)


def compare_logprobs(ours, fp32, bf16):
    own = mean([abs(a - b) for a, b in zip(ours, fp32)])
    other = mean([abs(a - b) for a, b in zip(bf16, fp32)])
    ratio = own / other if other else (1.0 if own == 0 else math.inf)
    perplexity = {name: math.exp(-mean(p)) for name, p in
                  (("ours", ours), ("fp32", fp32), ("bf16", bf16))}
    difference = abs(perplexity["ours"] / perplexity["fp32"] - 1)
    worst = max(range(len(ours)), key=lambda i: abs(ours[i] - fp32[i]))

    print(f"tokens scored           {len(ours)}")
    print(f"mean |ours - fp32|      {own:.6f} nats; largest {abs(ours[worst] - fp32[worst]):.4f}")
    print(f"mean |bf16 - fp32|      {other:.6f} nats")
    print(f"ratio                   {ratio:.4f} (at most {RATIO_MAX})")
    print("perplexity              " + ", ".join(f"{k} {v:.5f}" for k, v in perplexity.items()))
    print(f"ours from fp32          {difference:.4%} (at most {PERPLEXITY_MAX:.1%})")
    return ratio <= RATIO_MAX and difference <= PERPLEXITY_MAX


def compare_choices(sequences, fp32, bf16):
    """A first choice that neither run shares should be a near tie of the binary32 run.  How wide
    such gaps come by rounding alone, the bf16 run shows: its own choices that neither binary32 nor
    we share are counted the same way, and ours may be a tenth more, and two for chance."""
    n_places = n_other = n_wide = n_other16 = n_wide16 = 0
    for number, (_, _, top_ids) in enumerate(sequences):
        if top_ids is None:
            continue
        _, choices32, gaps, gaps16 = fp32[number]
        choices16 = bf16[number][1]
        for i, our in enumerate(top_ids[1:]):
            n_places += 1
            if choices16[i] not in (choices32[i], our):
                n_other16 += 1
                n_wide16 += gaps16[i] >= GAP_MAX
            if our in (choices32[i], choices16[i]):
                continue
            wide = gaps[i] >= GAP_MAX
            n_other += 1
            n_wide += wide
            if wide and n_wide <= SHOWN:
                print(f"  sequence {number}, token {i + 1}: ours {our}, fp32 {choices32[i]}, "
                      f"bf16 {choices16[i]}, gap {gaps[i]:.5f}")
    if n_places == 0:
        print("first choices           not given")
        return True
    most = max(n_wide16 * 1.1, n_wide16 + 2)
    print(f"first choices           {n_places}; ours of neither run {n_other}, {n_wide} of them by a gap "
          f"of {GAP_MAX} or more; bf16's of neither {n_other16}, {n_wide16} so (ours at most {most:.0f})")
    return n_wide <= most


def main():
    parser = argparse.ArgumentParser(description="our logprobs beside those of transformers")
    parser.add_argument("model", help="the model's folder")
    parser.add_argument("scores", help="lines of `llm42ctl score --json`")
    options = parser.parse_args()

    config = transformers.AutoConfig.from_pretrained(options.model, local_files_only=True)
    sequences = read_scores(options.scores, config)
    transformers.utils.logging.disable_progress_bar()
    bf16 = run(load(options.model, torch.bfloat16), sequences)
    fp32 = run(load(options.model, torch.float32), sequences, bf16)

    ours = [p for _, logprobs, _ in sequences for p in logprobs[1:]]
    right = compare_logprobs(ours, [p for one in fp32 for p in one[0]],
                             [p for one in bf16 for p in one[0]])
    right = compare_choices(sequences, fp32, bf16) and right
    print("oracle: " + ("targets met" if right else "TARGETS MISSED"))
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
