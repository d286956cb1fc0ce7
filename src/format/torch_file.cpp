// SPDX-License-Identifier: Apache-2.0
#include "format/torch_file.hpp"

#include "base/align.hpp"
#include "format/file_kind.hpp"
#include "format/numpy/npz.hpp"
#include "format/numpy/numpy_types.hpp"
#include "format/pickle/pickle.hpp"
#include "format/torch_types.hpp"
#include "format/zip/crc32.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <unordered_map>

namespace penstock::format::torch_file {

namespace {

constexpr std::string_view kReading = "read .pt";
constexpr std::size_t kSmallRecordBytesMax = 64;
constexpr std::string_view kZipSignature = "PK\x03\x04";
constexpr std::string_view kEmptyZipSignature = "PK\x05\x06";
constexpr std::uint64_t kVersionMax = 10;  // of torch's own reader

// torch writes 20 digits of a hash of the records' names and 20 of one of their contents. Readers
// accept any; ours is the same for the same state.
std::string serialization_id(const std::string& folder, const std::string& pickle) {
    const auto crc = [](std::string_view s, std::uint32_t before) {
        return crc32(std::as_bytes(std::span(s.data(), s.size())), before);
    };
    const std::uint64_t names = crc(folder, static_cast<std::uint32_t>(pickle.size()));
    const std::uint64_t content = (std::uint64_t{crc(pickle, 0)} << 32U) | crc(pickle, 1);
    return fmt::format("{:020}{:020}", names, content);
}

// The records other than the storages.
Result<std::vector<zip::NewRecord>> small_records(const ValueTree& tree, const std::string& folder,
                                                  const PickleOptions& options) {
    PENSTOCK_TRY(pickle, write_pickle(tree, options));
    std::string id = serialization_id(folder, pickle);
    std::vector<zip::NewRecord> records;
    records.push_back({folder + "/data.pkl", 0, std::move(pickle)});
    records.push_back({folder + "/byteorder", 0, "little"});
    records.push_back({folder + "/version", 0, "3\n"});
    records.push_back({folder + "/.data/serialization_id", 0, std::move(id)});
    return records;
}

Result<std::string> fetch(ByteSource& source, const zip::Record& record, std::uint64_t limit) {
    if (record.bytes > limit) {
        return unsupported(kReading, fmt::format("record {} has {} bytes; no more than {} are read",
                                                 shown(record.name), record.bytes, limit));
    }
    PENSTOCK_CHECK(zip::check_crc(source, record));
    std::string out(record.bytes, '\0');
    PENSTOCK_CHECK(source.read(record.offset, std::as_writable_bytes(std::span(out))));
    return out;
}

// The records of one archive, by the part of their names after its folder.
class Archive {
public:
    static Result<Archive> open(std::vector<zip::Record> records) {
        Archive archive;
        constexpr std::string_view kPickle = "/data.pkl";
        bool script = false;
        bool exported = false;
        for (const zip::Record& record : records) {
            const std::string_view name = record.name;
            exported = exported || name.ends_with("/archive_format");
            script = script || name.ends_with("/model.json") || name.ends_with("/attributes.pkl");
            const bool found =
                name.ends_with(kPickle) && name.find('/') + kPickle.size() == name.size();
            if (found && archive.folder_.empty()) {
                archive.folder_ = name.substr(0, name.size() - kPickle.size() + 1);
            } else if (found) {
                return unsupported(kReading, "two states are in one file (data.pkl comes twice)");
            }
        }
        if (archive.folder_.empty()) {
            return unsupported(
                kReading, exported
                              ? "it is a program of torch.export (.pt2), which torch.export.load() "
                                "reads; save the state_dict of it instead"
                          : script ? "it is a TorchScript archive of torch before 1.4, which "
                                     "torch.jit.load() reads"
                                   : "it is a zip without a data.pkl in its folder: not written by "
                                     "torch.save (TorchScript, or a zip of something else)");
        }
        for (zip::Record& record : records) {
            if (record.name.starts_with(archive.folder_)) {
                std::string rest = record.name.substr(archive.folder_.size());
                archive.records_.emplace(std::move(rest), std::move(record));
            }
        }
        return archive;
    }

