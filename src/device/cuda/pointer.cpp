// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/pointer.hpp"

#include "base/text/units.hpp"
#include "device/cuda/context.hpp"

#include <fmt/format.h>

#include <array>

namespace penstock::device {

using base::fail;
using base::Result;
using namespace cuda;  // NVIDIA's names, as in its documents

namespace {

struct Answers {
    unsigned int type = 0;
    unsigned int managed = 0;
    int device = -1;
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
};

CUresult ask(const Driver& driver, CUdeviceptr pointer, Answers& answers) {
    std::array which = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                        CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    std::array<void*, which.size()> values = {&answers.type, &answers.managed, &answers.device,
                                              &answers.begin, &answers.bytes};
    return driver.cuPointerGetAttributes(static_cast<unsigned int>(which.size()), which.data(),
                                         values.data(), pointer);
}

base::Error refused(const std::string& message) {
    return base::error(ErrorCode::kInvalidArgument, "gpu", message);
}

std::string place(const void* pointer, std::uint64_t bytes) {
    return fmt::format("{} at 0x{:x}", base::format_bytes(bytes),
                       reinterpret_cast<std::uintptr_t>(pointer));
}

bool reaches(const PointerFacts& facts, const void* pointer, std::uint64_t bytes) {
    const std::uint64_t before = reinterpret_cast<std::uintptr_t>(pointer) - facts.begin;
    return before <= facts.bytes && bytes <= facts.bytes - before;
}

std::string past_its_end(const PointerFacts& facts, const void* pointer, std::uint64_t bytes) {
    const std::uint64_t before = reinterpret_cast<std::uintptr_t>(pointer) - facts.begin;
    return fmt::format(
        "{} bytes at 0x{:x} of GPU {} reach past the allocation that they lie in, which has {} "
        "bytes from 0x{:x} on; ask for at most {}",
        bytes, reinterpret_cast<std::uintptr_t>(pointer), facts.device, facts.bytes, facts.begin,
        before <= facts.bytes ? facts.bytes - before : 0);
}

std::string unknown(const void* pointer, std::uint64_t bytes) {
    const std::string several = several_drivers_text();
    return fmt::format(
        "{} is no memory of a GPU: the driver does not know the address; it is ordinary host "
        "memory, was freed, or belongs to another process{}{}",
        place(pointer, bytes), several.empty() ? "" : "; ", several);
}

// Empty where device memory is what it claims to be.
std::string objection(const PointerFacts& facts, const Memory& claim) {
    if (facts.kind == PointerKind::kUnknown) {
        return unknown(claim.data, claim.bytes);
    }
    if (facts.kind == PointerKind::kRegisteredHost) {
        return fmt::format(
            "{} was given as memory of GPU {}, and is host memory that is registered with CUDA; "
            "give it as host memory",
            place(claim.data, claim.bytes), claim.device);
    }
    if (facts.device != claim.device) {
        return fmt::format("{} was given as memory of GPU {}, and is of GPU {}",
                           place(claim.data, claim.bytes), claim.device, facts.device);
    }
    return reaches(facts, claim.data, claim.bytes) ? std::string()
                                                   : past_its_end(facts, claim.data, claim.bytes);
}

}  // namespace

Result<PointerFacts> pointer_facts(const Driver& driver, const void* pointer) {
    const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
    Answers answers;
    CUresult result = ask(driver, address, answers);
    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_INVALID_VALUE) {
        // Some drivers want a context for the question, others call an unknown address an error.
        // A context of a GPU that is in use costs nothing.
        for (int device = 0; device < driver.gpus && result == CUDA_ERROR_INVALID_CONTEXT;
             ++device) {
            unsigned int flags = 0;
            int active = 0;
            if (driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
                active != 0) {
                PENSTOCK_TRY(context, primary_context(driver, device));
                const Current current(driver, context);
                answers = {};
                result = current.result() == CUDA_SUCCESS ? ask(driver, address, answers)
                                                          : current.result();
            }
        }
        if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_INVALID_VALUE) {
            return PointerFacts{};  // no GPU is in use, or the address is not of one
        }
    }
    if (result != CUDA_SUCCESS) {
        return fail(cuda_error(driver, result, "cuPointerGetAttributes", "gpu",
                               fmt::format("asking whose memory 0x{:x} is", address)));
    }
    PointerFacts facts;
    facts.device = answers.device;
    facts.begin = static_cast<std::uintptr_t>(answers.begin);
    facts.bytes = answers.bytes;
    if (answers.managed != 0) {
        facts.kind = PointerKind::kManaged;
    } else if (answers.type == CU_MEMORYTYPE_DEVICE) {
        facts.kind = PointerKind::kDevice;
    } else if (answers.type == CU_MEMORYTYPE_HOST) {
        facts.kind = PointerKind::kRegisteredHost;
    }
    return facts;
}

Result<Memory> memory_at(void* pointer, std::uint64_t bytes) {
    auto* data = static_cast<std::byte*>(pointer);
    if (bytes == 0) {
        return Memory(data, 0);
    }
    PENSTOCK_TRY(calls, driver());
    PENSTOCK_TRY(facts, pointer_facts(*calls, pointer));
    switch (facts.kind) {
        case PointerKind::kUnknown:
            return fail(refused(unknown(pointer, bytes)));
        case PointerKind::kRegisteredHost:
            return Memory(data, bytes);
        case PointerKind::kManaged:
        case PointerKind::kDevice:
            break;
    }
    if (!reaches(facts, pointer, bytes)) {
        return fail(refused(past_its_end(facts, pointer, bytes)));
    }
    return Memory(data, bytes, MemoryKind::kDevice, facts.device);
}

Result<void> check_memory(const Driver& driver, const Memory& claim) {
    PENSTOCK_TRY(facts, pointer_facts(driver, claim.data));
    const std::string wrong = objection(facts, claim);
    return wrong.empty() ? Result<void>{} : fail(refused(wrong));
}

Result<void> check_extents(const engine::Extents& extents) {
    return base::as_result("gpu", [&]() -> Result<void> {
        const Driver* calls = nullptr;
        PointerFacts known;  // of the allocation that was asked for last
        for (std::uint64_t i = 0; i < extents.count(); ++i) {
            const Memory memory = extents[i].memory;
            if (memory.kind != MemoryKind::kDevice || memory.bytes == 0 ||
                (known.device == memory.device && reaches(known, memory.data, memory.bytes))) {
                continue;
            }
            if (calls == nullptr) {
                PENSTOCK_TRY(loaded, driver());
                calls = loaded;
            }
            PENSTOCK_TRY(facts, pointer_facts(*calls, memory.data));
            if (const std::string wrong = objection(facts, memory); !wrong.empty()) {
                const std::string row = extents.name_of(i);
                return fail(refused(fmt::format(
                    "{}: {}", row.empty() ? fmt::format("extent {}", extents.listed(i)) : row,
                    wrong)));
            }
            known = facts;
        }
        return {};
    });
}

}  // namespace penstock::device
