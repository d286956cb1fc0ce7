// SPDX-License-Identifier: Apache-2.0
#include "row_numbers.hpp"

#include "arguments.hpp"
#include "names.hpp"

#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

namespace penstock::python {

namespace {

[[noreturn]] void raise_outside(const char* argument, std::size_t index, const std::string& number,
                                const RowNumbers::Refuse& refuse) {
    if (refuse) {
        refuse(index, number);
    }
    raise_value(std::string(argument) + "[" + std::to_string(index) + "]: " + number +
                " is no number of a row; give 0 or more, of at most 64 bits");
}

// Borrows the elements; of what has none, it says what numbers of rows may be.
BorrowedMemory borrow_numbers(nb::handle numbers, const char* argument) {
    try {
        return borrow_elements(numbers, argument);
    } catch (...) {
        if (PyObject_CheckBuffer(numbers.ptr()) == 0 && !nb::hasattr(numbers, "__dlpack__") &&
            !nb::hasattr(numbers, "__cuda_array_interface__")) {
            raise_type(std::string(argument) + ": got " + type_text(numbers) +
                       ", which holds no numbers of rows; give a tensor, an array, a range or a "
                       "list of integers");
        }
        throw;
    }
}

}  // namespace

RowNumbers::RowNumbers(nb::handle numbers, const char* argument, const Refuse& refuse) {
    if (PyList_Check(numbers.ptr()) || PyTuple_Check(numbers.ptr())) {
        take_list(numbers, argument, refuse);
        return;
    }
    BorrowedMemory memory = borrow_numbers(numbers, argument);
    data_ = memory.data;
    keep_ = std::move(memory.keep);
    count_ = memory.item_bytes == 0 ? 0 : memory.bytes / memory.item_bytes;
    take_elements(memory, numbers, argument, refuse);
}

void RowNumbers::take_list(nb::handle numbers, const char* argument, const Refuse& refuse) {
    own_.reserve(nb::len(numbers));
    for (const nb::handle item : nb::iter(numbers)) {
        PyObject* const index = PyBool_Check(item.ptr()) ? nullptr : PyNumber_Index(item.ptr());
        if (index == nullptr) {
            PyErr_Clear();
            raise_type(std::string(argument) + "[" + std::to_string(own_.size()) + "]: got " +
                       type_text(item) + "; give numbers of rows as an int, 0 or more");
        }
        const nb::object owner = nb::steal(index);
        const unsigned long long number = PyLong_AsUnsignedLongLong(index);
        if (PyErr_Occurred() != nullptr) {
            PyErr_Clear();
            raise_outside(argument, own_.size(), shown(owner), refuse);
        }
        own_.push_back(number);
    }
    values_ = own_;
}

void RowNumbers::take_elements(const BorrowedMemory& memory, nb::handle numbers,
                               const char* argument, const Refuse& refuse) {
    const bool is_signed = memory.kind == 'i';
    switch (memory.kind == 0 ? 0 : memory.item_bytes) {
        case 8:
            return is_signed ? take<std::int64_t>(argument, refuse)
                             : take<std::uint64_t>(argument, refuse);
        case 4:
            return is_signed ? take<std::int32_t>(argument, refuse)
                             : take<std::uint32_t>(argument, refuse);
        case 2:
            return is_signed ? take<std::int16_t>(argument, refuse)
                             : take<std::uint16_t>(argument, refuse);
        case 1:
            return is_signed ? take<std::int8_t>(argument, refuse)
                             : take<std::uint8_t>(argument, refuse);
        default:
            raise_type(std::string(argument) + ": the elements of this " + type_text(numbers) +
                       " are no integers; give numbers of rows as int64, int32, uint32 or uint64, "
                       "or a list of ints");
    }
}

template <typename Number>
void RowNumbers::take(const char* argument, const Refuse& refuse) {
    const bool in_place = sizeof(Number) == sizeof(std::uint64_t) &&
                          reinterpret_cast<std::uintptr_t>(data_) % alignof(std::uint64_t) == 0;
    own_.resize(in_place ? 0 : count_);
    for (std::size_t i = 0; i < count_; ++i) {
        Number number = 0;
        std::memcpy(&number, data_ + i * sizeof number, sizeof number);
        if constexpr (std::is_signed_v<Number>) {
            if (number < 0) {
                raise_outside(argument, i, std::to_string(number), refuse);
            }
        }
        if (!in_place) {
            own_[i] = static_cast<std::uint64_t>(number);
        }
    }
    values_ = in_place ? std::span(reinterpret_cast<const std::uint64_t*>(data_), count_)
                       : std::span<const std::uint64_t>(own_);
}

}  // namespace penstock::python
