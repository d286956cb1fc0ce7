// SPDX-License-Identifier: Apache-2.0
// {"penstock_checkpoint":1, .., "shards":[[..],..], "tensors":{name:[dtype,[shape],[slice,..]],..},
// "structure":"..", "metadata":{..},"checksum":".."}: lists in fixed order instead of objects where
// there are many, which keeps 65,536 tensors below a tenth of a second. docs/formats.md has it byte
// for byte.
#include "store/manifest/manifest.hpp"

#include "base/planted.hpp"
#include "base/raise.hpp"
#include "base/text/hex.hpp"
#include "format/fault.hpp"
#include "format/json.hpp"
#include "format/utf8.hpp"
#include "store/identity/identity.hpp"
#include "store/manifest/manifest_check.hpp"
#include "store/manifest/metadata.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory_resource>
#include <span>
#include <unordered_set>

namespace penstock::store {

namespace {

using format::shown;

constexpr std::string_view kReading = "read manifest";
constexpr std::uint64_t kFormatVersion = 1;
constexpr std::string_view kSumKey = ",\"checksum\":\"";
constexpr std::string_view kSumEnd = "\"}\n";
constexpr std::string_view kStructureKey = ",\n\"structure\":";  // strings have no newline in them
constexpr std::string_view kMetadataKey = ",\n\"metadata\":{";
// Size of the text of a tensor with one slice and one sum. Reserved at once: a text that grows by
// doubling is copied, and faults in memory.
constexpr std::size_t kTensorBytesGuess = 112;
constexpr std::size_t kTailBytes = kSumKey.size() + base::kHexDigits + kSumEnd.size();

// ---- written ----

void text(std::string& out, std::string_view value, std::string_view what) {
    if (!format::is_utf8(value)) {
        refuse_save(
            fmt::format("{} {} is not UTF-8, which a manifest is written in", what, shown(value)));
    }
    format::append_json_string(out, value);
}

// Rejects values that could be written but not read again.
void check_written(const Manifest& manifest) {
    std::pmr::monotonic_buffer_resource nodes;
    std::pmr::unordered_set<std::string_view> names(&nodes);
    names.reserve(manifest.tensors.size());
    for (const Tensor& tensor : manifest.tensors) {
        if (!names.insert(tensor.name).second) {
            refuse_save(fmt::format("the tensor {} comes twice", shown(tensor.name)));
        }
    }
    names.clear();
    for (const auto& [key, value] : manifest.metadata) {
        if (!names.insert(key).second) {
            refuse_save(fmt::format("the metadata {} comes twice", shown(key)));
        }
    }
    if (const std::string wrong = check_manifest(manifest); !wrong.empty()) {
        refuse_save(wrong);
    }
}

void number(std::string& out, std::uint64_t value) {
    const fmt::format_int digits(value);
    out.append(digits.data(), digits.size());
}

void numbers(std::string& out, std::span<const std::uint64_t> list) {
    out += '[';
    for (std::size_t i = 0; i < list.size(); ++i) {
        out += i == 0 ? "" : ",";
        number(out, list[i]);
    }
    out += ']';
}

void field(std::string& out, std::string_view name, std::uint64_t value) {
    out += fmt::format(",\"{}\":{}", name, value);
}

void render_shards(std::string& out, const Manifest& manifest) {
    out += ",\n\"folders\":[";
    for (std::size_t i = 0; i < manifest.folders.size(); ++i) {
        out += i == 0 ? "" : ",";
        text(out, manifest.folders[i], "folder");
    }
    out += "],\n\"shards\":[";
    for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
        const Shard& s = manifest.shards[i];
        out += i == 0 ? "\n[" : ",\n[";
        text(out, s.file, "file name");
        out += fmt::format(",{},\"{}\",{},{},{},\"", s.folder, s.id, s.generation, s.bytes,
                           s.header_bytes);
        base::append_hex(out, s.header_sum);
        out += "\"]";
    }
    out += ']';
}

void render_slice(std::string& out, const Slice& slice, const Tensor& tensor) {
    out += '[';
    number(out, slice.shard);
    for (const std::uint64_t value : {slice.begin, slice.bytes, slice.changed}) {
        out += ',';
        number(out, value);
    }
    out += ",\"";
    for (const std::uint64_t sum : slice.sums) {
        base::append_hex(out, sum);
    }
    out += '"';
    const bool whole =
        slice.shape == tensor.shape &&
        std::all_of(slice.offset.begin(), slice.offset.end(), [](auto o) { return o == 0; });
    if (!whole) {
        out += ',';
        numbers(out, slice.shape);
        out += ',';
        numbers(out, slice.offset);
    }
    out += ']';
}

void render_tensors(std::string& out, const Manifest& manifest) {
    out += ",\n\"tensors\":{";
    for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
        const Tensor& tensor = manifest.tensors[i];
        out += i == 0 ? "\n" : ",\n";
        text(out, tensor.name, "tensor name");
        out += fmt::format(":[\"{}\",", tensor.dtype);
        numbers(out, tensor.shape);
        out += ",[";
        for (std::size_t k = 0; k < tensor.slices.size(); ++k) {
            out += k == 0 ? "" : ",";
            render_slice(out, tensor.slices[k], tensor);
        }
        out += "]]";
    }
    out += '}';
}

