# SPDX-License-Identifier: Apache-2.0
"""Threads gather, hint and cancel on one FeatureStore with a tier in memory; processes fork; some rounds close it."""

import random
import time

import numpy as np
import penstock

from tests.attack.crowd import Process, in_threads

ROUND_S = 3
THREADS = 6


class Scene:
    def __init__(self, run):
        r = run.random
        self.run = run
        self.rows = r.choice([50, 2000, 30_000])
        width = r.choice([1, 16, 100, 700])
        self.a = (np.arange(self.rows)[:, None] * 31 + np.arange(width)).astype(np.float32)
        self.b = self.a[:, :1] * 2 + 1
        path = f"{run.folder}/store"
        penstock.FeatureStore.write(path, {"a": self.a, "b": self.b}, progress=None, sync=False)
        ram = r.choice([20_000, 200_000, "auto", 5_000_000])
        policy = r.choice(["window", "s3fifo", "clock", "static"])
        run.note("open", self.a.shape, ram, policy)
        self.store = penstock.FeatureStore.open(path, ram=ram, policy=policy)
        self.closes = r.random() < 0.5
        self.seed = r.getrandbits(40)
        self.end = time.monotonic() + run.left(ROUND_S)
        self.gathers = [0] * THREADS

    def over(self):
        return time.monotonic() >= self.end

    def expect(self, got, wanted, what):
        wrong = np.flatnonzero((got != wanted).any(axis=1)) if got.shape == wanted.shape else "all"
        self.run.check(not len(wrong), lambda: f"wrong rows of {what}: {len(wrong)} of {len(wanted)}")

    def batch(self, r, numbers):
        if r.random() < 0.5:
            return numbers.integers(0, self.rows, r.choice([1, 10, 400]))
        return np.minimum(numbers.zipf(1.3, 300) - 1, self.rows - 1)

    def act(self, r, numbers, hinted):
        a = self.store["a"]
        if len(hinted) < 8 and r.random() < 0.6:
            hinted.append(self.batch(r, numbers))
            a.hint(hinted[-1])
            return 0
        ids = hinted.pop(0) if hinted else numbers.integers(0, self.rows, 50)
        kind = r.random()
        if kind < 0.5:
            self.expect(a.gather(ids), self.a[ids], "a gather")
        elif kind < 0.65:
            got = self.store.gather({"a": ids, "b": ids})
            self.expect(got["a"], self.a[ids], "a gather of two tables")
            self.expect(got["b"], self.b[ids], "a gather of two tables")
        elif kind < 0.85:
            for future in [a.gather_async(ids) for _ in range(3)]:
                self.expect(future.result(30), self.a[ids], "gather_async")
        else:
            future = a.gather_async(ids)
            future.cancel()
            try:
                self.expect(future.result(30), self.a[ids], "a gather_async that was cancelled too late")
            except penstock.Cancelled:
                pass
        return 1

    def work(self, k):
        r = random.Random(self.seed + k)
        numbers, hinted = np.random.default_rng(self.seed + k), []
        while time.monotonic() < self.end + (0.5 if self.closes else 0):
            try:
                self.gathers[k] += self.act(r, numbers, hinted)
            except (ValueError, penstock.Error, OSError) as error:
                if self.closes and "clos" in str(error):
                    return
                raise

    def in_a_child(self):
        ids = np.random.default_rng(1).integers(0, self.rows, 100)
        self.expect(self.store["a"].gather(ids), self.a[ids], "a gather in a forked child")

    def disturb(self):
        while not self.over():
            time.sleep(0.3)
            Process(self.in_a_child).end(25)
        if self.closes:
            self.store.close()


def attack(run):
    scene = Scene(run)
    in_threads([*(lambda k=k: scene.work(k) for k in range(THREADS)), scene.disturb], ROUND_S)
    scene.store.close()
    run.count("gathers", sum(scene.gathers))
