#!/usr/bin/env python3
"""Compares the verdict on safetensors files with the reference reader's, PyPI's `safetensors`.

    tests/oracle_weights.py [--random N] [--seed S]

The corpus: good files; each of them with every value of its header replaced by each of a list,
every key removed, doubled or renamed, every byte changed, removed or doubled, cut at every byte,
with wrong lengths; and N random files of several such changes.  What the reference refuses, we must
refuse.  What it takes, we take, but for the list in runtime/safetensors.h, which is judged here
from the header alone.  Any other difference is printed; exit status 1.  77 without the package.
"""
import argparse
import ctypes
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    from safetensors import SafetensorError, __version__ as reference_version, deserialize
except ImportError:
    print("oracle_weights: skipped, no package `safetensors`")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODULES = "err assert file document safetensors sha256 weights".split()
SHOWN = 20  # differences printed at most
RANK_MAX = 4
INT_MAX = 2**63 - 1
KEYS = {"dtype", "shape", "data_offsets"}

BASES = [
    ({}, 0),
    ({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}, 4),
    (
        {
            "__metadata__": {"format": "pt"},
            "c": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
            "a-\"\\": {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]},
            "\u00e9": {"dtype": "F4", "shape": [0, 4], "data_offsets": [20, 20]},
            "b": {"dtype": "F16", "shape": [], "data_offsets": [20, 22]},
        },
        22,
    ),
]
VALUES = """null true false 0 -0 -1 1 2 4 2.0 2e0 1e999 4294967296 4611686018427387904
    9223372036854775807 9223372036854775808 18446744073709551615 18446744073709551616 "" "2" "BF16"
    "F32" "F64" "F4" "F6_E2M3" "F8_E8M0" "U8" "BOOL" "bf16" "X" "\\u0000" "\\ud800" [] [0] [2] [-0]
    [-1] [0,4] [4,0] [0,0] [0,4,4] [1,5] [4294967296,4294967296] [4294967296,4294967296,0]
    [9223372036854775807,2] [0,9223372036854775807,2] [18446744073709551615,0] [1,1,1,2]
    [1,1,1,1,2] [[2]] [2,null] {} {"a":1} {"a":"b"} {"BF16":null} ["BF16",[2],[0,4]]""".split()
BYTES = b'\0 \t\n\x0b"\\{}[]:,-+.0129eEn/\x1f\x7f\x80\xc0\xed\xff'


def build(folder):
    so = os.path.join(folder, "weights.so")
    sources = [os.path.join(ROOT, "runtime", name + ".c") for name in MODULES]
    subprocess.run(
        [os.environ.get("CC", "cc"), "-std=c11", "-O1", "-D_GNU_SOURCE", "-fPIC", "-shared",
         "-ffp-contract=off", "-I" + ROOT, "-o", so, *sources, "-ljansson", "-lcrypto"],
        check=True)
    return ctypes.CDLL(so)


class Ours:
    def __init__(self, library, folder):
        self.library, self.folder = library, folder
        self.path = os.path.join(folder, "model.safetensors")

    def verdict(self, data):
        """The result of weights_open and its text."""
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(256)
        with open(self.path, "wb") as f:
            f.write(data)
        r = self.library.weights_open(self.folder.encode(), ctypes.c_bool(True),
                                      ctypes.byref(handle), text)
        if r == 0:
            self.library.weights_close(handle)
        return r, text.value.decode(errors="replace")


def reference_takes(data):
    try:
        deserialize(data)
    except SafetensorError:
        return False
    return True


def is_stricter(data):
    """Whether runtime/safetensors.h lists a reason to refuse what the reference takes."""
    text = data[8:8 + struct.unpack("<Q", data[:8])[0]].decode()
    reasons = []

    def pairs(items):
        if len({key for key, _ in items}) != len(items):
            reasons.append("a key twice")
        if any("\0" in key for key, _ in items):
            reasons.append("a zero in a name")
        return dict(items)

    def walk(value):
        if isinstance(value, str) and "\0" in value:
            reasons.append("a zero in a text")
        if isinstance(value, int) and value > INT_MAX:
            reasons.append("a number above 2^63 - 1")
        for inner in value.values() if isinstance(value, dict) else \
                value if isinstance(value, list) else []:
            walk(inner)

    root = json.loads(text, object_pairs_hook=pairs)
    if not text.startswith("{"):
        reasons.append("does not begin with {")
    walk(root)
    for name, entry in root.items() if isinstance(root, dict) else []:
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
            reasons.append("another spelling of an entry")
        elif set(entry) - KEYS:
            reasons.append("a key that is not one of the three")
        elif len(entry["shape"]) > RANK_MAX:
            reasons.append("a rank above the limit")
    return bool(reasons)


