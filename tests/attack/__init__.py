# SPDX-License-Identifier: Apache-2.0
"""Attacks: random use of the Python package, compared with NumPy, torch and safetensors.

    catalogue.py    the attacks: names, what they do, what they need
    __main__.py     the command line; it starts children and imports neither torch nor Penstock
    runner.py       a child for each attack: time limits, folders, verdicts, what is printed of a failure
    child.py        the child: rounds of an attack, and the search for the fewest steps that fail
    run.py          what an attack is given: random numbers of a round and of a step, a folder, checks
    states.py, alike.py, files.py   random states, their comparison to the bit, files of other libraries
    planted.py      a package with defects that can be switched on, and which attack has to find which
    the rest        an attack each: a function attack(run) that does one round

A round depends on the seed and its number alone, and a step of it also on the steps before. So a failure is
replayed by its seed, its round and its steps. Attacks with threads and processes replay the plan, not the moments.
"""
