// SPDX-License-Identifier: Apache-2.0
#include "base/text/units.hpp"
#include "cli/checkpoint/command.hpp"
#include "cli/checkpoint/json.hpp"
#include "format/fault.hpp"
#include "format/torch_types.hpp"
#include "report/flush.hpp"
#include "report/json_output.hpp"
#include "report/message.hpp"
#include "report/progress.hpp"
#include "state/source.hpp"
#include "state/state_views.hpp"
#include "state/stored_rows.hpp"
#include "store/read/stored_source.hpp"

#include <penstock/memory.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace penstock::cli {

namespace {

constexpr int kDifferent = 1;
constexpr int kTrouble = 2;
constexpr std::uint64_t kStepBytes = std::uint64_t{32} << 20;

double half(std::uint16_t bits) {
    const int exponent = (bits >> 10U) & 31;
    const double fraction = bits & 1023U;
    const double size = exponent == 31  ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                        : exponent == 0 ? std::ldexp(fraction, -24)
                                        : std::ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000U) != 0 ? -size : size;
}

template <typename Word>
Word word_at(std::span<const std::byte> bytes, std::size_t index) {
    Word word{};
    std::memcpy(&word, bytes.data() + index * sizeof(Word), sizeof(Word));
    return word;
}

template <typename Word, typename Convert>
double largest(std::span<const std::byte> a, std::span<const std::byte> b, double most,
               Convert convert) {
    for (std::size_t i = 0; i < a.size() / sizeof(Word); ++i) {
        const Word x = word_at<Word>(a, i);
        const Word y = word_at<Word>(b, i);
        if (std::memcmp(&x, &y, sizeof(Word)) != 0) {
            const double d = std::fabs(convert(x) - convert(y));
            most = std::isnan(d) || d > most ? d : most;
        }
        if (std::isnan(most)) {
            break;
        }
    }
    return most;
}

// The largest |a - b|; nothing for types other than floating-point numbers.
std::optional<double> distance(const std::string& dtype, std::span<const std::byte> a,
                               std::span<const std::byte> b, double most) {
    if (dtype == "F32") {
        return largest<float>(a, b, most, [](float x) { return static_cast<double>(x); });
    }
    if (dtype == "F64") {
        return largest<double>(a, b, most, [](double x) { return x; });
    }
    if (dtype == "F16") {
        return largest<std::uint16_t>(a, b, most, half);
    }
    if (dtype == "BF16") {
        return largest<std::uint16_t>(a, b, most, [](std::uint16_t x) {
            return static_cast<double>(std::bit_cast<float>(std::uint32_t{x} << 16U));
        });
    }
    return std::nullopt;
}

std::uint64_t different_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        count += a[i] != b[i] ? 1U : 0U;
    }
    return count;
}

struct Line {
    std::string name;
    std::string what;  ///< "only in A", "dtype", "shape", "content", "same"
    std::string detail;
    std::optional<double> distance;
};

// Applies the flags of a view to its numbers: complex conjugate, or negated.
void turn_signs(const format::TensorValue& view, const std::string& dtype,
                std::span<std::byte> bytes) {
    const bool complex = dtype.starts_with('C');
    const std::size_t number = format::torch_type(view.type)->torch_bytes() / (complex ? 2 : 1);
    for (std::size_t i = 0; (view.conjugated || view.negated) && i < bytes.size() / number; ++i) {
        if (view.negated != (view.conjugated && complex && i % 2 == 1)) {
            bytes[(i + 1) * number - 1] ^= std::byte{0x80};
        }
    }
}

// A source and its tensors as the state has them, however a store arranged their storages.
struct Side {
    state::Source& source;
    std::optional<state::Skeleton> skeleton = state::skeleton_of(source);
    std::vector<state::StoredRow> rows = state::rows_of(source, skeleton);

    [[nodiscard]] const TensorEntry& at(std::size_t row) const { return rows[row].tensor; }

    // Reads rows [begin, end) of the first dimension; all of a view.
    void read(std::size_t row, std::uint64_t begin, std::uint64_t end, std::span<std::byte> into,
              MemoryPool& pool) {
        const state::StoredRow& wanted = rows[row];
        if (!wanted.view) {
            source.read(wanted.index, begin, end, into);
            return;
        }
        const TensorEntry& stored = source.tensors()[wanted.index];
        const Buffer storage = pool.take(stored.bytes);
        source.read(wanted.index, 0, stored.shape.empty() ? 1 : stored.shape[0], storage.bytes());
        format::TensorValue plain = *wanted.view;
        plain.conjugated = plain.negated = false;
        if (const std::string why = state::why_not_gathered(plain, stored.bytes); !why.empty()) {
            throw Error(ErrorCode::kUnsupported, 0, "compare", source.path(), kNoOffset,
                        fmt::format("{}: tensor {}: {}", source.path(),
                                    format::shown(wanted.tensor.name), why));
        }
        state::gather(plain, storage.bytes(), into);
        turn_signs(*wanted.view, wanted.tensor.dtype, into);
    }

