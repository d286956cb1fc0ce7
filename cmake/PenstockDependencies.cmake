# SPDX-License-Identifier: Apache-2.0
# What is not ours. Each has a target here, and a room names the ones it links; reasons: docs/dependencies.md.
set(THREADS_PREFER_PTHREAD_FLAG ON)

# All that is missing is named at once.
set(PENSTOCK_MISSING "")
macro(penstock_find name version) # the Debian package last
    find_package(${name} ${version} QUIET)
    if(NOT ${name}_FOUND)
        list(APPEND PENSTOCK_MISSING "${name} ${version} (${ARGV2})")
    endif()
endmacro()
find_package(Threads REQUIRED)
penstock_find(tl-expected 1.0 libexpected-dev)
penstock_find(nlohmann_json 3.11 nlohmann-json3-dev) # the command line
penstock_find(CLI11 2.1 libcli11-dev)
penstock_find(fmt 9 libfmt-dev)
find_path(PENSTOCK_XXHASH_INCLUDE xxhash.h)
find_path(PENSTOCK_LIBURING_INCLUDE liburing.h)
find_library(PENSTOCK_LIBURING_STATIC NAMES liburing.a)
find_library(PENSTOCK_LIBURING_SHARED NAMES liburing.so uring)
if(NOT PENSTOCK_XXHASH_INCLUDE)
    list(APPEND PENSTOCK_MISSING "xxHash (libxxhash-dev)")
endif()
if(NOT PENSTOCK_LIBURING_INCLUDE OR NOT (PENSTOCK_LIBURING_STATIC OR PENSTOCK_LIBURING_SHARED))
    list(APPEND PENSTOCK_MISSING "liburing (liburing-dev)")
endif()
if(PENSTOCK_MISSING)
    list(JOIN PENSTOCK_MISSING ", " missing)
    message(FATAL_ERROR "Penstock needs what was not found here: ${missing}. ${PENSTOCK_APT}")
endif()

# Of fmt only the headers are used, and its out-of-line half is compiled once (cmake/fmt_once.cpp says why). That half
# is known for fmt 9; with another version all is header-only, which is slow to compile and otherwise the same.
add_library(penstock_fmt INTERFACE)
get_target_property(fmt_include fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(penstock_fmt SYSTEM INTERFACE ${fmt_include})
if(fmt_VERSION VERSION_LESS 10)
    add_library(penstock_fmt_once OBJECT "${PROJECT_SOURCE_DIR}/cmake/fmt_once.cpp")
    target_link_libraries(penstock_fmt_once PRIVATE penstock_fmt)
    set(PENSTOCK_FMT_OBJECTS $<TARGET_OBJECTS:penstock_fmt_once>)
else()
    message(STATUS "fmt ${fmt_VERSION}: header-only, so that compiling takes longer than with fmt 9")
    target_compile_definitions(penstock_fmt INTERFACE FMT_HEADER_ONLY=1)
    set(PENSTOCK_FMT_OBJECTS "")
endif()

# liburing goes in statically, under its MIT option, so that the library asks nothing of the machine it runs on.
if(PENSTOCK_LIBURING_STATIC)
    set(PENSTOCK_LIBURING "${PENSTOCK_LIBURING_STATIC}")
    set(kind "static")
else()
    set(PENSTOCK_LIBURING "${PENSTOCK_LIBURING_SHARED}")
    set(kind "shared: there is no liburing.a")
endif()
message(STATUS "liburing: ${PENSTOCK_LIBURING} (${kind})")
add_library(penstock_liburing INTERFACE)
target_include_directories(penstock_liburing SYSTEM INTERFACE "${PENSTOCK_LIBURING_INCLUDE}")
target_link_libraries(penstock_liburing INTERFACE "${PENSTOCK_LIBURING}")
