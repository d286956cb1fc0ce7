// SPDX-License-Identifier: Apache-2.0
#include "format/numpy/npz.hpp"

#include "format/numpy/npy.hpp"
#include "format/numpy/numpy_types.hpp"
#include "format/utf8.hpp"
#include "format/zip/crc32.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace penstock::format::npz {

namespace {

constexpr std::string_view kReading = "read .npz";
constexpr std::string_view kEnd = ".npy";
constexpr std::uint64_t kHeadBytes = 256;  // the header of most arrays is in them

// The start of a record that has the whole header of its array.
Result<std::vector<std::byte>> head_of(ByteSource& source, const zip::Record& record) {
    std::vector<std::byte> head(std::min(record.bytes, kHeadBytes));
    PENSTOCK_CHECK(source.read(record.offset, head));
    PENSTOCK_TRY(bytes, npy::header_bytes(head));
    if (bytes > head.size() && head.size() < record.bytes) {
        head.resize(std::min(record.bytes, bytes));
        PENSTOCK_CHECK(source.read(record.offset, head));
    }
    return head;
}

struct Array {
    tensor::ElementType type = tensor::ElementType::kU8;
    std::vector<std::uint64_t> shape;
};

// Makes `record` that of the elements alone.
Result<Array> take_header(ByteSource& source, zip::Record& record) {
    PENSTOCK_TRY(head, head_of(source, record));
    PENSTOCK_TRY(header, npy::read_header(head));
    const auto type = element_type_of_numpy(header.dtype);
    if (!type) {
        return unsupported(kReading, fmt::format("its dtype {} is text; numpy.load() reads it",
                                                 shown(header.dtype)));
    }
    const std::uint64_t bytes = record.bytes - header.header_bytes;
    if (bytes != header.data_bytes) {
        return fault(kReading, fmt::format("its elements have {} bytes, and {} are there",
                                           header.data_bytes, bytes));
    }
    if (record.crc != 0) {
        const std::uint32_t before = crc32(std::span(head).first(header.header_bytes));
        record.crc ^= crc32_combine(before, 0, bytes);
        if (bytes == 0 && record.crc != 0) {  // no elements are read, which would tell
            return fault(kReading, "its header has another CRC than the file says: it was damaged");
        }
    }
    record.offset += header.header_bytes;
    record.bytes = bytes;
    return Array{*type, std::move(header.shape)};
}

std::vector<std::uint64_t> row_major(const std::vector<std::uint64_t>& shape) {
    std::vector<std::uint64_t> strides(shape.size(), 1);
    for (std::size_t d = shape.size(); d-- > 1;) {
        strides[d - 1] = strides[d] * std::max<std::uint64_t>(shape[d], 1);
    }
    return strides;
}

ValueId add(ValueTree& tree, ValueKind kind) {
    Value value;
    value.kind = kind;
    return tree.add(std::move(value));
}

void add_entry(ValueTree& tree, std::string name, Value value) {
    const ValueId key = add(tree, ValueKind::kString);
    tree.values[key].text = std::move(name);
    const ValueId id = tree.add(std::move(value));
    std::vector<ValueId>& items = tree.values[tree.root].items;
    items.push_back(key);
    items.push_back(id);
}

// A record that is not read costs only itself.
void add_unread(ValueTree& tree, std::string name, std::string_view type, std::string why) {
    Value value;
    value.kind = ValueKind::kUnread;
    value.text = type;
    value.data = std::move(why);
    add_entry(tree, std::move(name), std::move(value));
}

void add_array(ValueTree& tree, std::string name, std::uint64_t bytes, Array array) {
    const auto number = static_cast<std::uint32_t>(tree.tensors.size());
    std::vector<std::uint64_t> strides = row_major(array.shape);
    tree.storages.push_back({.bytes = bytes, .key = name});
    tree.tensors.push_back({.storage = number,
                            .type = array.type,
                            .shape = std::move(array.shape),
                            .strides = std::move(strides)});
    Value value;
    value.kind = ValueKind::kTensor;
    value.integer = number;
    add_entry(tree, std::move(name), std::move(value));
}

}  // namespace

bool is_npz(const std::vector<zip::Record>& records) {
    const auto ends = [&](std::string_view end) {
        return std::any_of(records.begin(), records.end(),
                           [end](const zip::Record& r) { return r.name.ends_with(end); });
    };
    return ends(kEnd) && !ends("/data.pkl");
}

Result<torch_file::File> read(ByteSource& source, std::vector<zip::Record> records) {
    torch_file::File file;
    file.form = torch_file::Form::kNpz;
    file.tree.root = add(file.tree, ValueKind::kDict);
    std::unordered_set<std::string> names;
    for (zip::Record& record : records) {
        std::string name = record.name;
        const bool is_array = name.ends_with(kEnd);
        if (is_array) {
            name.erase(name.size() - kEnd.size());
        }
        if (!is_utf8(name) || !names.insert(name).second) {
            return unsupported(kReading,
                               fmt::format("its record {} has a name that is not UTF-8, or that "
                                           "another one has; numpy.load() reads it",
                                           shown(record.name)));
        }
        if (!is_array) {
            add_unread(file.tree, std::move(name), "bytes",
                       "it is not an array (.npy); numpy.load() reads it");
            continue;
        }
        auto array = take_header(source, record);
        if (!array && array.error().code == ErrorCode::kUnsupported) {
            add_unread(file.tree, std::move(name), "numpy.ndarray",
                       std::move(array.error().message));
            continue;
        }
        if (!array) {
            base::Error& error = array.error();
            error.message = fmt::format("array {}: {}", shown(name), error.message);
            return tl::make_unexpected(std::move(error));
        }
        add_array(file.tree, std::move(name), record.bytes, std::move(*array));
        file.storages.push_back(std::move(record));
    }
    return file;
}

}  // namespace penstock::format::npz
