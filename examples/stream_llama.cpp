// SPDX-License-Identifier: Apache-2.0
// A Llama that is larger than memory, without Python: generates the tokens of transformers from the
// folder that save_pretrained() wrote (config.json, .safetensors, float32), with greedy choice.
//
//     stream_llama FOLDER MEMORY_BYTES COUNT ID...      the prompt as numbers of tokens
//
// Layers come from a WeightStream: a part of the weights stays in memory, the rest is read in each
// pass ahead of its use. Rows of the embedding are gathered. The products are Eigen's.
// Without arguments it makes a small model of random weights, and compares two budgets.
#include <penstock/penstock.hpp>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Weight = Eigen::Map<const Matrix>;
using Tokens = std::vector<std::uint64_t>;

// A value of a config.json: a number, or 1 for true and 0 for false and null.
double value_of(const std::string& json, const std::string& key, double otherwise) {
    const std::size_t at = json.find('"' + key + '"');
    if (at == std::string::npos) {
        return otherwise;
    }
    const std::size_t begin = json.find_first_not_of(" \n:", at + key.size() + 2);
    return json.compare(begin, 4, "true") == 0 ? 1 : std::strtod(json.c_str() + begin, nullptr);
}

struct Config {
    long hidden, layers, heads, kv_heads, head_size, vocabulary;
    float epsilon, theta;
    bool tied;

    static Config of(const std::string& json) {
        const auto number = [&](const char* key, double otherwise) {
            return static_cast<long>(value_of(json, key, otherwise));
        };
        if (json.find("\"rope_type\"") != json.find("\"rope_type\": \"default\"")) {
            throw std::runtime_error("config.json: only the default rope_type is known here");
        }
        Config made{};
        made.hidden = number("hidden_size", 0);
        made.layers = number("num_hidden_layers", 0);
        made.heads = number("num_attention_heads", 1);
        made.kv_heads = number("num_key_value_heads", static_cast<double>(made.heads));
        made.head_size = number("head_dim", 0);
        if (made.head_size == 0) {
            made.head_size = made.hidden / made.heads;
        }
        made.vocabulary = number("vocab_size", 0);
        made.epsilon = static_cast<float>(value_of(json, "rms_norm_eps", 1e-6));
        made.theta = static_cast<float>(value_of(json, "rope_theta", 10000));
        made.tied = value_of(json, "tie_word_embeddings", 0) != 0;
        return made;
    }
};

