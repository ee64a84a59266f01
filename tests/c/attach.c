/* c/vmm_ipc.h at work: attaches to the holder of vmm-ipc/examples/containers.rs at the path that is
 * its argument, and checks every byte. */
#define _GNU_SOURCE
#include "../../c/vmm_ipc.h"

#define STAGE ((size_t)8 << 20)

int main(int argc, char **argv)
{
    struct vmm_buffer buffer;
    CUcontext context, mine;
    CUstream stream;
    CUgraph graph;
    if (argc != 2 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return fprintf(stderr, "usage: attach SOCKET, where there is a GPU\n"), 2;
    if (vmm_import(argv[1], geteuid(), &buffer))
        return fprintf(stderr, "%s\n", vmm_error), 1;
    if (buffer.count != 3 || buffer.length % 8)
        return fprintf(stderr, "%u chunks of %lu bytes\n", buffer.count, (unsigned long)buffer.length), 1;
    uint64_t *words = malloc(buffer.length);
    if (cuMemcpyDtoH(words, buffer.address, buffer.length))
        return fprintf(stderr, "the buffer cannot be read\n"), 1;
    for (size_t at = 0; at < buffer.length / 8; at++) {
        size_t stage = at * 8 / STAGE * STAGE / 8;
        uint64_t word = ((stage ^ UINT64_C(0x636f6e74)) + (at - stage)) * UINT64_C(0x9e3779b97f4a7c15);
        if (words[at] != (word ^ (word >> 29)))
            return fprintf(stderr, "word %zu is %#lx\n", at, (unsigned long)words[at]), 1;
    }
    unsigned char last = ((unsigned char *)words)[buffer.length - 1];
    free(words);
    if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) ||
        cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL))
        return fprintf(stderr, "a capture does not begin\n"), 1;
    if (!vmm_close(&buffer) || !buffer.address)
        return fprintf(stderr, "closed in the middle of a capture\n"), 1;
    cuStreamEndCapture(stream, &graph);
    /* Work that lasts, and a thread that has no context of its own. */
    if (cuMemsetD8Async(buffer.address + buffer.length - 1, last, 1, stream) || cuCtxSetCurrent(NULL))
        return fprintf(stderr, "no work was queued\n"), 1;
    if (vmm_close(&buffer) || cuCtxGetCurrent(&mine) || mine || buffer.address)
        return fprintf(stderr, "closing left something behind\n"), 1;
    if (cuCtxSetCurrent(context) || cuStreamSynchronize(stream))
        return fprintf(stderr, "closing did not wait for the work\n"), 1;
    puts("OK");
    return 0;
}
