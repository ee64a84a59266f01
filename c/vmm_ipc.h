/* Imports a CUDA virtual memory buffer of another process: docs/protocol.md, in one header of C99 and C++.
 *
 *     struct vmm_buffer buffer;
 *     cuCtxSetCurrent(context);
 *     if (vmm_import("/run/vmm/holder.sock", 0, &buffer)) puts(vmm_error);
 *     ... buffer.address, buffer.length ...
 *     vmm_close(&buffer);
 *
 * The context is that of the device that the buffer lies on. File descriptors only, no updates, and
 * a little-endian machine, as all are that CUDA runs on. Link with -lcuda.
 */
#ifndef VMM_IPC_H
#define VMM_IPC_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first include: struct ucred is wanted"
#endif
#include <cuda.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#if CUDA_VERSION < 13000
#define VMM_UUID cuDeviceGetUuid_v2
#else
#define VMM_UUID cuDeviceGetUuid
#endif

enum { VMM_PART = 32768, VMM_MOST_FDS = 253, VMM_MOST_CHUNKS = 1 << 16 };
enum { VMM_HELLO = 1, VMM_OFFER, VMM_UPDATE, VMM_HANDLES, VMM_ACCEPTED, VMM_REFUSED, VMM_RETIRED };

struct vmm_buffer {
    CUcontext context; /* that was current when it was imported */
    CUdeviceptr address;
    uint64_t length, capacity;
    uint32_t count, mapped;
    uint64_t *sizes;
};

/* Why the last call in this thread failed. */
static __thread char vmm_error[256];

struct vmm_frame { uint8_t kind, flags; uint16_t fds; uint32_t payload, total, offset; };

static int vmm_fail(const char *what, long detail)
{
    snprintf(vmm_error, sizeof vmm_error, "%s (%ld)", what, detail);
    return -1;
}

/* A little-endian integer of 4 or 8 bytes. */
static uint64_t vmm_uint(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    return memcpy(&value, at, bytes), value;
}
#define vmm_u32(at) ((uint32_t)vmm_uint(at, 4))
#define vmm_u64(at) vmm_uint(at, 8)

static int vmm_send(int sock, uint8_t kind, const void *payload, uint32_t length)
{
    uint8_t packet[16 + 1056];
    struct vmm_frame frame = {kind, 0, 0, length, length, 0};
    memcpy(packet, &frame, 16);
    memcpy(packet + 16, payload, length);
    ssize_t sent;
    while ((sent = send(sock, packet, 16 + length, MSG_NOSIGNAL)) < 0 && errno == EINTR) {}
    return sent == (ssize_t)(16 + length) ? 0 : vmm_fail("sending failed", sent);
}

static time_t vmm_now(void)
{
    struct timespec now;
    return clock_gettime(CLOCK_MONOTONIC, &now), now.tv_sec;
}

/* When the whole exchange has to be over: a peer that sends now and then is not waited for for ever. */
static __thread time_t vmm_until;

/* One message of at most `most` bytes, into memory that the caller frees. Descriptors are the
 * caller's, also where this fails. */
