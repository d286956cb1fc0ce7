# SPDX-License-Identifier: Apache-2.0
"""from_pretrained reads what penstock.save writes, one file or shards with an index, and penstock.load what
save_pretrained writes. Here because .venv-deepspeed is where packages are that nothing else needs."""

import json
import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
penstock = pytest.importorskip("penstock")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="needs transformers (tools/setup.sh)")


def model():
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).eval()


def answer(of):
    with torch.no_grad():
        return of(torch.arange(20).reshape(1, 20)).logits


@pytest.mark.parametrize("file", ["model.safetensors", "model.safetensors.index.json"])
def test_from_pretrained_reads_ours(tmp_path, file):
    ours = model()
    ours.config.architectures = ["LlamaForCausalLM"]
    ours.config.save_pretrained(tmp_path)
    penstock.save(ours.state_dict(), tmp_path / file, shard_bytes=100_000)
    if file.endswith(".json"):
        assert len(set(json.loads((tmp_path / file).read_text())["weight_map"].values())) > 3
    theirs, loading = transformers.LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    assert torch.equal(answer(ours), answer(theirs.eval()))


@pytest.mark.parametrize("shard", ["100KB", "1GB"])
def test_load_reads_save_pretrained(tmp_path, shard):
    theirs = model()
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() == (shard == "100KB")
    path = index if index.exists() else tmp_path / "model.safetensors"
    ours = model()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    penstock.load(path, into=ours.state_dict())
    assert torch.equal(answer(ours), answer(theirs))
    fresh = penstock.load(path)
    assert all(torch.equal(fresh[name], tensor) for name, tensor in theirs.state_dict().items())
    # And again by stock, what was loaded by us.
    ours.load_state_dict(fresh)
    ours.save_pretrained(tmp_path / "again")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(answer(again), answer(theirs))
