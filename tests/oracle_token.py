#!/usr/bin/env python3
"""Compares the tokenizer with the reference implementation, PyPI's `tokenizers`.

    tests/oracle_token.py [--random N] [--seed S] [--prompts FOLDER] [--gpt2 FILE.gguf]
                          [tokenizer.json ...]

Without files it takes those of tests/data and, where it is, the fetched model.  Each is compared
on N random texts, on the prompts of FOLDER (each whole file, each line, each text of a JSON line),
with and without the template, with special tokens found and taken for text; then each id is
decoded, and the class of every code point is compared.  Any difference is printed; exit status 1.
77 if the package is missing.

The reference's regular expressions and its NFC have Unicode versions of their own: random texts
keep to code points assigned in 9.0 (DerivedAge), the version of its NFC.  Classes that differ
among later ones are counted, and are no failure: they were unassigned to one of the two.
"""
import argparse
import bz2
import ctypes
import glob
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    from tokenizers import Tokenizer, __version__ as reference_version
except ImportError:
    print("oracle_token: skipped, no package `tokenizers`")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEMPLATE, SPECIAL = 1, 2


def build(folder):
    so = os.path.join(folder, "token.so")
    sources = [f for pattern in ("token*.c", "unicode*.c", "err.c", "assert.c", "file.c",
                                             "document.c", "sha256.c")
               for f in glob.glob(os.path.join(ROOT, "runtime", pattern))]
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O2", "-std=c11",
                    "-D_GNU_SOURCE", "-I" + ROOT, *sources, "-o", so, "-ljansson", "-lcrypto"],
                   check=True)
    return ctypes.CDLL(so)


class Ours:
    def __init__(self, lib, json_bytes, name):
        self.lib = lib
        self.err = ctypes.create_string_buffer(256)
        self.t = ctypes.c_void_p()
        lib.token_encode.restype = ctypes.c_int64
        lib.token_bytes.restype = ctypes.c_void_p
        r = lib.token_open_text(name.encode(), json_bytes, ctypes.c_size_t(len(json_bytes)),
                                ctypes.byref(self.t), self.err)
        if r < 0:
            raise ValueError(f"{r}: {self.err.value.decode()}")

    def encode(self, text, flags):
        data = text.encode()
        ids = (ctypes.c_uint32 * (len(data) * 3 + 40))()
        n = self.lib.token_encode(self.t, data, ctypes.c_size_t(len(data)), flags, ids,
                                  ctypes.c_size_t(len(ids)), self.err)
        return list(ids[:n]) if n >= 0 else f"{n}: {self.err.value.decode()}"

    def bytes(self, id_):
        n, special = ctypes.c_uint32(), ctypes.c_bool()
        p = self.lib.token_bytes(self.t, id_, ctypes.byref(n), ctypes.byref(special))
        return ctypes.string_at(p, n.value) if p else None


def ages():
    known, later = [], []
    with open("/usr/share/unicode/DerivedAge.txt", encoding="utf-8") as f:
        for line in f:
            line = line.split("#")[0].strip()
            if not line:
                continue
            codes, age = [x.strip() for x in line.split(";")]
            first, _, last = codes.partition("..")
            codes = range(int(first, 16), int(last or first, 16) + 1)
            codes = [c for c in codes if not 0xD800 <= c < 0xE000]
            (known if float(age) <= 9 else later).extend(codes)
    return known, later


MIXES = ["'s", "'T", "'re", "'VE", "'m", "'Ll", "'d", "'\u017f", "'", "\u2019s", "don't", "I'LL",
         " ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", " \n", "\n ", "\u00a0", "\u3000",
         "\u2028", "\u0085", "\u200b", "\u180e", "\x1c", "\x00", "1", "12", "123", "1234", "\u00b2",
         "\u0663", "\u2167", "\u0bf0", "a", "Z", "the", " The", "\u00e9", "e\u0301", "\u0301",
         "\u0327\u0301", "\u0301\u0327", "\u1e69", "s\u0323\u0307", "\u1100", "\u1161", "\u11a8",
         "\uac00", "\uac00\u11a8", "\u212b", "\u0958", "\u1d15e", "\ufb2c", "\u4e2d\u6587",
         "\u0e01\u0e33", "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", ".", "...", "!?",
         "_", "-", "<|", "|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "\u09c7\u09be",
         "\u0344", "\u1e9b\u0323", "\u2126", "\U0001d400", "\U000e0001"]


def random_text(rng, known, extra):
    out = []
    for _ in range(rng.randrange(1, 24)):
        what = rng.random()
        if what < 0.5:
            out.append(rng.choice(MIXES))
        elif what < 0.6 and extra:
            out.append(rng.choice(extra))
        elif what < 0.75:
            out.append(chr(rng.randrange(0x20, 0x7f)))
        elif what < 0.85:
            out.append(chr(rng.randrange(0x300)))
        else:
            out.append(chr(rng.choice(known)))
        if rng.random() < 0.1:
            out.append(out[-1] * rng.randrange(1, 40))
    return "".join(out)


def prompts(folder):
    for path in sorted(glob.glob(os.path.join(folder, "*"))):
        with open(path, encoding="utf-8") as f:
            whole = f.read()
        yield whole
        for line in whole.splitlines(keepends=True):
            yield line
            if path.endswith(".jsonl"):
                yield from strings(json.loads(line))


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for v in value.values() if isinstance(value, dict) else value:
            yield from strings(v)


