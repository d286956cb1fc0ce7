// SPDX-License-Identifier: Apache-2.0
// Writes in the background, durably, while the program goes on; then puts the file in the place of
// the old one. A reader of `state.bin` finds the old state or the new one, whole, also after a
// power cut.
#include <penstock/penstock.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

int main() {
    try {
        penstock::Engine engine;
        const penstock::FileSystem files = penstock::FileSystem::local();
        std::vector<double> state(4 << 20, 0.5);  // must stay as it is until the transfer is done

        // Background: a read that is wanted now does not wait behind it. sync: data, size and name
        // are on the disk when it is done.
        penstock::Transfer transfer =
            engine.write_async("state.bin.new", std::as_bytes(std::span(state)), 0,
                               {.priority = penstock::Priority::kBackground, .sync = true});
        std::uint64_t steps = 0;
        while (!transfer.wait_for(std::chrono::milliseconds(1))) {
            ++steps;  // the program's own work
        }
        std::printf("%llu bytes durable after %llu steps of other work\n",
                    static_cast<unsigned long long>(transfer.total_bytes()),
                    static_cast<unsigned long long>(steps));

        files.rename("state.bin.new", "state.bin");
        files.sync_folder(".");
        files.remove("state.bin");  // the example tidies up
        return 0;
    } catch (const penstock::Error& error) {
        // The message has the request, the failure and the advice.
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
