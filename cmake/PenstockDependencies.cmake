# SPDX-License-Identifier: Apache-2.0
# What is not ours. Each has a target here, and a room names the ones it links; reasons: docs/dependencies.md.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)          # used header-only: nothing of it is linked or exported
find_package(tl-expected 1.0 REQUIRED)

# liburing goes in statically, under its MIT option, so that the library asks nothing of the machine it runs on.
find_path(PENSTOCK_LIBURING_INCLUDE liburing.h)
find_library(PENSTOCK_LIBURING_STATIC NAMES liburing.a)
find_library(PENSTOCK_LIBURING_SHARED NAMES liburing.so uring)
if(PENSTOCK_LIBURING_INCLUDE AND (PENSTOCK_LIBURING_STATIC OR PENSTOCK_LIBURING_SHARED))
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
else()
    message(FATAL_ERROR "liburing was not found; on Debian: apt-get install liburing-dev")
endif()
