/* What loading a driver costs in C: open the library, find how it answers, ask for every symbol.
 * Prints the nanoseconds. SYMBOLS is a list of X(name, version) that the benchmark writes. */
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

typedef int (*get_proc_address)(const char *, void **, int, unsigned long long, int *);
typedef int (*get_version)(int *);

static const struct {
    const char *name;
    int version;
} symbols[] = {
#define X(name, version) {name, version},
#include SYMBOLS
#undef X
};

#define COUNT (sizeof symbols / sizeof *symbols)

static void *table[COUNT];

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    long long start = now();
    void *library = dlopen(argv[1], RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    get_proc_address get = (get_proc_address)dlsym(library, "cuGetProcAddress_v2");
    if (!get)
        return 1;
    int driver = 0, status = 0;
    void *address = 0;
    if (get("cuDriverGetVersion", &address, 2020, 1, &status) || !address)
        return 1;
    if (((get_version)address)(&driver))
        return 1;
    for (size_t i = 0; i < COUNT; i++)
        if (symbols[i].version <= driver && get(symbols[i].name, &table[i], symbols[i].version, 1, &status))
            return 1;
    if (get("vmmEmulatorVersion", &address, driver, 1, &status))
        return 1;
    long long end = now();
    size_t found = 0;
    for (size_t i = 0; i < COUNT; i++)
        found += table[i] != 0;
    printf("%lld %zu\n", end - start, found);
    return 0;
}
