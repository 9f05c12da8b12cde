"""Reinforcement learning from rollouts with stale weights: a trainer, and workers that come and go.

    python3 rollouts.py train 127.0.0.1:4711 &
    python3 rollouts.py roll 127.0.0.1:4711         (as many as you like; on other hosts with TUTTI_SECRET set)

The policy finds the way from one corner of a grid to the other one. A worker takes the newest weights, rolls out a
batch of episodes, and sends the batch to the trainer, which has published newer weights meanwhile. The trainer weighs
each action by the newest policy's chance of that action over the old policy's, cut at 1.5 (Espeholt, IMPALA, 2018).
"""
import sys

import numpy as np
import tutti

SIDE, EPISODES, STEPS, VERSIONS = 6, 32, 40, 300
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])
BATCH = np.dtype([("version", "i8"), ("gain", "f8"), ("count", "i8"), ("of", [
    ("state", "i4"), ("action", "i4"), ("chance", "f4"), ("gain", "f4")], EPISODES * STEPS)])
who, boot = sys.argv[1:]


def chances(policy):
    """The chance of each move in each state."""
    e = np.exp(policy - policy.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def roll_out(policy, random, batch):
    """Fills a batch with episodes. A step costs 0.05, the goal gives 1."""
    at, done, p = np.zeros((EPISODES, 2), int), np.zeros(EPISODES, bool), chances(policy)
    steps, rewards = [], []
    for _ in range(STEPS):
        state = at[:, 0] * SIDE + at[:, 1]
        action = (random.random((EPISODES, 1)) > p[state].cumsum(1)).sum(1).clip(max=3)
        at = (at + MOVES[action]).clip(0, SIDE - 1)
        goal = (at == SIDE - 1).all(1)
        steps.append((state, action, p[state, action], ~done))
        rewards.append(np.where(done, 0, goal - 0.05))
        done |= goal
        at[goal] = SIDE - 1
    gains = np.cumsum(rewards[::-1], 0)[::-1]  # of each step: what is still to come
    state, action, chance, lives = (np.array(x) for x in zip(*steps))
    batch["count"], batch["gain"] = lives.sum(), gains[0].mean()
    for name, x in ("state", state), ("action", action), ("chance", chance), ("gain", gains):
        batch["of"][name][0, :lives.sum()] = x[lives]


def learn(policy, value, batch):
    """A step of policy gradients, with the mean gain of each state as the baseline."""
    state, action, chance, gain = (batch["of"][name][0, :batch["count"][0]] for name in ("state", "action", "chance",
                                                                                        "gain"))
    p = chances(policy)
    weight = np.minimum(p[state, action] / chance, 1.5) * (gain - value[state])
    step = -p[state] * weight[:, None]
    step[np.arange(len(state)), action] += weight
    np.add.at(policy, state, 2 * step / EPISODES)
    np.add.at(value, state, 0.1 * (gain - value[state]) / np.bincount(state)[state])


def train():
    policy, value, batch = np.zeros((SIDE ** 2, 4)), np.zeros(SIDE ** 2), np.zeros(1, BATCH)
    publisher = tutti.Publisher("policy", {"policy": policy}, boot=boot)
    publisher.publish(1)
    stale, gains = [], []
    for version in range(2, VERSIONS + 1):
        publisher.group.recv(batch.view("u1"))  # of any worker
        learn(policy, value, batch)
        publisher.publish(version)
        stale.append(version - 1 - batch["version"][0])
        gains.append(batch["gain"][0])
        if version % 50 == 0:
            print("version %d: gain %.2f; the rollouts' weights were %.1f versions old, %d at most; %d workers"
                  % (version, np.mean(gains[-50:]), np.mean(stale[-50:]), max(stale[-50:]), publisher.readers()),
                  flush=True)
    publisher.close()


def roll():
    reader, batch, random = tutti.Reader("policy", boot=boot), np.zeros(1, BATCH), np.random.default_rng()
    weights = reader.empty()
    try:
        while True:
            batch["version"] = reader.fetch(out=weights).version  # the newest, which may be that of the last batch
            roll_out(weights["policy"], random, batch)
            reader.group.send(batch.view("u1"), 0)                 # waits until the trainer takes it
    except (tutti.errors.Stale, ConnectionError) as e:
        print("the last weights are version %d: %s" % (batch["version"][0], e))
    reader.close()


if who == "train":
    train()
else:
    roll()
