# SPDX-License-Identifier: Apache-2.0
"""The parts of the test suite, in order, with their budgets: a table (tools/run_tests.py has the machinery)."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
# `make test`, what `.ci/run` adds to it, what `make test-long` adds to that.
LEVELS = ("test", "ci", "long")
CPUS = len(os.sched_getaffinity(0))


@dataclass
class Step:
    """One command (or several, when argv is a function). `count` says how its tests are counted: one for the command
    (plain: 0 passed, 77 skipped, else failed), from GoogleTest's XML (gtest) or from pytest's (junit)."""

    name: str
    argv: object
    count: str = "plain"
    env: dict = field(default_factory=dict)
    parallel: int = 1
    gate: bool = False  # when it fails, the steps after it make no sense


@dataclass
class Part:
    name: str
    budget_s: float  # on 2 cores
    steps: list
    needs: list = field(default_factory=list)  # paths without which the part does not exist yet
    env: dict = field(default_factory=dict)
    level: str = "test"  # of LEVELS: which command runs it

    def missing(self):
        return next((p for p in self.needs if not list(ROOT.glob(p))), None)

    def present(self):
        return self.missing() is None


def tool(name, *args):
    return [PYTHON, f"tools/{name}.py", *args]


def pytest(*args, python=PYTHON):
    return [python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *args]


def pytest_step(folder, **more):
    return Step("pytest", pytest(folder), count="junit", **more)


def pytest_shares(folder, shares):
    """The test files of a folder as `shares` commands of about equal size, to be run concurrently."""

    def find():
        files = sorted((ROOT / folder).rglob("test_*.py"), key=lambda path: path.stat().st_size)
        return [(f"pytest-{i + 1}", pytest(*sorted(files[i::shares]))) for i in range(min(shares, len(files)))]

    return Step(f"pytest {folder}", find, count="junit", parallel=shares)


def deepspeed_tests(folder, parallel):
    """The files of a folder, each by the Python that has DeepSpeed in it."""
    python = ROOT / ".venv-deepspeed" / "bin" / "python"

    def find():
        return [
            (path.stem, pytest(path, python=python)) for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
        ]

    return Step(f"pytest {folder}", find, count="junit", parallel=parallel)


def hostile(level):
    """tests/hostile, as much of it as the level says."""
    return pytest_step("tests/hostile", env={"PENSTOCK_HOSTILE": level})


def kernel_results(kind):
    """What ran in the machines of tools/kernels.sh, each told again as if it ran here."""

    def find():
        found = sorted((ROOT / "build" / "kernels-results").glob(f"*/*.{kind}"))
        return [(f"{p.parent.name}.{p.stem}", ["tools/kernels.sh", "--show", p.parent.name, p.stem]) for p in found]

    return find


WHEEL = Step("wheel", tool("build_wheel"), gate=True)


def build(preset, *targets):
    """Configure (once) and build a preset."""
    argv = [PYTHON, "tools/build.py", preset]
    return Step(f"build {preset}", argv + list(targets), gate=True)


# Slow programs begin first: the last one would run alone for minutes.
SLOW = ["suite_test", "cli_test", "allocations_test", "features_test", "store_test", "simulation_test"]


def programs(preset, *names):
    """The test programs of a preset, as they are when the step begins."""

    def find():
        folder = ROOT / "build" / preset / "tests"
        found = sorted(p for p in folder.glob("*_test") if os.access(p, os.X_OK))
        if names:
            found = [p for p in found if p.name in names]
        found.sort(key=lambda p: SLOW.index(p.name) if p.name in SLOW else len(SLOW))
        return [(p.name, [p]) for p in found]

    return find


ASAN = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_init_order=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}
TSAN_NOT = [
    # One thread under a virtual clock, or bytes alone: nothing for ThreadSanitizer to see, and minutes of it.
    *("*FaultPoints.*", "*ShortReadTouchesNothing*", "*CrashOfFeatures*"),
    # A child of fork() may start no threads under ThreadSanitizer. Those of the fake driver go on in suite_test, whose
    # other tests have such children; device_test has them too.
    *(
        "*AChildMayGather",
        "*AChildOfAForkGathers*",
        "*AForkMayComeWhileAStream*",
        "*AChildOfForkHasMemoryOfItsOwn*",
        "*GoOnInTheParentOfAFork",
        "*DeviceLife*",
    ),
    "*OfTheHostAndTwoGpusEqualAModel*",
]
TSAN = {
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    "GTEST_FILTER": "-" + ":".join(TSAN_NOT),
}
# Crashes are in one thread, but for one life of a store; a child of fork() may start none under ThreadSanitizer.
TSAN_CHECKPOINT = "-" + ":".join(
    [
        "CrashOfFile*",
        "CrashOfIndex*",
        "CrashOfStoreIsSeen*",
        *(f"*CrashOfStore.*/{life}" for life in ("keep*", "copies", "folders")),
        *("*Fork*", "*Corpus*", "*Corruption*", "Manifest*", "Structure*", "DamagedStore*", "Killed*"),
        *("*TroubledSave*", "*FailedSync*"),
    ]
)
ENGINE_TESTS = [
    "base_test",
    "engine_test",
    "engine_uring_test",
    "engine_aio_test",
    "engine_posix_test",
    "simulation_test",
    "api_test",
    "stream_test",
    "features_test",
    "device_test",
    "suite_test",
]


def tests(preset, *names, seeds, env=None):
    return Step(
        f"test {preset}",
        programs(preset, *names),
        count="gtest",
        parallel=min(2, CPUS),
        env={**(env or {}), "PENSTOCK_TEST_SEEDS": str(seeds)},
    )


def parts(level="test"):
    """The parts of a level, after those of the levels before it."""
    wanted = LEVELS[: LEVELS.index(level) + 1]
    return [part for part in all_parts() if part.level in wanted]


def all_parts():
    return [
        Part(
            "checks",
            200,
            [
                Step("layers", tool("check_layers")),
                Step("tidy", tool("check_tidy")),
                Step("headers", tool("check_headers")),
                pytest_step("tests/tools"),
            ],
        ),
        Part("release", 780, [build("release"), tests("release", seeds=100_000)]),
        Part(
            "python",
            520,
            [WHEEL, pytest_shares("python/tests", min(2, CPUS))],
            needs=["pyproject.toml", "python/tests"],
        ),
        Part(
            "deepspeed", 360, [WHEEL, deepspeed_tests("deepspeed", min(2, CPUS))], needs=["tests/deepspeed/test_*.py"]
        ),
        Part("benchmarks", 120, [WHEEL, pytest_step("tests/benchmarks")], needs=["tests/benchmarks/test_*.py"]),
        Part("examples", 120, [pytest_step("tests/examples")], needs=["examples/*.cpp"]),
        Part("docs", 180, [pytest_shares("tests/docs", min(2, CPUS))], needs=["tests/docs/test_*.py"]),
        Part("hostile", 150, [WHEEL, hostile("quick")], needs=["tests/hostile/test_*.py"]),
        Part("asan-ubsan", 1080, [build("asan-ubsan"), tests("asan-ubsan", seeds=2_000, env=ASAN)], level="ci"),
        Part(
            "tsan",
            840,
            [build("tsan", "engine_tests"), tests("tsan", *ENGINE_TESTS, seeds=500, env=TSAN)],
            needs=["tests/engine/*.cpp"],
            level="ci",
        ),
        Part(
            # The set-up and the package in a Debian with nothing in it but git and make: no tool of this machine helps.
            "smoke",
            440,
            [Step("fresh machine", ["tools/fresh.sh", "smoke"])],
            level="ci",
        ),
        Part("hostile-ci", 270, [WHEEL, hostile("ci")], needs=["tests/hostile/test_*.py"], level="ci"),
        Part("hostile-long", 3600, [WHEEL, hostile("all")], needs=["tests/hostile/test_*.py"], level="long"),
        Part("clang-tidy", 1800, [Step("clang-tidy", tool("run_clang_tidy"))], level="long"),
        Part(
            "fuzz",
            1200,
            [build("fuzz"), Step("fuzz", tool("run_fuzzers", "--seconds", "300"))],
            needs=["fuzz/*.cpp"],
            level="long",
        ),
        Part("seeds", 3600, [build("release"), tests("release", seeds=2_000_000)], level="long"),
        Part(
            "handicaps",
            3600,
            [Step("bars", [PYTHON, "-m", "benchmarks", "--check-handicaps"])],
            needs=["benchmarks/bars.toml"],
            level="long",
        ),
        Part(
            # Builds DeepSpeed's own op first, once: two minutes.
            "deepnvme-long",
            1200,
            [WHEEL, deepspeed_tests("deepnvme_long", 1)],
            needs=["tests/deepnvme_long/test_*.py"],
            level="long",
        ),
        Part("browser", 300, [WHEEL, pytest_step("tests/browser")], needs=["tests/browser/test_*.py"], level="long"),
        Part(
            "tsan-checkpoint",
            900,
            [
                build("tsan", "store_test"),
                tests("tsan", "store_test", seeds=200, env={**TSAN, "GTEST_FILTER": TSAN_CHECKPOINT}),
            ],
            level="long",
        ),
        Part(
            # Root and /dev/fuse; without them its tests are skipped, and say why.
            "power-cut",
            1200,
            [build("release"), pytest_step("tests/power_cut")],
            needs=["tests/power_cut/test_*.py"],
            level="long",
        ),
        Part("huge", 600, [WHEEL, pytest_step("tests/huge")], needs=["tests/huge/test_*.py"], level="long"),
        Part(
            # Thousands of states through every form, there and back.
            "properties",
            1200,
            [WHEEL, pytest_step("python/tests/test_grammar.py", env={"PENSTOCK_TEST_EXAMPLES": "20"})],
            needs=["python/tests/test_grammar.py"],
            level="long",
        ),
        Part(
            # KvikIO and NVIDIA's own bindings on the fake CUDA driver, in an environment that pip makes.
            "gpu-peers",
            600,
            [build("release", "fake_cuda"), pytest_step("tests/gpu_peers")],
            needs=["tests/gpu_peers/test_*.py"],
            level="long",
        ),
        Part(
            # Compiles the kernels with NVIDIA's nvcc, which pip brings (300 MB).
            "ptx",
            900,
            [Step("ptx", tool("make_ptx", "--check")), pytest_step("tests/tools/test_make_ptx.py")],
            level="long",
        ),
        Part("gpu-fake", 900, [WHEEL, build("release"), Step("test-gpu", tool("test_gpu", "--fake"))], level="long"),
        Part("site", 600, [WHEEL, Step("site", tool("make_docs"))], level="long"),
        Part(
            # The wheels that are given to others, in Debian systems without a compiler.
            "wheels",
            3600,
            [Step("wheels", tool("make_wheels", "--fresh"))],
            level="long",
        ),
        Part("fresh", 2400, [Step("debian 12", ["tools/fresh.sh"])], level="long"),
        Part(
            # Python 3.13 with the stable ABI, GCC 14, and newer libraries.
            "debian-13",
            1800,
            [Step("debian 13", ["tools/fresh.sh", "--suite", "trixie", "test-python"])],
            level="long",
        ),
        Part(
            # Python 3.14, which starts processes another way, and GCC 16.
            "debian-14",
            1800,
            [Step("debian 14", ["tools/fresh.sh", "--suite", "forky", "test-python"])],
            level="long",
        ),
        Part(
            # Linux 6.1 and 6.12, the driver of NVMe disks, two memory nodes: emulated, so all of it is slow.
            "kernels",
            2400,
            [
                build("release"),
                Step("machines", ["tools/kernels.sh"]),
                Step("programs", kernel_results("tests"), count="gtest"),
                Step("checks", kernel_results("check")),
            ],
            level="long",
        ),
    ]
