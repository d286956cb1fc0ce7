# SPDX-License-Identifier: Apache-2.0
"""JSON as the tools write it, small and with figures that are easy to find again."""

import copy

ENVIRONMENT = {"kernel": "6.18.44", "cpu": "Testium 9000", "cpus_usable": 2, "memory_bytes": 25 << 30}
TARGET = {
    "path": "/data/penstock-bench-1.tmp",
    "scratch": True,
    "file_system": "ext4",
    "direct": True,
    "disk": {"name": "vda", "model": "Disk of Tests"},
}
ENGINE = {"backend": "uring", "detail": "", "refusals": []}


def sample(side, bytes_per_s, histogram=True):
    latency = {"p50": 200_000, "p99": 3_000_000, "p99.9": 9_000_000}
    if histogram:
        latency["histogram"] = [[100_000, 900], [1_000_000, 90], [10_000_000, 10]]
    return {
        "side": side,
        "seconds": 1.0,
        "bytes": int(bytes_per_s),
        "operations": 1000,
        "cpu_s": 0.05,
        "bytes_per_s": bytes_per_s,
        "operations_per_s": 1000.0,
        "cpu_s_per_gib": 0.0625 if side == "penstock" else 0.125,
        "latency_ns": latency,
    }


def bench_job(rw, block, depth, rate, paths=(TARGET["path"],)):
    samples = []
    for factor in (0.9, 1.0, 1.2):
        samples += [sample("penstock", rate * factor), sample("fio", rate * factor * 1.25, histogram=False)]
    return {
        "rw": rw,
        "block_bytes": block,
        "depth": depth,
        "paths": list(paths),
        "samples": samples,
        "median_bytes_per_s": rate,
        "ratio": {"mean": 0.8, "min": 0.79, "max": 0.81, "ci95": [0.78, 0.82]},
    }


def bench(paths=(TARGET["path"],)):
    """Reads of 64 KiB and 1 MiB at depths 1 and 16: 1, 2, 3 and 4 GB/s; several paths: each alone, then all."""
    jobs = []
    for index, (block, depth) in enumerate([(65536, 1), (65536, 16), (1 << 20, 1), (1 << 20, 16)]):
        rate = (index + 1) * 1e9
        if len(paths) > 1:
            jobs += [bench_job("read", block, depth, rate, [path]) for path in paths]
        jobs.append(bench_job("read", block, depth, rate * len(paths), paths))
    targets = [{**TARGET, "path": path, "limit": {"read_bytes_per_s": 5e9, "source": "io.max"}} for path in paths]
    return {
        "command": ["penstock", "bench", "/data", "--against", "fio"],
        "environment": {**ENVIRONMENT, "fio": "fio-3.33"},
        "targets": targets,
        "engine": ENGINE,
        "jobs": jobs,
    }


def tune():
    """The defaults (1 MiB x 16) at 2 GB/s and 4 MiB x 32 at 2.5, shown to be faster."""
    jobs = []
    for block, depth, rate, defaults in ((1 << 20, 16, 2e9, True), (4 << 20, 32, 2.5e9, False)):
        jobs.append(
            {
                "rw": "read",
                "block_bytes": block,
                "depth": depth,
                "channels": 1,
                "backend": "auto",
                "defaults": defaults,
                "paths": [TARGET["path"]],
                "samples": [sample("penstock", rate), sample("penstock", rate)],
                "ratio_to_defaults": {"mean": rate / 2e9, "min": 1.0, "max": 1.3, "ci95": [rate / 2e9, None]},
            }
        )
    chosen = {"block_bytes": 4 << 20, "depth": 32, "channels": 1, "backend": "auto"}
    ratio = {"mean": 1.25, "min": 1.2, "max": 1.3, "ci95": [1.21, 1.29]}
    verdict = {"goal": "read", "verdict": "better", "best_rival": dict(chosen), "ratio_to_defaults": ratio, "rounds": 8}
    return {
        "command": ["penstock", "tune", "/data"],
        "environment": ENVIRONMENT,
        "target": TARGET,
        "targets": [TARGET],
        "engine": ENGINE,
        "jobs": jobs,
        "tune": {
            "seconds": 31.5,
            "written_bytes": 0,
            "gain_min": 0.02,
            "verdicts": [verdict],
            "choice": chosen,
            "options": {"block_bytes": 4 << 20, "queue_depth": 32},
            "deepspeed": {"aio": {"block_size": 4 << 20, "queue_depth": 32, "overlap_events": True}},
        },
    }


