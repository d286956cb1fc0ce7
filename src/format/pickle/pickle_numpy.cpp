// SPDX-License-Identifier: Apache-2.0
// The NumPy part of the calls: types, scalars, arrays.
#include "base/align.hpp"
#include "format/numpy/numpy_types.hpp"
#include "format/pickle/pickle_calls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

namespace penstock::format {

namespace {

constexpr const char* kNoArray = "it is a NumPy array of a type or form that is not read";
constexpr const char* kOtherBytes =
    "it is a NumPy array whose bytes are not as many as its shape says: the file is damaged";

// ">f8" as "<f8".
std::string as_little(std::string type) {
    if (type.starts_with('>')) {
        type[0] = '<';
    }
    return type;
}

// Turns the bytes of each number or character of elements of the type, if that is big-endian.
void make_little(std::string& data, const std::string& type) {
    const std::uint64_t item = numpy_item_bytes(as_little(type)).value_or(0);
    const std::size_t each = type[1] == 'U'   ? 4
                             : type[1] == 'c' ? item / 2
                             : type[1] == 'S' ? 1
                                              : item;
    if (type.starts_with('>') && each > 1) {
        for (auto at = data.begin(); at != data.end(); at += static_cast<std::ptrdiff_t>(each)) {
            std::reverse(at, at + static_cast<std::ptrdiff_t>(each));
        }
    }
}

}  // namespace

// dtype("f8", False, True); build() adds its byte order.
ValueId PickleCalls::numpy_dtype(const Items& items) {
    if (items.empty() || !is(items[0], ValueKind::kString)) {
        return refused("a NumPy type is made of something that is not a name");
    }
    return tree_.add(make_value(ValueKind::kNumpyDtype, tree_.at(items[0]).text));
}

ValueId PickleCalls::numpy_scalar(const Items& items) {
    if (items.size() != 2 || !is(items[0], ValueKind::kNumpyDtype) ||
        !is(items[1], ValueKind::kBytes)) {
        return refused("a NumPy scalar is not made of a type and bytes");
    }
    if (!may_copy(tree_.at(items[1]).text.size())) {
        return refused(kTooMany);
    }
    const std::string& type = tree_.at(items[0]).text;
    Value value = make_value(ValueKind::kNumpyScalar, as_little(type));
    value.data = tree_.at(items[1]).text;
    const auto each = numpy_item_bytes(value.text);
    if (each && *each == value.data.size()) {
        make_little(value.data, type);
    }
    // NumPy writes an empty text as one character that is 0.
    if (each == std::optional<std::uint64_t>(0) &&
        value.data == std::string_view("\0\0\0\0", value.text[1] == 'U' ? 4 : 1)) {
        value.data.clear();
    }
    if (!each) {
        return refused(
            fmt::format("it is of the NumPy type {}, which is not read", shown(value.text)));
    }
    if (*each != value.data.size()) {
        return damaged(
            fmt::format("a NumPy scalar has the type {} and {} bytes, which do not go "
                        "together",
                        shown(value.text), value.data.size()));
    }
    return tree_.add(std::move(value));
}

// (3, "<", None, None, None, size, alignment, flags): plain types only.
void PickleCalls::build_numpy_dtype(Value& dtype, const Value& state) {
    const Items& items = state.items;
    const bool formed = state.kind == ValueKind::kTuple && items.size() == 8 &&
                        is(items[1], ValueKind::kString) && is(items[2], ValueKind::kNone) &&
                        is(items[3], ValueKind::kNone) && is(items[4], ValueKind::kNone);
    const std::string text = formed ? tree_.at(items[1]).text + dtype.text : std::string();
    if (!numpy_item_bytes(as_little(text))) {
        dtype = refusal(
            fmt::format("it is of the NumPy type {}, which is not read", shown(dtype.text)));
        return;
    }
    dtype.text = text;
}

// (1, shape, dtype, fortran, bytes)
void PickleCalls::build_numpy_array(ValueId id, const Value& state) {
    Value& array = tree_.values[id];
    const Items& items = state.items;
    const bool formed = state.kind == ValueKind::kTuple && items.size() == 5 &&
                        is(items[3], ValueKind::kBool) && is(items[4], ValueKind::kBytes);
    const std::string wrong =
        formed ? fill_numpy_array(array, items[1], items[2], items[4]) : std::string(kNoArray);
    if (!wrong.empty()) {
        array = refusal(wrong);
        array.flag = wrong == kOtherBytes;
        return;
    }
    array.flag = tree_.at(items[3]).flag;
}

// _frombuffer(bytes, dtype, shape, "C" or "F"): used by protocol 5 instead of _reconstruct() and a
// state. (.., "K", axes): NumPy 2 records axes in another order so.
ValueId PickleCalls::numpy_from_buffer(const Items& items) {
    const bool formed = items.size() >= 4 &&
                        (is(items[0], ValueKind::kBytes) || is(items[0], ValueKind::kByteArray)) &&
                        is(items[3], ValueKind::kString);
    const std::string order = formed ? tree_.at(items[3]).text : std::string();
    const bool turned = order == "K" && items.size() == 5;
    if (!turned && !((order == "C" || order == "F") && items.size() == 4)) {
        return refused(kNoArray);
    }
    Value array = make_value(ValueKind::kNumpyArray);
    std::string wrong = fill_numpy_array(array, items[2], items[1], items[0]);
    if (wrong.empty() && turned && !turn_axes(array, items[4])) {
        wrong = "it is a NumPy array whose axes are not those of its shape";
    }
    if (!wrong.empty()) {
        return wrong == kOtherBytes ? damaged(std::move(wrong)) : refused(std::move(wrong));
    }
    array.flag = order == "F";
    return tree_.add(std::move(array));
}

// Empty, or the error.
std::string PickleCalls::fill_numpy_array(Value& array, ValueId shape, ValueId dtype,
                                          ValueId bytes) {
    std::vector<std::uint64_t> extents;
    const bool formed = is(dtype, ValueKind::kNumpyDtype) && sizes(shape, extents);
    const std::string type = formed ? as_little(tree_.at(dtype).text) : std::string();
    std::optional<std::uint64_t> wanted = numpy_item_bytes(type);
    for (const std::uint64_t extent : extents) {
        wanted = wanted ? base::checked_multiply(*wanted, extent) : wanted;
    }
    const std::string& data = tree_.at(bytes).text;
    if (!wanted || !formed) {
        return numpy_item_bytes(type)          ? kOtherBytes
               : is(dtype, ValueKind::kUnread) ? tree_.at(dtype).data
                                               : kNoArray;
    }
    if (*wanted != data.size()) {
        return kOtherBytes;
    }
    if (!may_copy(data.size())) {
        return kTooMany;
    }
    array.text = type;
    array.data = data;
    make_little(array.data, tree_.at(dtype).text);
    array.items = tree_.at(shape).items;
    return {};
}

// Reorders row-major array.items to row-major of the same axes in another order.
bool PickleCalls::turn_axes(Value& array, ValueId order) const {
    std::vector<std::uint64_t> axes;
    std::vector<std::uint64_t> extents;
    for (const ValueId item : array.items) {
        extents.push_back(static_cast<std::uint64_t>(tree_.at(item).integer));
    }
    if (!sizes(order, axes) || axes.size() != extents.size()) {
        return false;
    }
    std::vector<bool> named(axes.size(), false);
    for (const std::uint64_t axis : axes) {
        if (axis >= axes.size() || named[axis]) {
            return false;
        }
        named[axis] = true;
    }
    const std::size_t rank = axes.size();
    std::vector<std::uint64_t> steps(rank);  // one per axis of the given array, bytes
    std::uint64_t step = *numpy_item_bytes(array.text);
    const std::uint64_t each = step;
    for (std::size_t d = rank; d-- > 0;) {
        steps[d] = step;
        step *= extents[d];
    }
    std::string out;
    out.reserve(array.data.size());
    std::vector<std::uint64_t> at(rank, 0);  // the next element, by the new axes
    while (out.size() < array.data.size()) {
        std::uint64_t from = 0;
        for (std::size_t d = 0; d < rank; ++d) {
            from += at[d] * steps[axes[d]];
        }
        out.append(array.data, from, each);
        for (std::size_t d = rank; d-- > 0 && ++at[d] == extents[axes[d]];) {
            at[d] = 0;
        }
    }
    Items items;
    for (const std::uint64_t axis : axes) {
        items.push_back(array.items[axis]);
    }
    array.data = std::move(out);
    array.items = std::move(items);
    return true;
}

}  // namespace penstock::format
