/* One message with file descriptors over a Unix socket, and the clock. */
#ifndef LINK_H
#define LINK_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST_FDS 253

enum { OFFER = 1, HANDLES, GROW, DONE, DROP };

typedef struct {
    int kind;
    int count;
    uint64_t size;
    uint64_t capacity;
} Message;

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void send_message(int fd, Message message, const int *fds, int count) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } control;
    struct iovec part = {&message, sizeof message};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
    }
    if (sendmsg(fd, &header, MSG_NOSIGNAL) != sizeof message) fail("sendmsg");
}

/* Returns 0 when the other side hung up. */
static int receive_message(int fd, Message *message, int *fds) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } control;
    struct iovec part = {message, sizeof *message};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    ssize_t count = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    if (count == 0) return 0;
    if (count != sizeof *message) fail("recvmsg");
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    if (rights && fds) memcpy(fds, CMSG_DATA(rights), rights->cmsg_len - CMSG_LEN(0));
    return 1;
}

static void expect_done(int fd) {
    Message message;
    if (!receive_message(fd, &message, NULL) || message.kind != DONE) {
        fprintf(stderr, "the importer did not acknowledge\n");
        exit(1);
    }
}

/* Start this program again as an importer, before CUDA is initialised here. */
static int start_importer(const char *self) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) fail("socketpair");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        close(pair[0]);
        char number[16];
        snprintf(number, sizeof number, "%d", pair[1]);
        execl(self, self, "importer", number, (char *)NULL);
        fail("exec");
    }
    close(pair[1]);
    return pair[0];
}

#endif