def bar(name, verdict, mean, limit=">=0.98", metric="bandwidth", rate=1e9, devices=None):
    figure = {"mean": mean, "low": mean * 0.99, "high": mean * 1.01}
    runs = [{"bytes": 1 << 30, "seconds": (1 << 30) / rate, "cpu_s": 0.1} for _ in range(5)]
    peers = [{**run, "seconds": run["seconds"] * (devices or 1)} for run in runs]
    place = {"name": "throttled", "rate": {"bps": 1_000_000_000}, **({"devices": devices} if devices else {})}
    return {
        "id": name,
        "what": f"what {name} measures",
        "peer": "fio",
        "metric": metric,
        "bar": limit,
        "verdict": verdict,
        "reason": "" if verdict == "met" else f"why {name} is {verdict}",
        "handicap": "",
        "figure": figure,
        "control": {"mean": 1.0, "low": float("-inf"), "high": float("inf")},
        "pairs": 5,
        "place": place,
        "line": f"BAR {name} ratio={mean:.3f} ci95=[0,1] bar{limit} verdict={verdict}",
        "ours": runs,
        "peers": peers,
    }


def bars():
    found = [
        bar("engine.read_1g", "met", 1.003),
        bar("engine.write_1g", "missed", 0.91),
        bar("engine.cpu", "undecided", 1.2, "<=1.3", "cpu"),
        bar("deepnvme.scaling_2", "met", 1.0, ">=0.97", "value", 4e8, 2),
        bar("deepnvme.scaling_4", "met", 0.99, ">=0.97", "value", 8e8, 4),
        bar("engine.memory", "met", 5e7, "<=64MiB", "value"),
    ]
    return {"environment": {"kernel": "6.18.44", "cpus_usable": 2, "command_line": ["x"]}, "bars": found}


def ds_io(folders=("/a", "/b"), rate=2e8):
    processes = [
        {
            "folder": f,
            "file_system": "ext4",
            "direct": True,
            "reason": "",
            "seconds": [0.7, 0.5, 0.5],
            "cpu_s": [0.1] * 3,
        }
        for f in folders
    ]
    return {
        "command": ["penstock", "ds_io", "--folder", *folders],
        "environment": ENVIRONMENT,
        "engine": {"backend": "uring"},
        "ds_io": {
            "op": "read",
            "engine": "aio_handle",
            "io_bytes": 100_000_000,
            "block_bytes": 1 << 20,
            "depth": 32,
            "loops": 2,
            "warmup_loops": 1,
            "fsync": False,
            "validate": False,
            "bytes": 400_000_000,
            "task_seconds": 1.0,
            "e2e_seconds": 1.0,
            "bytes_per_s": rate * len(folders),
            "cpu_s_per_gib": 0.25,
            "folders": [{"path": f, "bytes_per_s": rate} for f in folders],
            "processes": processes,
        },
    }


def ds_nvme_tune():
    settings = [
        {"block_size": block, "queue_depth": depth, "bytes_per_s": {"read": [rate * 1e9] * 3}}
        for block, depth, rate in ((1 << 20, 32, 1.5), (1 << 20, 128, 1.6), (8 << 20, 32, 1.7), (8 << 20, 128, 1.8))
    ]
    return {
        "command": ["penstock", "ds_nvme_tune", "--nvme_dir", "/a"],
        "environment": ENVIRONMENT,
        "ds_nvme_tune": {
            "folders": ["/a"],
            "io_bytes": 1 << 20,
            "operations": ["read"],
            "settings": settings,
            "best": {"block_size": 8 << 20, "queue_depth": 128},
            "verdict": "every run of it beat every run of the other 3",
        },
    }


ALL = {"bench": bench, "tune": tune, "bars": bars, "ds_io": ds_io, "ds_nvme_tune": ds_nvme_tune}


