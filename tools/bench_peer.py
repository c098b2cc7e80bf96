#!/usr/bin/env python3
"""Times of the same work by torch (cuBLAS, cuDNN), for `llm42-bench kernels` and `step`.

Speaks the protocol of tools/bench_peer.h: a request a line, an answer a line.  What is asked for
is built once, as a CUDA graph over copies that L2 does not hold, and kept until something else is
asked for; each answer is the median of replays, in microseconds a call.

    gemm ROWS N K COPIES              x [ROWS][K] times W^T, W [N][K]: torch.mm
    layer ROWS HIDDEN QKV WIDTH INTER COPIES  the four products of a layer, one after another
    norm ROWS HIDDEN ADD COPIES       x += y where ADD is 1, then rms_norm(x, w)
    copy BYTES COPIES                 a copy of BYTES
    decode SEQS CONTEXT N HEADS KV_HEADS DIM COPIES   N queries a sequence over CONTEXT keys; the
                                      heads that share keys stand as queries, as flash likes it
    prompt CONTEXT HEADS KV_HEADS DIM                 causal attention of a whole prompt
    step ROWS CONTEXT LAYERS HIDDEN INTER HEADS KV_HEADS DIM VOCAB   a decode step's products,
                                      norms and attention, no rotation, no sampling
    intake ROWS LAYERS HIDDEN INTER HEADS KV_HEADS DIM    the same of a prompt, without the head

Before any of them may stand "pause MS": so long the GPU does nothing before each replay.
"""
import sys
import time

WARM_S, TIMED_S, REPLAYS_MIN, REPLAYS_PAUSED = 0.010, 0.015, 5, 3  # as in bench_gpu.h
LEAD_CYCLES = 200000  # some 0.1 ms: longer than a host that slept takes to queue a graph


def say(line):
    print(line, flush=True)


try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    say(f"no it has no torch ({error})")
    sys.exit(0)


def normal(*shape, scale=1.0):
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16).normal_(0, scale)


def gemm(rows, n, k, copies):
    weights = [normal(n, k, scale=k**-0.5) for _ in range(copies)]
    x, out = normal(rows, k), normal(rows, n)

    def run():
        for w in weights:
            torch.mm(x, w.t(), out=out)

    return run, copies


def layer(rows, hidden, qkv, width, inter, copies):
    shapes = [(qkv, hidden), (hidden, width), (2 * inter, hidden), (hidden, inter)]
    weights = [[normal(n, k, scale=k**-0.5) for n, k in shapes] for _ in range(copies)]
    x, outs = normal(rows, hidden), [normal(rows, n) for n, _ in shapes]

    def run():
        for a, b, c, d in weights:
            torch.mm(x, a.t(), out=outs[0])
            torch.mm(outs[0][:, :width], b.t(), out=outs[1])
            torch.mm(outs[1], c.t(), out=outs[2])
            torch.mm(outs[2][:, :inter], d.t(), out=outs[3])

    return run, copies


def norm(rows, hidden, add, copies):
    x = [normal(rows, hidden) for _ in range(copies)]
    y = [normal(rows, hidden) for _ in range(copies)]
    w = normal(hidden)

    def run():
        for i in range(copies):
            if add:
                x[i].add_(y[i])
            F.rms_norm(x[i], (hidden,), w, 1e-5)

    return run, copies