const char* const kLayerTensors[] = {
    "input_layernorm",  "self_attn.q_proj", "self_attn.k_proj",
    "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

class Llama {
public:
    Llama(const std::shared_ptr<penstock::Engine>& engine, const Config& config,
          const penstock::TensorTable& table, std::uint64_t memory_bytes)
        : config_(config),
          embedding_(engine, table, std::vector<std::string>{"model.embed_tokens.weight"}),
          weights_(engine, table, units_of(config), {.memory_bytes = memory_bytes}),
          cache_(static_cast<std::size_t>(config.layers)) {}

    static std::vector<penstock::WeightUnit> units_of(const Config& config) {
        std::vector<penstock::WeightUnit> units;
        for (long i = 0; i < config.layers; ++i) {
            const std::string name = "model.layers." + std::to_string(i);
            penstock::WeightUnit& unit = units.emplace_back();
            unit.name = name;
            for (const char* const tensor : kLayerTensors) {
                unit.tensors.push_back(name + "." + tensor + ".weight");
            }
        }
        units.push_back(
            {"head",
             {"model.norm.weight", config.tied ? "model.embed_tokens.weight" : "lm_head.weight"}});
        return units;
    }

    // The token that comes after these, which come after those of earlier calls.
    std::uint64_t next(const Tokens& ids) {
        Matrix x(ids.size(), config_.hidden);
        embedding_.gather(ids, std::as_writable_bytes(std::span(x.data(), x.size())));
        for (std::size_t i = 0; i < cache_.size(); ++i) {
            layer(weights_.acquire(i), cache_[i], x);
            weights_.release(i);
        }
        past_ += x.rows();
        const penstock::WeightView& head = weights_.acquire(cache_.size());
        const Matrix last = normed(x.bottomRows(1), matrix(head, 0, 1));
        const Matrix logits = last * matrix(head, 1, config_.vocabulary).transpose();
        weights_.release(cache_.size());
        Eigen::Index best = 0;
        logits.row(0).maxCoeff(&best);
        return static_cast<std::uint64_t>(best);
    }

    Tokens generate(const Tokens& prompt, std::size_t count) {
        Tokens out;
        for (Tokens ids = prompt; out.size() < count; ids = {out.back()}) {
            out.push_back(next(ids));
        }
        return out;
    }

    [[nodiscard]] const penstock::WeightPlan& plan() const { return weights_.plan(); }

private:
    struct Cache {
        Matrix keys, values;  // a row a token
    };

    static Weight matrix(const penstock::WeightView& view, std::size_t tensor, long rows) {
        const std::span<const std::byte> bytes = view.tensors.at(tensor).span();
        return {reinterpret_cast<const float*>(bytes.data()), rows,
                static_cast<long>(bytes.size() / sizeof(float)) / rows};
    }

    // RMSNorm.
    [[nodiscard]] Matrix normed(const Matrix& x, const Weight& weight) const {
        const Eigen::ArrayXf scale =
            (x.rowwise().squaredNorm().array() / static_cast<float>(x.cols()) + config_.epsilon)
                .sqrt()
                .inverse();
        return ((x.array().colwise() * scale).rowwise() * weight.row(0).array()).matrix();
    }

    // RoPE: turns each pair (i, i + half a head) by the token's place times a frequency of i.
    void rotate(Matrix& x) const {
        const long half = config_.head_size / 2;
        for (long token = 0; token < x.rows(); ++token) {
            for (long i = 0; i < half; ++i) {
                const float frequency =
                    1 / std::pow(config_.theta,
                                 static_cast<float>(2 * i) / static_cast<float>(config_.head_size));
                const float angle = static_cast<float>(past_ + token) * frequency;
                const float cosine = std::cos(angle);
                const float sine = std::sin(angle);
                for (long at = i; at < x.cols(); at += config_.head_size) {
                    const float a = x(token, at);
                    const float b = x(token, at + half);
                    x(token, at) = a * cosine - b * sine;
                    x(token, at + half) = b * cosine + a * sine;
                }
            }
        }
    }

    static void append(Matrix& to, const Matrix& rows) {
        to.conservativeResize(to.rows() + rows.rows(), rows.cols());
        to.bottomRows(rows.rows()) = rows;
    }

    // Each head of the queries sees the keys up to its own token; a few share a head of keys (GQA).
    [[nodiscard]] Matrix attention(const Matrix& queries, const Cache& cache) const {
        const long size = config_.head_size;
        Matrix out(queries.rows(), queries.cols());
        for (long head = 0; head < config_.heads; ++head) {
            const long shared = head / (config_.heads / config_.kv_heads) * size;
            Matrix scores = queries.middleCols(head * size, size) *
                            cache.keys.middleCols(shared, size).transpose() /
                            std::sqrt(static_cast<float>(size));
            for (long token = 0; token < scores.rows(); ++token) {
                auto seen = scores.row(token).head(past_ + token + 1).array();
                seen = (seen - seen.maxCoeff()).exp();
                seen /= seen.sum();
                scores.row(token).tail(scores.cols() - past_ - token - 1).setZero();
            }
            out.middleCols(head * size, size) = scores * cache.values.middleCols(shared, size);
        }
        return out;
    }

    void layer(const penstock::WeightView& view, Cache& cache, Matrix& x) const {
        const long head_rows = config_.heads * config_.head_size;
        const long kv_rows = config_.kv_heads * config_.head_size;
        Matrix in = normed(x, matrix(view, 0, 1));
        Matrix queries = in * matrix(view, 1, head_rows).transpose();
        Matrix keys = in * matrix(view, 2, kv_rows).transpose();
        rotate(queries);
        rotate(keys);
        append(cache.keys, keys);
        append(cache.values, in * matrix(view, 3, kv_rows).transpose());
        x += attention(queries, cache) * matrix(view, 4, config_.hidden).transpose();

        in = normed(x, matrix(view, 5, 1));
        const long wide = static_cast<long>(view.tensors[6].bytes / sizeof(float)) / config_.hidden;
        const Eigen::ArrayXXf gate = (in * matrix(view, 6, wide).transpose()).array();
        const Eigen::ArrayXXf up = (in * matrix(view, 7, wide).transpose()).array();
        const Matrix inner = (gate / (1 + (-gate).exp()) * up).matrix();  // SwiGLU
        x += inner * matrix(view, 8, config_.hidden).transpose();
    }

    const Config config_;
    penstock::TensorRows embedding_;
    penstock::WeightStream weights_;
    std::vector<Cache> cache_;
    long past_ = 0;  // tokens that the cache has
};

std::string text_of(penstock::Engine& engine, const std::string& path) {
    const penstock::File file(path);
    std::string text(file.size(), '\0');
    engine.read(file, std::as_writable_bytes(std::span(text)));
    return text;
}

Tokens generated(const std::shared_ptr<penstock::Engine>& engine, const std::string& folder,
                 std::uint64_t memory_bytes, const Tokens& prompt, std::size_t count) {
    const Config config = Config::of(text_of(*engine, folder + "/config.json"));
    const std::vector<std::string> names = penstock::FileSystem::local().list(folder);
    const std::string index = "model.safetensors.index.json";
    const bool has_index = std::find(names.begin(), names.end(), index) != names.end();
    const penstock::TensorTable table =
        penstock::inspect(engine, folder + "/" + (has_index ? index : "model.safetensors"));
    for (const penstock::TensorEntry& tensor : table.tensors) {
        if (tensor.dtype != "F32") {
            throw std::runtime_error("tensor '" + tensor.name + "' is " + tensor.dtype +
                                     "; save the model in float32");
        }
    }
    Llama model(engine, config, table, memory_bytes);
    const Tokens out = model.generate(prompt, count);
    std::fprintf(stderr, "%llu bytes stay in memory, %llu are read in each pass\n",
                 static_cast<unsigned long long>(model.plan().resident_bytes),
                 static_cast<unsigned long long>(model.plan().read_bytes));
    return out;
}

// A model of random weights, as transformers names them.
void save_small_model(const std::shared_ptr<penstock::Engine>& engine, const std::string& folder) {
    const std::string json =
        "{\"hidden_size\": 64, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,\n"
        " \"num_key_value_heads\": 2, \"vocab_size\": 500, \"intermediate_size\": 160,\n"
        " \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false}\n";
    const Config config = Config::of(json);
    std::mt19937 random(1);
    std::normal_distribution<float> values(0, 0.2F);
    std::vector<std::vector<float>> memory;
    penstock::State state;
    const auto add = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
        std::vector<float>& data = memory.emplace_back(rows * columns);
        std::generate(data.begin(), data.end(), [&] { return values(random); });
        state.tensors.push_back({name, "F32",
                                 rows == 1 ? std::vector{columns} : std::vector{rows, columns},
                                 std::as_bytes(std::span(data))});
    };
    add("model.embed_tokens.weight", 500, 64);
    for (const penstock::WeightUnit& unit : Llama::units_of(config)) {
        for (const std::string& name : unit.tensors) {
            const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
            const bool one_row = is("norm");
            const bool to_hidden = is("o_proj") || is("down_proj");
            add(name,
                one_row                  ? 1
                : to_hidden || is("q_p") ? 64
                : is("k_p") || is("v_p") ? 32
                : is("mlp")              ? 160
                                         : 500,
                is("down_proj") ? 160 : 64);
        }
    }
    penstock::FileSystem::local().make_folder(folder);
    penstock::save_file(engine, folder + "/model.safetensors", state);
    engine->write(folder + "/config.json", std::as_bytes(std::span(json)));
}

