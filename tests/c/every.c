/* Links against every function of cuda.h, finds each by name as well, and is refused what the
 * emulator does not do. FUNCTIONS is a file that `cargo xtask emulator --check` makes of the
 * headers: a line FUNCTION(name, version, flags, exported name) for each. The version of the driver
 * is the newest of them. */
#define __CUDA_API_VERSION_INTERNAL /* declares every form under its exported name */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

struct function {
    const char *name;
    int version;
    cuuint64_t flags;
    const char *exported;
    void (*address)(void);
};

static const struct function functions[] = {
#define FUNCTION(name, version, flags, exported) \
    {#name, version, flags, #exported, (void (*)(void))exported},
#include FUNCTIONS
#undef FUNCTION
};
static const size_t count = sizeof functions / sizeof *functions;

static void expect(int right, const char *what)
{
    if (!right) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static void refuse(CUresult code)
{
    CUDA_MEMCPY2D_v2 copy = {0};
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR_v2 shape = {0};
    expect(cuMemcpy2D_v2(&copy) == code, "cuMemcpy2D_v2");
    expect(cuMemcpy2D_v2_ptds(&copy) == code, "cuMemcpy2D_v2_ptds");
    expect(cuArrayCreate_v2(&array, &shape) == code, "cuArrayCreate_v2");
    expect(cuStreamAddCallback(NULL, NULL, NULL, 0) == code, "cuStreamAddCallback");
}

int main(void)
{
    expect(count > 600, "too few functions");
    for (size_t i = 0; i < count; i++) {
        const struct function *wanted = &functions[i];
        void *found = NULL;
        CUdriverProcAddressQueryResult result;
        CUresult code = cuGetProcAddress_v2(wanted->name, &found, wanted->version, wanted->flags, &result);
        expect(code == CUDA_SUCCESS && found != NULL && wanted->address != NULL, wanted->exported);
    }
    refuse(CUDA_ERROR_NOT_INITIALIZED);
    expect(cuInit(0) == CUDA_SUCCESS, "cuInit");
    refuse(CUDA_ERROR_NOT_SUPPORTED);
    printf("%zu functions\n", count);
    return 0;
}
