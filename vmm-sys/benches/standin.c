/* Stands in for libcuda.so.1 where there is no driver: it answers, and its functions do nothing. */
#include <string.h>

static const struct {
    const char *name;
    int version;
} symbols[] = {
#define X(name, version) {name, version},
#include SYMBOLS
#undef X
};

static int nothing(void)
{
    return 0;
}

static int version(int *version)
{
    *version = 13000;
    return 0;
}

int cuGetProcAddress_v2(const char *name, void **address, int asked, unsigned long long flags, int *status)
{
    (void)flags;
    *address = 0;
    *status = 1;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (symbols[i].version <= asked && !strcmp(symbols[i].name, name)) {
            *address = strcmp(name, "cuDriverGetVersion") ? (void *)nothing : (void *)version;
            *status = 0;
            break;
        }
    return 0;
}
