/* The part that the two baselines have in common: the buffer, the importer, the rounds.
 *
 * A round is one line on standard input, "share CHUNKS SIZE", answered by one line of JSON. A
 * program defines KEEP: 0 for the obvious sequence (export, send, close; import, close), 1 for the
 * best that plain C can do (fds kept until the importer has answered and for the next importer, and
 * one export that lives as long as the program). */
#include "driver.h"
#include "link.h"

#define GROW_SIZE ((size_t)2 << 20)
/* The second follows at once: the first finds driver and caches as a pause leaves them. */
#define GROWS 2
#define MOST_CHUNKS 8192

static CUhandle handles[MOST_CHUNKS];
static int fds[MOST_CHUNKS];

static void import_chunks(int link, int count, CUhandle *to) {
    int done = 0;
    while (done < count) {
        int batch[MOST_FDS];
        Message message;
        if (!receive_message(link, &message, batch)) exit(1);
        for (int i = 0; i < message.count; i++) {
            to[done + i] = import_fd(batch[i]);
            close(batch[i]);
        }
        done += message.count;
    }
}

static int importer(int link) {
    CUdeviceptr base = 0;
    uint64_t capacity = 0, mapped = 0;
    Message message;
    load_driver();
    CUaccess access = read_write();
    send_message(link, (Message){.kind = DONE}, NULL, 0);
    while (receive_message(link, &message, NULL)) {
        if (message.kind == OFFER) {
            capacity = message.capacity;
            import_chunks(link, message.count, handles);
            CHECK(cuMemAddressReserve(&base, capacity, 0, 0, 0));
            for (int i = 0; i < message.count; i++) {
                CHECK(cuMemMap(base + i * message.size, message.size, 0, handles[i], 0));
                CHECK(cuMemRelease(handles[i]));
            }
            mapped = message.count * message.size;
            CHECK(cuMemSetAccess(base, mapped, &access, 1));
        } else if (message.kind == GROW) {
            CUhandle handle;
            import_chunks(link, 1, &handle);
            CHECK(cuMemMap(base + mapped, message.size, 0, handle, 0));
            CHECK(cuMemRelease(handle));
            CHECK(cuMemSetAccess(base + mapped, message.size, &access, 1));
            mapped += message.size;
        } else if (message.kind == DROP) {
            CHECK(cuMemUnmap(base, mapped));
            CHECK(cuMemAddressFree(base, capacity));
        }
        send_message(link, (Message){.kind = DONE}, NULL, 0);
    }
    return 0;
}

static void send_chunks(int link, int kind, int first, int count, uint64_t size, uint64_t capacity,
                        int exported) {
    send_message(link, (Message){kind, count, size, capacity}, NULL, 0);
    if (!exported)
        for (int i = first; i < first + count; i++) fds[i] = export_fd(handles[i]);
    for (int i = 0; i < count; i += MOST_FDS) {
        int part = count - i < MOST_FDS ? count - i : MOST_FDS;
        send_message(link, (Message){HANDLES, part, size, 0}, fds + first + i, part);
    }
    if (!KEEP)
        for (int i = first; i < first + count; i++) close(fds[i]);
    expect_done(link);
}

static void round_trip(int a, int b, int count, size_t size) {
    CUprop prop = shareable();
    CUaccess access = read_write();
    CUdeviceptr base;
    size_t capacity = count * size + GROWS * GROW_SIZE, mapped = count * size;
    CHECK(cuMemAddressReserve(&base, capacity, 0, 0, 0));
    for (int i = 0; i < count; i++) {
        CHECK(cuMemCreate(&handles[i], size, &prop, 0));
        CHECK(cuMemMap(base + i * size, size, 0, handles[i], 0));
    }
    CHECK(cuMemSetAccess(base, mapped, &access, 1));

    double start = now_us();
    send_chunks(a, OFFER, 0, count, size, capacity, 0);
    double first = now_us() - start;

    start = now_us();
    send_chunks(b, OFFER, 0, count, size, capacity, KEEP);
    double second = now_us() - start;

    double grow[GROWS];
    for (int g = 0; g < GROWS; g++) {
        start = now_us();
        CHECK(cuMemCreate(&handles[count + g], GROW_SIZE, &prop, 0));
        CHECK(cuMemMap(base + mapped, GROW_SIZE, 0, handles[count + g], 0));
        CHECK(cuMemSetAccess(base + mapped, GROW_SIZE, &access, 1));
        send_chunks(a, GROW, count + g, 1, GROW_SIZE, 0, 0);
        mapped += GROW_SIZE;
        grow[g] = now_us() - start;
    }

    start = now_us();
    send_message(a, (Message){.kind = DROP}, NULL, 0);
    expect_done(a);
    double importer_teardown = now_us() - start;
    send_message(b, (Message){.kind = DROP}, NULL, 0);
    expect_done(b);

    start = now_us();
    if (KEEP)
        for (int i = 0; i < count + GROWS; i++) close(fds[i]);
    CHECK(cuMemUnmap(base, mapped));
    for (int i = 0; i < count + GROWS; i++) CHECK(cuMemRelease(handles[i]));
    CHECK(cuMemAddressFree(base, capacity));
    double teardown = now_us() - start;

    printf("{\"first\":%.1f,\"second\":%.1f,\"grow\":%.1f,\"grow_again\":%.1f,"
           "\"importer_teardown\":%.1f,\"teardown\":%.1f}\n",
           first, second, grow[0], grow[1], importer_teardown, teardown);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "importer") == 0) return importer(atoi(argv[2]));
    int a = start_importer("/proc/self/exe"), b = start_importer("/proc/self/exe");
    load_driver();
    expect_done(a);
    expect_done(b);
    if (KEEP) {
        CUprop prop = shareable();
        CUhandle anchor;
        size_t granularity;
        CHECK(cuMemGetAllocationGranularity(&granularity, &prop, 1));
        CHECK(cuMemCreate(&anchor, granularity, &prop, 0));
        export_fd(anchor);
    }
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        int count;
        size_t size;
        if (sscanf(line, "share %d %zu", &count, &size) != 2 || count < 1 ||
            count > MOST_CHUNKS - GROWS) {
            fprintf(stderr, "expected: share CHUNKS SIZE\n");
            return 2;
        }
        round_trip(a, b, count, size);
    }
    return 0;
}
