# SPDX-License-Identifier: Apache-2.0
"""Models that transformers converts when it loads them, and mixtures of experts, give the bits of
from_pretrained(dtype="auto"), with experts="eager"."""

import shutil
import threading
import time

import penstock
import pytest
import torch
import transformers
from penstock.weights._away import is_away
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import PermuteForRope, Transpose, WeightConverter

SMALL = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "vocab_size": 1000}
DECODER = {**SMALL, "num_hidden_layers": 3, "num_key_value_heads": 2, "max_position_embeddings": 128}
QWEN = {**DECODER, "num_experts": 16, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 16}
GPT_OSS = {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 32}


class ConvertedLlama(transformers.LlamaForCausalLM):
    """Its files have weights transposed, and for another rotary embedding."""


register_checkpoint_conversion_mapping(
    "ConvertedLlama",
    [
        WeightConverter("mlp.down_proj.weight", "mlp.down_proj.weight", [Transpose(0, 1)]),
        WeightConverter("self_attn.q_proj.weight", "self_attn.q_proj.weight", [PermuteForRope()]),
    ],
)

MODELS = {
    "mixtral": (transformers.MixtralForCausalLM, transformers.MixtralConfig, {**DECODER, "num_local_experts": 4}),
    "qwen3-moe": (transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig, QWEN),
    "gpt-oss": (transformers.GptOssForCausalLM, transformers.GptOssConfig, {**DECODER, **GPT_OSS}),
    "nomic-bert": (transformers.NomicBertForMaskedLM, transformers.NomicBertConfig, {**SMALL, "num_hidden_layers": 3}),
    "computed": (ConvertedLlama, transformers.LlamaConfig, DECODER),
}
MIXTURES = ("mixtral", "qwen3-moe", "gpt-oss")


def saved(name, dtype, folder):
    cls, config, values = MODELS[name]
    torch.manual_seed(1)
    made = cls(config(**values)).to(dtype)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.05)  # biases, too, and routers that choose
    made.save_pretrained(folder, max_shard_size="300kB")
    model = cls.from_pretrained(folder, dtype="auto").eval()
    if name in MIXTURES:
        model.set_experts_implementation("eager")
    return cls, model


