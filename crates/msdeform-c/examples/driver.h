/*
 * The few functions of the CUDA driver that the examples need, looked up at run time, so that they compile without a
 * CUDA toolkit. Programs include <cuda.h> or <cuda_runtime.h> instead.
 */

#ifndef MSDEFORM_EXAMPLES_DRIVER_H
#define MSDEFORM_EXAMPLES_DRIVER_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void* driver;

static void* function(const char* name) {
    void* found = dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "libcuda has no %s\n", name);
        exit(1);
    }
    return found;
}

/* Calls a function of the driver; each returns 0 if all went well. */
#define DRIVER(name, parameters, arguments)                  \
    do {                                                     \
        int(*called) parameters;                             \
        *(void**)&called = function(#name);                  \
        int result = called arguments;                       \
        if (result != 0) {                                   \
            fprintf(stderr, #name " returned %d\n", result); \
            exit(1);                                         \
        }                                                    \
    } while (0)

/* A stream in the primary context of device 0, which is the one that the CUDA runtime uses too. */
static void* new_stream(void) {
    void *context = NULL, *stream = NULL;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    DRIVER(cuDevicePrimaryCtxRetain, (void**, int), (&context, 0));
    DRIVER(cuCtxSetCurrent, (void*), (context));
    DRIVER(cuStreamCreate, (void**, unsigned), (&stream, 0));
    return stream;
}

static void* to_device(const void* host, size_t bytes) {
    unsigned long long address = 0;
    DRIVER(cuMemAlloc_v2, (unsigned long long*, size_t), (&address, bytes));
    DRIVER(cuMemcpyHtoD_v2, (unsigned long long, const void*, size_t), (address, host, bytes));
    return (void*)(uintptr_t)address;
}

static void from_device(void* host, const void* device, size_t bytes) {
    DRIVER(cuMemcpyDtoH_v2, (void*, unsigned long long, size_t),
           (host, (unsigned long long)(uintptr_t)device, bytes));
}

static void wait_for(void* stream) { DRIVER(cuStreamSynchronize, (void*), (stream)); }

#endif
