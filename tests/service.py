#!/usr/bin/env python3
"""Helpers of service_test.sh and systemd_test.sh, standard library alone.

notify SOCKET FILE        plays systemd: appends each message to FILE, a line per assignment
generate SOCKET N         one greedy request of N tokens; prints its finish and token count
hold SOCKET [slow]        one request without credit for its end: says `held`, then what ends it;
                          with `slow` it has credit and reads nothing until stdin closes
churn SOCKET N            N connections that go in the middle of something
"""
import os
import socket
import struct
import sys

HELLO, SUBMIT, PROMPT = 1, 2, 3
HELLO_OK, ACCEPTED, TOKENS, DONE, ERROR, SHUTDOWN = 0x8001, 0x8002, 0x8003, 0x8006, 0x8007, 0x8009
FINISH = {1: "stop", 2: "length", 3: "cancelled", 4: "deadline"}


def frame(kind, request, payload):
    return struct.pack("<IHHQ", len(payload), kind, 0, request) + payload


def hello(credit=0):
    return frame(HELLO, 0, b"LL42" + struct.pack("<HHQIIHH", 1, 1, 0, 0, credit, 0, 0))


def submit(request, n, text=b"Once upon a time"):
    fixed = struct.pack("<IIQfffIHHHbBIIII", 2, n, 0, 0.0, 1.0, 0.0, 0, 1, 0, 0, 0, 2, 0, 0,
                        len(text), 0)
    assert len(fixed) == 56
    return frame(SUBMIT, request, fixed) + frame(PROMPT, request, struct.pack("<I", 1) + text)


def connect(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.settimeout(30)
    s.connect(path)
    return s


def exactly(s, n):
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def read(s):
    size, kind, _, request = struct.unpack("<IHHQ", exactly(s, 16))
    return kind, request, exactly(s, size)


def error(payload):
    code, _, _, _ = struct.unpack_from("<HBBI", payload)
    return "error %d %s" % (code, payload[8:].decode())


def follow(s, counted=0):
    """Reads to the end of the request: what ended it, and how many tokens came."""
    while True:
        kind, _, payload = read(s)
        if kind == TOKENS:
            counted += struct.unpack_from("<I", payload, 4)[0]
        elif kind == DONE:
            return "%s %d" % (FINISH[payload[0]], counted)
        elif kind == ERROR:
            return "%s %d" % (error(payload), counted)
        elif kind == SHUTDOWN:
            print("shutdown", flush=True)


def notify(path, log):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind(path)
    print("ready", flush=True)
    with open(log, "a") as out:
        while True:
            out.write(s.recv(4096).decode().rstrip("\n") + "\n")
            out.flush()


def generate(path, n):
    s = connect(path)
    s.sendall(hello() + submit(1, int(n)))
    print(follow(s), flush=True)


def hold(path, how="credit"):
    s = connect(path)
    s.sendall(hello(4096 if how == "credit" else 1 << 30))
    while read(s)[0] != HELLO_OK:
        pass
    for request in range(1, 9):
        s.sendall(submit(request, 200))
    while read(s)[0] != ACCEPTED:
        pass
    print("held", flush=True)
    if how == "slow":
        sys.stdin.read()
        return
    try:
        print(follow(s), flush=True)
    except (EOFError, ConnectionError):
        print("gone", flush=True)


def churn(path, n):
    for i in range(int(n)):
        s = connect(path)
        data = hello() + submit(1, 100)
        s.sendall(data[: len(data) * (i % 7) // 6])
        if i % 2:
            try:
                s.settimeout(0.01)
                s.recv(100)
            except OSError:
                pass
        s.close()


if __name__ == "__main__":
    verbs = {"notify": notify, "generate": generate, "hold": hold, "churn": churn}
    try:
        verbs[sys.argv[1]](*sys.argv[2:])
    except (EOFError, ConnectionError, socket.timeout) as why:
        print("failed: %r" % why, flush=True)
        os._exit(1)
