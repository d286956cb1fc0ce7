# SPDX-License-Identifier: Apache-2.0
"""Configs of tiny models, and the budgets that they are streamed with."""

import re

import penstock
import pytest

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "the", "cat", "sat", "on", "mat"]
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
DECODER = {**SMALL, "vocab_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 128}


def budgets(given, folder, model):
    """The least that works, about half of the weights, and all of them."""
    with pytest.raises(MemoryError) as refused:
        penstock.stream(given, folder, memory=0)
    least = int(re.search(r"the least that works for this model is (\d+)", str(refused.value))[1])
    total = sum(parameter.nbytes for parameter in model.parameters())
    return least, max(least, total // 2), 2 * total