def copy(n_bytes, copies):
    a = [normal(n_bytes // 2) for _ in range(copies)]
    b = [torch.empty_like(x) for x in a]

    def run():
        for x, y in zip(a, b):
            y.copy_(x)

    return run, copies


def keys(seqs, heads, context, dim, copies):
    return [(normal(seqs, heads, context, dim), normal(seqs, heads, context, dim))
            for _ in range(copies)]


def decode(seqs, context, n, heads, kv_heads, dim, copies):
    q = normal(seqs, kv_heads, heads // kv_heads * n, dim)
    kv = keys(seqs, kv_heads, context, dim, copies)

    def run():
        for k, v in kv:
            F.scaled_dot_product_attention(q, k, v)

    return run, copies


def prompt(context, heads, kv_heads, dim):
    q, ((k, v),) = normal(1, heads, context, dim), keys(1, kv_heads, context, dim, 1)

    def run():
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return run, 1


class Layers:
    """The products and norms of a model's layers; attention is the caller's."""

    def __init__(self, rows, layers, hidden, inter, heads, kv_heads, dim):
        self.width, self.hidden = heads * dim, hidden
        shapes = [(self.width + 2 * kv_heads * dim, hidden), (hidden, self.width),
                  (2 * inter, hidden), (hidden, inter)]
        self.weights = [[normal(n, k, scale=k**-0.5) for n, k in shapes] for _ in range(layers)]
        self.ones, self.x = normal(hidden), normal(rows, hidden)

    def norm(self, x):
        return F.rms_norm(x, (self.hidden,), self.ones, 1e-5)

    def run(self, attend):
        x = self.x
        for i, (a, b, c, d) in enumerate(self.weights):
            x = x + F.linear(attend(i, F.linear(self.norm(x), a)), b)
            gate, up = F.linear(self.norm(x), c).chunk(2, 1)
            x = x + F.linear(F.silu(gate) * up, d)
        return self.norm(x)


def step(rows, context, layers, hidden, inter, heads, kv_heads, dim, vocab):
    model = Layers(rows, layers, hidden, inter, heads, kv_heads, dim)
    kv, head = keys(rows, kv_heads, context, dim, layers), normal(vocab, hidden, scale=hidden**-0.5)

    def attend(i, qkv):
        q = qkv[:, :model.width].reshape(rows, kv_heads, heads // kv_heads, dim)
        return F.scaled_dot_product_attention(q, *kv[i]).reshape(rows, model.width)

    return lambda: F.linear(model.run(attend), head), 1


def intake(rows, layers, hidden, inter, heads, kv_heads, dim):
    model = Layers(rows, layers, hidden, inter, heads, kv_heads, dim)

    def attend(_, qkv):
        q, k, v = qkv.split([model.width, kv_heads * dim, kv_heads * dim], 1)
        q, k, v = (t.view(1, rows, -1, dim).transpose(1, 2) for t in (q, k, v))
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).reshape(rows, model.width)

    return lambda: model.run(attend), 1


KINDS = {f.__name__: f for f in (gemm, layer, norm, copy, decode, prompt, step, intake)}


def build(line):
    kind, *numbers = line.split()
    if kind not in KINDS:
        raise ValueError(f"{kind} is not measured")
    run, calls = KINDS[kind](*map(int, numbers))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph, calls, run


def replay_us(graph, calls, begin, end):
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1000 / calls


def median_us(graph, calls, pause_s):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times, start = [], time.monotonic()
    while pause_s > 0 and len(times) < REPLAYS_PAUSED:
        time.sleep(pause_s)
        torch.cuda._sleep(LEAD_CYCLES)
        times.append(replay_us(graph, calls, begin, end))
    while pause_s == 0 and (len(times) < REPLAYS_MIN
                            or time.monotonic() < start + WARM_S + TIMED_S):
        us = replay_us(graph, calls, begin, end)
        if time.monotonic() > start + WARM_S:
            times.append(us)
    return sorted(times)[len(times) // 2]


def main():
    if not torch.cuda.is_available():
        say("no torch sees no GPU")
        return
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    say(f"peer 2 torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
        f"{torch.cuda.get_device_name()}")
    held, built = None, None
    for line in sys.stdin:
        line, pause_s = line.strip(), 0.0
        try:
            if line.startswith("pause "):
                _, ms, line = line.split(" ", 2)
                pause_s = float(ms) / 1000
            if line != held:
                held = built = None
                torch.cuda.empty_cache()
                built = build(line)
                held = line
            say(f"us {median_us(*built[:2], pause_s):.4f}")
        except Exception as error:  # whatever torch cannot do is an answer, too
            held = None
            say("no " + " ".join(str(error).split())[:200])


main()
