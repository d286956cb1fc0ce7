// SPDX-License-Identifier: Apache-2.0
// LD_PRELOAD library for NVIDIA's cuFile: it opens $PROC_MODULES where /proc/modules is asked for. Version 1.20 spins
// forever in cuFileDriverOpen() on a system (a container, a sandbox) that has no /proc/modules.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static const char* place_of(const char* path) {
    const char* other = getenv("PROC_MODULES");
    return path != NULL && other != NULL && strcmp(path, "/proc/modules") == 0 ? other : path;
}

FILE* fopen(const char* path, const char* mode) {
    FILE* (*real)(const char*, const char*) = (FILE * (*)(const char*, const char*)) dlsym(RTLD_NEXT, "fopen");
    return real(place_of(path), mode);
}

FILE* fopen64(const char* path, const char* mode) {
    FILE* (*real)(const char*, const char*) = (FILE * (*)(const char*, const char*)) dlsym(RTLD_NEXT, "fopen64");
    return real(place_of(path), mode);
}

static mode_t mode_of(int flags, va_list rest) {
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
}

int open(const char* path, int flags, ...) {
    int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return real(place_of(path), flags, mode);
}

int open64(const char* path, int flags, ...) {
    int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open64");
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return real(place_of(path), flags, mode);
}
