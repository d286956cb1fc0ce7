# SPDX-License-Identifier: Apache-2.0
"""Makes docs/status.md, and the figures in README.md, from what was run.

    tools/make_status.py                      after `make test`
    tools/make_status.py --logs DIR ...       results of several runs: a part counts as the last folder has it
    tools/make_status.py --bars run.json ...  takes the verdicts of `python -m benchmarks ... --json run.json` over into
                                              docs/bars.json first

The promises and the tests that prove them are in docs/promises.toml. Nothing is written by hand in status.md.
"""

import argparse
import fnmatch
import json
import re
import statistics
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]
from test_parts import parts  # noqa: E402

from benchmarks.bars import parse_limit  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test-logs"
BARS = ROOT / "docs" / "bars.json"
STATUS = ROOT / "docs" / "status.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"

LONG = {part.name for part in parts() if part.level == "long"}  # of `make test-long`
ELSEWHERE = {"kernels"}  # of these, what runs the same tests again, on other kernels

NOT_RUN = [
    ("Python 3.10, 3.12", "Debian 12, 13 and 14 have 3.11, 3.13 and 3.14 (`make test-long`, parts debian-13, -14)"),
    ("PyTorch other than 2.6.0 and 2.13.0", "2.6.0 is the oldest that is supported; it was run by hand on Python 3.11"),
    ("Linux 5.15 to 6.0", "6.1, 6.12 and 6.18 were run; for older ones rungs are switched off"),
    ("NVMe drives and NUMA machines other than emulated ones, a GPU", "the machine that ran this has none"),
]


def result_files(folders):
    """Of each part those of the last folder that has any."""
    last = {}
    for folder in folders:
        found = {}
        for path in sorted(folder.glob("*.xml")):
            found.setdefault(path.name.split(".")[0], []).append(path)
        last.update(found)
    return [(part, path) for part, paths in sorted(last.items()) for path in paths]


def test_results(*folders):
    """{test name: {part: passed | flaky | failed | skipped}} of all result files."""
    results = {}
    # Results of tests that were run again come last: one that passed is flaky.
    for part, path in sorted(result_files(folders), key=lambda found: is_again(found[1])):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name = f"{case.get('classname', '')}.{case.get('name', '')}"
            if case.find("failure") is not None or case.find("error") is not None:
                outcome = "failed"
            elif case.find("skipped") is not None or case.get("status") == "notrun":
                outcome = "skipped"
            else:
                outcome = "passed"
            known = results.setdefault(name, {})
            if is_again(path):
                known[part] = "flaky" if outcome == "passed" else known.get(part, outcome)
            else:
                known[part] = "failed" if "failed" in (known.get(part), outcome) else outcome
    return results


def is_again(path):
    """Whether these are the results of a test that tools/run_tests.py ran again, alone."""
    return ".again-" in path.name


def is_named(proof, name, part):
    """A proof PART:PATTERN is of one part; PATTERN alone of all parts but those of other kernels."""
    wanted, _, pattern = proof.rpartition(":")
    return fnmatch.fnmatchcase(name, pattern) and (part == wanted if wanted else part not in ELSEWHERE)


def verdict(proofs, results):
    """How the tests that the patterns name ended, and how many they were."""
    outcomes = [
        outcome
        for name, ran in results.items()
        for part, outcome in ran.items()
        if any(is_named(proof, name, part) for proof in proofs)
    ]
    failed, skipped, flaky = (outcomes.count(how) for how in ("failed", "skipped", "flaky"))
    if not outcomes:
        return "not run"
    if failed:
        return f"**failed** ({failed} of {len(outcomes)})"
    passed = len(outcomes) - skipped
    if not passed:
        return f"skipped ({skipped})"
    also = (f", {flaky} of them flaky" if flaky else "") + (f", {skipped} skipped" if skipped else "")
    return f"passed ({passed}{also})"


def absolute(metric, samples):
    """The median of the samples with its unit; empty where the metric has no unit that people compare."""
    if metric == "bandwidth":
        rates = [sample["bytes"] / sample["seconds"] for sample in samples if sample["seconds"]]
        return f"{statistics.median(rates) / 1e9:.2f} GB/s" if rates else ""
    if metric == "iops":
        rates = [sample["operations"] / sample["seconds"] for sample in samples if sample["seconds"]]
        return f"{statistics.median(rates) / 1e3:.0f} thousand a second" if rates else ""
    if metric == "seconds":
        times = [sample["seconds"] for sample in samples if sample["seconds"]]
        return f"{statistics.median(times):.2f} s" if times else ""
    if metric == "p50_us":
        times = [sample["p50_us"] for sample in samples if sample["p50_us"]]
        return f"{statistics.median(times):.0f} µs" if times else ""
    return ""