    [[nodiscard]] const zip::Record* find(const std::string& name) const {
        const auto found = records_.find(name);
        return found == records_.end() ? nullptr : &found->second;
    }

private:
    std::string folder_;  // with its slash
    std::unordered_map<std::string, zip::Record> records_;
};

// Accepts a file without a version, though torch does not.
Result<void> check_version(ByteSource& source, const Archive& archive) {
    const zip::Record* record = archive.find("version");
    record = record != nullptr ? record : archive.find(".data/version");
    if (record == nullptr) {
        return {};
    }
    PENSTOCK_TRY(text, fetch(source, *record, kSmallRecordBytesMax));
    const std::string digits = text.substr(0, text.find_last_not_of(" \r\n") + 1);
    const auto version = small_number(digits);
    if (version && *version > kVersionMax) {
        return unsupported(kReading,
                           fmt::format("it is of version {} of the format, and 1 to {} are read: a "
                                       "later torch wrote it",
                                       shown(digits), kVersionMax));
    }
    if (!version || *version < 1) {
        return fault(
            kReading,
            fmt::format("its version of the format is {}, not a number from 1 on", shown(digits)));
    }
    return {};
}

// The bytes that are turned together: the width of the numbers in each storage. A storage without a
// class of its own has the types of its tensors.
Result<std::vector<std::uint8_t>> swap_units(const ValueTree& tree) {
    std::vector<std::uint8_t> out(tree.storages.size(), 0);
    for (const TensorValue& t : tree.tensors) {
        const TorchType& type = *torch_type(t.type);
        const bool complex = std::string_view(type.torch).starts_with("complex");
        const auto unit = static_cast<std::uint8_t>(type.torch_bytes() / (complex ? 2 : 1));
        std::uint8_t& known = out[t.storage];
        if (known != 0 && known != unit && tree.storages[t.storage].bytes != 0) {
            return base::fail(base::error(
                ErrorCode::kUnsupported, kReading,
                fmt::format("a big-endian machine saved it, and its storage {} has tensors of {} "
                            "and of {} bytes an element: which bytes belong together cannot be "
                            "said; save it again there, with a clone() of these tensors",
                            shown(tree.storages[t.storage].key), known, unit)));
        }
        known = unit;
    }
    return out;
}

Result<File> read_zip(ByteSource& source) {
    File file;
    PENSTOCK_TRY(records, zip::read_directory(source, &file.bytes));
    if (npz::is_npz(records)) {
        PENSTOCK_TRY(arrays, npz::read(source, std::move(records)));
        arrays.bytes = file.bytes;
        return arrays;
    }
    PENSTOCK_TRY(archive, Archive::open(std::move(records)));
    if (archive.find("constants.pkl") != nullptr) {
        return unsupported(kReading,
                           "it is a TorchScript archive, which is a program; save its "
                           "state_dict() instead");
    }
    if (const zip::Record* order = archive.find("byteorder")) {
        PENSTOCK_TRY(text, fetch(source, *order, kSmallRecordBytesMax));
        if (text != "little" && text != "big") {
            return unsupported(kReading, fmt::format("its bytes are in the order {}, and 'little' "
                                                     "and 'big' are read",
                                                     shown(text)));
        }
        file.big_endian = text == "big";
    }
    PENSTOCK_CHECK(check_version(source, archive));
    PENSTOCK_TRY(pickle, fetch(source, *archive.find("data.pkl"), kPickleBytesMax));
    PENSTOCK_TRY(read, read_pickle(std::as_bytes(std::span(pickle))));
    if (read.bytes != pickle.size()) {
        return fault(kReading, "something stands behind the state in data.pkl");
    }
    if (file.big_endian) {
        PENSTOCK_TRY(units, swap_units(read.tree));
        file.swap_units = std::move(units);
    }
    for (const StorageValue& storage : read.tree.storages) {
        const zip::Record* record = archive.find("data/" + storage.key);
        if (record == nullptr || record->bytes != storage.bytes) {
            return fault(kReading,
                         fmt::format("storage {} should have {} bytes, and {}: the file is damaged",
                                     shown(storage.key), storage.bytes,
                                     record == nullptr ? "is not in the file"
                                                       : fmt::format("has {}", record->bytes)));
        }
        file.storages.push_back(*record);
    }
    file.tree = std::move(read.tree);
    return file;
}

// ---- the legacy form ----

// Reads the legacy form. The four pickles before the state's own storages are small except for the
// state: it is read in pieces that grow as long as a pickle is cut short by their end.
class LegacyReader {
public:
    explicit LegacyReader(ByteSource& source) : source_(source) {}