// ---- read ----

// Knows which values are allowed at each depth: a place in the text is a section (a key of the
// outermost object) and an index at each level below it.
class Handler final : public format::JsonHandler {
public:
    Manifest manifest;

    std::string key(std::string& name) override {
        if (depth_ == 1) {
            const auto* const found = std::find(kSections.begin(), kSections.end(), name);
            if (found == kSections.end()) {
                return fmt::format("it has a field {} that this version does not know",
                                   shown(name));
            }
            section_ = static_cast<Section>(found - kSections.begin());
            seen_ |= 1U << static_cast<unsigned>(section_);
            return {};
        }
        if (section_ == Section::kTensors) {
            manifest.tensors.emplace_back().name = std::move(name);
        } else {
            manifest.metadata.emplace_back().first = std::move(name);
        }
        return {};
    }

    std::string open(bool array) override {
        if (depth_ == kDepthMax) {
            return wrong();
        }
        const std::size_t index = depth_ == 0 ? 0 : index_[depth_]++;
        index_[++depth_] = 0;
        const bool tensors = section_ == Section::kTensors;
        switch (depth_) {
            case 1:
                return array ? "it is a list, not an object" : "";
            case 2: {
                const bool list = section_ == Section::kFolders || section_ == Section::kShards;
                const bool object = tensors || section_ == Section::kMetadata;
                return (array ? list : object) ? std::string() : wrong();
            }
            case 3:
                if (array && section_ == Section::kShards) {
                    manifest.shards.emplace_back();
                    return {};
                }
                return array && (tensors || section_ == Section::kMetadata) ? std::string()
                                                                            : wrong();
            case 4:
                part_ = index;
                return array && tensors && (index == 1 || index == 2) ? std::string() : wrong();
            case 5:
                if (!array || !tensors || part_ != 2) {
                    return wrong();
                }
                manifest.tensors.back().slices.emplace_back();
                return {};
            default:
                slice_part_ = index;
                return array && (index == 5 || index == 6) ? std::string() : wrong();
        }
    }

    std::string close(bool /*array*/) override {
        const std::size_t count = index_[depth_];
        const std::size_t depth = depth_--;
        if (depth == 3 && count != list_fields()) {
            return wrong();
        }
        if (depth == 5) {
            if (count != 5 && count != 7) {
                return wrong();
            }
            if (count == 5) {
                Tensor& tensor = manifest.tensors.back();
                tensor.slices.back().shape = tensor.shape;
                tensor.slices.back().offset.assign(tensor.shape.size(), 0);
            }
        }
        if (depth == 1 && seen_ != (1U << kSections.size()) - 1) {
            return "a field of it is missing";
        }
        return {};
    }

