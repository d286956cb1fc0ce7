// SPDX-License-Identifier: Apache-2.0
#include "state/structure/structure_text.hpp"

#include "base/text/base64.hpp"
#include "base/text/hex.hpp"
#include "format/json.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>

namespace penstock::state {

namespace {

using format::kNoValue;
using format::shown;
using format::Value;
using format::ValueId;
using format::ValueKind;
using Scalar = format::JsonScalar;

class Handler final : public format::JsonHandler {
public:
    explicit Handler(std::size_t tensors) {
        result.values.reserve(2 * tensors + tensors / 8);  // mostly a key and a value each
        result.tensors.reserve(tensors);
        result.storages.reserve(tensors);
    }

    StructureText result;

    std::string key(std::string& name) override {
        const auto* const found = std::find(kSections.begin(), kSections.end(), name);
        if (found == kSections.end()) {
            return fmt::format("it has a field {} that this version does not know", shown(name));
        }
        section_ = static_cast<Section>(found - kSections.begin());
        seen_ |= 1U << static_cast<unsigned>(section_);
        return {};
    }

    std::string open(bool array) override {
        if (depth_ == kDepthMax) {
            return wrong();
        }
        const std::size_t index = index_[depth_]++;
        index_[++depth_] = 0;
        if (depth_ == 1) {
            return array ? "it is a list, not an object" : std::string();
        }
        if (!array || section_ == Section::kVersion) {
            return wrong();
        }
        if (depth_ == 3) {
            return begin_entry();
        }
        part_ = index;
        const bool list = section_ == Section::kTensors && (index == 4 || index == 5);
        return depth_ == 2 || list ? std::string() : wrong();
    }

    std::string close(bool /*array*/) override {
        const std::size_t count = index_[depth_];
        const std::size_t depth = depth_--;
        if (depth == 1 && seen_ != (1U << kSections.size()) - 1) {
            return "a field of it is missing";
        }
        return depth != 3 || end_entry(count) ? std::string() : wrong();
    }

    std::string scalar(const Scalar& value) override {
        const std::size_t index = index_[depth_]++;
        bool good = false;
        if (depth_ == 1) {
            if (section_ != Section::kVersion || value.kind != Scalar::Kind::kUnsigned) {
                return wrong();
            }
            if (value.number != kStructureVersion) {
                return fmt::format("it is of version {}, and {} is read: a later Penstock wrote it",
                                   value.number, kStructureVersion);
            }
            good = true;
        } else if (depth_ > 1) {
            switch (section_) {
                case Section::kValues:
                    good = depth_ == 2 ? plain_value(value) : value_field(index, value);
                    break;
                case Section::kTensors:
                    good = depth_ > 2 && tensor_field(index, value);
                    break;
                case Section::kStorages:
                    good = storage_field(index, value);
                    break;
                case Section::kVersion:
                    break;
            }
        }
        return good ? std::string() : wrong();
    }

private:
    enum class Section : std::uint8_t { kVersion, kValues, kTensors, kStorages };
    static constexpr std::array<std::string_view, 4> kSections{"penstock_structure", "values",
                                                               "tensors", "storages"};
    static constexpr std::size_t kDepthMax = 4;

    [[nodiscard]] std::string wrong() const {
        if (depth_ == 0) {
            return "it is no object";
        }
        const std::size_t index = index_[std::min<std::size_t>(depth_, 2)];
        return fmt::format("entry {} of {} does not have the form that it should have",
                           index == 0 ? 0 : index - 1,
                           kSections[static_cast<std::size_t>(section_)]);
    }

    static bool text(const Scalar& value, std::string& out) {
        if (value.kind != Scalar::Kind::kString) {
            return false;
        }
        out = std::move(*value.text);
        return true;
    }
    static bool number(const Scalar& value, std::uint64_t& out) {
        out = value.number;
        return value.kind == Scalar::Kind::kUnsigned;
    }
    static bool base64(const Scalar& value, std::string& out) {
        return value.kind == Scalar::Kind::kString && base::parse_base64(*value.text, out);
    }
    static bool bits(const Scalar& value, double& out) {
        std::uint64_t word = 0;
        if (value.kind != Scalar::Kind::kString || !base::parse_hex(*value.text, word)) {
            return false;
        }
        out = std::bit_cast<double>(word);
        return true;
    }

    std::string begin_entry() {
        std::size_t count = 0;
        if (section_ == Section::kValues) {
            result.values.emplace_back();
            count = result.values.size();
        } else if (section_ == Section::kTensors) {
            result.tensors.emplace_back();
            count = result.tensors.size();
        } else {
            result.storages.emplace_back();
            count = result.storages.size();
        }
        return count > kStructureValuesMax ? "it has too many entries" : "";
    }

    bool end_entry(std::size_t count) {
        if (section_ == Section::kTensors) {
            return count == 1 || count == 2 || count == 6;
        }
        return section_ == Section::kStorages ? count == 2
                                              : count > head_fields(result.values.back().kind);
    }

    // ---- values ----

    bool plain_value(const Scalar& value) {
        if (result.values.size() == kStructureValuesMax) {
            return false;
        }
        Value& v = result.values.emplace_back();
        switch (value.kind) {
            case Scalar::Kind::kNull:
                return true;
            case Scalar::Kind::kBool:
                v.kind = ValueKind::kBool;
                v.flag = value.number != 0;
                return true;
            case Scalar::Kind::kUnsigned:
            case Scalar::Kind::kNegative:
                v.kind = ValueKind::kInt;
                v.integer = static_cast<std::int64_t>(value.number);
                return value.kind == Scalar::Kind::kNegative || value.number <= INT64_MAX;
            case Scalar::Kind::kReal:
                v.kind = ValueKind::kFloat;
                v.real = value.real;
                return true;
            case Scalar::Kind::kString:
                v.kind = ValueKind::kString;
                return text(value, v.text);
        }
        return false;
    }

