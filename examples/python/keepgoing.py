"""A rank is killed in the middle of the training, and the others go on.

    tutti run --keep-going -n 4 python3 keepgoing.py      (rank 2 kills itself after 50 steps)

All ranks fit a line, each to points of its own, with averaged gradients. When a rank dies the step of the others fails.
The others make a group of the ranks that are left, take the weights of the rank with most steps, and go on.
"""
import os
import signal

import numpy as np
import tutti

STEPS, RATE = 200, 0.1

job = tutti.init()
random = np.random.default_rng(job.rank)
x = random.normal(size=100)
y = 3 * x - 1 + random.normal(scale=0.1, size=100)
line, slope = np.zeros(2), np.zeros(2)  # a and b of a x + b, and the gradient of the squared error by these

gradients = tutti.Gradients(slope)


def recover(group, step):
    """Returns the group of the ranks that are left, and the step from which all go on."""
    while True:
        group = group.shrink()  # raises TooFewRanks if fewer than half of the ranks are left
        try:
            gradients.regroup(group)
            gradients.synchronize(line)  # those of the rank with most steps
            return group, int(group.allreduce(np.array([step]), op="max")[0])
        except ConnectionError:  # another rank has died meanwhile
            pass


gradients.synchronize(line)
group, step = job, 0
while step < STEPS:
    error = line[0] * x + line[1] - y
    slope[:] = (error @ x / len(x), error.mean())
    if job.rank == 2 and step == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        gradients.average()
        line -= RATE * slope
        step += 1
    except ConnectionError as e:
        print("rank %d, step %d: %s" % (job.rank, step, e), flush=True)
        group, step = recover(group, step)
print("rank %d of %d: y = %.1f x %+.1f" % (group.rank, group.size, *line))