    std::string scalar(const format::JsonScalar& value) override {
        const std::size_t index = depth_ == 0 ? 0 : index_[depth_]++;
        if (section_ == Section::kVersion && depth_ == 1 && value.kind == Scalar::Kind::kUnsigned &&
            value.number != kFormatVersion) {
            return fmt::format("it is of version {}, and {} is read: a later Penstock wrote it",
                               value.number, kFormatVersion);
        }
        bool good = false;
        switch (section_) {
            case Section::kFolders:
                good = depth_ == 2 && take(value, manifest.folders.emplace_back());
                break;
            case Section::kShards:
                good = depth_ == 3 && shard(manifest.shards.back(), index, value);
                break;
            case Section::kTensors:
                good = tensor(index, value);
                break;
            case Section::kMetadata:
                good = depth_ == 2 ? plain(value, manifest.metadata.back().second)
                                   : depth_ == 3 && special(value, manifest.metadata.back().second);
                break;
            default:
                good = depth_ == 1 && single(value);
        }
        return good ? std::string() : wrong();
    }

private:
    using Scalar = format::JsonScalar;
    enum class Section : std::uint8_t {
        kVersion,
        kGeneration,
        kStep,
        kSaved,
        kWorld,
        kWritten,
        kChunk,
        kFolders,
        kShards,
        kTensors,
        kStructure,
        kMetadata,
        kChecksum,
    };
    static constexpr std::array<std::string_view, 13> kSections{
        "penstock_checkpoint", "generation",  "step",    "saved_unix_ns", "world",
        "written_bytes",       "chunk_bytes", "folders", "shards",        "tensors",
        "structure",           "metadata",    "checksum"};
    static constexpr std::size_t kDepthMax = 6;

    [[nodiscard]] std::string wrong() const {
        if (depth_ == 0) {
            return "it is no object";
        }
        std::string where(kSections[static_cast<std::size_t>(section_)]);
        if (section_ == Section::kTensors && !manifest.tensors.empty()) {
            where = "tensor " + shown(manifest.tensors.back().name);
        }
        return fmt::format("{} does not have the form that it should have", where);
    }

    static bool take(const Scalar& value, std::string& out) {
        if (value.kind != Scalar::Kind::kString) {
            return false;
        }
        out = std::move(*value.text);
        return true;
    }
    template <typename Number>
    static bool take(const Scalar& value, Number& out) {
        if (value.kind != Scalar::Kind::kUnsigned ||
            value.number > static_cast<std::uint64_t>(std::numeric_limits<Number>::max())) {
            return false;
        }
        out = static_cast<Number>(value.number);
        return true;
    }
    // A value of the metadata that JSON has.
    static bool plain(const Scalar& value, MetadataValue& out) {
        switch (value.kind) {
            case Scalar::Kind::kNull:
                return true;
            case Scalar::Kind::kBool:
                out = value.number != 0;
                return true;
            case Scalar::Kind::kUnsigned:
            case Scalar::Kind::kNegative:
                out = static_cast<std::int64_t>(value.number);
                return value.kind == Scalar::Kind::kNegative || value.number <= INT64_MAX;
            case Scalar::Kind::kReal:
                out = value.real;
                return true;
            case Scalar::Kind::kString:
                out = std::move(*value.text);
                return true;
        }
        return false;
    }
    // One that it has not, named in a list.
    static bool special(const Scalar& value, MetadataValue& out) {
        const auto number =
            value.kind == Scalar::Kind::kString ? special_number(*value.text) : std::nullopt;
        if (number) {
            out = *number;
        }
        return number.has_value();
    }
    [[nodiscard]] std::size_t list_fields() const {
        return section_ == Section::kShards ? 7 : section_ == Section::kTensors ? 3 : 1;
    }
    static bool take_sum(const Scalar& value, std::uint64_t& out) {
        return value.kind == Scalar::Kind::kString && base::parse_hex(*value.text, out);
    }