    Result<File> run() {
        PENSTOCK_TRY(is_other, is_other_pickle());
        if (is_other) {
            return unsupported(kReading,
                               "it is a pickle, and not one of torch.save; pickle.load() reads it, "
                               "which can run any code");
        }
        // Magic number, protocol version, system: {"little_endian": True, ...}. The storages are
        // little-endian in any case: torch turns them when it writes this form.
        PENSTOCK_TRY(magic, pickle());
        PENSTOCK_TRY(version, pickle());
        PENSTOCK_TRY(system, pickle());
        const Value& number = magic.at(magic.root);
        if (number.kind != ValueKind::kBigInt || number.text != kMagic ||
            version.at(version.root).kind != ValueKind::kInt ||
            version.at(version.root).integer != 1001) {
            return fault(kReading, "it is neither a zip nor a legacy file of torch.save");
        }
        PENSTOCK_TRY(state, pickle());
        PENSTOCK_TRY(keys, pickle());
        File file;
        file.form = Form::kLegacy;
        PENSTOCK_CHECK(place_storages(state, keys, file));
        file.bytes = at_;
        file.tree = std::move(state);
        return file;
    }

private:
    static constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

    // Whether it begins and ends as a pickle does, and not as one of torch.save.
    Result<bool> is_other_pickle() {
        const std::uint64_t size = source_.size();
        std::string head(std::min<std::uint64_t>(size, 64), '\0');
        PENSTOCK_CHECK(source_.read(0, std::as_writable_bytes(std::span(head))));
        if (size < 3 || head.find(kMagic) != std::string::npos || head.starts_with(kLegacyText)) {
            return false;
        }
        char last = 0;
        PENSTOCK_CHECK(source_.read(size - 1, std::as_writable_bytes(std::span(&last, 1))));
        return last == '.';
    }

    Result<ValueTree> pickle() {
        const std::uint64_t left = source_.size() - at_;
        for (std::uint64_t bytes = 4096;; bytes *= 4) {
            bytes = std::min({bytes, left, kPickleBytesMax});
            std::vector<std::byte> piece(bytes);
            PENSTOCK_CHECK(source_.read(at_, piece));
            bool cut_short = false;
            auto read = read_pickle(piece, &cut_short);
            if (read) {
                at_ += read->bytes;
                return std::move(read->tree);
            }
            if (!cut_short || bytes == left || bytes == kPickleBytesMax) {
                return tl::make_unexpected(std::move(read.error()));
            }
        }
    }

    // Reads in the order of the list of keys: u64 elements, then the bytes.
    Result<void> place_storages(const ValueTree& state, const ValueTree& keys, File& file) {
        std::unordered_map<std::string_view, std::size_t> wanted;
        for (std::size_t i = 0; i < state.storages.size(); ++i) {
            wanted.emplace(state.storages[i].key, i);
        }
        file.storages.resize(state.storages.size());
        const Value& list = keys.at(keys.root);
        if (list.kind != ValueKind::kList) {
            return fault(kReading, "its list of storages is missing", at_);
        }
        for (const ValueId id : list.items) {
            const Value& key = keys.at(id);
            const auto found = wanted.find(key.text);
            const auto is_it = [&key](const StorageValue& s) { return s.key == key.text; };
            if (key.kind != ValueKind::kString ||
                (found == wanted.end() &&
                 std::any_of(state.storages.begin(), state.storages.end(), is_it))) {
                return fault(kReading,
                             "it has a storage twice, or one without a name: " + shown(key.text));
            }
            if (found == wanted.end()) {  // of objects that are not read; its size is not known
                return unsupported(kReading, "it has a storage that no tensor which is read has: " +
                                                 shown(key.text));
            }
            const std::size_t i = found->second;
            wanted.erase(found);
            PENSTOCK_CHECK(place(state.storages[i], file.storages[i]));
        }
        if (!wanted.empty()) {
            return fault(kReading, fmt::format("storage {} is not in the file: it was cut short",
                                               shown(wanted.begin()->first)));
        }
        return {};
    }