def take_bars(paths):
    known = json.loads(BARS.read_text()) if BARS.exists() else {}
    for path in paths:
        run = json.loads(Path(path).read_text())
        for bar in run["bars"]:
            # A row that could not run here says nothing of the last time that it could.
            if bar["handicap"] or (bar["verdict"] == "cannot-run" and bar["id"] in known):
                continue
            known[bar["id"]] = {
                "what": bar["what"],
                "peer": bar["peer"],
                "bar": bar["bar"],
                "place": bar["place"]["name"],
                "verdict": bar["verdict"],
                "reason": bar["reason"],
                "line": bar["line"],
                "time": run["environment"]["time_utc"],
                "kernel": run["environment"]["kernel"].split("-")[0],
                "cpus": run["environment"]["cpus_usable"],
                "ours": absolute(bar["metric"], bar["ours"]),
                "theirs": absolute(bar["metric"], bar["peers"]),
            }
    BARS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    return known


def figure(line):
    found = re.search(r"(?:ratio|diff|value)=(\S+) ci95=(\S+) aa=(\S+)", line)
    return found.groups() if found else ("", "", "")


def standing(row, bar):
    """The verdict of a bar; of an undecided one also the side of the bar that its figure stands on."""
    verdict = bar.get("verdict", "not run")
    number = re.match(r"[-+]?[0-9.]+", figure(bar["line"])[0]) if verdict == "undecided" else None
    return f"undecided, {parse_limit(row['bar']).side(float(number[0]))}" if number else verdict


def worst_first(table, bars):
    """What missed its bar, then what may have, then all else: a reader looks at the first rows."""
    ranks = {"missed": 0, "undecided, below the bar": 1, "undecided, above the bar": 1, "undecided, outside the bar": 1}
    ranks |= {"undecided, clears the bar": 2}
    return sorted(table, key=lambda row: ranks.get(standing(row, bars.get(row["id"], {})), 3))


def bar_table():
    return tomllib.loads((ROOT / "benchmarks" / "bars.toml").read_text())["bar"]


def bar_rows(table, bars):
    for row in worst_first(table, bars):
        name = row["id"]
        if name not in bars:
            peer = row.get("peer", "")
            yield f"| `{name}` | {row['what']} | {peer} | {row['place']} | {row['bar']} | | | not run |"
            continue
        bar = bars[name]
        value, interval, control = figure(bar["line"])
        yield (
            f"| `{name}` | {bar['what']} | {bar['peer']} | {bar['place']} | {bar['bar']} "
            f"| {value} {interval if interval not in ('', 'none') else ''} | {control if control != 'none' else ''} "
            f"| {standing(row, bar)}{': ' + bar['reason'] if bar['reason'] else ''} |"
        )


def run_record(folders):
    """What tools/run_tests.py says of the last whole run that left its results in these folders; {} if nothing."""
    records = [folder / "run.json" for folder in folders if (folder / "run.json").exists()]
    return json.loads(records[-1].read_text()) if records else {}


def run_text(record, before):
    """Lines on the last whole run that passed: its commit, from which tools/test_choice.py tells what changed, and the
    programs that its sanitizers left out. `before` is the page as it was: a run that is not whole changes nothing."""
    whole = record.get("level") in ("ci", "long") and not record["failed"] and not record["changed"]
    if not whole:
        kept = re.search(r"^The last `\.ci/run` that passed .*$", before, re.MULTILINE)
        return [kept[0], ""] if kept else []
    line = f"The last `.ci/run` that passed was of commit `{record['commit']}`."
    for part, programs in sorted(record["left_out"].items()):
        if programs:
            line += f" Of {part} it left out, for a run before or after it: {', '.join(programs)}."
    return [line, ""]


def status_text(promises, results, bars, notes, last_run=()):
    total = [outcome for ran in results.values() for part, outcome in ran.items() if part not in LONG]
    lines = [
        "# Status",
        "",
        "Made by `tools/make_status.py` from the last `make test` and the last run of each bar; nothing here is "
        "written by hand. How to read a verdict: [benchmarks/README.md](../benchmarks/README.md).",
        "",
        f"Last run: {total.count('passed') + total.count('flaky')} tests passed, {total.count('flaky')} of them flaky, "
        f"{total.count('failed')} failed, {total.count('skipped')} skipped, over release, sanitizers and Python.",
        "",
        *last_run,
        "## Promises",
        "",
        "| promise | proof | last verdict |",
        "|---|---|---|",
    ]
    for promise in promises:
        proofs = ", ".join(f"`{proof}`" for proof in promise["proof"])
        lines.append(f"| {promise['what']} | {proofs} | {verdict(promise['proof'], results)} |")
    lines += [
        "",
        "## Bars",
        "",
        "The figure is ours to the peer (or a count), with its 95 % interval; next to it the peer against itself. What "
        "missed its bar comes first, then what is undecided; of that, the side is where the figure itself stands.",
        "",
        "| id | what | against | place | bar | figure | peer against itself | verdict |",
        "|---|---|---|---|---|---|---|---|",
        *bar_rows(bar_table(), bars),
        "",
    ]
    machines = sorted({f"kernel {bar['kernel']}, {bar['cpus']} cores" for bar in bars.values()})
    if machines:
        lines += [f"Run on: {'; '.join(machines)}, a virtual machine.", ""]
    lines += [*notes, "## Not run", "", "| what | why |", "|---|---|"]
    lines += [f"| {what} | {why} |" for what, why in NOT_RUN]
    return "\n".join(lines) + "\n"