    bool single(const Scalar& value) {
        std::uint64_t number = 0;
        switch (section_) {
            case Section::kVersion:
                return take(value, number) && number == kFormatVersion;
            case Section::kGeneration:
                return take(value, manifest.generation);
            case Section::kStep:
                return take(value, manifest.step);
            case Section::kSaved:
                return take(value, manifest.saved_unix_ns);
            case Section::kWorld:
                return take(value, manifest.world);
            case Section::kWritten:
                return take(value, manifest.written_bytes);
            case Section::kChunk:
                return take(value, number) && number == kChunkBytes;
            case Section::kStructure:
                return take(value, manifest.structure);
            case Section::kChecksum:
                return value.kind == Scalar::Kind::kString;
            default:
                return false;
        }
    }

    static bool shard(Shard& out, std::size_t index, const Scalar& value) {
        switch (index) {
            case 0:
                return take(value, out.file);
            case 1:
                return take(value, out.folder);
            case 2:
                return take(value, out.id);
            case 3:
                return take(value, out.generation);
            case 4:
                return take(value, out.bytes);
            case 5:
                return take(value, out.header_bytes);
            default:
                return index == 6 && take_sum(value, out.header_sum);
        }
    }

    bool tensor(std::size_t index, const Scalar& value) {
        if (depth_ < 3) {
            return false;
        }
        Tensor& out = manifest.tensors.back();
        if (depth_ == 3) {
            return index == 0 && take(value, out.dtype);
        }
        if (depth_ == 4) {
            return part_ == 1 && take(value, out.shape.emplace_back());
        }
        Slice& slice = out.slices.back();
        if (depth_ == 5) {
            return slice_field(slice, index, value);
        }
        return take(value, (slice_part_ == 5 ? slice.shape : slice.offset).emplace_back());
    }

    static bool slice_field(Slice& out, std::size_t index, const Scalar& value) {
        switch (index) {
            case 0:
                return take(value, out.shard);
            case 1:
                return take(value, out.begin);
            case 2:
                return take(value, out.bytes);
            case 3:
                return take(value, out.changed);
            default:
                return index == 4 && value.kind == Scalar::Kind::kString &&
                       sums(*value.text, out.sums);
        }
    }

    static bool sums(std::string_view digits, std::vector<std::uint64_t>& out) {
        if (digits.size() % base::kHexDigits != 0) {
            return false;
        }
        out.resize(digits.size() / base::kHexDigits);
        for (std::size_t i = 0; i < out.size(); ++i) {
            if (!base::parse_hex(digits.substr(i * base::kHexDigits, base::kHexDigits), out[i])) {
                return false;
            }
        }
        return true;
    }

    std::size_t depth_ = 0;
    std::array<std::size_t, kDepthMax + 1> index_{};  // number of values so far, at each depth
    Section section_ = Section::kVersion;
    std::uint32_t seen_ = 0;
    std::size_t part_ = 0;        // of a tensor's list: 1 its shape, 2 its slices
    std::size_t slice_part_ = 0;  // of a slice's list: 5 its shape, 6 its offset
};

[[noreturn]] void damaged(const std::string& path, std::string_view why) {
    base::raise(base::error(
        ErrorCode::kDamaged, kReading,
        fmt::format("{}; this checkpoint cannot be used, take the one before it", why), path));
}

void check_sum(std::string_view text, const std::string& path) {
    if (text.size() > kManifestBytesMax) {
        damaged(path, fmt::format("it has {} bytes, and no more than {} are read", text.size(),
                                  kManifestBytesMax));
    }
    std::uint64_t sum = 0;
    if (text.size() <= kTailBytes || !text.ends_with(kSumEnd) ||
        text.substr(text.size() - kTailBytes, kSumKey.size()) != kSumKey ||
        !base::parse_hex(text.substr(text.size() - kTailBytes + kSumKey.size(), base::kHexDigits),
                         sum)) {
        damaged(path, "it does not end in a checksum: cut short, or no manifest of a checkpoint");
    }
    const std::string_view summed = text.substr(0, text.size() - kTailBytes);
    if (stream::content_hash(std::as_bytes(std::span(summed.data(), summed.size()))) != sum &&
        !base::planted("unchecked_manifest")) {
        damaged(path, "its checksum is not that of its text: it was changed or damaged");
    }
}

}  // namespace

