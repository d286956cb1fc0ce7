# SPDX-License-Identifier: Apache-2.0
"""The parts of the test suite, in order, with their budgets: a table (tools/run_tests.py has the machinery)."""

import os
import sys
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import test_choice

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
# `make test`, what `.ci/run` adds to it, what `make test-long` adds to that.
LEVELS = ("test", "ci", "long")
CPUS = len(os.sched_getaffinity(0))
# Commands of a step that run at once. Many tests wait for a disk, a child or a clock, so there is one more than the two
# that the processors of CI's machine would take; tests that depend on time come later, alone.
AT_ONCE = min(3, CPUS + 1)


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
    again: bool = True  # whether a test that failed may be run again (tools/test_again.py)
    splits: bool = True  # whether it can run some of its tests: no for an attack, and results of another machine
    silent_s: float = (
        None  # without a line of output for so long it hangs (None: HANG_S or TOOL_HANG_S of tools/run_tests.py)
    )


@dataclass
class Part:
    name: str
    budget_s: float  # on 2 cores
    steps: list
    needs: list = field(default_factory=list)  # paths without which the part does not exist yet
    env: dict = field(default_factory=dict)
    level: str = "test"  # of LEVELS: which command runs it
    until: str = "long"  # the last of LEVELS that runs it: beyond that another part has all of it, and more
    again: bool = True  # no where a failure is a finding the first time: it searches
    skips: object = None  # a function: why the part need not run this time, or None
    about: object = None  # a function: what the part leaves out this time, in a line, or None

    def missing(self):
        return next((p for p in self.needs if not list(ROOT.glob(p))), None)

    def present(self):
        return self.missing() is None


def tool(name, *args):
    return [PYTHON, f"tools/{name}.py", *args]


def pytest(*args, python=PYTHON):
    """pytest whose XML names each test's file: a test that failed is run again alone."""
    return [python, "-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", *args]


def pytest_step(folder, **more):
    return Step("pytest", pytest(folder), count="junit", **more)


def pytest_shares(folder, shares, parallel=None, without=None):
    """The test files of a folder as `shares` commands of about equal size, `parallel` of them (all) at once. More of
    them cost a start each, and end together more nearly: size says little of time. `without` is a folder that another
    part has."""

    def find():
        files = [
            path for path in (ROOT / folder).rglob("test_*.py") if without not in path.relative_to(ROOT / folder).parts
        ]
        files.sort(key=lambda path: path.stat().st_size)
        return [(f"pytest-{i + 1}", pytest(*sorted(files[i::shares]))) for i in range(min(shares, len(files)))]

    return Step(f"pytest {folder}", find, count="junit", parallel=parallel or shares)


def pytest_folders(*folders):
    """Folders of tests, each a command, run concurrently."""
    commands = [(Path(folder).name, pytest(folder)) for folder in folders]
    return Step("pytest", lambda: commands, count="junit", parallel=min(2, CPUS))


def deepspeed_tests(folder, parallel):
    """The files of a folder, each by the Python that has DeepSpeed in it."""
    python = ROOT / ".venv-deepspeed" / "bin" / "python"

    def find():
        return [
            (path.stem, pytest(path, python=python)) for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
        ]

    return Step(f"pytest {folder}", find, count="junit", parallel=parallel)


def library_tests():
    """tests/libraries, by the Python of tools/libraries.py."""
    return Step(
        "pytest", pytest("tests/libraries", python=ROOT / "build" / "libraries" / "bin" / "python"), count="junit"
    )


def hostile(level):
    """tests/hostile, as much of it as the level says."""
    return pytest_step("tests/hostile", env={"PENSTOCK_HOSTILE": level})


def attack(*options):
    """tests/attack: random programs against NumPy, torch and safetensors. An attack is one test; it names its seed."""
    return Step("attack", [PYTHON, "-m", "tests.attack", *options], count="junit", splits=False)


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
    "graph_test",
    "features_test",
    "device_test",
    "suite_test",
]


def tests(preset, *names, seeds, env=None):
    return Step(
        f"test {preset}",
        programs(preset, *names),
        count="gtest",
        parallel=AT_ONCE,
        env={**(env or {}), "PENSTOCK_TEST_SEEDS": str(seeds)},
    )


@lru_cache
def choice(*among):
    """The programs that a sanitizer takes of these (none: of all); see tools/test_choice.py."""
    return test_choice.choose(among)


def sanitized(preset, all_target, *names, whole, **more):
    """Build and tests of a sanitizer: of all these programs (none: all that there are), or of those that are chosen."""
    if whole:
        return [build(preset, *all_target), tests(preset, *names, **more)]

    def targets():
        left_out = choice(*names).left_out
        chosen = choice(*names).programs if left_out else all_target
        return [(f"build {preset}", [PYTHON, "tools/build.py", preset, *chosen])]

    def found():
        return programs(preset, *choice(*names).programs)()

    step = tests(preset, **more)
    step.argv = found
    return [Step(f"build {preset}", targets, gate=True), step]


# Files that `make smoke` on a fresh machine tries: the set-up, the build's own, and the package, which needs nothing.
SMOKE = (
    r"^tools/(setup\.sh|fresh\.sh|debian\.sh|requirements|apt-packages|build_wheel|sources|smoke)"
    r"|^Makefile$|CMakeLists\.txt$|^cmake/|^pyproject\.toml$|^python/penstock/"
)


def parts(level=None):
    """The parts of a level, after those of the levels before it; without a level, all that there are. In `.ci/run` the
    sanitizers choose their programs."""
    chosen = all_parts(level or "long")
    if level:
        at = LEVELS.index(level)
        chosen = [part for part in chosen if LEVELS.index(part.level) <= at <= LEVELS.index(part.until)]
    for part in chosen:
        if part.level == "long":  # a part that takes hours may print nothing for long
            part.steps = [replace(step, silent_s=step.silent_s or part.budget_s) for step in part.steps]
    return chosen


