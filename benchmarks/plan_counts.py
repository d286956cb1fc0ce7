# SPDX-License-Identifier: Apache-2.0
"""Runs of plan.params, plan.interval and plan.goodput: what penstock.plan says, against counts and minima that are
found without it."""

import json
import math
import random
import subprocess
from itertools import product

from benchmarks.job_tools import figures, need, skip
from benchmarks.plan_models import CONFIGS
from benchmarks.sides import ROOT

# As DLIO prints them for its llama workloads.
DLIO = {
    "dlio-llama-7b": 6_738_415_616,
    "dlio-llama-8b": 8_030_261_248,
    "dlio-llama-70b": 69_882_617_856,
    "dlio-llama-405b": 405_853_388_800,
    "dlio-llama-1t": 1_183_035_102_480,
}
TRUE_HEADS = {"dlio-llama-70b": "llama-3-70b"}


def params(arguments):
    """Parameters too many or too few, over DLIO's five Llamas and the configs of plan_models. Handicap `heads`: the
    true head count of the 70B, in place of DLIO's."""
    plan = need("penstock.plan")
    python = ROOT / ".venv-deepspeed" / "bin" / "python"
    if not python.exists():
        skip("transformers is not set up: tools/setup.sh bench")
    done = subprocess.run(
        [str(python), "-m", "benchmarks.plan_models"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        skip(f"transformers does not build the models: {done.stderr[-500:]}")
    heads = TRUE_HEADS if arguments.get("handicap") == "heads" else {}
    off = {name: plan.model(heads.get(name, name)).parameters - count for name, count in DLIO.items()}
    for name, count in json.loads(done.stdout.splitlines()[-1]).items():
        off[name] = plan.model(config=CONFIGS[name]).parameters - count
    wrong = {name: difference for name, difference in off.items() if difference}
    return figures(value=sum(map(abs, wrong.values())), operations=len(off), rows=wrong)


def _jobs():
    """From a save of a 10,000th of the time between failures to one of half of it, synchronous and overlapped."""
    for mtbf, save, stalled, slowdown, restore, downtime in product(
        (600.0, 1e4, 3e6), (1e-4, 1e-3, 0.01, 0.1, 0.5), (1.0, 0.2), (0.0, 0.3), (0.02, 0.2), (0.0, 0.1)
    ):
        if stalled == 1.0 and slowdown:
            continue
        yield {
            "mtbf": mtbf,
            "save": save * mtbf,
            "stall": save * mtbf * stalled,
            "slowdown": slowdown,
            "restore": restore * mtbf,
            "downtime": downtime * mtbf,
        }


def _mean_time(job, interval):
    """Mean time from one durable save to the next, from the equations of the renewal: a first try, and after a failure
    a downtime, a restore that failures begin again, and tries of the whole."""
    rate, write = 1 / job["mtbf"], job["save"] - job["stall"]
    restored = job["downtime"] + math.expm1(rate * job["restore"]) * (1 / rate + job["downtime"])
    again = math.expm1(rate * (interval + job["stall"] + write)) * (1 / rate + restored)
    period = interval + job["stall"] + job["slowdown"] * write
    return -math.expm1(-rate * period) * (1 / rate + restored + again)


def _minimum(job):
    """The interval with the least mean time for its computing, by golden sections of the logarithm."""
    low = math.log(max((1 - job["slowdown"]) * (job["save"] - job["stall"]), 1e-6 * job["mtbf"]))
    high = math.log(20 * job["mtbf"])
    share = (math.sqrt(5) - 1) / 2
    for _ in range(120):
        left, right = high - share * (high - low), low + share * (high - low)
        costs = [_mean_time(job, math.exp(at)) / math.exp(at) for at in (left, right)]
        low, high = (low, right) if costs[0] < costs[1] else (left, high)
    return math.exp((low + high) / 2)


def _reported(plan, job, handicap):
    """The interval and its goodput. With the handicap the interval is Young's, and its goodput the usual estimate."""
    answer = plan.interval(**job)
    if handicap != "young":
        return answer["interval_seconds"].value, answer["goodput"].value
    cost = job["stall"] + job["slowdown"] * (job["save"] - job["stall"])
    young = max(math.sqrt(2 * cost * job["mtbf"]), (1 - job["slowdown"]) * (job["save"] - job["stall"]))
    lost = cost / young + young / (2 * job["mtbf"]) + (job["restore"] + job["downtime"]) / job["mtbf"]
    return young, max(0.0, 1 - lost)


def interval(arguments):
    """The most that an interval is off the minimum of the renewal formula, as a share."""
    plan = need("penstock.plan")
    worst, jobs = (0.0, None), 0
    for job in _jobs():
        found, _ = _reported(plan, job, arguments.get("handicap"))
        worst = max(worst, (abs(found / _minimum(job) - 1), str(job)))
        jobs += 1
    return figures(value=worst[0], operations=jobs, worst=worst[1])


def _simulated(job, interval, failures, seed):
    """The goodput of a job, failure by failure: how many saves become durable before each. The times to failures are
    random, one from each of as many equal shares of their distribution."""
    draw = random.Random(seed)
    write = job["save"] - job["stall"]
    durable = job["restore"] + interval + job["stall"] + write
    period = interval + job["stall"] + job["slowdown"] * write
    kept, total = 0.0, 0.0
    for number in range(failures):
        time = -math.log(1 - (number + draw.random()) / failures) * job["mtbf"]
        total += job["downtime"] + time
        if time >= durable:
            kept += interval * (1 + (time - durable) // period)
    return kept / total


def goodput(arguments):
    """The most that the goodput at the interval is off a simulation, as a share."""
    plan = need("penstock.plan")
    worst, jobs = (0.0, None), 0
    for number, job in enumerate(_jobs()):
        if number % 3:
            continue  # a third of them, for the time
        found, said = _reported(plan, job, arguments.get("handicap"))
        worst = max(worst, (abs(said / _simulated(job, found, 20_000, number) - 1), str(job)))
        jobs += 1
    return figures(value=worst[0], operations=jobs, worst=worst[1])
