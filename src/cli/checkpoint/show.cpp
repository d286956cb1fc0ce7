// SPDX-License-Identifier: Apache-2.0
// Commands ls and show: list the contents without reading a tensor.
#include "base/text/units.hpp"
#include "cli/checkpoint/command.hpp"
#include "cli/checkpoint/json.hpp"
#include "format/fault.hpp"
#include "format/pickle/pickled.hpp"
#include "format/unread.hpp"
#include "report/flush.hpp"
#include "report/interrupt.hpp"
#include "report/json_output.hpp"
#include "state/source.hpp"
#include "state/stored_rows.hpp"
#include "state/structure/structure.hpp"
#include "store/keep/store_folder.hpp"
#include "store/manifest/metadata.hpp"
#include "store/read/stored_source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

namespace penstock::cli {

namespace {

std::string utc(std::int64_t unix_ns) {
    const std::time_t seconds = unix_ns / 1'000'000'000;
    std::tm parts{};
    ::gmtime_r(&seconds, &parts);
    char text[32] = {};
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
    return text;
}

std::vector<CheckpointInfo> list(Engine& engine, const std::string& path) {
    const FileSystem files = FileSystem::any();
    std::vector<CheckpointInfo> out;
    for (const auto& entry : store::scan_folder(files, path).checkpoints) {
        report::check_interrupt();
        if (auto found = store::inspect(engine, files, path, entry)) {
            out.push_back(std::move(found->info));
        }
    }
    return out;
}

// "; loss: 0.25; run: first", as much as fits a line.
std::string metadata_of(const CheckpointInfo& info) {
    constexpr std::size_t kShownMax = 80;
    std::string out;
    for (const auto& [name, value] : info.metadata) {
        const std::string one =
            fmt::format("; {}: {}", format::escaped(name), format::escaped(store::text_of(value)));
        if (out.size() + one.size() > kShownMax) {
            return out + "; ...";
        }
        out += one;
    }
    return out;
}

void print_list(std::FILE* out, const std::vector<CheckpointInfo>& list) {
    fmt::print(out, "{:>10}  {:>10}  {:<19}  {:>10}  {:>10}  {:>6}  {:<6}  state\n", "generation",
               "step", "saved (UTC)", "size", "written", "shards", "pinned");
    for (const CheckpointInfo& info : list) {
        const bool read = info.saved_unix_ns != 0 || info.problem.empty();
        fmt::print(out, "{:>10}  {:>10}  {:<19}  {:>10}  {:>10}  {:>6}  {:<6}  {}{}\n",
                   info.generation, info.step, read ? utc(info.saved_unix_ns) : "-",
                   read ? base::format_bytes(info.tensor_bytes) : "-",
                   read ? base::format_bytes(info.written_bytes) : "-", info.shards,
                   info.pinned ? "yes" : "",
                   !info.problem.empty() ? format::escaped(info.problem)
                   : info.note.empty()   ? "ok"
                                         : "ok; " + format::escaped(info.note),
                   metadata_of(info));
    }
}

std::string_view kind_name(format::ValueKind kind) {
    using format::ValueKind;
    switch (kind) {
        case ValueKind::kNone:
            return "None";
        case ValueKind::kBool:
            return "bool";
        case ValueKind::kInt:
        case ValueKind::kBigInt:
            return "int";
        case ValueKind::kFloat:
            return "float";
        case ValueKind::kComplex:
            return "complex";
        case ValueKind::kString:
            return "str";
        case ValueKind::kBytes:
        case ValueKind::kByteArray:
            return "bytes";
        case ValueKind::kList:
            return "list";
        case ValueKind::kTuple:
            return "tuple";
        case ValueKind::kSet:
        case ValueKind::kFrozenSet:
            return "set";
        case ValueKind::kDict:
        case ValueKind::kOrderedDict:
        case ValueKind::kDefaultDict:
        case ValueKind::kCounter:
            return "dict";
        case ValueKind::kTensor:
            return "tensor";
        case ValueKind::kNumpyScalar:
        case ValueKind::kNumpyArray:
            return "numpy";
        case ValueKind::kPickled:
            return "pickled";
        case ValueKind::kUnread:
            return "not read";
        case ValueKind::kPerRank:
            return "per rank";
        default:
            return "torch value";
    }
}

std::string brief(const format::ValueTree& tree, format::ValueId id) {
    const format::Value& v = tree.at(id);
    const std::string_view kind = kind_name(v.kind);
    if (kind == "dict") {
        return fmt::format("dict of {}", v.items.size() / 2);
    }
    if (v.kind == format::ValueKind::kPerRank) {
        return fmt::format("one for each of {} ranks", v.items.size() / 2);
    }
    if (kind == "list" || kind == "tuple" || kind == "set") {
        return fmt::format("{} of {}", kind, v.items.size());
    }
    return v.kind == format::ValueKind::kInt ? fmt::format("{}", v.integer) : std::string(kind);
}

// The state in one line: "dict of 3: model (dict of 12), opt (dict of 2), step (100)".
std::string structure_of(const state::Source& source,
                         const std::optional<state::Skeleton>& skeleton) {
    constexpr std::size_t kShownMax = 8;
    if (source.structure() == "null") {
        return "tensors by name, nothing else";
    }
    if (!skeleton) {
        return fmt::format("JSON of {} bytes that Penstock did not write",
                           source.structure().size());
    }
    const format::ValueTree& tree = skeleton->tree;
    std::string out = brief(tree, tree.root);
    const format::Value& root = tree.at(tree.root);
    if (kind_name(root.kind) != "dict") {
        return out;
    }
    for (std::size_t i = 0; i + 1 < root.items.size() && i / 2 < kShownMax; i += 2) {
        std::string key;
        format::append_key(key, tree, root.items[i]);
        out += fmt::format("{} {} {}", i == 0 ? ":" : ",", key, brief(tree, root.items[i + 1]));
    }
    return out + (root.items.size() / 2 > kShownMax ? ", ..." : "");
}

void print_head(std::FILE* out, const state::Source& source, const std::string& structure,
                const std::vector<std::string>& pickled, const std::vector<std::string>& unread,
                std::size_t tensors) {
    fmt::print(out, "{}: {}\n", source.path(), source.kind());
    if (const auto* stored = dynamic_cast<const store::StoredSource*>(&source)) {
        const CheckpointInfo* info = &stored->info();
        fmt::print(out, "  generation {}, step {}, saved {} UTC, {} ({} linked), {}{}\n",
                   info->generation, info->step, utc(info->saved_unix_ns),
                   counted(info->shards, "shard"), info->linked_shards,
                   fmt::format("{} written", base::format_bytes(info->written_bytes)),
                   info->pinned ? ", pinned" : "");
    }
    fmt::print(out, "  {}, {}\n  {}\n", counted(tensors, "tensor"),
               base::format_bytes(source.bytes()), structure);
    for (const std::string& place : pickled) {
        fmt::print(out, "  pickled: {}\n", place);
    }
    for (const std::string& place : unread) {
        fmt::print(out, "  not read: {}\n", place);
    }
    for (const auto& [key, value] : source.metadata()) {
        fmt::print(out, "  {}: {}\n", format::shown(key), format::shown(value));
    }
}

void print_rows(std::FILE* out, const state::Source& source,
                const std::vector<state::StoredRow>& rows, bool verbose) {
    std::vector<std::string> names;
    std::size_t width = 4;
    for (const state::StoredRow& row : rows) {
        names.push_back(format::escaped(row.tensor.name));
        width = std::max(width, names.back().size());
    }
    width = std::min<std::size_t>(width, 60);
    fmt::print(out, "\n  {:<{}}  {:<8}  {:<20}  {:>10}{}\n", "name", width, "type", "shape", "size",
               verbose ? "  file, bytes from to" : "");
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const TensorEntry& t = rows[i].tensor;
        std::string more;
        if (verbose) {
            const std::uint64_t begin = t.stretches[0].offset;
            more = fmt::format("  {}, {} {}", format::escaped(file_name_of(source, t)), begin,
                               begin + t.bytes);
            more +=
                t.strides.empty() ? "" : fmt::format(", strides [{}]", fmt::join(t.strides, ", "));
        }
        if (!rows[i].shared_with.empty()) {
            more += fmt::format("  in the memory of {}", format::escaped(rows[i].shared_with));
        }
        fmt::print(out, "  {:<{}}  {:<8}  {:<20}  {:>10}{}\n", names[i], width, t.dtype,
                   fmt::format("[{}]", fmt::join(t.shape, ", ")), base::format_bytes(t.bytes),
                   more);
    }
}

nlohmann::ordered_json json_of_row(const state::Source& source, const state::StoredRow& row) {
    nlohmann::ordered_json out = json_of(source, row.tensor);
    if (row.stored_as != row.tensor.name) {
        out["stored_as"] = row.stored_as;
    }
    if (!row.tensor.strides.empty()) {
        out["strides"] = row.tensor.strides;
    }
    return out;
}

}  // namespace