std::string render(const Manifest& manifest) {
    check_written(manifest);
    std::string out;
    out.reserve(manifest.tensors.size() * kTensorBytesGuess + manifest.structure.size() * 5 / 4);
    out += fmt::format("{{\"penstock_checkpoint\":{}", kFormatVersion);
    field(out, "generation", manifest.generation);
    field(out, "step", manifest.step);
    field(out, "saved_unix_ns",
          static_cast<std::uint64_t>(std::max<std::int64_t>(manifest.saved_unix_ns, 0)));
    field(out, "world", manifest.world);
    field(out, "written_bytes", manifest.written_bytes);
    field(out, "chunk_bytes", kChunkBytes);
    render_shards(out, manifest);
    render_tensors(out, manifest);
    out += kStructureKey;
    text(out, manifest.structure, "structure");
    out += kMetadataKey;
    if (!manifest.store.empty()) {
        out += fmt::format("\"{}\":\"{}\"", kStoreKey, manifest.store);
    }
    for (std::size_t i = 0; i < manifest.metadata.size(); ++i) {
        out += i == 0 && manifest.store.empty() ? "" : ",";
        text(out, manifest.metadata[i].first, "metadata");
        out += ':';
        const MetadataValue& value = manifest.metadata[i].second;
        if (const auto* const words = std::get_if<std::string>(&value)) {
            text(out, *words, "metadata");
        } else {
            out += number_json(value);
        }
    }
    out += '}';
    const std::uint64_t sum =
        stream::content_hash(std::as_bytes(std::span(out.data(), out.size())));
    out += kSumKey;
    base::append_hex(out, sum);
    out += kSumEnd;
    return out;
}

std::string identity_in(std::string_view text, const std::string& path) {
    check_sum(text, path);
    const std::string before = fmt::format("{}\"{}\":\"", kMetadataKey, kStoreKey);
    const std::size_t at = text.rfind(before);
    const std::string_view identity = at == std::string_view::npos
                                          ? std::string_view()
                                          : text.substr(at + before.size(), kIdentityDigits);
    if (at != std::string_view::npos && !is_identity(identity)) {
        damaged(path, "the identity of its store has another form");
    }
    return std::string(identity);
}

bool holds_structure(std::string_view text, std::string_view structure) {
    std::size_t at = text.rfind(kStructureKey);
    if (at == std::string_view::npos || text[at += kStructureKey.size()] != '"') {
        return false;
    }
    ++at;
    for (const char c : structure) {
        char read = at < text.size() ? text[at++] : '"';
        if (read == '"') {
            return false;
        }
        if (read == '\\') {
            read = text[at++];
            if (read == 'u') {
                const std::string_view digits = text.substr(at, 4);
                std::uint64_t code = 0;
                at += 4;
                if (!base::parse_hex("000000000000" + std::string(digits), code) || code >= 0x20) {
                    return false;
                }
                read = static_cast<char>(code);
            }
        }
        if (read != c) {
            return false;
        }
    }
    return at < text.size() && text[at] == '"';
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
    check_sum(text, path);
    Handler handler;
    if (const auto read = format::read_json(text, handler, kReading); !read) {
        damaged(path, read.error().message);
    }
    if (const std::string wrong = check_manifest(handler.manifest); !wrong.empty()) {
        damaged(path, wrong);
    }
    handler.manifest.store = identity_in(text, path);
    std::erase_if(handler.manifest.metadata,
                  [](const auto& value) { return value.first == kStoreKey; });
    return std::move(handler.manifest);
}

}  // namespace penstock::store