def pack(header, n_data):
    return struct.pack("<Q", len(header)) + header + bytes(n_data)


def spell(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def replaced(value):
    """Every text of the value in which one part is another."""
    for other in VALUES:
        yield other
    if isinstance(value, dict):
        parts = {key: spell(key) + ":" + spell(inner) for key, inner in value.items()}
        for key, inner in value.items():
            rest = [part for other, part in parts.items() if other != key]
            yield "{" + ",".join(rest) + "}"
            yield "{" + ",".join(rest + [parts[key]]) + "}"
            yield "{" + ",".join(rest + [parts[key], parts[key]]) + "}"
            for name in ("x", "__metadata__", "a\0", ""):
                yield "{" + ",".join(rest + [spell(name) + ":" + spell(inner)]) + "}"
                yield "{" + ",".join(rest + [parts[key], spell(name) + ":" + spell(inner)]) + "}"
            for text in replaced(inner):
                yield "{" + ",".join(rest + [spell(key) + ":" + text]) + "}"
    if isinstance(value, list):
        for i, inner in enumerate(value):
            for text in replaced(inner):
                parts = [spell(other) for other in value]
                parts[i] = text
                yield "[" + ",".join(parts) + "]"


def corpus(n_random, rng):
    lengths = [0, 1, 7, 8, 2**31, 2**32, 10**8, 10**8 + 1, 2**63, 2**64 - 8, 2**64 - 1]
    good = [(spell(base).encode(), n_data) for base, n_data in BASES]
    for (base, _), (header, n_data) in zip(BASES, good):
        whole = pack(header, n_data)
        for n in range(len(whole) + 1):
            yield whole[:n]
        for n in lengths + [len(header) - 1, len(header) + 1]:
            yield struct.pack("<Q", n) + whole[8:]
        for more in (b" ", b"\n\t\r  ", b"\0", b"x", b"{}", b"\x0c", b"\xc2\xa0"):
            yield pack(header + more, n_data)
            yield pack(more + header, n_data)
        for n in (1, 2, 8):
            yield pack(header, n_data + n)
        for text in replaced(base):
            for n in {0, n_data}:
                yield pack(text.encode("utf-8", "surrogatepass"), n)
        for at in range(len(header)):
            yield pack(header[:at] + header[at + 1:], n_data)
            yield pack(header[:at + 1] + header[at:], n_data)
            for byte in BYTES:
                yield pack(header[:at] + bytes([byte]) + header[at + 1:], n_data)
                yield pack(header[:at] + bytes([byte]) + header[at:], n_data)
    for _ in range(n_random):
        header, n_data = rng.choice(good)
        header = bytearray(header)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(header) + 1)
            kind = rng.randrange(3)
            if kind == 0:
                header[at:at + rng.randrange(4)] = b""
            elif kind == 1:
                header[at:at] = rng.choice(VALUES).encode()
            else:
                header[at:at + 1] = bytes([rng.choice(BYTES)])
        yield pack(bytes(header), n_data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--random", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    n_taken = n_refused = n_stricter = n_failed = 0

    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # many small files
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        ours = Ours(build(folder), folder)
        for data in corpus(options.random, random.Random(options.seed)):
            result, text = ours.verdict(data)
            takes = reference_takes(data)
            if (result == 0) == takes:
                n_taken += takes
                n_refused += not takes
            elif takes and is_stricter(data):
                n_stricter += 1
            else:
                n_failed += 1
                if n_failed <= SHOWN:
                    print(f"reference {'takes' if takes else 'refuses'}, ours {result} "
                          f"({text}): {data!r}")
    print(f"oracle_weights: safetensors {reference_version}: both take {n_taken}, "
          f"both refuse {n_refused}, ours alone refuses by its list {n_stricter}")
    print(f"{n_taken + n_refused + n_stricter} passed, {n_failed} failed")
    return 1 if n_failed or not n_taken else 0


if __name__ == "__main__":
    sys.exit(main())