def shapes():
    def line(shape, what, state, ours, theirs, verdict):
        sides = [{"side": "penstock", "seconds": ours}, {"side": "preadv", "seconds": theirs}]
        ratio = {"median": ours[1] / theirs[1], "min": 0.1, "max": 9.0}
        found = {"shape": shape, "what": what, "state": state, "operations": 10, "bytes": 40960, "sides": sides}
        return found | {"best_stock": "preadv", "ratio": ratio, "verdict": verdict}

    return {
        "program": "penstock bench --shapes",
        "command": ["penstock", "bench", "--shapes", "/data"],
        "environment": {"time_utc": "2026-01-02T03:04:05Z", "hostname": "box", "kernel": "6.9"},
        "folder": "/data",
        "rows": [
            line("sequence", "10 x 4 KiB in sequence", "cold", [0.1, 0.2, 0.3], [0.2, 0.4, 0.6], "faster"),
            line("sequence", "10 x 4 KiB in sequence", "warm", [0.3, 0.6, 0.9], [0.1, 0.2, 0.3], "slower"),
            {"shape": "load_pt", "what": "load pt", "state": "", "skipped": "pip install torch"},
        ],
    }


ALL["bench --shapes"] = shapes


def gnn():
    def line(trace, side, waited, read):
        return {
            "trace": trace,
            "side": side,
            "busy_s": [2 * seconds for seconds in waited] if side == "ahead" else waited,
            "exposed_s": waited,
            "step_s": [0.5] * len(waited),
            "rows_per_second": 1000 / sum(waited),
            "cpu_us_per_row": 2.0,
            "read_by_wanted": read,
            "rows_per_core_second": 500_000.0,
            "cores_for_1_7_million_rows_per_second": 3.4,
            "cores_for_6_3_million_rows_per_second": 12.6,
        }

    return {
        "program": "penstock bench gnn",
        "environment": {"time_utc": "2026-01-02T03:04:05Z", "hostname": "box", "kernel": "6.9"},
        "scale": 16,
        "row_bytes": 4096,
        "iterations": 2,
        "memory": 64 << 20,
        "memory_note": "",
        "read_ahead_kb": 128,
        "runs": [
            line("rmat", "memmap", [1.0, 1.5], 3.5),
            line("rmat", "fio", [0.2], 1.0),
            line("rmat", "ahead", [0.1, 0.1], 0.4),
            line("zipf", "memmap", [2.0, 2.0], 2.0),
            line("zipf", "ahead", [0.25, 0.25], 0.9),
        ],
        "not_measured_here": {
            "published": {"np.memmap": {"iterations": 100, "seconds": 1130.0, "rows_per_second": 47_000}},
            "command": "penstock bench gnn DIR --scale 28",
        },
    }


ALL["bench gnn"] = gnn


def changed(document, place, value):
    """A copy with the value at a place such as ("jobs", 0, "depth") replaced; `del` instead of a value removes it."""
    made = copy.deepcopy(document)
    inside = made
    for key in place[:-1]:
        inside = inside[key]
    if value is DELETE:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    return made


DELETE = object()


def checkpoint_bench():
    """Saves at 2 and 1 GB/s, loads at 4 and 2, stalls of 0.25 and 1 s."""
    size = 1_000_000_000

    def side(name, verb, seconds):
        return {
            "side": name,
            "verb": verb,
            "seconds": [seconds * factor for factor in (0.8, 1.0, 1.6)],
            "cpu_seconds": [0.1, 0.2, 0.3],
            "median_seconds": seconds,
            "bytes_per_second": size / seconds,
        }

    return {
        "program": "penstock checkpoint bench",
        "environment": {**ENVIRONMENT, "torch": "2.13.0"},
        "model": "gpt2",
        "state": "adam",
        "weights": "bf16",
        "left_out": "",
        "bytes": size,
        "tensors": 444,
        "rounds": 3,
        "figures": [
            side("penstock .pt", "save", 0.5),
            side("torch.save", "save", 1.0),
            side("penstock .pt", "load", 0.25),
            side("torch.load", "load", 0.5),
            side("penstock save_async", "stall", 0.25),
            side("torch.save", "stall", 1.0),
        ],
    }
