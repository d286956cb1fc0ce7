// SPDX-License-Identifier: Apache-2.0
#include "store/ranks/rank_states.hpp"

#include "base/assert.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "ranks/message.hpp"

#include <penstock/tensor.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace penstock::store {

namespace {

using ranks::MessageReader;
using ranks::MessageWriter;

std::string shown(const DescribedTensor& tensor) {
    return fmt::format("{}{} [{}]", tensor.is_part ? "a part of " : "", tensor.dtype,
                       fmt::join(tensor.shape, ", "));
}

std::uint64_t bytes_of(const DescribedTensor& tensor) {
    const auto type = element_type_named(tensor.dtype);
    return type ? penstock::bytes_of(*type, tensor.shape).value_or(0) : 0;
}

}  // namespace

RankDescription RankDescription::of(const State& state, std::span<const std::uint64_t> samples) {
    RankDescription out{.structure = state.structure, .tensors = {}};
    std::unordered_set<std::string_view> names;
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        const StateTensor& tensor = state.tensors[i];
        if (names.insert(tensor.name).second) {
            const bool part = store::is_part(tensor);
            out.tensors.push_back({tensor.name, tensor.dtype,
                                   part ? tensor.global_shape : tensor.shape, part, samples[i]});
        }
    }
    return out;
}

std::string RankDescription::text() const {
    MessageWriter out;
    out.text(structure).number(tensors.size());
    for (const DescribedTensor& tensor : tensors) {
        out.text(tensor.name)
            .text(tensor.dtype)
            .number(tensor.is_part ? 1 : 0)
            .number(tensor.content);
        out.number(tensor.shape.size());
        for (const std::uint64_t extent : tensor.shape) {
            out.number(extent);
        }
    }
    return out.take();
}

RankDescription RankDescription::from(std::string_view text) {
    MessageReader in(text);
    RankDescription out{.structure = in.text(), .tensors = {}};
    for (std::uint64_t left = in.number(); left > 0; --left) {
        DescribedTensor& tensor = out.tensors.emplace_back();
        tensor.name = in.text();
        tensor.dtype = in.text();
        tensor.is_part = in.number() != 0;
        tensor.content = in.number();
        for (std::uint64_t extents = in.number(); extents > 0; --extents) {
            tensor.shape.push_back(in.number());
        }
    }
    in.end();
    return out;
}

void JoinedStates::add(std::uint32_t rank, const RankDescription& described,
                       const std::string& name) {
    PENSTOCK_ASSERT(rank < count_);
    std::vector<state::StoredTensor> stored;
    stored.reserve(described.tensors.size());
    for (const DescribedTensor& tensor : described.tensors) {
        stored.push_back({tensor.name, tensor.dtype, tensor.shape, bytes_of(tensor)});
        const auto [found, is_new] =
            tensors_.try_emplace(tensor.name, Known{tensor, name, {}, false});
        Known& known = found->second;
        if (!is_new && (known.tensor.dtype != tensor.dtype || known.tensor.shape != tensor.shape ||
                        known.tensor.is_part != tensor.is_part)) {
            base::raise(base::error(
                ErrorCode::kInvalidArgument, "save checkpoint of all ranks",
                fmt::format("tensor {} is {} on {}, and {} on {}; what each rank has for itself "
                            "goes into a PerRank",
                            format::shown(tensor.name), shown(known.tensor), known.rank,
                            shown(tensor), name)));
        }
        if (known.tensor.content != tensor.content && known.tensor.content != 0 &&
            tensor.content != 0) {
            const std::string what = fmt::format("tensor {} is not the same on {} and {}",
                                                 format::shown(tensor.name), known.rank, name);
            if (replicas_ == Replicas::kEqual) {
                base::raise(base::error(
                    ErrorCode::kInvalidArgument, "save checkpoint of all ranks",
                    fmt::format("{}, and is saved once; with replicas=\"first\" (C++: "
                                "Replicas::kFirst) that of the first rank is saved, and a PerRank "
                                "keeps that of each",
                                what)));
            }
            known.differs = true;
            note_ = note_.empty() ? what + ": that of the first was saved" : note_;
        }
        known.on.resize(count_, false);
        known.on[rank] = true;
    }
    join_.add(described.structure, stored, name);
}

Writers JoinedStates::writers(std::span<const std::uint32_t> same) const {
    std::vector<WholeTensor> whole;
    for (const auto& [name, known] : tensors_) {
        if (!known.tensor.is_part) {
            WholeTensor& tensor =
                whole.emplace_back(WholeTensor{name, bytes_of(known.tensor), known.on});
            for (const std::uint32_t rank : same) {
                tensor.on[rank] = tensor.on[0];
            }
            if (known.differs) {
                const auto first = std::find(tensor.on.begin(), tensor.on.end(), true);
                std::fill(first + 1, tensor.on.end(), false);
            }
        }
    }
    return writers_of(std::move(whole), count_);
}

std::string writers_text(const Writers& writers) {
    MessageWriter out;
    out.number(writers.size());
    for (const auto& [name, rank] : writers) {
        out.text(name).number(rank);
    }
    return out.take();
}

Writers writers_from(std::string_view text) {
    MessageReader in(text);
    Writers out;
    for (std::uint64_t left = in.number(); left > 0; --left) {
        std::string name = in.text();
        out.emplace(std::move(name), static_cast<std::uint32_t>(in.number()));
    }
    in.end();
    return out;
}

}  // namespace penstock::store
