"""What encryption costs: frames from one process to another, in clear and over mutual TLS 1.3.

Prints MB per CPU-second (user and system, both ends together) and MB per second of wall time,
the median of some runs, over loopback. Usage: python benchmarks/transport.py [MB] [runs]
"""

import multiprocessing
import resource
import statistics
import sys
import time

import numpy as np
from machine import begin

from photinus.transport.credentials import Credentials
from photinus.transport.frames import Frame
from photinus.transport.tcp_link import TcpLink
from photinus.transport.tcp_listener import TcpListener

RUN = bytes(16)
MB = 1 << 20
VECTOR_MB = 64


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def push(address, key, count, pipe):
    frame = Frame("push", RUN, arrays={"a": np.ones(VECTOR_MB * MB // 4, "f4")})
    link = TcpLink(address, key)
    link.exchange(frame, 60)
    before = cpu_seconds()
    for _ in range(count):
        link.exchange(frame, 0)
    link.exchange(Frame("bye", RUN), 60)
    pipe.send(cpu_seconds() - before)
    link.close()


def measure(credentials, megabytes):
    """Returns MB per CPU-second of both ends, and MB per second."""

    def hear(peer, frame):
        if marks is not None and not marks:
            marks.append((cpu_seconds(), time.perf_counter()))
        if frame.kind == "bye":
            marks.append((cpu_seconds(), time.perf_counter()))
        if frame.kind == "bye" or len(marks) == 1:
            peer.send(Frame("ack", RUN))

    marks, ended, count = [], [], max(1, megabytes // VECTOR_MB)
    listener = TcpListener("127.0.0.1", credentials, hear, ended.append)
    near, far = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    args = (listener.address, credentials.worker(), count, far)
    worker = context.Process(target=push, args=args)
    worker.start()
    worker_cpu = near.recv()
    worker.join()
    listener.close()
    (cpu_before, before), (cpu_after, after) = marks
    total = count * VECTOR_MB
    return total / (worker_cpu + cpu_after - cpu_before), total / (after - before)


def main():
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    transports = {"plain": Credentials.none(RUN), "tls": Credentials.make(RUN)}
    results = {name: [] for name in transports}
    for _ in range(runs):
        for name, credentials in transports.items():
            results[name].append(measure(credentials, megabytes))
    print(f"{'transport':8}{'MB per CPU-second':>20}{'MB per second':>16}")
    for name, pairs in results.items():
        per_cpu, per_second = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{name:8}{per_cpu:20.0f}{per_second:16.0f}")


if __name__ == "__main__":
    begin("8", "1")
    main()
