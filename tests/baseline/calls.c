/* What a share is made of: each driver call and each message of one, timed by itself.
 *
 * ./calls CHUNKS SIZE ROUNDS [held] [PAUSE] prints the median of each step in microseconds, for the
 * exporter and for the importer (a process of its own). One export stays alive throughout, as in
 * best.c; with "held" each process also keeps 2 MiB of other memory mapped, far from what is timed.
 * Before each round both do nothing for PAUSE milliseconds. */
#define KEEP 1
#include "driver.h"
#include "link.h"

#define MOST_ROUNDS 512
#define MOST_CHUNKS 8192

static CUhandle handles[MOST_CHUNKS];
static int fds[MOST_CHUNKS];

typedef struct {
    const char *name;
    double values[MOST_ROUNDS];
    int count;
} Step;

static Step steps[32];
static int step_count;

static void note(const char *name, double start) {
    double value = now_us() - start;
    int i = 0;
    while (i < step_count && strcmp(steps[i].name, name) != 0) i++;
    if (i == step_count) steps[step_count++].name = name;
    if (steps[i].count < MOST_ROUNDS) steps[i].values[steps[i].count++] = value;
}

#define STEP(name, code)                                                                           \
    do {                                                                                           \
        double start_ = now_us();                                                                  \
        code;                                                                                      \
        note(name, start_);                                                                        \
    } while (0)

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *who) {
    for (int i = 0; i < step_count; i++) {
        Step *s = &steps[i];
        qsort(s->values, s->count, sizeof(double), ascending);
        printf("%-9s %-28s %10.1f  (%.1f to %.1f)\n", who, s->name, s->values[s->count / 2],
               s->values[s->count / 4], s->values[s->count * 3 / 4]);
    }
    fflush(stdout);
}

static void hold(void) {
    CUaccess access = read_write();
    CUprop prop = shareable();
    CUdeviceptr base;
    CUhandle handle;
    if (!getenv("CALLS_HELD")) return;
    CHECK(cuMemAddressReserve(&base, (size_t)2 << 20, 0, 0, 0));
    CHECK(cuMemCreate(&handle, (size_t)2 << 20, &prop, 0));
    CHECK(cuMemMap(base, (size_t)2 << 20, 0, handle, 0));
    CHECK(cuMemSetAccess(base, (size_t)2 << 20, &access, 1));
}

static int importer(int link) {
    Message message;
    load_driver();
    hold();
    CUaccess access = read_write();
    send_message(link, (Message){.kind = DONE}, NULL, 0);
    while (receive_message(link, &message, NULL)) {
        int count = message.count, done = 0;
        uint64_t size = message.size;
        CUdeviceptr base;
        STEP("receive all handles", {
            while (done < count) {
                if (!receive_message(link, &message, fds + done)) exit(1);
                done += message.count;
            }
        });
        STEP("import, all chunks", for (int i = 0; i < count; i++) handles[i] = import_fd(fds[i]));
        STEP("properties, all chunks", for (int i = 0; i < count; i++) {
            CUprop prop;
            CHECK(cuMemGetAllocationPropertiesFromHandle(&prop, handles[i]));
        });
        STEP("close, all fds", for (int i = 0; i < count; i++) close(fds[i]));
        STEP("reserve", CHECK(cuMemAddressReserve(&base, count * size, 0, 0, 0)));
        STEP("map, all chunks", for (int i = 0; i < count; i++)
                                    CHECK(cuMemMap(base + i * size, size, 0, handles[i], 0)));
        STEP("release, all handles",
             for (int i = 0; i < count; i++) CHECK(cuMemRelease(handles[i])));
        STEP("set access, one call", CHECK(cuMemSetAccess(base, count * size, &access, 1)));
        send_message(link, (Message){.kind = DONE}, NULL, 0);
        if (!receive_message(link, &message, NULL)) exit(1);
        STEP("unmap, one call", CHECK(cuMemUnmap(base, count * size)));
        STEP("free", CHECK(cuMemAddressFree(base, count * size)));
        send_message(link, (Message){.kind = DONE}, NULL, 0);
    }
    report("importer");
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "importer") == 0) return importer(atoi(argv[2]));
    if (argc < 4 || argc > 6) {
        fprintf(stderr, "usage: calls CHUNKS SIZE ROUNDS [held] [PAUSE]\n");
        return 2;
    }
    int count = atoi(argv[1]), rounds = atoi(argv[3]);
    size_t size = strtoull(argv[2], NULL, 10);
    if (count < 1 || count > MOST_CHUNKS) return 2;
    int pause = 0;
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "held") == 0)
            setenv("CALLS_HELD", "1", 1);
        else
            pause = atoi(argv[i]);
    }
    int link = start_importer("/proc/self/exe");
    load_driver();
    hold();
    expect_done(link);
    CUprop prop = shareable();
    CUaccess access = read_write();
    CUhandle anchor;
    size_t granularity;
    CHECK(cuMemGetAllocationGranularity(&granularity, &prop, 1));
    CHECK(cuMemCreate(&anchor, granularity, &prop, 0));
    export_fd(anchor);
    for (int round = 0; round < rounds; round++) {
        CUdeviceptr base;
        usleep(pause * 1000);
        STEP("reserve", CHECK(cuMemAddressReserve(&base, count * size, 0, 0, 0)));
        STEP("create, all chunks",
             for (int i = 0; i < count; i++) CHECK(cuMemCreate(&handles[i], size, &prop, 0)));
        STEP("map, all chunks", for (int i = 0; i < count; i++)
                                    CHECK(cuMemMap(base + i * size, size, 0, handles[i], 0)));
        STEP("set access, one call", CHECK(cuMemSetAccess(base, count * size, &access, 1)));
        STEP("share, all in all", {
            STEP("export, all chunks", for (int i = 0; i < count; i++) fds[i] = export_fd(handles[i]));
            send_message(link, (Message){OFFER, count, size, 0}, NULL, 0);
            for (int i = 0; i < count; i += MOST_FDS) {
                int part = count - i < MOST_FDS ? count - i : MOST_FDS;
                send_message(link, (Message){HANDLES, part, size, 0}, fds + i, part);
            }
            expect_done(link);
        });
        STEP("the importer's teardown", {
            send_message(link, (Message){.kind = DROP}, NULL, 0);
            expect_done(link);
        });
        STEP("close, all fds", for (int i = 0; i < count; i++) close(fds[i]));
        STEP("unmap, one call", CHECK(cuMemUnmap(base, count * size)));
        STEP("release, all handles", for (int i = 0; i < count; i++) CHECK(cuMemRelease(handles[i])));
        STEP("free", CHECK(cuMemAddressFree(base, count * size)));
    }
    close(link);
    usleep(300000);
    report("exporter");
    return 0;
}
