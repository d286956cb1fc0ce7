# SPDX-License-Identifier: Apache-2.0
"""The examples as a user has them: built against the installed package, and run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-deepspeed" / "bin" / "python"  # has transformers
LLAMA = ROOT / "build" / "examples" / "cmake" / "stream_llama"


@pytest.fixture(scope="module")
def built():
    return subprocess.run(
        [sys.executable, "tools/check_examples.py"], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def test_examples_build_against_the_installed_package_and_run(built):
    assert built.returncode == 0, built.stdout + built.stderr


TOKENS = """
import json, sys, torch, transformers
from pathlib import Path

shape = dict(hidden_size=64, intermediate_size=160, num_hidden_layers=5, num_attention_heads=8, vocab_size=500,
             max_position_embeddings=128, initializer_range=0.2, eos_token_id=None)
for seed, more in ((1, dict(num_key_value_heads=2)),
                   (2, dict(num_key_value_heads=8, tie_word_embeddings=True, head_dim=16, rms_norm_eps=1e-5,
                            rope_parameters=dict(rope_theta=500.0, rope_type="default")))):
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **more)).eval()
    folder = Path(sys.argv[1]) / str(seed)
    model.save_pretrained(folder, max_shard_size="400kB")
    prompt = torch.randint(0, 500, (1, 7))
    tokens = model.generate(prompt, max_new_tokens=24, do_sample=False)[0, 7:]
    (folder / "tokens.json").write_text(json.dumps([prompt[0].tolist(), tokens.tolist()]))
"""


@pytest.mark.skipif(not PYTHON.exists(), reason="no transformers: there is no .venv-deepspeed (tools/setup.sh test)")
def test_a_llama_in_cpp_generates_the_tokens_of_transformers(built, tmp_path):
    if not LLAMA.exists():
        pytest.skip("no Eigen: apt-get install libeigen3-dev")
    # Without PYTHONPATH: that environment has a Python of its own.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([PYTHON, "-c", TOKENS, tmp_path], env=env, check=True, timeout=120)
    for seed in ("1", "2"):
        folder = tmp_path / seed
        prompt, tokens = json.loads((folder / "tokens.json").read_text())
        assert len(tokens) == 24 and len(set(tokens)) > 3
        found = {}
        for memory in (700_000, 10_000_000):
            done = subprocess.run(
                [LLAMA, folder, str(memory), "24", *map(str, prompt)], capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            assert [int(word) for word in done.stdout.split()] == tokens, (seed, memory)
            found[memory] = int(done.stderr.split(" are read in each pass")[0].split()[-1])
        assert found[700_000] > 0 and found[10_000_000] == 0
    refused = subprocess.run([LLAMA, folder, "1000", "1", "1"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and "is too small for these units" in refused.stderr
