"""What Platoon's elastic averaging costs: training with EASGD beside the same training without Platoon, in turn.

    python3 bench_platoon.py [ROUNDS]     the network of examples/python/old on random data; one thread a process

With 1 process the ratio is the time of the worker to the time of plain training. With 2 it is the time of two plain
trainings side by side to that of two workers, each the slower one of its pair.
"""
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples" / "python" / "old"))

STEPS, TAU, BATCH = 400, 10, 64


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(port):
    from channel import Lieutenant
    controller = Lieutenant()
    controller.handle_control = lambda req, worker_id: "train" if req == "next" else ""
    controller.init_control(port=port)
    print("ready", flush=True)
    controller.serve()


def train(port, first):
    """Says that it is ready, waits for a line, and prints the seconds that its steps took."""
    import numpy as np
    from platoon_worker import EASGD, Soldier, network, train as step
    random = np.random.RandomState(os.getpid() % 1000)
    x, y = random.rand(4096, 784).astype(np.float32), random.randint(0, 10, 4096)
    params = network(128)
    soldier = Soldier(port=port) if port else None
    if soldier:
        soldier.init_shared_params("bench%d" % port, params, EASGD(0.5), cleanup=first)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    for _ in range(STEPS // TAU):
        if soldier:
            soldier.send_req("next")
        for _ in range(TAU):
            batch = random.randint(0, len(x), BATCH)
            step(params, x[batch], y[batch], 0.05)
        if soldier:
            soldier.sync_params(synchronous=True)
            soldier.send_req({"done": TAU})
    print(time.perf_counter() - began, flush=True)


def start(*words):
    process = subprocess.Popen([sys.executable, __file__] + [str(word) for word in words], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    return process


def slowest(workers):
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    return max(float(worker.communicate()[0]) for worker in workers)


def measure(count):
    """The seconds of `count` plain trainings side by side, and of as many workers."""
    plain = slowest([start("train", 0, "no") for _ in range(count)])
    port = free_port()
    controller = start("serve", port)
    ours = slowest([start("train", port, "yes" if i == 0 else "no") for i in range(count)])
    controller.wait(30)
    return plain, ours


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for count in 1, 2:
        pairs = [measure(count) for _ in range(rounds)]
        ratios = sorted(ours / plain if count == 1 else plain / ours for plain, ours in pairs)
        plain, ours = (min(times) for times in zip(*pairs))
        print("%d: least plain %.2f s, with EASGD %.2f s, ratio %.3f; median ratio %.3f (%.3f to %.3f)"
              % (count, plain, ours, ours / plain if count == 1 else plain / ours,
                 statistics.median(ratios), ratios[0], ratios[-1]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]))
    elif sys.argv[1:2] == ["train"]:
        train(int(sys.argv[2]), sys.argv[3] == "yes")
    else:
        main()
