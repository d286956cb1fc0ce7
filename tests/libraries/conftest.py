# SPDX-License-Identifier: Apache-2.0
"""Streamed models in the hands of other libraries. To be run by the Python of tools/libraries.py."""

import os

import pytest
import torch
import transformers
from tiny_models import DECODER, WORDS

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"


@pytest.fixture
def tokenizer():
    """A tokenizer of words, as from a folder of transformers."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
             "mask_token": "[MASK]", "eos_token": "[SEP]", "bos_token": "[CLS]"}  # fmt: skip
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **names)


@pytest.fixture
def llama(tmp_path):
    """A folder, and its model in memory."""
    torch.manual_seed(1)
    folder = tmp_path / "llama"
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)).save_pretrained(folder)
    return folder, transformers.LlamaForCausalLM.from_pretrained(folder, dtype="auto").eval()
