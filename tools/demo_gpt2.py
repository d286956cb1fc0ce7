# SPDX-License-Identifier: Apache-2.0
"""GPT-2 small as it is published: names, shapes and element type of its 148 tensors; values made on the spot."""

import torch

WIDTH, BLOCKS, VOCABULARY, CONTEXT = 768, 12, 50257, 1024


def shapes():
    """(name, shape) in the order of the model. The output layer is wte itself, so it is not stored twice."""
    yield "wte.weight", (VOCABULARY, WIDTH)
    yield "wpe.weight", (CONTEXT, WIDTH)
    for block in range(BLOCKS):
        for name, shape in (
            ("ln_1.weight", (WIDTH,)),
            ("ln_1.bias", (WIDTH,)),
            ("attn.c_attn.weight", (WIDTH, 3 * WIDTH)),
            ("attn.c_attn.bias", (3 * WIDTH,)),
            ("attn.c_proj.weight", (WIDTH, WIDTH)),
            ("attn.c_proj.bias", (WIDTH,)),
            ("ln_2.weight", (WIDTH,)),
            ("ln_2.bias", (WIDTH,)),
            ("mlp.c_fc.weight", (WIDTH, 4 * WIDTH)),
            ("mlp.c_fc.bias", (4 * WIDTH,)),
            ("mlp.c_proj.weight", (4 * WIDTH, WIDTH)),
            ("mlp.c_proj.bias", (WIDTH,)),
        ):
            yield f"h.{block}.{name}", shape
    yield "ln_f.weight", (WIDTH,)
    yield "ln_f.bias", (WIDTH,)


def make_gpt2_small(seed):
    """{name: tensor}, drawn from the distributions that training starts with."""
    generator = torch.Generator().manual_seed(seed)
    model = {}
    for name, shape in shapes():
        tensor = torch.empty(shape)
        if len(shape) == 2:
            tensor.normal_(0, 0.02, generator=generator)
        elif "ln_" in name and name.endswith("weight"):
            tensor.fill_(1)
        else:
            tensor.normal_(0, 0.001, generator=generator)
        model[name] = tensor
    return model
