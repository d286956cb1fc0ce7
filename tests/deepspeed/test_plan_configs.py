# SPDX-License-Identifier: Apache-2.0
"""Parameters as penstock.plan counts them from a config against those of the model that transformers builds."""

import sys
from pathlib import Path

import penstock.plan as plan
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
models = pytest.importorskip("benchmarks.plan_models")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", models.CONFIGS)
def test_a_config_is_counted_as_transformers_builds_it(name):
    fields = models.CONFIGS[name]
    found = plan.model(config=fields)
    assert found.parameters == models.count_of(fields)
    # The dictionary of to_dict() has every field, and other names for some of them.
    whole = transformers.AutoConfig.for_model(**fields).to_dict()
    assert plan.model(config=whole | {"architectures": fields.get("architectures")}).parameters == found.parameters


def test_each_type_is_here():
    assert {fields["model_type"] for fields in models.CONFIGS.values()} == set(plan.model_types())


def test_a_type_that_only_transformers_knows_is_counted_by_it():
    fields = {"model_type": "electra", "architectures": ["ElectraForMaskedLM"]}
    found = plan.model(config=fields)
    assert found.parameters == models.count_of(fields)
    assert "transformers" in found.source
    answer = plan.checkpoint(config=fields)
    assert answer["checkpoint_bytes"].value == 14 * found.parameters
    assert any("electra" in note for note in answer.notes)
