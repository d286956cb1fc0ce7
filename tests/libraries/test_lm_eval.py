# SPDX-License-Identifier: Apache-2.0
"""lm_eval's loop over tasks of each kind gives the scores and the answers of the model in memory."""

import json

import lm_eval
import penstock
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tiny_models import budgets

QUESTIONS = [("the cat", " sat"), ("on the", " mat"), ("a b", " c")]


def tasks(path):
    path.write_text("".join(json.dumps({"q": q, "a": a}) + "\n" for q, a in QUESTIONS))
    base = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}, "cache_dir": str(path.parent / "cache")},
        "test_split": "test",
    }
    choices = {"doc_to_text": "{{q}}", "doc_to_choice": [answer for _, answer in QUESTIONS], "doc_to_target": 0}
    text = {"doc_to_text": "{{q}}", "doc_to_target": "{{a}}"}
    return [
        {**base, **choices, "task": "choice", "output_type": "multiple_choice", "metric_list": [{"metric": "acc"}]},
        {
            **base,
            **text,
            "task": "text",
            "output_type": "generate_until",
            "generation_kwargs": {"until": ["x"], "max_gen_toks": 4},
            "metric_list": [{"metric": "exact_match"}],
        },
        {
            **base,
            "task": "rolling",
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{q}}",
            "metric_list": [{"metric": "word_perplexity"}],
        },
    ]


def test_the_loop_of_lm_eval(llama, tokenizer, tmp_path):
    folder, model = llama

    def run(given):
        made = HFLM(pretrained=given, tokenizer=tokenizer, batch_size=2, device="cpu", max_length=64)
        manager, all_tasks = TaskManager(include_defaults=False), tasks(tmp_path / "data.jsonl")
        found = lm_eval.simple_evaluate(
            model=made, tasks=all_tasks, bootstrap_iters=0, task_manager=manager, log_samples=True
        )
        return found["results"], {task: [one["resps"] for one in of] for task, of in found["samples"].items()}

    expected = run(model)
    for memory in budgets(None, folder, model)[:2]:
        streamed = penstock.stream(None, folder, memory=memory)
        assert run(streamed) == expected and streamed.stream_stats().bytes_read > 0
