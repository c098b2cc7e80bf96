#!/usr/bin/env python3
"""Helpers of fault_test.sh, over those of service.py.

live SOCKET N FILE WHAT   N requests on one connection, an idle one beside; once tokens come, WHAT is
                          written to FILE; prints what came of all, and what came too much
ping SOCKET               how long one PING takes, in ms
again SOCKET              one request to a daemon that may be going: what it gets
"""
import os
import socket
import struct
import sys
import time

sys.dont_write_bytecode = True
from service import (ACCEPTED, DONE, ERROR, FINISH, HELLO_OK, TOKENS, connect, error, frame, hello,
                     read, submit)

PING, PONG = 6, 0x8008


def write(path, text):
    with open(path + ".new", "w") as f:
        f.write(text)
    os.rename(path + ".new", path)


def counted(words):
    return ", ".join("%d %s" % (words.count(w), w) for w in sorted(set(words)))


def live(path, n, fault, what):
    s, idle = connect(path), connect(path)
    idle.sendall(hello(1 << 20))
    assert read(idle)[0] == HELLO_OK
    s.sendall(hello(1 << 29) + b"".join(submit(i + 1, 1500) for i in range(int(n))))
    ends, late, armed = {}, 0, False
    connection = "no word"
    try:
        while True:
            kind, request, payload = read(s)
            if request in ends:
                late += 1
            if kind == TOKENS and not armed:
                write(fault, what)
                armed = True
            if kind == DONE:
                ends[request] = FINISH[payload[0]]
            elif kind == ERROR and request:
                ends[request] = error(payload)
            elif kind == ERROR:
                connection = error(payload)
            if what.startswith("hang") and len(ends) == int(n):
                break
    except (EOFError, ConnectionError):
        pass
    print("requests: " + counted(list(ends.values())))
    if what.startswith("hang"):
        return
    print("connection: " + connection)
    print("frames behind an end: %d" % late)
    try:
        idle.sendall(submit(1, 10))
    except OSError:
        pass
    try:
        while True:
            kind, request, payload = read(idle)
            print("beside: %d %s" % (request, error(payload)) if kind == ERROR else "beside: %d" % kind)
    except (EOFError, ConnectionError):
        pass


def ping(path):
    s = connect(path)
    s.sendall(hello())
    assert read(s)[0] == HELLO_OK
    start = time.monotonic()
    s.sendall(frame(PING, 1, b"42"))
    kind, _, payload = read(s)
    assert kind == PONG and payload == b"42", kind
    print(int((time.monotonic() - start) * 1000))


def again(path):
    try:
        s = connect(path)
        s.sendall(hello(1 << 20) + submit(1, 5))
        while True:
            kind, request, payload = read(s)
            if kind == ERROR:
                print("%d %s" % (request, error(payload)))
            elif kind == DONE:
                print(FINISH[payload[0]])
                return
    except (OSError, EOFError):
        print("nobody")


if __name__ == "__main__":
    verbs = {"live": live, "ping": ping, "again": again}
    try:
        verbs[sys.argv[1]](*sys.argv[2:])
    except (EOFError, ConnectionError, socket.timeout) as why:
        print("failed: %r" % why, flush=True)
        sys.exit(1)