def standings(table, bars):
    """How many rows met their bar, in a sentence that names those that did not."""
    by_verdict = {}
    for row in table:
        verdict = bars.get(row["id"], {}).get("verdict", "not run")
        by_verdict.setdefault(verdict, []).append(f"`{row['id']}`")
    counts = ", ".join(f"{len(names)} {verdict}" for verdict, names in sorted(by_verdict.items()))
    missed = by_verdict.get("missed")
    return f"Of all {len(table)} rows: {counts}." + (f" Missed: {', '.join(missed)}." if missed else "")


PLACES = {
    "throttled": "a loop device in memory, limited to the rate shown",
    "loop": "a loop device in memory, without a limit",
    "disk": "the disk of a virtual machine",
    "memory": "memory",
}


def place_text(row):
    """Where a row is measured, with the limits of the device."""
    rate = row.get("rate", {})
    limits = [f"{rate['bps'] / 1e9:g} GB/s"] if "bps" in rate else []
    limits += [f"{rate['iops']:,} operations/s"] if "iops" in rate else []
    return ", ".join([row["place"], *limits])


def readme_figures(table, bars, chosen):
    """The figures that the README shows, those of docs/promises.toml, whatever their verdict."""
    rows = ["| what | where | Penstock | compared with | ratio | limit: verdict |", "|---|---|---|---|---|---|"]
    known = {row["id"]: row for row in table}
    places = set()
    for name in chosen:
        row, bar = known[name], bars.get(name, {"line": ""})
        places.add(row["place"])
        value, interval, _ = figure(bar["line"])
        theirs = f": {bar['theirs']}" if bar.get("theirs") else ""
        rows.append(
            f"| {row['what']} (`{name}`) | {place_text(row)} | {bar.get('ours') or 'not kept'} "
            f"| {row.get('peer', '')}{theirs} | {value} {interval} | {row['bar']}: {standing(row, bar)} |"
        )
    machines = sorted({f"{bar['cpus']} cores, kernel {bar['kernel']}" for bar in bars.values()})
    where = "; ".join(f"`{place}` is {PLACES[place]}" for place in sorted(places) if place in PLACES)
    rows += [
        "",
        f"Measured on a virtual machine ({'; '.join(machines)}) without an NVMe drive: {where}. Penstock and what it "
        "is compared with ran in turns. The ratio is Penstock's figure divided by the other's, with its 95 % interval; "
        "where the limit is `>=` a higher ratio is better, where it is `<=` a lower one. `undecided`: the interval "
        "contains the limit, or the machine was too noisy. `not kept`: that run kept the ratio alone.",
        "",
        standings(table, bars),
    ]
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--bars", nargs="+", default=[], metavar="FILE", help="JSON of the benchmark runner to take over"
    )
    parser.add_argument("--logs", type=Path, nargs="+", default=[LOGS], help="where the results of `make test` are")
    arguments = parser.parse_args()

    table = tomllib.loads((ROOT / "docs" / "promises.toml").read_text())
    results = test_results(*arguments.logs)
    if not results:
        sys.exit(f"no test results in {', '.join(map(str, arguments.logs))}; run `make test` first")
    for promise in table["promise"]:
        for proof in promise["proof"]:
            if not any(is_named(proof, name, part) for name, ran in results.items() for part in ran):
                print(f"no test is named {proof}, which is to prove: {promise['what']}", file=sys.stderr)
    bars = take_bars(arguments.bars)
    notes = []
    if table.get("note"):
        notes = ["## Notes on the bars", "", *(f"- {note}" for note in table["note"]), ""]
    last_run = run_text(run_record(arguments.logs), STATUS.read_text() if STATUS.exists() else "")
    STATUS.write_text(status_text(table["promise"], results, bars, notes, last_run))
    readme = README.read_text()
    begin, end = readme.index(BEGIN) + len(BEGIN), readme.index(END)
    README.write_text(f"{readme[:begin]}\n{readme_figures(bar_table(), bars, table['readme'])}\n{readme[end:]}")
    print(f"{STATUS.relative_to(ROOT)}: {len(table['promise'])} promises, {len(bars)} bars")


if __name__ == "__main__":
    main()