    // Uses the names in the source, to compare with a source that knows no others.
    void as_stored() { rows = state::rows_of(source, std::nullopt); }
    [[nodiscard]] bool stores_all_of(const Side& other) const {
        std::unordered_set<std::string_view> names;
        for (const TensorEntry& t : source.tensors()) {
            names.insert(t.name);
        }
        return std::all_of(other.source.tensors().begin(), other.source.tensors().end(),
                           [&](const TensorEntry& t) { return names.contains(t.name); });
    }
};

class Diff {
public:
    Diff(Side& a, Side& b, const std::string& pattern) : a_(a), b_(b) {
        // Several tensors may have one name ({"a": {"b": x}, "a.b": y}): the first is compared with
        // the first. Each list has its first one last.
        std::unordered_map<std::string_view, std::vector<std::size_t>> in_b;
        for (std::size_t i = b.rows.size(); i-- > 0;) {
            in_b[b.at(i).name].push_back(i);
        }
        std::vector<bool> compared(b.rows.size());
        for (std::size_t i = 0; i < a.rows.size(); ++i) {
            const TensorEntry& t = a.at(i);
            if (!matches(t.name, pattern)) {
                continue;
            }
            const auto found = in_b.find(t.name);
            if (found == in_b.end() || found->second.empty()) {
                add(t.name, "only in A", describe(t));
                continue;
            }
            compare(i, found->second.back());
            compared[found->second.back()] = true;
            found->second.pop_back();
        }
        for (std::size_t i = 0; i < b.rows.size(); ++i) {
            if (!compared[i] && matches(b.at(i).name, pattern)) {
                add(b.at(i).name, "only in B", describe(b.at(i)));
            }
        }
    }

    void contents(const penstock::Progress& progress) {
        std::uint64_t done = 0;
        for (const auto& [i, k] : pairs_) {
            content(i, k, [&](std::uint64_t bytes) {
                done += bytes;
                progress(done, total_bytes_);
            });
        }
        std::stable_sort(lines_.begin(), lines_.end(),
                         [](const Line& x, const Line& y) { return x.name < y.name; });
    }
    [[nodiscard]] const std::vector<Line>& lines() const { return lines_; }

private:
    static std::string describe(const TensorEntry& t) {
        return fmt::format("{} [{}]", t.dtype, fmt::join(t.shape, ", "));
    }
    void add(const std::string& name, std::string what, std::string detail = {},
             std::optional<double> distance = std::nullopt) {
        lines_.push_back({name, std::move(what), std::move(detail), distance});
    }

    void compare(std::size_t i, std::size_t k) {
        const TensorEntry& t = a_.at(i);
        const TensorEntry& u = b_.at(k);
        if (t.dtype != u.dtype || t.shape != u.shape) {
            add(t.name, t.dtype != u.dtype ? "dtype" : "shape",
                fmt::format("{} and {}", describe(t), describe(u)));
        } else if (linked(i, k)) {
            add(t.name, "same");
        } else {
            pairs_.emplace_back(i, k);
            total_bytes_ += t.bytes;
        }
    }

    // Whether both refer to the same bytes of the same shard, as its checksums show.
    [[nodiscard]] bool linked(std::size_t i, std::size_t k) const {
        const auto* const a = dynamic_cast<const store::StoredSource*>(&a_.source);
        const auto* const b = dynamic_cast<const store::StoredSource*>(&b_.source);
        if (a == nullptr || b == nullptr || a_.rows[i].view || b_.rows[k].view) {
            return false;
        }
        const store::Manifest* const m = &a->manifest();
        const store::Manifest* const n = &b->manifest();
        const auto& x = m->tensors[a_.rows[i].index].slices;
        const auto& y = n->tensors[b_.rows[k].index].slices;
        return x.size() == y.size() &&
               std::equal(x.begin(), x.end(), y.begin(), [&](const auto& s, const auto& t) {
                   return s.offset == t.offset && s.shape == t.shape && s.begin == t.begin &&
                          !s.sums.empty() && s.sums == t.sums &&
                          m->shards[s.shard].id == n->shards[t.shard].id;
               });
    }

    void content(std::size_t i, std::size_t k, const std::function<void(std::uint64_t)>& told) {
        const TensorEntry& t = a_.at(i);
        const std::uint64_t rows = t.shape.empty() ? 1 : t.shape[0];
        const std::uint64_t row = rows == 0 ? 0 : t.bytes / rows;
        const std::uint64_t step =
            row * rows != t.bytes || a_.rows[i].view || b_.rows[k].view
                ? rows
                : std::max<std::uint64_t>(1, kStepBytes / std::max<std::uint64_t>(row, 1));
        std::uint64_t differ = 0;
        std::optional<double> most;
        for (std::uint64_t begin = 0; begin < rows && t.bytes > 0; begin += step) {
            const std::uint64_t end = std::min(begin + step, rows);
            const std::uint64_t bytes = begin == 0 && end == rows ? t.bytes : (end - begin) * row;
            grow(bytes);
            const auto x = mine_.bytes().first(bytes);
            const auto y = other_.bytes().first(bytes);
            a_.read(i, begin, end, x, pool_);
            b_.read(k, begin, end, y, pool_);
            if (std::memcmp(x.data(), y.data(), bytes) != 0) {
                differ += different_bytes(x, y);
                most = distance(t.dtype, x, y, most.value_or(0));
            }
            told(bytes);
        }
        if (differ == 0) {
            add(t.name, "same");
        } else {
            add(t.name, "content",
                fmt::format("{} of {} bytes{}", differ, t.bytes,
                            most ? fmt::format(", at most |a - b| = {:g}", *most) : ""),
                most);
        }
    }

