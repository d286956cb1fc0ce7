// SPDX-License-Identifier: Apache-2.0
#include "state/structure/structure_pen.hpp"

#include "base/text/base64.hpp"
#include "base/text/hex.hpp"
#include "format/grammar.hpp"
#include "format/json.hpp"
#include "state/structure/structure_tags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

namespace penstock::state {

using format::kNoValue;
using format::Value;
using format::ValueId;
using format::ValueKind;

void StructurePen::begin() {
    out_ += fmt::format("{{\"penstock_structure\":{},\n\"values\":[", kStructureVersion);
}

void StructurePen::value(const Value& v) {
    switch (v.kind) {
        case ValueKind::kNone:
            out_ += "null";
            return;
        case ValueKind::kBool:
            out_ += v.flag ? "true" : "false";
            return;
        case ValueKind::kInt:
            out_ += fmt::format_int(v.integer).c_str();
            return;
        case ValueKind::kString:
            format::append_json_string(out_, v.text);
            return;
        case ValueKind::kFloat:
            if (std::isfinite(v.real)) {
                real(v.real);
                return;
            }
            break;
        default:
            break;
    }
    out_ += "[\"";
    out_ += format::row_of(v.kind).tag;
    out_ += '"';
    head(v);
    for (const ValueId item : v.items) {
        out_ += ',';
        out_ += fmt::format_int(numbers_[item]).c_str();
    }
    out_ += ']';
}

void StructurePen::real(double number) {
    const std::string digits = fmt::format("{}", number);
    out_ += digits;
    out_ += digits.find_first_of(".e") == std::string::npos ? ".0" : "";
}

// Writes the fields between the name and the items.
void StructurePen::head(const Value& v) {
    switch (v.kind) {
        case ValueKind::kOrderedDict:
            out_ += v.attributes == kNoValue ? std::string(",null")
                                             : fmt::format(",{}", numbers_[v.attributes]);
            break;
        case ValueKind::kDefaultDict:
            if (v.text.empty()) {
                out_ += ",null";
                break;
            }
            [[fallthrough]];
        case ValueKind::kDtype:
        case ValueKind::kDevice:
            quoted(v.text);
            break;
        case ValueKind::kTensor:
            out_ += fmt::format(",{}", tensor_numbers_[static_cast<std::size_t>(v.integer)]);
            out_ += v.attributes == kNoValue ? std::string()
                                             : fmt::format(",{}", numbers_[v.attributes]);
            break;
        case ValueKind::kRebuilt:
            quoted(v.text);
            out_ += v.attributes == kNoValue ? std::string(",null")
                                             : fmt::format(",{}", numbers_[v.attributes]);
            break;
        case ValueKind::kBytes:
        case ValueKind::kByteArray:
        case ValueKind::kBigInt:
        case ValueKind::kPickled:
            base64(v.text);
            break;
        case ValueKind::kFloat:
            bits(v.real);
            break;
        case ValueKind::kComplex:
            bits(v.real);
            bits(v.imaginary);
            break;
        case ValueKind::kNumpyScalar:
            quoted(v.text);
            base64(v.data);
            break;
        case ValueKind::kUnread:
            quoted(v.text);
            quoted(v.data);
            break;
        case ValueKind::kNumpyArray:
            quoted(v.text);
            out_ += v.flag ? ",true" : ",false";
            base64(v.data);
            break;
        default:
            break;
    }
}

void StructurePen::quoted(std::string_view text) {
    out_ += ',';
    format::append_json_string(out_, text);
}
void StructurePen::base64(std::string_view bytes) {
    out_ += ",\"";
    base::append_base64(out_, bytes);
    out_ += '"';
}
void StructurePen::bits(double number) {
    out_ += ",\"";
    base::append_hex(out_, std::bit_cast<std::uint64_t>(number));
    out_ += '"';
}

void append_storage(std::string& out, std::string_view name, std::string_view location) {
    const bool usual = location == "cpu";
    out += usual ? "" : "[";
    format::append_json_string(out, name);
    if (!usual) {
        out += ',';
        format::append_json_string(out, location);
        out += ']';
    }
}

std::string text_of(const StructureText& structure) {
    std::vector<ValueId> numbers(structure.values.size());
    std::iota(numbers.begin(), numbers.end(), 0U);
    std::vector<std::uint32_t> tensors(structure.tensors.size());
    std::iota(tensors.begin(), tensors.end(), 0U);
    std::string out;
    StructurePen pen(out, numbers, tensors);
    pen.begin();
    for (std::size_t i = 0; i < structure.values.size(); ++i) {
        out += i == 0 ? "" : ",";
        pen.value(structure.values[i]);
    }
    out += kTensorsBegin;
    for (std::size_t i = 0; i < structure.tensors.size(); ++i) {
        const WrittenTensor& t = structure.tensors[i];
        out += fmt::format("{}[{}", i == 0 ? "" : ",", t.storage);
        if (!t.flags.empty() || !t.dtype.empty()) {
            out += fmt::format(",\"{}\"", t.flags);
        }
        if (!t.dtype.empty()) {
            out += fmt::format(",\"{}\",{},[{}],[{}]", t.dtype, t.offset, fmt::join(t.shape, ","),
                               fmt::join(t.strides, ","));
        }
        out += ']';
    }
    out += kStoragesBegin;
    for (std::size_t i = 0; i < structure.storages.size(); ++i) {
        out += i == 0 ? "" : ",";
        append_storage(out, structure.storages[i].name, structure.storages[i].location);
    }
    out += kStructureEnd;
    return out;
}

}  // namespace penstock::state
