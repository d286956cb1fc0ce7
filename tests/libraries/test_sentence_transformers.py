# SPDX-License-Identifier: Apache-2.0
"""The models of sentence-transformers give the embeddings and scores that they give with the model in memory."""

import penstock
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import SMALL, budgets

SENTENCES = ["the cat sat", "on the mat", "a b c d e f"]


@pytest.fixture
def saved(tokenizer, tmp_path):
    def make(cls, **config):
        torch.manual_seed(1)
        cls(transformers.BertConfig(**SMALL, vocab_size=64, **config)).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return tmp_path, cls.from_pretrained(tmp_path, dtype="auto").eval()

    return make


def test_embeddings(saved):
    folder, model = saved(transformers.BertModel)
    embeds = SentenceTransformer(str(folder), device="cpu")
    expected, by_two = embeds.encode(SENTENCES), embeds.encode(SENTENCES, batch_size=2)
    for memory in budgets(None, folder, model):
        embeds[0].model = penstock.stream(None, folder, memory=memory)
        assert embeds.to("cpu").eval() is embeds and embeds.float() is embeds
        assert (embeds.encode(SENTENCES) == expected).all()
        assert (embeds.encode(SENTENCES, convert_to_tensor=True, batch_size=2).numpy() == by_two).all()
    with pytest.raises(RuntimeError, match="the weights of this model are streamed"):
        embeds.half()


def test_scores_of_pairs(saved):
    folder, model = saved(transformers.BertForSequenceClassification, num_labels=1)
    scores = CrossEncoder(str(folder), device="cpu")
    pairs = [(SENTENCES[0], SENTENCES[1]), (SENTENCES[2], SENTENCES[0])]
    expected = scores.predict(pairs)
    for memory in budgets(None, folder, model):
        scores[0].model = penstock.stream(None, folder, memory=memory)
        assert (scores.predict(pairs) == expected).all()