static int vmm_receive(int sock, uint8_t wanted, uint32_t most, uint8_t **payload, uint32_t *length,
                       int *fds, int *count)
{
    static __thread uint8_t packet[16 + VMM_PART];
    union {
        char bytes[CMSG_SPACE(sizeof(int) * VMM_MOST_FDS)];
        struct cmsghdr align;
    } control;
    uint32_t done = 0;
    *payload = NULL;
    *count = 0;
    do {
        struct vmm_frame frame;
        struct iovec part = {packet, sizeof packet};
        struct msghdr message = {NULL, 0, &part, 1, control.bytes, sizeof control.bytes, 0};
        ssize_t got = -1;
        while (vmm_now() < vmm_until &&
               (got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
        if (got > 0)
            for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
                if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
                    int more = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
                    for (int i = 0; i < more; i++) {
                        int fd;
                        memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
                        if (*count < VMM_MOST_FDS)
                            fds[(*count)++] = fd;
                        else
                            close(fd);
                    }
                }
        if (got < 16 || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
            return vmm_fail("the other side hung up, was silent, or sent no frame", (long)got);
        memcpy(&frame, packet, 16);
        if (frame.kind != wanted || frame.flags || frame.total > most || frame.offset != done)
            return vmm_fail("another message than the one that was expected", frame.kind);
        uint32_t left = frame.total - done, full = left < VMM_PART ? left : (uint32_t)VMM_PART;
        if (frame.payload != full || got != 16 + (ssize_t)full || frame.fds != *count)
            return vmm_fail("a frame that is not what it says", frame.payload);
        if (*payload && frame.total != *length)
            return vmm_fail("frames of two messages", frame.total);
        if (!*payload && !(*payload = (uint8_t *)malloc(frame.total + 1)))
            return vmm_fail("out of memory", frame.total);
        *length = frame.total;
        memcpy(*payload + done, packet + 16, full);
        done += full;
    } while (done < *length);
    if (wanted != VMM_HANDLES && *count)
        return vmm_fail("file descriptors out of place", *count);
    return 0;
}

/* Checks a descriptor, and takes over what the buffer needs of it. */
static int vmm_decode(const uint8_t *at, uint32_t length, struct vmm_buffer *buffer)
{
    static const uint8_t zero[8] = {0};
    uint64_t sum = 0;
    if (length < 88 || memcmp(at, "VMMD\1\0\0\0", 8) || vmm_u32(at + 8) != length)
        return vmm_fail("not a descriptor of version 1", length);
    uint32_t count = vmm_u32(at + 12);
    uint64_t granularity = vmm_u64(at + 64);
    if (at[57] != 1)
        return vmm_fail("handles that are no file descriptors", at[57]);
    if (!count || count > VMM_MOST_CHUNKS || length != 88 + 8 * count || memcmp(at + 58, zero, 2))
        return vmm_fail("a descriptor whose lengths do not agree", count);
    if (!(at[56] == 1 && !vmm_u32(at + 60)) && !(at[56] == 3 && vmm_u32(at + 60) <= INT32_MAX))
        return vmm_fail("an unknown location", at[56]);
    if (!granularity || granularity & (granularity - 1))
        return vmm_fail("a granularity that is no power of two", (long)granularity);
    buffer->length = vmm_u64(at + 72);
    buffer->capacity = vmm_u64(at + 80);
    if (buffer->capacity > INT64_MAX || buffer->capacity % granularity)
        return vmm_fail("a capacity that cannot be", (long)buffer->capacity);
    if (!(buffer->sizes = (uint64_t *)malloc(8 * (size_t)count)))
        return vmm_fail("out of memory", count);
    buffer->count = count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t size = buffer->sizes[i] = vmm_u64(at + 88 + 8 * i);
        if (!size || size % granularity || size > buffer->capacity - sum)
            return vmm_fail("a chunk that cannot be", i);
        sum += size;
    }
    return buffer->length <= sum ? 0 : vmm_fail("longer than its chunks", (long)sum);
}

static int vmm_cuda(CUresult code, const char *call)
{
    snprintf(vmm_error, sizeof vmm_error, "%.*s answered %d", (int)strcspn(call, "("), call, code);
    return code == CUDA_SUCCESS ? 0 : -1;
}
#define VMM_CUDA(call) vmm_cuda((call), #call)

static void vmm_unmap(struct vmm_buffer *buffer)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < buffer->mapped; at += buffer->sizes[i++])
        cuMemUnmap(buffer->address + at, buffer->sizes[i]);
    if (buffer->address)
        cuMemAddressFree(buffer->address, buffer->capacity);
    free(buffer->sizes);
    memset(buffer, 0, sizeof *buffer);
}

/* Waits for the work in the buffer's context, from any thread, and unmaps. Once is enough. -1, with
 * nothing unmapped, where a stream of the context is being captured into a graph, which waiting ends. */
