/* Stands between a program and the C library: another wall clock, no more processes, a disk that refuses.
 *
 * Preloaded into a daemon under test. What is to go wrong stands in a small file that the test maps as well
 * (`world.py` has the same layout), so that it can be changed while the daemon runs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct orders {
    int64_t wall_offset_s;
    int64_t spawn_errno; /* 0: processes can be made */
    int64_t disk_errno;
    int64_t disk_calls_left; /* the call that takes it to 0 fails, and no other; -1: all fail */
    int64_t disk_failed;   /* how many were refused */
    int64_t disk_delay_ms; /* of every call */
    int64_t inotify_errno;
};

static struct orders nothing;
static struct orders *orders = &nothing;
static const char *disk;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS_ORDERS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *made = mmap(NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (made != MAP_FAILED)
            orders = made;
        close(file);
    }
    disk = getenv("FAULTS_DISK");
}

#define REAL(name, ...) \
    static __typeof__(__VA_ARGS__) real; \
    if (!real) \
        real = (__typeof__(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* --- the wall clock ---------------------------------------------------------------------------------------------- */

int clock_gettime(clockid_t clock, struct timespec *found) {
    REAL("clock_gettime", int (*)(clockid_t, struct timespec *));
    int answer = real(clock, found);
    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        found->tv_sec += orders->wall_offset_s;
    return answer;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    REAL("gettimeofday", int (*)(struct timeval *, void *));
    int answer = real(found, zone);
    if (answer == 0)
        found->tv_sec += orders->wall_offset_s;
    return answer;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}

/* --- processes and watches --------------------------------------------------------------------------------------- */

int posix_spawn(pid_t *restrict pid, const char *restrict path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *restrict how, char *const arguments[restrict],
                char *const environment[restrict]) {
    REAL("posix_spawn", int (*)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                                char *const[], char *const[]));
    if (orders->spawn_errno)
        return (int)orders->spawn_errno;
    return real(pid, path, actions, how, arguments, environment);
}

int inotify_init1(int flags) {
    REAL("inotify_init1", int (*)(int));
    if (orders->inotify_errno) {
        errno = (int)orders->inotify_errno;
        return -1;
    }
    return real(flags);
}

/* --- the disk ---------------------------------------------------------------------------------------------------- */

static int ours(const char *path) { return disk && path && strncmp(path, disk, strlen(disk)) == 0; }

static int refused(const char *path) {
    if (!ours(path))
        return 0;
    if (orders->disk_delay_ms)
        usleep((useconds_t)orders->disk_delay_ms * 1000);
    if (orders->disk_calls_left >= 0 &&
        (orders->disk_calls_left == 0 || __atomic_sub_fetch(&orders->disk_calls_left, 1, __ATOMIC_SEQ_CST) != 0))
        return 0;
    __atomic_add_fetch(&orders->disk_failed, 1, __ATOMIC_SEQ_CST);
    errno = (int)orders->disk_errno;
    return 1;
}

static int refused_at(int file) {
    char link[64], path[4096];
    if (!disk)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return refused(path);
}

ssize_t write(int file, const void *data, size_t size) {
    REAL("write", ssize_t(*)(int, const void *, size_t));
    return refused_at(file) ? -1 : real(file, data, size);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t place) {
    REAL("pwrite64", ssize_t(*)(int, const void *, size_t, off64_t));
    return refused_at(file) ? -1 : real(file, data, size, place);
}

int fsync(int file) {
    REAL("fsync", int (*)(int));
    return refused_at(file) ? -1 : real(file);
}

int fdatasync(int file) {
    REAL("fdatasync", int (*)(int));
    return refused_at(file) ? -1 : real(file);
}

int rename(const char *from, const char *to) {
    REAL("rename", int (*)(const char *, const char *));
    return refused(to) ? -1 : real(from, to);
}

int mkdir(const char *path, mode_t mode) {
    REAL("mkdir", int (*)(const char *, mode_t));
    return refused(path) ? -1 : real(path, mode);
}

int open64(const char *path, int flags, ...) {
    REAL("open64", int (*)(const char *, int, ...));
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
        if (refused(path))
            return -1;
    }
    return real(path, flags, mode);
}
