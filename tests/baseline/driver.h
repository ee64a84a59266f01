/* What the baselines need of the CUDA driver, resolved at run time from libcuda.so.1.
 *
 * Types and numbers are those of the driver's documented interface; nothing of NVIDIA's headers is
 * included, so that the programs build where there is no toolkit. */
#ifndef DRIVER_H
#define DRIVER_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUhandle;

typedef struct {
    int type;
    int id;
} CUlocation;

typedef struct {
    int type;
    int requested_handle_types;
    CUlocation location;
    void *win32;
    unsigned char flags[8];
} CUprop;

typedef struct {
    CUlocation location;
    int flags;
} CUaccess;

#define HANDLE_FD 1
#define LOCATION_DEVICE 1
#define ALLOCATION_PINNED 1
#define ACCESS_READWRITE 3

#define DRIVER_CALLS(X)                                                                            \
    X(cuInit, (unsigned flags))                                                                    \
    X(cuDeviceGet, (CUdevice * device, int ordinal))                                               \
    X(cuMemGetAllocationGranularity, (size_t * bytes, const CUprop *prop, int option))             \
    X(cuMemCreate, (CUhandle * handle, size_t size, const CUprop *prop, unsigned long long flags)) \
    X(cuMemRelease, (CUhandle handle))                                                             \
    X(cuMemAddressReserve, (CUdeviceptr * address, size_t size, size_t alignment,                  \
                            CUdeviceptr hint, unsigned long long flags))                           \
    X(cuMemAddressFree, (CUdeviceptr address, size_t size))                                        \
    X(cuMemMap, (CUdeviceptr address, size_t size, size_t offset, CUhandle handle,                 \
                 unsigned long long flags))                                                        \
    X(cuMemUnmap, (CUdeviceptr address, size_t size))                                              \
    X(cuMemSetAccess, (CUdeviceptr address, size_t size, const CUaccess *access, size_t count))    \
    X(cuMemExportToShareableHandle, (void *out, CUhandle handle, int type, unsigned long long flags)) \
    X(cuMemImportFromShareableHandle, (CUhandle * handle, void *in, int type))                     \
    X(cuMemGetAllocationPropertiesFromHandle, (CUprop * prop, CUhandle handle))

#define DECLARE(name, arguments) static CUresult(*name) arguments;
DRIVER_CALLS(DECLARE)
#undef DECLARE

#define CHECK(call)                                                                                \
    do {                                                                                           \
        CUresult code = (call);                                                                    \
        if (code != 0) {                                                                           \
            fprintf(stderr, "%s:%d: %s answered %d\n", __FILE__, __LINE__, #call, code);           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static CUdevice device;

static void load_driver(void) {
    const char *path = getenv("VMM_LIBCUDA");
    void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define RESOLVE(name, arguments)                                                                   \
    name = (CUresult(*) arguments)dlsym(library, #name);                                           \
    if (!name) {                                                                                   \
        fprintf(stderr, "no %s\n", #name);                                                         \
        exit(1);                                                                                   \
    }
    DRIVER_CALLS(RESOLVE)
#undef RESOLVE
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
}

static CUprop shareable(void) {
    CUprop prop;
    memset(&prop, 0, sizeof prop);
    prop.type = ALLOCATION_PINNED;
    prop.requested_handle_types = HANDLE_FD;
    prop.location.type = LOCATION_DEVICE;
    prop.location.id = device;
    return prop;
}

static CUaccess read_write(void) {
    CUaccess access = {{LOCATION_DEVICE, device}, ACCESS_READWRITE};
    return access;
}

static int export_fd(CUhandle handle) {
    int fd = -1;
    CHECK(cuMemExportToShareableHandle(&fd, handle, HANDLE_FD, 0));
    return fd;
}

static CUhandle import_fd(int fd) {
    CUhandle handle = 0;
    CHECK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, HANDLE_FD));
    return handle;
}

#endif
