"""Linear regression over a table: each rank has samples of its own, and the servers have the weights.

    tutti run -n 4 python3 regression.py

Every step a rank pulls the weights, pushes its gradient, and goes on: no rank waits for another one.
"""
import numpy as np
import tutti

FEATURES, SAMPLES, STEPS, RATE = 10, 200, 300, 0.1

job = tutti.init()
truth = np.arange(FEATURES, dtype=np.float32)
random = np.random.default_rng(job.rank)
x = random.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
y = x @ truth + random.normal(scale=0.1, size=SAMPLES).astype(np.float32)

table = tutti.Table("weights", FEATURES, updater=tutti.sgd(RATE))
weights = table.pull()
for step in range(STEPS):
    gradient = x.T @ (x @ weights - y) / SAMPLES
    weights = table.push_pull(gradient, out=weights, scale=1 / job.size)

job.barrier()  # all have pushed
table.pull(out=weights)
if job.rank == 0:
    print("%d ranks found" % job.size, *np.round(weights, 1))
job.barrier()  # all have pulled: the servers may go
table.close()
