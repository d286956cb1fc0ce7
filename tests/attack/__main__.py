# SPDX-License-Identifier: Apache-2.0
"""Attacks on the Python package: random use, compared with NumPy, torch and safetensors.

    python -m tests.attack --list                       the attacks, and what each does
    python -m tests.attack engine --seconds 60          one of them, from a seed that is printed
    python -m tests.attack engine --seed 7 --round 12   one round again, as a failure prints it
    python -m tests.attack --ci                         all of them with fixed seeds, about 90 s
    python -m tests.attack --long --seconds 7200        all of them with a new seed, for hours
    python -m tests.attack --planted                    builds a package with defects that can be switched on, and
                                                        shows that the attacks find each

A failure prints the seed, the round, the step, what differs, the last steps, and a command line that does the fewest
steps that still fail. Nothing is left behind: each attack works in a folder that is made for it and removed.
"""

import argparse
import concurrent.futures
import os
import random
import sys
import time
import xml.etree.ElementTree as ElementTree

from tests.attack import planted
from tests.attack.catalogue import ATTACKS
from tests.attack.runner import Session, Stopped, report

CI_SEED = 1
CI_S = 90
LONG_S = 3600
START_S = 4  # of a child: importing torch, and what a round that has begun takes


def seconds_each(seconds, names, jobs):
    return max(1.0, seconds * jobs / len(names) - START_S)


def all_of(session, names, seed, seconds, shrink=True, environment=None):
    """Several attacks, as many at a time as there are CPUs, at most two."""
    jobs = min(2, len(os.sched_getaffinity(0)), len(names))
    each = seconds_each(seconds, names, jobs)
    results = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        begun = [pool.submit(session.run, name, seed, each, None, None, environment, jobs == 1) for name in names]
        for future in concurrent.futures.as_completed(begun):
            results.append(future.result())
            report(session, results[-1], shrink, environment)
    return results


def write_xml(path, results):
    """As pytest writes it: tools/run_tests.py and docs/status.md count attacks by name."""
    suite = ElementTree.Element("testsuite", name="attack")
    for result in results:
        case = ElementTree.SubElement(
            suite, "testcase", classname=result.suite, name=result.name, time=f"{result.seconds:.1f}"
        )
        if result.verdict == "skipped":
            ElementTree.SubElement(case, "skipped", message=result.text)
        elif result.failed:
            ElementTree.SubElement(case, "failure", message=result.verdict).text = printable(result.text)
    ElementTree.ElementTree(suite).write(path)


def printable(text):
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def summary(results, xml=None):
    """The last line; the exit status."""
    if xml:
        write_xml(xml, results)
    failed = sum(result.failed for result in results)
    skipped = sum(result.verdict == "skipped" for result in results)
    print(f"{len(results) - failed - skipped} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


def numbers(text):
    return [int(part) for part in text.split(",")]


def parsed():
    parser = argparse.ArgumentParser(
        prog="python -m tests.attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="an attack of --list; several run at a time")
    parser.add_argument("--list", action="store_true", help="the attacks and the planted defects")
    parser.add_argument("--ci", action="store_true", help=f"all, with seed {CI_SEED}, in about {CI_S} s")
    parser.add_argument("--long", action="store_true", help="all, with a new seed, for --seconds in all (an hour)")
    parser.add_argument("--planted", action="store_true", help="each defect that is put back must be found")
    parser.add_argument("--defect", action="append", metavar="NAME", help="with --planted: only this one")
    parser.add_argument("--seconds", type=float, help="of each attack (20); with --ci and --long, of all together")
    parser.add_argument("--seed", type=int, help="for the same rounds again; otherwise one is drawn and printed")
    parser.add_argument("--round", type=int, help="one round alone, as a failure prints it")
    parser.add_argument("--steps", type=numbers, metavar="N,N", help="with --round: only these steps of it")
    parser.add_argument("--folder", metavar="D", help="make the temporary folder here (another disk or file system)")
    parser.add_argument("--junitxml", metavar="FILE", help="write the results here, as pytest does")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for the fewest steps of a failure")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in ATTACKS]
    if unknown:
        parser.error(f"no attack '{unknown[0]}'; --list names them: {', '.join(ATTACKS)}")
    if args.steps is not None and args.round is None:
        parser.error("--steps are of one round: give --round too")
    if args.round is not None and (args.seed is None or len(args.names) != 1):
        parser.error("--round needs one NAME and its --seed, as a failure prints them")
    if not (args.names or args.list or args.ci or args.long or args.planted):
        parser.error("give an attack, or --ci, --long, --planted; --list names the attacks")
    return args


def listed():
    for name, attack in ATTACKS.items():
        print(f"{name:16} {attack.what}")
    print("\nplanted defects (--planted), and the attack that has to find each:")
    for name, defect in planted.DEFECTS.items():
        print(f"{name:24} {defect.attack:16} {defect.what}")
    return 0


def main():
    args = parsed()
    if args.list:
        return listed()
    with Session(args.folder) as session:
        if args.planted:
            return summary(planted.check(session, args.defect, args.seed or CI_SEED), args.junitxml)
        names = args.names or list(ATTACKS)
        seed = args.seed
        if seed is None:
            seed = CI_SEED if args.ci else random.SystemRandom().randrange(1 << 31)
        if args.round is not None or len(names) == 1:
            result = session.run(names[0], seed, args.seconds or 20, args.round, args.steps)
            report(session, result, not args.no_shrink and args.round is None)
            return summary([result], args.junitxml)
        if args.ci or args.long:
            seconds = args.seconds or (CI_S if args.ci else LONG_S)
        else:
            seconds = (args.seconds or 20) * len(names)
        print(f"{len(names)} attacks, seed {seed}, about {seconds:.0f} s", flush=True)
        began = time.monotonic()
        results = all_of(session, names, seed, seconds, not args.no_shrink)
        print(f"{time.monotonic() - began:.0f} s")
        return summary(results, args.junitxml)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stopped as stopped:
        sys.exit(f"stopped by {stopped}; its folder is removed")