def least(cls, folder):
    with pytest.raises(MemoryError, match="the least that works for this model is") as refused:
        penstock.stream(cls, folder, memory=1000)
    return int(str(refused.value).split("the least that works for this model is ")[1].split()[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_any_budget_gives_the_bits_of_the_model_in_memory(name, dtype, tmp_path):
    cls, model = saved(name, dtype, tmp_path)
    total = sum(parameter.nbytes for parameter in model.parameters())
    inputs = [torch.randint(0, 1000, shape) for shape in ((1, 5), (8, 7))]
    options = {"max_new_tokens": 4, "do_sample": False}
    with torch.no_grad():
        expected = [model(ids).logits for ids in inputs]
    tokens = [model.generate(ids, **options) for ids in inputs] if model.can_generate() else []
    for memory in (least(cls, tmp_path), total * 6 // 10, 2 * total):
        streamed = penstock.stream(cls, tmp_path, memory=memory)
        for ids, logits in zip(inputs, expected, strict=True):
            with torch.no_grad():
                assert torch.equal(streamed(ids).logits, logits), memory
        for ids, generated in zip(inputs, tokens, strict=bool(tokens)):
            assert torch.equal(streamed.generate(ids, **options), generated), memory
        stats = streamed.stream_stats()
        assert stats.plan["used_bytes"] <= memory
        assert (stats.expert_misses > 0) == (name in MIXTURES and memory < total)
    streamed = penstock.stream(cls, tmp_path, memory=total * 6 // 10)
    streamed.unstream()
    assert streamed.get_experts_implementation() == cls.from_pretrained(tmp_path).get_experts_implementation()
    for one, other in zip(streamed.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_only_experts_that_the_router_chose_are_read(tmp_path):
    cls, model = saved("qwen3-moe", torch.bfloat16, tmp_path)
    total = sum(parameter.nbytes for parameter in model.parameters())
    streamed = penstock.stream(cls, tmp_path, memory=total * 6 // 10)
    expert = 3 * 48 * 64 * 2
    for passes, token in enumerate((5, 900, 17), 1):
        with torch.no_grad():
            streamed(torch.tensor([[token]]))
        stats = streamed.stream_stats()
        assert stats.expert_hits + stats.expert_misses == passes * 3 * 3  # layers, experts a token
        assert stats.expert_bytes_read == (stats.expert_misses + stats.expert_likely_reads) * expert
        assert stats.expert_likely_hits <= stats.expert_likely_reads
    with torch.no_grad():
        streamed(torch.tensor([[17]]))
    assert streamed.stream_stats().expert_hits > stats.expert_hits  # those of the same token were there
    assert is_away(streamed.model.layers[0].mlp.experts.down_proj)


@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
def test_another_implementation_of_experts_is_refused_with_what_to_do(implementation, tmp_path):
    cls, model = saved("qwen3-moe", torch.bfloat16, tmp_path)
    total = sum(parameter.nbytes for parameter in model.parameters())
    streamed = penstock.stream(cls, tmp_path, memory=total * 6 // 10)
    ids = torch.randint(0, 1000, (2, 6))
    streamed.set_experts_implementation(implementation)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"layers\.0\.mlp\.experts\..*implementation\('penstock'\)"):
        streamed(ids)
    streamed.set_experts_implementation("penstock")
    with torch.no_grad():
        assert torch.equal(streamed(ids).logits, model(ids).logits)


def test_a_budget_of_a_mixture_may_change(tmp_path):
    cls, model = saved("mixtral", torch.float32, tmp_path)
    total = sum(parameter.nbytes for parameter in model.parameters())
    ids = torch.randint(0, 1000, (2, 9))
    with torch.no_grad():
        expected = model(ids).logits
        small = least(cls, tmp_path)
        streamed = penstock.stream(cls, tmp_path, memory=small)
        for memory in (total * 8 // 10, small, total * 7 // 10):
            streamed.set_memory(memory)
            assert torch.equal(streamed(ids).logits, expected)
            plan = streamed.stream_stats().plan
            experts = plan["experts"]
            assert plan["used_bytes"] + experts["slots"] * experts["slot_bytes"] <= memory


def test_copies_in_two_folders_give_the_experts_together(tmp_path):
    cls, model = saved("qwen3-moe", torch.bfloat16, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    total = sum(parameter.nbytes for parameter in model.parameters())
    streamed = penstock.stream(cls, [tmp_path / "a", tmp_path / "b"], memory=total // 2)
    ids = torch.randint(0, 1000, (4, 6))
    with torch.no_grad():
        assert torch.equal(streamed(ids).logits, model(ids).logits)
    stats = streamed.stream_stats()
    assert sum(folder.bytes_read for folder in stats.folders) == stats.bytes_read + stats.expert_bytes_read


def test_a_conversion_that_fails_is_refused_by_name(tmp_path):
    config = transformers.MixtralConfig(**DECODER, num_local_experts=2)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    state = penstock.load(tmp_path / "model.safetensors")
    name = "model.layers.1.block_sparse_moe.experts.1.w3.weight"
    state[name] = state[name][:-1].clone()
    penstock.save(state, tmp_path / "model.safetensors")
    with pytest.raises(NotImplementedError, match=r"model\.layers\.1\.mlp\.experts\.gate_up_proj.*MergeModulelist"):
        penstock.stream(None, tmp_path, memory="1GiB")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_pass_that_ends_among_experts_is_followed_by_a_right_one(error, tmp_path):
    cls, model = saved("qwen3-moe", torch.float32, tmp_path)
    ids = torch.randint(0, 1000, (2, 6))
    with torch.no_grad():
        expected = model(ids).logits
        streamed = penstock.stream(cls, tmp_path, memory=least(cls, tmp_path))
        experts = streamed.model.layers[1].mlp.experts
        for calls in (1, 2, 4):  # in later waves, too
            left = iter(range(calls))

            def fail(*_, left=left):
                if next(left, None) is None:
                    raise error

            handle = experts.act_fn.register_forward_pre_hook(fail)
            with pytest.raises(error):
                streamed(ids)
            handle.remove()
            assert is_away(experts.down_proj) and is_away(streamed.model.layers[1].self_attn.q_proj.weight)
            assert torch.equal(streamed(ids).logits, expected)


def test_a_shard_that_is_cut_is_reported_with_the_expert(tmp_path):
    cls, _ = saved("mixtral", torch.float32, tmp_path)
    streamed = penstock.stream(cls, tmp_path, memory=least(cls, tmp_path))
    name = "model.layers.2.block_sparse_moe.experts.0.w1.weight"
    shard = next(info.path for info in penstock.inspect(tmp_path / "model.safetensors.index.json") if info.name == name)
    with torch.no_grad():
        streamed.model.layers[0].mlp.experts(torch.ones(1, 64), torch.tensor([[0, 1]]), torch.ones(1, 2))
        with open(shard, "r+b") as file:
            file.truncate(4096)
        with pytest.raises(penstock.Error, match=r"layers\.2\.mlp\.experts.*expert [0-3], tensor.*tries again"):
            streamed.model.layers[2].mlp.experts(torch.ones(1, 64), torch.tensor([[0, 1, 2, 3]]), torch.ones(1, 4))
    assert is_away(streamed.model.layers[2].mlp.experts.down_proj)


def test_threads_take_turns(tmp_path):
    cls, model = saved("mixtral", torch.bfloat16, tmp_path)
    streamed = penstock.stream(cls, tmp_path, memory=least(cls, tmp_path))
    ids = torch.randint(0, 1000, (3, 4))
    with torch.no_grad():
        expected = model(ids).logits
    wrong = []

    def work():
        with torch.no_grad():
            for _ in range(3):
                wrong.extend([] if torch.equal(streamed(ids).logits, expected) else [1])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", MIXTURES)
def test_the_plan_has_the_share_and_the_reads_of_experts(name, tmp_path):
    cls, model = saved(name, torch.bfloat16, tmp_path)
    total = sum(parameter.nbytes for parameter in model.parameters())
    streamed = penstock.stream(cls, tmp_path, memory=total * 6 // 10)
    plan = penstock.weights.plan(tmp_path, total * 6 // 10)
    found = streamed.stream_stats()
    assert plan.experts.slots == pytest.approx(found.plan["experts"]["slots"], abs=2)
    assert plan.experts.chosen == model.config.num_experts_per_tok * model.config.num_hidden_layers
    ids = torch.randint(0, 1000, (200, 1, 1), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for token in ids[:50]:
            streamed(token)  # the cache is full
        before = streamed.stream_stats()
        for token in ids[50:]:
            streamed(token)
    after = streamed.stream_stats()
    read = (after.expert_bytes_read - before.expert_bytes_read) / 150
    assert read <= 1.15 * plan.experts.read_bytes  # a router that prefers some finds more in memory


def test_experts_follow_the_memory_that_is_left(tmp_path, monkeypatch):
    cls, model = saved("qwen3-moe", torch.bfloat16, tmp_path)
    total = sum(parameter.nbytes for parameter in model.parameters())
    monkeypatch.setattr(penstock.weights._device.Target, "budget", lambda self, memory: total * 7 // 10)
    # Nothing is left to others, so all that can be given back is.
    monkeypatch.setattr(penstock.weights._device, "RESERVE_BYTES", 1 << 50)
    streamed = penstock.stream(cls, tmp_path, memory="auto")
    before = streamed.stream_stats().plan["experts"]["slots"]
    ids = torch.randint(0, 1000, (1, 6))
    with torch.no_grad():
        expected = model(ids).logits
        for _ in range(3):
            time.sleep(0.15)
            assert torch.equal(streamed(ids).logits, expected)
    assert before > 2 and streamed.stream_stats().plan["experts"]["slots"] == 2