def all_parts(level="long"):
    whole = level != "ci"
    return [
        Part(
            "checks",
            200,
            [
                Step("layers", tool("check_layers")),
                Step("tidy", tool("check_tidy")),
                Step("headers", tool("check_headers", *([] if level == "long" else ["--changed"]))),
                pytest_shares("tests/tools", 3 * AT_ONCE, AT_ONCE),
            ],
        ),
        Part("release", 780, [build("release"), tests("release", seeds=25_000 if level == "test" else 100_000)]),
        Part(
            "python",
            400,
            [
                WHEEL,
                # Tables of tests/hostile that lack a new public function fail here.
                pytest_step("tests/hostile/test_complete.py"),
                pytest_shares("python/tests", 3 * AT_ONCE, AT_ONCE, without="deepnvme"),
            ],
            needs=["pyproject.toml", "python/tests"],
        ),
        Part(
            # Each is one process for most of its time.
            "benchmarks-examples",
            150,
            [WHEEL, pytest_folders("tests/benchmarks", "tests/examples")],
            needs=["tests/benchmarks/test_*.py", "examples/*.cpp"],
            level="ci",
        ),
        # Other people's programs on ours, and what the documents show.
        Part("deepnvme", 120, [WHEEL, pytest_shares("python/tests/deepnvme", AT_ONCE)], level="ci"),
        Part(
            "deepspeed",
            360,
            [WHEEL, deepspeed_tests("deepspeed", AT_ONCE)],
            needs=["tests/deepspeed/test_*.py"],
            level="ci",
        ),
        Part(
            "docs",
            180,
            [WHEEL, pytest_shares("tests/docs", min(2, CPUS))],
            needs=["tests/docs/test_*.py"],
            level="ci",
        ),
        Part(
            "asan-ubsan",
            1080,
            sanitized("asan-ubsan", [], whole=whole, seeds=2_000, env=ASAN),
            level="ci",
            about=None if whole else choice,
        ),
        Part(
            "tsan",
            840,
            sanitized("tsan", ["engine_tests"], *ENGINE_TESTS, whole=whole, seeds=500, env=TSAN),
            needs=["tests/engine/*.cpp"],
            level="ci",
            about=None if whole else lambda: choice(*ENGINE_TESTS),
        ),
        Part(
            # The set-up and the package in a Debian with nothing in it but git and make: no tool of this machine helps.
            "smoke",
            440,
            [Step("fresh machine", ["tools/fresh.sh", "smoke"])],
            level="ci",
            until="ci",
            skips=None if whole else lambda: test_choice.why_not_now(SMOKE),
        ),
        Part(
            "hostile",
            270,
            [WHEEL, hostile("ci")],
            needs=["tests/hostile/test_*.py"],
            level="ci",
            until="ci",
            again=False,
        ),
        Part("attack", 180, [WHEEL, attack("--ci")], needs=["tests/attack/__main__.py"], level="ci", again=False),
        Part(
            "hostile-long",
            3600,
            [WHEEL, hostile("all")],
            needs=["tests/hostile/test_*.py"],
            level="long",
            again=False,
        ),
        Part(
            # The same searches by the hour, with other seeds.
            "attack-long",
            14400,
            [WHEEL, attack("--long")],
            needs=["tests/attack/__main__.py"],
            level="long",
            again=False,
        ),
        Part(
            # Known defects are put back, one at a time: each search has to find its own.
            "planted",
            3600,
            [WHEEL, attack("--planted")],
            needs=["tests/attack/__main__.py"],
            level="long",
            again=False,
        ),
        Part("clang-tidy", 1800, [Step("clang-tidy", tool("run_clang_tidy"))], level="long"),
        Part(
            "fuzz",
            1200,
            [build("fuzz"), Step("fuzz", tool("run_fuzzers", "--seconds", "300"))],
            needs=["fuzz/*.cpp"],
            level="long",
            again=False,
        ),
        Part("seeds", 3600, [build("release"), tests("release", seeds=2_000_000)], level="long", again=False),
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
            again=False,
        ),
        Part("huge", 600, [WHEEL, pytest_step("tests/huge")], needs=["tests/huge/test_*.py"], level="long"),
        Part(
            # Thousands of states through every form, there and back.
            "properties",
            1200,
            [WHEEL, pytest_step("python/tests/test_grammar.py", env={"PENSTOCK_TEST_EXAMPLES": "20"})],
            needs=["python/tests/test_grammar.py"],
            level="long",
            again=False,
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
            # diffusers, sentence-transformers and lm_eval with streamed models, in an environment that pip makes.
            "libraries",
            900,
            [WHEEL, Step("environment", tool("libraries"), gate=True), library_tests()],
            needs=["tests/libraries/test_*.py"],
            level="long",
        ),
        Part(
            # The kept files of two older versions of torch are what these versions write: pip brings each (700 MB).
            "older-torches",
            900,
            [Step("older torches", tool("older_torches", "--check", "2.0.1", "2.12.1"))],
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
        Part(
            # Targets of the Makefile on a machine that has nothing: each set of packages in a system of its own.
            "fresh",
            5400,
            [
                Step("debian 12", ["tools/fresh.sh", "demo", "docs", "test", "wheels"]),
                Step("debian 12, bench", ["tools/fresh.sh", "bench IDS=engine.instructions_blocking"]),
            ],
            level="long",
        ),
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
                Step("programs", kernel_results("tests"), count="gtest", again=False, splits=False),
                Step("checks", kernel_results("check")),
            ],
            level="long",
        ),
    ]
