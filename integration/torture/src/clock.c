/* Preloaded into a process: its wall clock is ahead of the machine's by the nanoseconds in the file that TORTURE_CLOCK names,
 * which may change while the process runs. Its monotonic clocks stay as they are.
 *
 * A write beyond the limit of file sizes then fails, as it does on a full disk, and does not end the process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static volatile const int64_t *ahead;

__attribute__((constructor)) static void open_clock(void) {
    const char *name = getenv("TORTURE_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    void *shared = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) ahead = shared;
    if (file >= 0) close(file);
    signal(SIGXFSZ, SIG_IGN);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (syscall(SYS_clock_gettime, clock, at) != 0) return -1;
    if (ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t since = at->tv_sec * SECOND + at->tv_nsec + *ahead;
        at->tv_sec = since / SECOND;
        at->tv_nsec = since % SECOND;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    at->tv_sec = precise.tv_sec;
    at->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    if (at) *at = precise.tv_sec;
    return precise.tv_sec;
}
