// SPDX-License-Identifier: Apache-2.0
// The table of sizes, rates and times in words, which Python's tests read too.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::test {

struct AmountRow {
    std::string word;
    std::optional<std::uint64_t> size;  ///< nothing: refused
    std::optional<double> rate;
    std::optional<double> time;
};

inline std::vector<AmountRow> amount_rows() {
    std::ifstream table(PENSTOCK_SOURCE_DIR "/tests/base/amounts.tsv");
    std::vector<AmountRow> rows;
    for (std::string line; std::getline(table, line);) {
        if (!line.starts_with('"')) {
            continue;
        }
        const std::size_t end = line.rfind('"');
        std::istringstream cells(line.substr(end + 1));
        std::string size;
        std::string rate;
        std::string time;
        cells >> size >> rate >> time;
        const auto number = [](const std::string& cell) {
            return cell == "-" ? std::nullopt : std::optional(std::stod(cell));
        };
        AmountRow row{line.substr(1, end - 1), {}, number(rate), number(time)};
        if (size != "-") {
            row.size = std::stoull(size);
        }
        rows.push_back(row);
    }
    return rows;
}

}  // namespace penstock::test