    Result<void> place(const StorageValue& storage, zip::Record& record) {
        std::uint64_t elements = 0;
        const std::uint64_t size = source_.size();
        if (size - at_ < 8 || storage.bytes > size - at_ - 8) {
            return fault(kReading,
                         fmt::format("storage {} runs past the end of the file: it was "
                                     "cut short",
                                     shown(storage.key)),
                         at_);
        }
        std::array<std::byte, 8> head{};
        PENSTOCK_CHECK(source_.read(at_, head));
        std::memcpy(&elements, head.data(), 8);
        if (elements > storage.bytes) {  // torch wrote the number as the machine has it until 1.11
            std::reverse(head.begin(), head.end());
            std::memcpy(&elements, head.data(), 8);
        }
        if (elements > storage.bytes || (elements == 0) != (storage.bytes == 0) ||
            (elements != 0 && storage.bytes % elements != 0)) {
            return fault(kReading,
                         fmt::format("storage {} has {} elements where it should have {} "
                                     "bytes: the file is damaged",
                                     shown(storage.key), elements, storage.bytes),
                         at_);
        }
        record = {storage.key, at_ + 8, storage.bytes, 0};
        at_ += 8 + storage.bytes;
        return {};
    }

    ByteSource& source_;
    std::uint64_t at_ = 0;
};

}  // namespace

Result<Layout> Layout::make(const ValueTree& tree, const std::string& folder,
                            const PickleOptions& options) {
    PENSTOCK_TRY(records, small_records(tree, folder, options));
    records.reserve(tree.storages.size() + records.size());
    Layout layout;
    layout.first_ = records.size();
    for (std::size_t i = 0; i < tree.storages.size(); ++i) {
        records.push_back({fmt::format("{}/data/{}", folder, i), tree.storages[i].bytes, {}});
    }
    PENSTOCK_TRY(made, zip::Layout::make(std::move(records)));
    layout.zip_ = std::move(made);
    return layout;
}

Layout Layout::begin(std::string folder) {
    Layout layout;
    layout.folder_ = std::move(folder);
    return layout;
}

void Layout::append(std::uint64_t bytes) {
    records_.push_back({fmt::format("{}/data/{}", folder_, records_.size()), bytes, {}});
    zip_.append(records_.back());
}

Result<void> Layout::finish(const ValueTree& tree, const PickleOptions& options) {
    PENSTOCK_TRY(small, small_records(tree, folder_, options));
    for (zip::NewRecord& record : small) {
        record.bytes = record.literal->size();
        zip_.append(record);
        records_.push_back(std::move(record));
    }
    zip_.finish(records_);
    return {};
}

std::vector<std::size_t> Layout::crcs_in(FileRange range) const {
    std::vector<std::size_t> out = zip_.crcs_in(range);
    for (std::size_t& record : out) {
        record -= first_;
    }
    return out;
}

Result<File> read(ByteSource& source, bool check_crcs) {
    std::string head(std::min<std::uint64_t>(source.size(), kLegacyText.size()), '\0');
    PENSTOCK_CHECK(source.read(0, std::as_writable_bytes(std::span(head))));
    if (!head.starts_with(kZipSignature) && !head.starts_with(kEmptyZipSignature)) {
        if (!head.starts_with('\x80') && head != kLegacyText) {
            PENSTOCK_TRY(form, form_of(source, {}));
            if (form == FileForm::kIndex) {
                return unsupported(kReading, "it is text, JSON as it seems, and no .pt");
            }
        }
        return LegacyReader(source).run();
    }
    PENSTOCK_TRY(file, read_zip(source));
    for (std::size_t i = 0; check_crcs && i < file.storages.size(); ++i) {
        PENSTOCK_CHECK(zip::check_crc(source, file.storages[i]));
    }
    return file;
}

}  // namespace penstock::format::torch_file
