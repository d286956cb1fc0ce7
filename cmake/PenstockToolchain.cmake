# SPDX-License-Identifier: Apache-2.0
# How everything here is compiled. Flags are set per directory, so they reach every target below this one.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
# Everything alike, programs too, so that all of it can share precompiled headers.
add_compile_options(-fPIC)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# -O3 costs a fifth more compile time and gains nothing that the benchmarks see: the hot paths are system calls.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

add_compile_options(-Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor -Woverloaded-virtual)
if(PENSTOCK_PLANTED)
    add_compile_definitions(PENSTOCK_PLANTED=1)
endif()
if(PENSTOCK_WERROR)
    add_compile_options(-Werror)
endif()

if(PENSTOCK_SANITIZE)
    # -g1: stack traces with lines.
    add_compile_options(-fsanitize=${PENSTOCK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
    if(PENSTOCK_SANITIZE MATCHES "undefined")
        add_compile_options(-Og) # half the compile time of -O1, for every access is checked
    else()
        add_compile_options(-O1)
    endif()
    add_link_options(-fsanitize=${PENSTOCK_SANITIZE})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # Instrumented code confuses GCC's flow analysis; the release build keeps this warning.
        add_compile_options(-Wno-maybe-uninitialized)
    endif()
    if(PENSTOCK_SANITIZE MATCHES "thread")
        add_compile_definitions(PENSTOCK_TSAN=1)
    endif()
endif()
if(PENSTOCK_COVERAGE)
    add_compile_options(--coverage -O0 -g1)
    add_link_options(--coverage)
endif()
if(PENSTOCK_FUZZ)
    if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "PENSTOCK_FUZZ needs clang (libFuzzer); use the preset 'fuzz'")
    endif()
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(PENSTOCK_CCACHE ccache)
if(PENSTOCK_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # What ccache asks for where precompiled headers are used.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros
                                    "${PENSTOCK_CCACHE}")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
    endif()
endif()

# Parsing the standard library and the third parties is most of what compiling costs here. One precompiled header a
# kind of target saves two thirds of it. It hides a missing #include; clang-tidy and the header check run without it.
option(PENSTOCK_PCH "Use precompiled headers" ON)
option(PENSTOCK_UNITY "Compile several files at a time: 60 % of the time of a whole build, and more after a change" OFF)
set(PENSTOCK_PCH_ROOMS <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <functional> <map>
    <memory> <mutex> <optional> <span> <string> <string_view> <thread> <utility> <vector>
    <fmt/format.h> <tl/expected.hpp>)
# CLI11 is not in it: its objects at namespace scope cost every file that includes it three seconds of optimisation.
set(PENSTOCK_PCH_CLI ${PENSTOCK_PCH_ROOMS} <nlohmann/json.hpp>)
set(PENSTOCK_PCH_TESTS ${PENSTOCK_PCH_ROOMS} <filesystem> <fstream> <gmock/gmock.h> <gtest/gtest.h>)

# The first target of a kind makes the precompiled header, the others use it.
function(penstock_precompiled target kind)
    if(NOT PENSTOCK_PCH)
        return()
    endif()
    get_property(owner GLOBAL PROPERTY PENSTOCK_PCH_OWNER_${kind})
    if(owner)
        target_precompile_headers(${target} REUSE_FROM ${owner})
    else()
        target_precompile_headers(${target} PRIVATE ${PENSTOCK_PCH_${kind}})
        set_property(GLOBAL PROPERTY PENSTOCK_PCH_OWNER_${kind} ${target})
    endif()
endfunction()