    void grow(std::uint64_t bytes) {
        if (mine_.size() < bytes) {
            mine_ = pool_.take(bytes);
            other_ = pool_.take(bytes);
        }
    }

    Side& a_;
    Side& b_;
    MemoryPool pool_;
    Buffer mine_;
    Buffer other_;
    std::vector<Line> lines_;
    std::vector<std::pair<std::size_t, std::size_t>> pairs_;  // whose content is to be compared
    std::uint64_t total_bytes_ = 0;
};

// Removes the layout of tensors in memory from a tree: their elements are compared.
format::ValueTree without_layout(format::ValueTree tree) {
    for (format::TensorValue& t : tree.tensors) {
        t.storage = 0;
        t.offset = 0;
        t.strides.clear();
        t.conjugated = t.negated = false;
    }
    for (format::StorageValue& storage : tree.storages) {
        storage = {};
    }
    return tree;
}

// Whether the states are equal; a source that has only tensors is equal to any.
bool same_structure(const Side& a, const Side& b) {
    if (a.source.structure() == "null" || b.source.structure() == "null" ||
        a.source.structure() == b.source.structure()) {
        return true;
    }
    return a.skeleton && b.skeleton &&
           format::same(without_layout(a.skeleton->tree), without_layout(b.skeleton->tree));
}

int report(const CheckpointOptions& options, std::span<const std::string> command,
           report::JsonOutput& json) {
    std::FILE* const out = json.text_stream();
    const auto engine = new_engine(options);
    const std::string& other = options.other.empty() ? options.path : options.other;
    const std::vector<std::uint64_t>& generations = options.generations;
    if (options.other.empty() && generations.empty()) {
        throw Error(ErrorCode::kInvalidArgument, 0, "diff", options.path, kNoOffset,
                    fmt::format("{}: what is it compared with? Give another path, or --generation "
                                "for two checkpoints of one store",
                                options.path));
    }
    const auto generation_of = [&](std::size_t side) {
        return generations.size() > side ? std::optional(generations[side]) : std::nullopt;
    };
    const auto a = store::open_source(engine, FileSystem::any(), options.path, generation_of(0));
    const auto b = store::open_source(engine, FileSystem::any(), other, generation_of(1));
    fmt::print(out, "A  {}: {}, {}, {}\nB  {}: {}, {}, {}\n", a->path(), a->kind(),
               counted(a->tensors().size(), "tensor"), base::format_bytes(a->bytes()), b->path(),
               b->kind(), counted(b->tensors().size(), "tensor"), base::format_bytes(b->bytes()));
    report::flush(out);
    report::Progress progress;
    Side side_a{*a};
    Side side_b{*b};
    if (side_a.skeleton.has_value() != side_b.skeleton.has_value() &&
        (side_a.skeleton ? side_a.stores_all_of(side_b) : side_b.stores_all_of(side_a))) {
        side_a.as_stored();
        side_b.as_stored();
    }
    Diff diff(side_a, side_b, options.pattern);
    diff.contents(told_by(progress, "compared"));
    progress.clear();
    std::size_t same = 0;
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Line& line : diff.lines()) {
        const bool equal = line.what == "same";
        same += equal ? 1 : 0;
        if (!equal || options.verbose) {
            fmt::print(out, "  {:<10} {}{}{}\n", line.what, format::escaped(line.name),
                       line.detail.empty() ? "" : ": ", line.detail);
        }
        if (!equal) {
            nlohmann::ordered_json row{
                {"name", line.name}, {"difference", line.what}, {"detail", line.detail}};
            if (line.distance) {
                row["largest_distance"] = *line.distance;
            }
            rows.push_back(std::move(row));
        }
    }
    const bool structure = options.pattern.empty() && !same_structure(side_a, side_b);
    if (structure) {
        fmt::print(out, "  structure  the state around the tensors differs\n");
    }
    const std::size_t different = diff.lines().size() - same;
    fmt::print(out, "{} different, {} the same\n", different, same);
    report::flush(out);
    json.write({{"command", words_of(command)},
                {"a", a->path()},
                {"b", b->path()},
                {"different", rows},
                {"same", same},
                {"structure_differs", structure}});
    return different == 0 && !structure ? 0 : kDifferent;
}

}  // namespace

int checkpoint_diff(const CheckpointOptions& options, std::span<const std::string> command) {
    report::JsonOutput json("--json", options.json);
    try {
        return report(options, command, json);
    } catch (const Error& error) {  // exit code 1 would mean that they differ
        fmt::print(stderr, "penstock: {}\n", report::message_of(error));
        return kTrouble;
    }
}

}  // namespace penstock::cli
