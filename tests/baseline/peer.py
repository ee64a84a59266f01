"""What the peers of the benchmark have in common: the processes, the rounds, the line protocol.

A round is one line on standard input, "share CHUNKS SIZE": one buffer of CHUNKS times SIZE bytes, in
whatever chunks the library makes. It is answered by one line of JSON, in microseconds.
"""

import json
import multiprocessing
import os
import sys
import time


def importer(connection, setup, forget):
    state = setup()
    connection.send("ready")
    buffer = None
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if isinstance(message, str):
            buffer = None
            message = None
            forget(state)
        else:
            buffer = message
            message = None
        connection.send("done")


def serve(setup, allocate, ready, forget):
    """setup() prepares a process, allocate(state, n) gives a buffer, ready(state) waits for it,
    forget(state) releases what the library caches. They are functions of a module."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    multiprocessing.set_start_method("spawn")  # libraries look at the default, too
    context = multiprocessing.get_context()
    links = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=importer, args=(theirs, setup, forget), daemon=True)
        process.start()
        theirs.close()
        links.append(ours)
    state = setup()
    for link in links:
        if not link.poll(120):
            raise RuntimeError("an importer did not start")
        link.recv()
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        word, chunks, size = line.split()
        try:
            answer = one_round(links, state, allocate, ready, forget, int(chunks) * int(size))
        except Exception as error:
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".replace('"', "'").split())}
        print(json.dumps(answer), file=out, flush=True)


def one_round(links, state, allocate, ready, forget, size):
    buffer = allocate(state, size)
    ready(state)
    answer = {}
    for name, link in zip(("first", "second"), links):
        start = time.perf_counter()
        link.send(buffer)
        answered(link)
        answer[name] = round((time.perf_counter() - start) * 1e6, 1)
    for name, link in zip(("importer_teardown", None), links):
        start = time.perf_counter()
        link.send("forget")
        answered(link)
        if name:
            answer[name] = round((time.perf_counter() - start) * 1e6, 1)
    start = time.perf_counter()
    del buffer
    forget(state)
    answer["teardown"] = round((time.perf_counter() - start) * 1e6, 1)
    return answer


def answered(link):
    if not link.poll(30):
        raise RuntimeError("the importer did not answer within 30 s")
    link.recv()


def absent(reason):
    print(reason, flush=True)
    sys.exit(0)
