// SPDX-License-Identifier: Apache-2.0
#include "storage_memory.hpp"

#include "borrowed_memory.hpp"
#include "names.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

namespace penstock::python {

namespace {

const Name& name_of_address() {
    static const Name name("data_ptr");
    return name;
}

const Name& name_of_bytes() {
    static const Name name("nbytes");
    return name;
}

const Name& name_of_version() {
    static const Name name("_version");
    return name;
}

struct Looked {
    PyObject* storage = nullptr;  // kept by the save, as the tensors are
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    std::vector<std::pair<PyObject*, std::int64_t>> tensors = {};

    // With the GIL.
    [[nodiscard]] bool is_there() const {
        try {
            return nb::cast<std::uintptr_t>(call(storage, name_of_address())) == address &&
                   nb::cast<std::size_t>(call(storage, name_of_bytes())) >= bytes &&
                   std::all_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
                       return nb::cast<std::int64_t>(get(tensor.first, name_of_version())) ==
                              tensor.second;
                   });
        } catch (const nb::python_error&) {
            return false;
        } catch (const nb::cast_error&) {
            return false;
        }
    }
};

}  // namespace

void StorageMemory::belongs_to(nb::handle untyped_storage) {
    if (copied) {
        return;
    }
    storage = nb::borrow(untyped_storage);
    storage_address = nb::cast<std::uintptr_t>(call(storage, name_of_address()));
    storage_bytes = nb::cast<std::size_t>(call(storage, name_of_bytes()));
}

void StorageMemory::holds(nb::handle tensor) {
    if (copied) {
        return;
    }
    try {
        tensors.emplace_back(nb::borrow(tensor),
                             nb::cast<std::int64_t>(get(tensor, name_of_version())));
    } catch (const nb::python_error&) {  // made in inference mode
    } catch (const nb::cast_error&) {
    }
}

MemoryLook look_of(const std::vector<StorageMemory>& storages, Changing changing,
                   const std::vector<std::size_t>& of) {
    std::vector<Looked> looked(storages.size());
    bool any = false;
    for (std::size_t i = 0; i < storages.size(); ++i) {
        const StorageMemory& memory = storages[i];
        if (memory.storage.is_none() || memory.copied) {
            continue;
        }
        looked[i] = {memory.storage.ptr(), memory.storage_address, memory.storage_bytes};
        for (const auto& [tensor, version] : memory.tensors) {
            if (changing == Changing::kFails) {
                looked[i].tensors.emplace_back(tensor.ptr(), version);
            }
        }
        any = true;
    }
    if (!any) {
        return {};
    }
    return [looked = std::move(looked),
            of](std::span<const std::size_t> numbers) -> std::optional<std::size_t> {
        const auto is_looked_at = [&](std::size_t i) {
            return of[i] != kNoStorage && looked[of[i]].storage != nullptr;
        };
        if (std::none_of(numbers.begin(), numbers.end(), is_looked_at) || Py_IsInitialized() == 0) {
            return std::nullopt;
        }
        const nb::gil_scoped_acquire gil;
        std::size_t last = kNoStorage;  // many tensors may share one
        const auto gone = std::find_if(numbers.begin(), numbers.end(), [&](std::size_t i) {
            return is_looked_at(i) && std::exchange(last, of[i]) != of[i] &&
                   !looked[of[i]].is_there();
        });
        return gone == numbers.end() ? std::nullopt : std::optional(*gone);
    };
}

MemoryLook look_of(const std::vector<StorageMemory>& storages, Changing changing) {
    std::vector<std::size_t> all(storages.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return look_of(storages, changing, all);
}

bool place_on_gpu(StorageMemory& memory, std::uintptr_t address) {
    if (torch_has_rocm()) {
        return false;
    }
    try {
        const Memory there = device_memory(reinterpret_cast<void*>(address), memory.bytes);
        memory.where = there.kind;
        memory.device = there.device;
        return true;
    } catch (const Error& error) {
        // torch copies for a driver that is too old for us. In the child of a fork nothing does.
        if (error.reason() != ErrorCode::kUnsupported ||
            std::string_view(error.what()).find("forked") != std::string_view::npos) {
            throw;
        }
        return false;
    }
}

void fetch_copies(const nb::list& rows, std::vector<StorageMemory>& storages) {
    if (nb::len(rows) == 0) {
        return;
    }
    nb::list of_devices;
    for (const nb::handle row : rows) {
        of_devices.append(row[1]);
    }
    const nb::object made =
        nb::module_::import_("penstock._base.devices").attr("host_copies")(of_devices);
    for (std::size_t i = 0; i < nb::len(rows); ++i) {
        const nb::object copy = made[i];
        StorageMemory& memory = storages[nb::cast<std::uint32_t>(rows[i][0])];
        memory.data =
            reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(copy.attr("data_ptr")()));
        memory.keep = copy;
    }
}

std::vector<StreamHandle> streams_of(const std::vector<StorageMemory>& storages) {
    std::vector<Memory> memory;
    for (const StorageMemory& storage : storages) {
        memory.push_back(to_write(storage.memory()));
    }
    return streams_of(memory);
}

std::vector<StreamHandle> streams_of(std::span<const Memory> memory) {
    std::vector<StreamHandle> out;
    for (const Memory& one : memory) {
        if (one.kind == MemoryKind::kDevice && one.bytes != 0 &&
            std::none_of(out.begin(), out.end(),
                         [&](const StreamHandle& stream) { return stream.device == one.device; })) {
            out.push_back(torch_stream(one.device));
        }
    }
    return out;
}

}  // namespace penstock::python
