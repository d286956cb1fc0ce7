// SPDX-License-Identifier: Apache-2.0
// What the ranks of a save have, where that is not the same: dicts are joined, a whole tensor may
// be on some ranks only, and each rank may have values of its own.
#pragma once

#include "state/structure/structure_join.hpp"
#include "store/ranks/shares.hpp"

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::store {

struct DescribedTensor {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;  ///< of all of it
    bool is_part = false;
    std::uint64_t content = 0;  ///< of content_samples(); 0: it is not compared
};

/// The state that one rank would save, without the contents.
struct RankDescription {
    std::string structure;
    std::vector<DescribedTensor> tensors;  ///< each name once

    /// `samples`: content_samples().
    [[nodiscard]] static RankDescription of(const State& state,
                                            std::span<const std::uint64_t> samples);
    [[nodiscard]] std::string text() const;
    /// Throws kDamaged for bytes that are none.
    [[nodiscard]] static RankDescription from(std::string_view text);
};

class JoinedStates {
public:
    JoinedStates(std::uint32_t count, Replicas replicas)
        : count_(count), replicas_(replicas), join_(replicas == Replicas::kFirst) {}
    /// Adds a rank, in their order; those that have what rank 0 has need not be added. Throws
    /// kInvalidArgument where two ranks have other tensors of one name, or other values at one
    /// place, with both ranks.
    void add(std::uint32_t rank, const RankDescription& described, const std::string& name);
    [[nodiscard]] std::string structure() const { return join_.text(); }
    /// Empty, or the first that is not the same on two ranks (Replicas::kFirst).
    [[nodiscard]] const std::string& note() const {
        return note_.empty() ? join_.difference() : note_;
    }
    /// `same`: the ranks that have what rank 0 has, and were not added.
    [[nodiscard]] Writers writers(std::span<const std::uint32_t> same) const;

private:
    struct Known {
        DescribedTensor tensor;
        std::string rank;  ///< that brought it
        std::vector<bool> on;
        bool differs = false;  ///< the first of these ranks writes it (Replicas::kFirst)
    };

    std::uint32_t count_;
    Replicas replicas_;
    std::string note_;
    state::StructureJoin join_;
    std::unordered_map<std::string, Known> tensors_;
};

[[nodiscard]] std::string writers_text(const Writers& writers);
/// Throws kDamaged for bytes that are none.
[[nodiscard]] Writers writers_from(std::string_view text);

}  // namespace penstock::store