def gguf_tokenizer(path):
    """The vocabulary and merges of a GGUF file as a tokenizer.json of GPT-2."""
    data = open(path, "rb").read()
    at = 24
    sizes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
             12: "d"}

    def take(fmt):
        nonlocal at
        value = struct.unpack_from("<" + fmt, data, at)[0]
        at += struct.calcsize("<" + fmt)
        return value

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            kind = take("I")
            return [value(kind) for _ in range(take("Q"))]
        return take(sizes[kind])

    fields = {}
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        key = text()
        fields[key] = value(take("I"))
    vocab = {t: i for i, t in enumerate(fields["tokenizer.ggml.tokens"])}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": vocab["<|endoftext|>"], "content": "<|endoftext|>",
                          "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "vocab": vocab, "merges": fields["tokenizer.ggml.merges"]}})


class Comparison:
    def __init__(self, lib, json_text, name):
        self.name = name
        self.ours = Ours(lib, json_text.encode(), name)
        self.reference = Tokenizer.from_str(json_text)
        self.n_texts = self.n_differences = 0

    def differ(self, what, want, got):
        self.n_differences += 1
        if self.n_differences <= 5:
            print(f"{self.name}: {what}\n  reference {want}\n  ours      {got}")

    def text(self, text, flags):
        self.reference.encode_special_tokens = not flags & SPECIAL
        want = self.reference.encode(text, add_special_tokens=bool(flags & TEMPLATE)).ids
        got = self.ours.encode(text, flags)
        self.n_texts += 1
        if want != got:
            self.differ(f"{text[:200]!r} flags {flags}", str(want)[:300], str(got)[:300])

    def decoding(self):
        """Of an added token the reference decodes the letters as bytes, where they are in the
        byte-level alphabet; ours is the text itself, which is what was found in the input."""
        added = self.reference.get_added_tokens_decoder()
        for id_ in self.reference.get_vocab(with_added_tokens=True).values():
            want = (added[id_].content if id_ in added
                    else self.reference.decode([id_], skip_special_tokens=False))
            got = (self.ours.bytes(id_) or b"").decode(errors="replace")
            if want != got:
                self.differ(f"id {id_}", repr(want), repr(got))


def classes(comparison, codes):
    """How many texts around these code points differ: where one cuts, its class shows."""
    n = 0
    for c in codes:
        for text in (f"a{chr(c)}b", f"1{chr(c)}2", f" {chr(c)} ", f"!{chr(c)}?"):
            before = comparison.n_differences
            comparison.text(text, 0)
            n += comparison.n_differences > before
    return n


def normalization(lib):
    """Every line of Unicode's own NormalizationTest, of the pinned version."""
    n_lines = n_differences = 0
    lib.unicode_nfc.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]

    def nfc(text):
        out, n = ctypes.c_void_p(), ctypes.c_size_t()
        data = text.encode()
        if lib.unicode_nfc(data, len(data), ctypes.byref(out), ctypes.byref(n)) < 0:
            raise MemoryError
        got = ctypes.string_at(out.value, n.value).decode() if out.value else text
        libc.free(out)
        return got

    with bz2.open("/usr/share/unicode/NormalizationTest.txt.bz2", "rt", encoding="utf-8") as f:
        for line in f:
            if not line[0].isalnum() or ";" not in line:
                continue
            c = ["".join(chr(int(x, 16)) for x in part.split()) for part in line.split(";")[:5]]
            n_lines += 1
            n_differences += ([nfc(x) for x in c] != [c[1], c[1], c[1], c[3], c[3]])
    print(f"NormalizationTest: {n_lines} lines, {n_differences} differences")
    return n_differences


def main():
    arg = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arg.add_argument("--random", type=int, default=100000)
    arg.add_argument("--seed", type=int, default=1)
    arg.add_argument("--prompts")
    arg.add_argument("--gpt2")
    arg.add_argument("--classes", action="store_true", help="every code point in four contexts")
    arg.add_argument("files", nargs="*")
    options = arg.parse_args()
    files = options.files or (glob.glob(ROOT + "/tests/data/verse-4m/tokenizer.json") +
                              sorted(glob.glob(ROOT + "/tests/data/token/*.json")) +
                              glob.glob(ROOT + "/models/*/tokenizer.json"))
    known, later = ages()
    texts = [t for t in prompts(options.prompts)] if options.prompts else []
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        lib = build(folder)
        sources = [(os.path.relpath(f, ROOT), open(f, encoding="utf-8").read()) for f in files]
        if options.gpt2:
            sources.append(("gpt2", gguf_tokenizer(options.gpt2)))
        failed += normalization(lib)
        for name, json_text in sources:
            c = Comparison(lib, json_text, name)
            rng = random.Random(options.seed)
            extra = [t["content"] for t in json.loads(json_text)["added_tokens"]]
            for text in texts:
                c.text(text, TEMPLATE)
            n_prompts = c.n_texts
            for i in range(options.random):
                c.text(random_text(rng, known, extra), i & 3)
            c.decoding()
            report = f"{name}: {n_prompts} prompts, {options.random} random texts"
            if options.classes:
                n_known = classes(c, known)
                kept = c.n_differences
                n_later = classes(c, later)
                c.n_differences = kept
                report += (f", {len(known)} code points: {n_known} contexts differ; "
                           f"{len(later)} later ones: {n_later} (not counted)")
            print(f"{report}; {c.n_differences} differences")
            failed += c.n_differences
    print(f"oracle_token: tokenizers {reference_version}, {len(sources)} tokenizers, "
          f"{failed} differences")
    return 1 if failed else 0


sys.exit(main())
