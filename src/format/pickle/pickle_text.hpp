// SPDX-License-Identifier: Apache-2.0
// Appends texts, names, bytes and NumPy's data to a pickle. What is written twice gets a number in
// the memo.
#pragma once

#include "format/pickle/pickle_output.hpp"
#include "format/rebuilt.hpp"
#include "format/utf8.hpp"
#include "format/value.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock::format {

class PickleText : protected PickleOutput {
protected:
    explicit PickleText(std::string numpy_module) : numpy_module_(std::move(numpy_module)) {}

    bool refuse(std::string why) {
        wrong_ = std::move(why);
        return false;
    }

    // Writes the length in 4 bytes.
    bool begin_string(std::uint64_t bytes) {
        if (bytes > UINT32_MAX) {
            return refuse(
                fmt::format("it takes {} bytes in the pickle, and {} are the most; use a tensor",
                            bytes, UINT32_MAX));
        }
        code(Code::kBinUnicode);
        number(bytes, 4);
        return true;
    }
    // Writes a string once, and later its number: keys of states repeat.
    bool string(std::string_view text) {
        if (const auto known = strings_.find(text); known != strings_.end()) {
            get(known->second);
            return true;
        }
        if (!begin_string(text.size())) {
            return false;
        }
        strings_.emplace(kept(text), next_);
        out_ += text;
        put(next_++);
        return true;
    }
    std::string_view kept(std::string_view text) {
        auto* const copy =
            static_cast<char*>(memory_.allocate(std::max<std::size_t>(text.size(), 1), 1));
        std::copy(text.begin(), text.end(), copy);
        return {copy, text.size()};
    }
    void global(std::string_view module, std::string_view name) {
        const auto [known, fresh] =
            globals_.try_emplace(fmt::format("{}\n{}\n", module, name), next_);
        if (!fresh) {
            get(known->second);
            return;
        }
        code(Code::kGlobal);
        out_ += known->first;
        put(next_++);
    }
    // Writes bytes as the Latin-1 of a string: protocol 2 has no bytes.
    bool bytes(std::string_view data) {
        global("_codecs", "encode");
        if (!begin_string(utf8_bytes(data))) {
            return false;
        }
        append_utf8(out_, data);
        string("latin1");
        code(Code::kTuple2);
        code(Code::kReduce);
        return true;
    }
    // A name of torch's: a dtype, a scheme, a layout, a class of tensors ("cuda.FloatTensor").
    void constant(std::string_view name) {
        if (torch_constant(name) == Constant::kLayout) {
            global("torch.serialization", "_get_layout");
            string("torch." + std::string(name));
            code(Code::kTuple1);
            code(Code::kReduce);
            return;
        }
        const std::size_t dot = name.rfind('.');
        if (dot == std::string_view::npos) {
            global("torch", name);
        } else {
            global("torch." + std::string(name.substr(0, dot)), name.substr(dot + 1));
        }
    }

    void device(std::string_view name) {
        global("torch", "device");
        const std::size_t colon = name.find(':');
        string(name.substr(0, colon));
        if (colon == std::string_view::npos) {
            code(Code::kTuple1);
        } else {
            std::int64_t index = 0;
            for (const char c : name.substr(colon + 1)) {
                index = index * 10 + (c - '0');
            }
            integer(index);
            code(Code::kTuple2);
        }
        code(Code::kReduce);
    }
    void empty_ordered_dict() {
        global("collections", "OrderedDict");
        code(Code::kEmptyTuple);
        code(Code::kReduce);
    }

    bool numpy(const ValueTree& tree, const Value& v) {
        if (v.kind == ValueKind::kNumpyScalar) {
            global(numpy_module_, "scalar");
            numpy_dtype(v.text);
            // NumPy writes an empty text as one character that is 0, and requires it.
            const bool none = v.data.empty();
            if (!bytes(none ? std::string(v.text[1] == 'U' ? 4 : 1, '\0') : v.data)) {
                return false;
            }
            code(Code::kTuple2);
            code(Code::kReduce);
            return true;
        }
        global(numpy_module_, "_reconstruct");
        global("numpy", "ndarray");
        integers({0});
        bytes("b");
        code(Code::kTuple3);
        code(Code::kReduce);
        code(Code::kMark);
        integer(1);
        std::vector<std::uint64_t> shape;
        for (const ValueId item : v.items) {
            shape.push_back(static_cast<std::uint64_t>(tree.at(item).integer));
        }
        integers(shape);
        numpy_dtype(v.text);
        code(v.flag ? Code::kTrue : Code::kFalse);
        if (!bytes(v.data)) {
            return false;
        }
        code(Code::kTuple);
        code(Code::kBuild);
        return true;
    }

    // "<f8": its byte order, and the rest as the name.
    void numpy_dtype(std::string_view text) {
        const auto [known, fresh] = globals_.try_emplace("dtype " + std::string(text), next_);
        std::uint32_t& slot = known->second;
        if (!fresh) {
            get(slot);
            return;
        }
        global("numpy", "dtype");
        string(text.substr(1));
        code(Code::kFalse);
        code(Code::kTrue);
        code(Code::kTuple3);
        code(Code::kReduce);
        slot = next_;
        put(next_++);
        code(Code::kMark);
        integer(3);
        string(text.substr(0, 1));
        code(Code::kNone);
        code(Code::kNone);
        code(Code::kNone);
        const char kind = text[1];
        std::int64_t bytes_each = -1;
        if (kind == 'U' || kind == 'S') {
            bytes_each = 0;
            for (const char c : text.substr(2)) {
                bytes_each = bytes_each * 10 + (c - '0');
            }
            bytes_each *= kind == 'U' ? 4 : 1;
        }
        integer(bytes_each);
        integer(kind == 'U' ? 4 : kind == 'S' ? 1 : -1);
        integer(kind == 'U' ? 8 : 0);
        code(Code::kTuple);
        code(Code::kBuild);
    }

    std::string wrong_;
    std::uint32_t next_ = 0;  // next number of the memo

private:
    const std::string numpy_module_;
    std::pmr::monotonic_buffer_resource memory_;  // memory of strings_ and their texts
    std::pmr::unordered_map<std::string_view, std::uint32_t> strings_{&memory_};
    std::unordered_map<std::string, std::uint32_t> globals_;
};

}  // namespace penstock::format