static int vmm_close(struct vmm_buffer *buffer)
{
    CUcontext popped;
    CUresult waited = CUDA_SUCCESS;
    if (buffer->context && cuCtxPushCurrent(buffer->context) == CUDA_SUCCESS) {
        waited = cuCtxSynchronize();
        cuCtxPopCurrent(&popped);
    }
    /* Work may go on then. In a context that is broken or gone none does, and the memory is given back. */
    if (waited >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
        waited <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        return vmm_fail("a stream is being captured", waited);
    vmm_unmap(buffer);
    return 0;
}

/* Receives all handles and maps them. Where mapping fails the rest is received nevertheless, so that
 * the refusal arrives in step: -2, and -1 where the exchange itself failed. */
static int vmm_take(int sock, const uint8_t *offer, struct vmm_buffer *buffer)
{
    CUdevice device;
    CUuuid uuid;
    uint64_t at = 0;
    int failed = VMM_CUDA(cuCtxGetDevice(&device)) || VMM_CUDA(VMM_UUID(&uuid, device)) ||
                 VMM_CUDA(cuCtxGetCurrent(&buffer->context));
    if (!failed && memcmp(&uuid, offer + 40, 16))
        failed = vmm_fail("the buffer lies on another device than the importer's current one", device);
    failed = failed || VMM_CUDA(cuMemAddressReserve(&buffer->address, buffer->capacity, 0, 0, 0));
    for (uint32_t first = 0; first < buffer->count;) {
        int fds[VMM_MOST_FDS], count;
        uint8_t *payload;
        uint32_t length;
        int lost = vmm_receive(sock, VMM_HANDLES, 24, &payload, &length, fds, &count);
        if (!lost && (length != 24 || memcmp(payload, offer + 16, 16) || count < 1 ||
                      vmm_u32(payload + 16) != first || vmm_u32(payload + 20) != (uint32_t)count ||
                      (uint32_t)count > buffer->count - first))
            lost = vmm_fail("not the handles that come next", first);
        for (int i = 0; i < count; i++) {
            CUmemGenericAllocationHandle handle;
            if (!lost && !failed &&
                !(failed = VMM_CUDA(cuMemImportFromShareableHandle(
                      &handle, (void *)(intptr_t)fds[i],
                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)))) {
                uint64_t size = buffer->sizes[first + i];
                failed = VMM_CUDA(cuMemMap(buffer->address + at, size, 0, handle, 0));
                buffer->mapped += !failed;
                at += size;
                cuMemRelease(handle);
            }
            close(fds[i]);
        }
        free(payload);
        if (lost)
            return -1;
        first += count;
    }
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = failed ? 0 : device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    failed = failed || VMM_CUDA(cuMemSetAccess(buffer->address, at, &access, 1));
    return failed ? -2 : 0;
}

/* Connects, receives one buffer and maps it, readable and writable. The other side has to be user
 * `uid`. 0, or -1 and vmm_error. */
static int vmm_import(const char *path, uid_t uid, struct vmm_buffer *buffer)
{
    static const uint8_t hello[16] = {'V', 'M', 'M', '-', 'I', 'P', 'C', 0, 1};
    struct sockaddr_un address = {AF_UNIX, {0}};
    struct timeval patience = {30, 0};
    struct ucred peer;
    socklen_t size = sizeof peer;
    uint8_t *greeting = NULL, *offer = NULL, answer[32 + sizeof vmm_error] = {0};
    uint32_t length;
    int none[VMM_MOST_FDS], count = 0, status = -1, refused;
    memset(buffer, 0, sizeof *buffer);
    if (strlen(path) >= sizeof address.sun_path)
        return vmm_fail("a path that is too long for a socket", (long)strlen(path));
    strcpy(address.sun_path, path);
    vmm_until = vmm_now() + 60;
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    while ((refused = connect(sock, (struct sockaddr *)&address, sizeof address)) &&
           errno == EINTR && vmm_now() < vmm_until) {}
    if (refused)
        vmm_fail("cannot connect", errno);
    else if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid != uid)
        vmm_fail("the other side is a user that is not allowed", peer.uid);
    else if (!vmm_send(sock, VMM_HELLO, hello, 16) &&
             !vmm_receive(sock, VMM_HELLO, 16, &greeting, &length, none, &count) &&
             (length == 16 && !memcmp(greeting, hello, 16) ? 1 : vmm_fail("not this protocol", 0) + 1) &&
             !vmm_receive(sock, VMM_OFFER, 88 + 8 * VMM_MOST_CHUNKS, &offer, &length, none, &count) &&
             !vmm_decode(offer, length, buffer)) {
        status = vmm_take(sock, offer, buffer);
        memcpy(answer, offer + 16, 24); /* id and generation */
        if (status == 0)
            status = vmm_send(sock, VMM_ACCEPTED, answer, 24);
        else if (status == -2) {
            size_t text = strlen(vmm_error);
            memcpy(answer + 32, vmm_error, text);
            vmm_send(sock, VMM_REFUSED, answer, (uint32_t)(32 + text));
        }
    }
    for (int i = 0; status && i < count; i++)
        close(none[i]);
    free(greeting);
    free(offer);
    if (sock >= 0)
        close(sock);
    if (status)
        vmm_unmap(buffer);
    return status ? -1 : 0;
}

#endif
