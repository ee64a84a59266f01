/* A driver-API program in C: allocates, maps, fills, exports, and sends the descriptor to the
 * program that its arguments name, which finds the socket as its standard input and answers there
 * with one byte, 'k', when the bytes were right and it has filled the memory with 0x22. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE ((size_t)4 << 20)

static void ok(CUresult code, const char *call)
{
    const char *name = NULL;
    if (code == CUDA_SUCCESS)
        return;
    cuGetErrorName(code, &name);
    fprintf(stderr, "%s: %s\n", call, name ? name : "?");
    exit(1);
}
#define OK(call) ok((call), #call)

static CUdeviceptr map_whole(CUmemGenericAllocationHandle handle)
{
    CUdeviceptr address = 0;
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cuMemAddressReserve(&address, SIZE, 0, 0, 0));
    OK(cuMemMap(address, SIZE, 0, handle, 0));
    OK(cuMemSetAccess(address, SIZE, &access, 1));
    return address;
}

static void expect(CUdeviceptr address, unsigned char value)
{
    unsigned char *back = malloc(SIZE);
    OK(cuMemcpyDtoH(back, address, SIZE));
    for (size_t i = 0; i < SIZE; i++)
        if (back[i] != value) {
            fprintf(stderr, "byte %zu is %#x\n", i, back[i]);
            exit(1);
        }
    free(back);
}

static void start(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

static void exporter(char **importer)
{
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    int fd = -1, sockets[2], status = 1;
    char byte = 'x';
    start();
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(cuMemCreate(&handle, SIZE, &prop, 0));
    CUdeviceptr address = map_whole(handle);
    OK(cuMemsetD8(address, 0x11, SIZE));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets))
        exit(1);
    pid_t child = fork();
    if (child == 0) {
        dup2(sockets[1], 0);
        execv(importer[0], importer);
        _exit(127);
    }
    close(sockets[1]);
    struct iovec data = {&byte, 1};
    union control control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(sockets[0], &message, 0) != 1 || read(sockets[0], &byte, 1) != 1 || byte != 'k')
        exit(1);
    if (waitpid(child, &status, 0) != child || status != 0)
        exit(1);
    expect(address, 0x22);
    OK(cuMemUnmap(address, SIZE));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(address, SIZE));
    puts("OK");
}

static void importer(void)
{
    CUmemGenericAllocationHandle handle;
    int fd = -1;
    char byte = 0;
    union control control;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    if (recvmsg(0, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message))
        exit(1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    start();
    OK(cuMemImportFromShareableHandle(&handle, (void *)(size_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUdeviceptr address = map_whole(handle);
    expect(address, 0x11);
    OK(cuMemsetD8(address, 0x22, SIZE));
    OK(cuCtxSynchronize());
    byte = 'k';
    if (write(0, &byte, 1) != 1)
        exit(1);
}

int main(int count, char **arguments)
{
    char *self[] = {arguments[0], "import", NULL};
    if (count > 1 && strcmp(arguments[1], "import") == 0)
        importer();
    else
        exporter(count > 1 ? arguments + 1 : self);
    return 0;
}
