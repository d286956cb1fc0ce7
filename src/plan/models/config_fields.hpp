// SPDX-License-Identifier: Apache-2.0
// The fields of a config.json, which may be hostile: values with their paths, read with limits,
// types and defaults. It notes each default that was taken.
#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

inline constexpr std::uint64_t kConfigBytesMax = 16ULL << 20U;
inline constexpr std::uint64_t kDimensionMax = 1ULL << 40U;
inline constexpr std::uint64_t kLayersMax = 100'000;
inline constexpr std::uint64_t kTensorParametersMax = 1ULL << 62U;

struct ConfigValue {
    enum class Kind : std::uint8_t { kNull, kBool, kNumber, kText, kList, kOther };
    Kind kind = Kind::kNull;
    bool flag = false;
    bool whole = false;                  // of kNumber: in `number`
    std::uint64_t number = 0;            // of kNumber
    std::string text;                    // of kText; of kNumber and kOther: as a message shows it
    std::vector<std::uint64_t> numbers;  // of kList: its whole numbers
    std::vector<std::string> texts;      // of kList: its texts
    std::string odd;                     // of kList: its first item that is neither, as shown
};

class ConfigFields {
public:
    [[nodiscard]] static base::Result<ConfigFields> parse(std::string_view json);

    /// The fields of an object in this one ("text_config"); nothing if it is not there.
    [[nodiscard]] std::optional<ConfigFields> part(std::string_view name) const;

    /// nullptr if it is not there or null.
    [[nodiscard]] const ConfigValue* find(std::string_view name) const;
    /// The whole number of one of `names`, in this object or one inside it, the outermost; 0: none.
    [[nodiscard]] std::uint64_t anywhere(std::span<const std::string_view> names) const;
    /// Whether it is there and null.
    [[nodiscard]] bool is_null(std::string_view name) const;

    // Each reads the first of `names` that is there ("n_embd|hidden_size": there are aliases), and
    // notes the default if none is. The first error is kept; the value is then the default.
    std::uint64_t dimension(std::string_view names, std::uint64_t fallback, std::uint64_t least = 1,
                            std::uint64_t most = kDimensionMax);
    /// A default that follows from other fields and is the rule, not a guess: it is not noted.
    std::uint64_t derived(std::string_view names, std::uint64_t fallback, std::uint64_t least = 1);
    bool flag(std::string_view name, bool fallback);
    std::string text(std::string_view name, std::string_view fallback);
    std::vector<std::uint64_t> whole_numbers(std::string_view name);

    void assume(std::string line);  ///< once, however often it is said
    void refuse(std::string message);
    /// The first thing that was wrong; empty if nothing was.
    [[nodiscard]] const std::string& wrong() const { return wrong_; }
    [[nodiscard]] const std::vector<std::string>& assumed() const { return assumed_; }
    /// Takes over what another part found.
    void absorb(const ConfigFields& other);

    void set_type(std::string_view type) { type_ = type; }

private:
    std::optional<std::uint64_t> stated(std::string_view names, std::uint64_t fallback,
                                        std::uint64_t least, std::uint64_t most);

    std::map<std::string, ConfigValue, std::less<>> values_;
    std::string prefix_;  // of a part: "text_config."
    std::string type_;
    std::vector<std::string> assumed_;
    std::string wrong_;
};

}  // namespace penstock::plan
