// SPDX-License-Identifier: Apache-2.0
// Units by the names of tensors, as models of several families have them.
#include "weights/model/name_units.hpp"

#include <penstock/weights.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace penstock::weights {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TensorTable table_of(
    const std::vector<std::pair<std::string, std::vector<std::uint64_t>>>& tensors) {
    TensorTable out;
    out.files = {"model.safetensors"};
    std::uint64_t offset = 0;
    for (const auto& [name, shape] : tensors) {
        TensorEntry entry{name, "BF16", shape, {}, 2, {}, ChecksumKind::kNone};
        for (const std::uint64_t dimension : shape) {
            entry.bytes *= dimension;
        }
        entry.stretches = {{0, offset, entry.bytes}};
        offset += entry.bytes;
        out.tensors.push_back(entry);
    }
    return out;
}

std::vector<std::string> names_of(const std::vector<WeightUnit>& units) {
    std::vector<std::string> out;
    for (const WeightUnit& unit : units) {
        out.push_back(unit.name);
    }
    return out;
}

TEST(NameUnits, LayersAreUnitsInTheOrderOfTheirNumbers) {
    const std::vector<WeightUnit> units =
        find_weight_units(table_of({{"lm_head.weight", {9, 4}},
                                    {"model.embed_tokens.weight", {9, 4}},
                                    {"model.layers.0.mlp.up.weight", {8, 4}},
                                    {"model.layers.10.mlp.up.weight", {8, 4}},
                                    {"model.layers.2.mlp.up.weight", {8, 4}},
                                    {"model.layers.0.norm.weight", {4}},
                                    {"model.norm.weight", {4}}}));
    EXPECT_THAT(names_of(units), ElementsAre("lm_head", "model.embed_tokens", "model.layers.0",
                                             "model.layers.2", "model.layers.10", "model.norm"));
    EXPECT_THAT(units[2].tensors,
                ElementsAre("model.layers.0.mlp.up.weight", "model.layers.0.norm.weight"));
}

// The outer group is the layer; each stack has its own; a Sequential has no name of its own.
TEST(NameUnits, GroupsInsideLayersAndSeveralStacks) {
    EXPECT_THAT(names_of(find_weight_units(table_of({{"shared.weight", {9, 4}},
                                                     {"encoder.block.0.layer.0.q.weight", {4, 4}},
                                                     {"encoder.block.0.layer.1.wi.weight", {8, 4}},
                                                     {"decoder.block.0.layer.0.q.weight", {4, 4}},
                                                     {"0.up.weight", {4, 4}},
                                                     {"0.down.weight", {4, 4}},
                                                     {"plain", {4}}}))),
                ElementsAre("shared", "encoder.block.0", "decoder.block.0", "0", "plain"));
}

// A tensor with a number for its last name is in no layer: it is a parameter of a list.
TEST(NameUnits, ANumberAtTheEndIsNoLayer) {
    EXPECT_THAT(names_of(find_weight_units(table_of({{"scales.0", {4}}, {"scales.1", {4}}}))),
                ElementsAre("scales"));
}

TEST(NameUnits, EmbeddingsAndWhetherTheHeadIsTied) {
    const Embeddings own = embeddings_of(table_of({{"model.embed_tokens.weight", {9, 4}},
                                                   {"model.layers.0.embed.weight", {4, 4}},
                                                   {"lm_head.weight", {9, 4}}}));
    EXPECT_THAT(own.names, ElementsAre("model.embed_tokens.weight"));
    EXPECT_EQ(own.tied, "");
    const Embeddings tied = embeddings_of(table_of({{"transformer.wpe.weight", {5, 4}},
                                                    {"transformer.wte.weight", {9, 4}},
                                                    {"transformer.ln_f.weight", {4}}}));
    EXPECT_THAT(tied.names, ElementsAre("transformer.wpe.weight", "transformer.wte.weight"));
    EXPECT_EQ(tied.tied, "transformer.wte.weight");
    EXPECT_THAT(embeddings_of(table_of({{"embed.bias", {9, 4}}, {"a.weight", {9, 4}}})).names,
                IsEmpty());
}

TEST(NameUnits, PartsAreModulesAndItemsOfLists) {
    const WeightUnit layer{
        "layers.0",
        {"layers.0.mlp.experts.0.w1", "layers.0.mlp.experts.1.w1", "layers.0.scale",
         "layers.0.norms.0.weight", "layers.0.norms.1.weight", "layers.0.norms.0.bias"}};
    const NamedUnits parts = parts_of(layer);
    EXPECT_THAT(names_of(parts.units),
                ElementsAre("layers.0.mlp", "layers.0.norms.0", "layers.0.norms.1"));
    EXPECT_THAT(parts.stay, ElementsAre("layers.0.scale"));
    EXPECT_THAT(names_of(parts_of(parts.units[0]).units),
                ElementsAre("layers.0.mlp.experts.0", "layers.0.mlp.experts.1"));
    const NamedUnits none = parts_of(parts.units[1]);  // it has no modules
    EXPECT_THAT(none.units, IsEmpty());
    EXPECT_THAT(none.stay, IsEmpty());
}

TEST(NameUnits, WhatIsSmallOrBesideModulesStays) {
    const NamedUnits found = named_units(table_of({{"model.layers.0.up.weight", {400, 400}},
                                                   {"model.layers.0.norm.weight", {4}},
                                                   {"model.norm.weight", {4}},
                                                   {"model.norm.bias", {4}},
                                                   {"model.mask", {400, 400}},
                                                   {"temperature", {400, 400}},
                                                   {"lm_head.weight", {400, 400}}}));
    EXPECT_THAT(names_of(found.units), ElementsAre("model.layers.0", "lm_head"));
    EXPECT_THAT(found.stay,
                ElementsAre("model.mask", "temperature", "model.norm.weight", "model.norm.bias"));
    EXPECT_THAT(names_of(named_units(table_of({{"scale", {4}}, {"shift", {4}}})).units),
                ElementsAre("scale", "shift"));
}

}  // namespace
}  // namespace penstock::weights