int compare_budgets() {
    const auto engine = std::make_shared<penstock::Engine>();
    save_small_model(engine, "llama");
    const Tokens prompt{1, 17, 300};
    const Tokens streamed = generated(engine, "llama", 500'000, prompt, 8);
    const Tokens whole = generated(engine, "llama", 4'000'000, prompt, 8);
    for (const char* const name : {"config.json", "model.safetensors"}) {  // the example tidies up
        penstock::FileSystem::local().remove(std::string("llama/") + name);
    }
    penstock::FileSystem::local().remove("llama");
    std::printf("%s\n", streamed == whole ? "the tokens are equal" : "the tokens differ");
    return streamed == whole ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc == 1) {
            return compare_budgets();
        }
        if (argc < 5) {
            std::fprintf(stderr, "usage: %s FOLDER MEMORY_BYTES COUNT ID...\n", argv[0]);
            return 2;
        }
        Tokens prompt;
        for (int i = 4; i < argc; ++i) {
            prompt.push_back(std::strtoull(argv[i], nullptr, 10));
        }
        const auto engine = std::make_shared<penstock::Engine>();
        for (const std::uint64_t id :
             generated(engine, argv[1], std::strtoull(argv[2], nullptr, 10), prompt,
                       std::strtoull(argv[3], nullptr, 10))) {
            std::printf("%llu ", static_cast<unsigned long long>(id));
        }
        std::printf("\n");
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