int checkpoint_ls(const CheckpointOptions& options, std::span<const std::string> command) {
    report::JsonOutput json("--json", options.json);
    std::FILE* const out = json.text_stream();
    const auto engine = new_engine(options);
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    if (store::is_store(FileSystem::any(), options.path)) {
        const std::vector<CheckpointInfo> found = list(*engine, options.path);
        print_list(out, found);
        for (const CheckpointInfo& info : found) {
            rows.push_back(json_of(info));
        }
    } else {
        const auto source = store::open_source(engine, FileSystem::any(), options.path);
        fmt::print(out, "{}: {}, {}, {}\n", source->path(), source->kind(),
                   counted(source->tensors().size(), "tensor"),
                   base::format_bytes(source->bytes()));
        rows.push_back({{"path", source->path()},
                        {"kind", source->kind()},
                        {"tensors", source->tensors().size()},
                        {"tensor_bytes", source->bytes()}});
    }
    report::flush(out);
    json.write({{"command", words_of(command)}, {"path", options.path}, {"checkpoints", rows}});
    return 0;
}

int checkpoint_show(const CheckpointOptions& options, std::span<const std::string> command) {
    report::JsonOutput json("--json", options.json);
    std::FILE* const out = json.text_stream();
    const auto source = store::open_source(new_engine(options), FileSystem::any(), options.path,
                                           options.generation);
    const auto skeleton = state::skeleton_of(*source);
    const std::string structure = structure_of(*source, skeleton);
    std::vector<state::StoredRow> wanted = state::rows_of(*source, skeleton);
    const std::vector<std::string> pickled =
        skeleton ? format::pickled_places(skeleton->tree) : std::vector<std::string>();
    const std::vector<std::string> unread =
        skeleton ? format::unread_places(skeleton->tree) : std::vector<std::string>();
    print_head(out, *source, structure, pickled, unread, wanted.size());
    std::erase_if(wanted, [&](const state::StoredRow& row) {
        return !matches(row.tensor.name, options.pattern);
    });
    print_rows(out, *source, wanted, options.verbose);
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const state::StoredRow& row : wanted) {
        rows.push_back(json_of_row(*source, row));
    }
    report::flush(out);
    nlohmann::ordered_json all{{"command", words_of(command)},
                               {"path", source->path()},
                               {"kind", source->kind()},
                               {"structure", structure},
                               {"pickled", pickled},
                               {"not_read", unread},
                               {"tensors", rows}};
    for (const auto& [key, value] : source->metadata()) {
        all["metadata"][key] = value;
    }
    if (const auto* stored = dynamic_cast<const store::StoredSource*>(source.get())) {
        all["checkpoint"] = json_of(stored->info());
    }
    json.write(all);
    return 0;
}

}  // namespace penstock::cli
