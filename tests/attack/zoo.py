# SPDX-License-Identifier: Apache-2.0
"""Small random models of transformers, written by save_pretrained and streamed within odd budgets.

A round is one model of zoo_models.py, with a type, shards and an implementation of attention of its own. What it
computes equals what from_pretrained gives, to the bit: forward, generate, and after unstream().
"""

import os
import re

import penstock
import torch
import transformers

from tests.attack.run import Wrong
from tests.attack.zoo_models import MODELS, inputs, of

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHARES = [0, 0.3, 0.55, 0.8, 2]  # of the weights, as the budget; 0: the least that works
SHAPES = [(1, 1), (1, 7), (3, 12)]
GENERATE = [
    {"do_sample": False},
    {"num_beams": 3},
    {"do_sample": True, "top_k": 20},
    {"cache_implementation": "static"},
    {"use_cache": False},
]


def tensors_of(output):
    if isinstance(output, torch.Tensor):
        return [output]
    parts = output.values() if hasattr(output, "values") else output if isinstance(output, (list, tuple)) else []
    return [tensor for part in parts for tensor in tensors_of(part)]


def expect(got, wanted, what):
    got, wanted = tensors_of(got), tensors_of(wanted)
    if len(got) != len(wanted):
        raise Wrong(f"{what}: {len(got)} tensors, and {len(wanted)} are expected")
    for a, b in zip(got, wanted):
        if a.dtype != b.dtype or a.shape != b.shape:
            raise Wrong(f"{what}: {a.dtype} {tuple(a.shape)}, and {b.dtype} {tuple(b.shape)} is expected")
        if a.contiguous().view(torch.uint8).ne(b.contiguous().view(torch.uint8)).any():
            raise Wrong(f"wrong bits: {what}, {a.dtype} {tuple(a.shape)}")


def eager_experts(model):
    """A streamed model computes what these compute."""
    try:
        model.set_experts_implementation("eager")
    except (AttributeError, ValueError):  # it has no experts
        pass


class Model:
    """One of the zoo, in a folder as save_pretrained writes it, and the same model by from_pretrained."""

    def __init__(self, run):
        r = run.random
        self.run = run
        self.name = list(MODELS)[run.round % len(MODELS)]
        self.folder = f"{run.folder}/model"
        self.kind, config = of(transformers, self.name)
        dtype, shards = r.choice(DTYPES), r.choice(["1GB", "60KB"])
        self.attention = r.choice(["sdpa", "eager"])
        run.note(self.name, dtype, shards, self.attention)
        torch.manual_seed(r.getrandbits(30))
        model = self.kind(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
        model.to(dtype).save_pretrained(self.folder, max_shard_size=shards)
        self.bytes = sum(entry.stat().st_size for entry in os.scandir(self.folder) if "safetensors" in entry.name)
        try:
            self.stock = self.from_pretrained()
        except ValueError:  # it has no such attention
            self.attention = "eager"
            self.stock = self.from_pretrained()
        eager_experts(self.stock)
        self.by_folder = self.attention == "sdpa" and r.random() < 0.5

    def from_pretrained(self):
        return self.kind.from_pretrained(self.folder, dtype="auto", attn_implementation=self.attention).eval()

    def streamed(self, share):
        """The model within a share of its bytes, or within the least that works."""
        budget = max(1, int(self.bytes * share))
        try:
            return self.within(budget)
        except MemoryError as error:
            least = re.search(r"for this model is (\d+)", str(error))
            self.run.check(least, f"{self.name}: an error about the budget does not name the least: {error}")
            return self.within(int(least.group(1)))

    def within(self, budget):
        """By its folder alone, or an instance, which may have a type that from_pretrained does not give: refused."""
        if self.by_folder:
            return penstock.stream(None, self.folder, memory=budget)
        try:
            return penstock.stream(self.instance(), self.folder, memory=budget)
        except ValueError:
            if len({parameter.dtype for parameter in self.stock.parameters()}) == 1:
                raise
            self.run.count("refused")
        model = self.instance()
        dtypes = {name: parameter.dtype for name, parameter in self.stock.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(dtypes[name])
        return penstock.stream(model, self.folder, memory=budget)

    def instance(self):
        config = transformers.AutoConfig.from_pretrained(self.folder)
        config._attn_implementation = self.attention
        before = torch.get_default_dtype()
        torch.set_default_dtype(next(self.stock.parameters()).dtype)
        try:
            with torch.device("meta"):
                return self.kind(config).eval()
        finally:
            torch.set_default_dtype(before)

    def inputs(self, batch, length):
        """Sound is of the type that the model's first weight has."""
        dtype = next(self.stock.parameters()).dtype
        given = inputs(torch, self.name, batch, length)
        return {name: one.to(dtype) if one.is_floating_point() else one for name, one in given.items()}

    def compare(self, share):
        streamed = self.streamed(share)
        what = f"{self.name} within {share} of its bytes"
        with torch.no_grad():
            for batch, length in SHAPES:
                given = self.inputs(batch, length)
                expect(streamed(**given), self.stock(**given), f"{what}, forward of {batch} x {length}")
                self.run.count("forwards")
            if self.stock.can_generate():
                self.generate(streamed, what)
            streamed.unstream()
            eager_experts(streamed)
            given = self.inputs(1, 7)
            expect(streamed(**given), self.stock(**given), f"{what}, after unstream()")

    def generate(self, streamed, what):
        given = self.inputs(2, 9)
        given.pop("decoder_input_ids", None)
        how = self.run.random.choice(GENERATE)
        torch.manual_seed(1)
        try:
            wanted = self.stock.generate(**given, max_new_tokens=6, **how)
        except Exception:  # this one cannot do so
            self.run.count("not generated")
            return
        torch.manual_seed(1)
        expect(streamed.generate(**given, max_new_tokens=6, **how), wanted, f"{what}, generate({how})")
        self.run.count("generated")


def attack(run):
    torch.set_num_threads(1)
    model = Model(run)
    for step in run.steps(len(SHARES)):
        run.note("budget", SHARES[step])
        model.compare(SHARES[step])
        run.count("models streamed")
