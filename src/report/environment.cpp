// SPDX-License-Identifier: Apache-2.0
#include "report/environment.hpp"

#include "base/text/units.hpp"
#include "os/machine/block_device.hpp"
#include "os/machine/limits.hpp"
#include "os/machine/sysfs.hpp"
#include "os/thread.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>

namespace penstock::report {

std::string cpu_model() {
    std::istringstream lines(os::read_text("/proc/cpuinfo").value_or(""));
    std::string line;
    while (std::getline(lines, line)) {
        const std::size_t colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos) {
            return line.substr(colon + 2);
        }
    }
    return {};
}

std::string utc_now() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    std::array<char, 32> text{};
    std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text.data();
}

nlohmann::json machine_json() {
    utsname name{};
    ::uname(&name);
    const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
    const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    return {{"penstock", PENSTOCK_VERSION},
            {"kernel", os::kernel_release()},
            {"machine", name.machine},
            {"cpu", cpu_model()},
            {"cpus_usable", os::usable_cpus()},
            {"memory_bytes", pages * page_bytes},
            {"huge_pages", os::huge_page_mode()},
            {"container", os::container()},
            {"time_utc", utc_now()}};
}

nlohmann::json target_json(const probe::Target& target) {
    const FileInfo info = target.file.info();
    nlohmann::json json{{"path", target.path},
                        {"scratch", target.ours},
                        {"bytes_used", target.bytes},
                        {"file_system", info.file_system},
                        {"device", fmt::format("{}:{}", info.device.major, info.device.minor)},
                        {"is_block_device", info.is_block_device},
                        {"direct", info.direct},
                        {"memory_align", info.memory_align},
                        {"read_align", info.read_align},
                        {"write_align", info.write_align},
                        {"reason", info.reason}};
    if (const auto disk = os::block_device(info.device)) {
        json["disk"] = {{"name", disk->name},
                        {"model", disk->model},
                        {"rotational", disk->rotational},
                        {"scheduler", disk->scheduler},
                        {"queue_requests", disk->queue_requests},
                        {"max_request_kib", disk->max_request_kib},
                        {"numa_node", disk->numa_node}};
    }
    const DeviceId whole = os::whole_disk(info.device);
    for (const os::IoLimit& limit : os::io_limits()) {
        if (limit.device == whole) {
            json["limit"] = {{"read_bytes_per_s", limit.read_bytes_per_s},  // 0: none
                             {"write_bytes_per_s", limit.write_bytes_per_s},
                             {"source", limit.source}};
        }
    }
    return json;
}

std::string target_text(const probe::Target& target) {
    const FileInfo info = target.file.info();
    std::string where = info.file_system;
    if (const auto disk = os::block_device(info.device)) {
        where += info.is_block_device ? " " : " on ";
        where += disk->name;
        if (!disk->model.empty()) {
            where += " (" + disk->model + ")";
        }
    }
    if (!info.direct) {
        return where + ", through the page cache";
    }
    return fmt::format("{}, direct I/O aligned to {} B in memory, {} B in the file", where,
                       info.memory_align, info.read_align);
}

nlohmann::json engine_json(const EngineDescription& description) {
    return {{"backend", description.backend},
            {"detail", description.detail},
            {"refusals", description.refusals}};
}

}  // namespace penstock::report
