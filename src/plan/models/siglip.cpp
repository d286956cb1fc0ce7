// SPDX-License-Identifier: Apache-2.0
// Source of the shapes and defaults: transformers 5.23, models/siglip and models/gemma3. The tower
// is taken to be on the first pipeline stage, before the layers of the language model.
#include "plan/models/siglip.hpp"

namespace penstock::plan {

namespace {

constexpr TensorPlace kTower = TensorPlace::kBegin;

struct Tower {
    std::string prefix;
    Exact hidden;
    Exact inner;
    std::uint64_t layers = 0;
};

// A linear layer with a bias in each of the tower's layers.
void linear(ArchitectureBuilder& out, const Tower& tower, const std::string& name,
            const Exact& outputs, const Exact& inputs, std::uint64_t count) {
    out.matrix(kTower, tower.prefix + name + ".weight", outputs * count, inputs);
    out.vector(kTower, tower.prefix + name + ".bias", outputs * count);
}

void norm(ArchitectureBuilder& out, const Tower& tower, const std::string& name,
          std::uint64_t count) {
    out.vector(kTower, tower.prefix + name + ".weight", tower.hidden * count);
    out.vector(kTower, tower.prefix + name + ".bias", tower.hidden * count);
}

void describe_pooling_head(ArchitectureBuilder& out, const Tower& tower) {
    out.vector(kTower, tower.prefix + "head.probe", tower.hidden);
    linear(out, tower, "head.attention.in_proj", Exact(3) * tower.hidden, tower.hidden, 1);
    linear(out, tower, "head.attention.out_proj", tower.hidden, tower.hidden, 1);
    norm(out, tower, "head.layernorm", 1);
    linear(out, tower, "head.mlp.fc1", tower.inner, tower.hidden, 1);
    linear(out, tower, "head.mlp.fc2", tower.hidden, tower.inner, 1);
}

}  // namespace

void describe_siglip(ConfigFields& vision, ArchitectureBuilder& out, const std::string& prefix,
                     std::uint64_t hidden) {
    vision.set_type("siglip_vision_model");
    Tower tower{prefix, vision.dimension({"hidden_size"}, 768),
                vision.dimension({"intermediate_size"}, 3072),
                vision.dimension({"num_hidden_layers"}, 12, 1, kLayersMax)};
    const std::uint64_t channels = vision.dimension({"num_channels"}, 3);
    const std::uint64_t image = vision.dimension({"image_size"}, 224, 1, 1U << 20U);
    const std::uint64_t patch = vision.dimension({"patch_size"}, 16, 1, 1U << 20U);
    const std::uint64_t side = image / patch;
    out.matrix(kTower, prefix + "embeddings.patch_embedding.weight", tower.hidden,
               Exact(channels) * patch * patch);
    out.vector(kTower, prefix + "embeddings.patch_embedding.bias", tower.hidden);
    out.matrix(kTower, prefix + "embeddings.position_embedding.weight", Exact(side) * side,
               tower.hidden);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
        linear(out, tower, std::string("encoder.layers.*.self_attn.") + name, tower.hidden,
               tower.hidden, tower.layers);
    }
    linear(out, tower, "encoder.layers.*.mlp.fc1", tower.inner, tower.hidden, tower.layers);
    linear(out, tower, "encoder.layers.*.mlp.fc2", tower.hidden, tower.inner, tower.layers);
    norm(out, tower, "encoder.layers.*.layer_norm1", tower.layers);
    norm(out, tower, "encoder.layers.*.layer_norm2", tower.layers);
    norm(out, tower, "post_layernorm", 1);
    if (vision.flag("vision_use_head", true)) {
        describe_pooling_head(out, tower);
    }
    out.matrix(kTower, "model.multi_modal_projector.mm_input_projection_weight", tower.hidden,
               hidden);
    out.vector(kTower, "model.multi_modal_projector.mm_soft_emb_norm.weight", tower.hidden);
}

}  // namespace penstock::plan