    // Number of fields between the name of a kind and the items.
    static std::size_t head_fields(ValueKind kind) {
        switch (kind) {
            case ValueKind::kOrderedDict:
            case ValueKind::kDefaultDict:
            case ValueKind::kDtype:
            case ValueKind::kDevice:
            case ValueKind::kTensor:
            case ValueKind::kBytes:
            case ValueKind::kByteArray:
            case ValueKind::kBigInt:
            case ValueKind::kPickled:
            case ValueKind::kFloat:
                return 1;
            case ValueKind::kComplex:
            case ValueKind::kNumpyScalar:
            case ValueKind::kRebuilt:
            case ValueKind::kUnread:
                return 2;
            case ValueKind::kNumpyArray:
                return 3;
            default:
                return 0;
        }
    }

    bool value_field(std::size_t index, const Scalar& value) {
        Value& v = result.values.back();
        if (index == 0) {
            if (value.kind != Scalar::Kind::kString || value.text->empty()) {
                return false;
            }
            if (last_kind_->tag != *value.text) {
                last_kind_ =
                    std::find_if(format::kKinds.begin(), format::kKinds.end(),
                                 [&](const format::KindRow& r) { return r.tag == *value.text; });
            }
            if (last_kind_ == format::kKinds.end()) {
                last_kind_ = format::kKinds.begin();
                return false;
            }
            v.kind = last_kind_->kind;
            return true;
        }
        if (index <= head_fields(v.kind)) {
            return head_field(v, index, value);
        }
        std::uint64_t id = 0;
        if (v.kind == ValueKind::kTensor && index == 2) {
            return attributes_field(v, value);
        }
        if (format::row_of(v.kind).holds == format::Holds::kNothing || !number(value, id) ||
            id >= kStructureValuesMax) {
            return false;
        }
        v.items.push_back(static_cast<ValueId>(id));
        return true;
    }

    static bool attributes_field(Value& v, const Scalar& value) {
        std::uint64_t id = 0;
        if (!number(value, id) || id >= kStructureValuesMax) {
            return false;
        }
        v.attributes = static_cast<ValueId>(id);
        return true;
    }

    static bool head_field(Value& v, std::size_t index, const Scalar& value) {
        const bool null = value.kind == Scalar::Kind::kNull;
        switch (v.kind) {
            case ValueKind::kOrderedDict:
                return null || attributes_field(v, value);
            case ValueKind::kRebuilt:
                return index == 1 ? text(value, v.text) : null || attributes_field(v, value);
            case ValueKind::kDefaultDict:
                return null || text(value, v.text);
            case ValueKind::kDtype:
            case ValueKind::kDevice:
                return text(value, v.text);
            case ValueKind::kTensor:
                v.integer = static_cast<std::int64_t>(value.number);
                return value.kind == Scalar::Kind::kUnsigned && value.number <= INT64_MAX;
            case ValueKind::kBytes:
            case ValueKind::kByteArray:
            case ValueKind::kBigInt:
            case ValueKind::kPickled:
                return base64(value, v.text);
            case ValueKind::kFloat:
                return bits(value, v.real);
            case ValueKind::kComplex:
                return bits(value, index == 1 ? v.real : v.imaginary);
            case ValueKind::kUnread:
                return text(value, index == 1 ? v.text : v.data);
            default:
                return numpy_field(v, index, value);
        }
    }

    static bool numpy_field(Value& v, std::size_t index, const Scalar& value) {
        if (index == 1) {
            return text(value, v.text);
        }
        if (v.kind == ValueKind::kNumpyArray && index == 2) {
            v.flag = value.number != 0;
            return value.kind == Scalar::Kind::kBool;
        }
        return base64(value, v.data);
    }

    // ---- tensors and storages ----

    bool tensor_field(std::size_t index, const Scalar& value) {
        WrittenTensor& t = result.tensors.back();
        if (depth_ == 4) {
            return number(value, (part_ == 4 ? t.shape : t.strides).emplace_back());
        }
        switch (index) {
            case 0:
                return number(value, t.storage);
            case 1:
                return text(value, t.flags);
            case 2:
                return text(value, t.dtype) && !t.dtype.empty();
            case 3:
                return number(value, t.offset);
            default:
                return false;
        }
    }

    bool storage_field(std::size_t index, const Scalar& value) {
        if (depth_ == 2) {
            return result.storages.size() < kStructureValuesMax &&
                   text(value, result.storages.emplace_back().name);
        }
        return depth_ == 3 && index < 2 &&
               text(value,
                    index == 0 ? result.storages.back().name : result.storages.back().location);
    }

    std::size_t depth_ = 0;
    std::array<std::size_t, kDepthMax + 1> index_{};
    Section section_ = Section::kVersion;
    std::uint32_t seen_ = 0;
    std::size_t part_ = 0;  // of a tensor's list: 4 its shape, 5 its strides
    const format::KindRow* last_kind_ = format::kKinds.begin();  // mostly the next one too
};

}  // namespace

format::Result<StructureText> parse_structure(std::string_view text, std::size_t tensors) {
    constexpr std::size_t kEntryBytesMin = 16;  // of a tensor: its value, its own entry, its name
    Handler handler(std::min(tensors, text.size() / kEntryBytesMin));
    PENSTOCK_CHECK(format::read_json(text, handler, kReadStructure));
    return std::move(handler.result);
}

std::uint64_t structure_hash(std::string_view text) {
    const std::string_view before = text.substr(0, text.rfind(kStoragesBegin));
    return stream::content_hash(std::as_bytes(std::span(before)));
}

}  // namespace penstock::state
