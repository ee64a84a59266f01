/* c/vmm_ipc.h at work: attaches to the holder of vmm-ipc/examples/containers.rs at the path that is
 * its argument, and checks every byte. */
#define _GNU_SOURCE
#include "../../c/vmm_ipc.h"

#define STAGE ((size_t)8 << 20)

int main(int argc, char **argv)
{
    struct vmm_buffer buffer;
    CUcontext context;
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
    free(words);
    /* As a thread does that has no context of its own. */
    cuCtxSetCurrent(NULL);
    vmm_close(&buffer);
    if (cuCtxGetCurrent(&context) || context || buffer.address)
        return fprintf(stderr, "closing left something behind\n"), 1;
    puts("OK");
    return 0;
}
