# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of verbs: the files that penstock.plan reads, and the folders that it measures."""

import json
from pathlib import Path

import penstock.plan as plan
from verbs import verb

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
JOBS = {"length": "1h", "jobs": [{"kind": "restore", "bytes": "36GB", "within": "1min"}]}


@verb("plan:config.json", torch=False)
def a_config(box):
    folder = Path(box.file(name="d")).parent
    (folder / "config.json").write_text(json.dumps(LLAMA))
    with box.call():
        answer = plan.checkpoint(config=folder, optimizer="weights")
    assert answer["checkpoint_bytes"].value == 2 * plan.model(config=LLAMA).parameters


@verb("plan:jobs", torch=False)
def a_file_of_jobs(box):
    path = Path(box.file(name="json"))
    path.write_text(json.dumps(JOBS))
    with box.call():
        answer = plan.mix(path)
    assert answer["peak_bytes_per_second"].value == 600e6
