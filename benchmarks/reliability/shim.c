/* Loaded with LD_PRELOAD: counts the calls that change files below a folder, and fails, shortens or kills at one of them.

   What to do stands in a file that all processes map (FAULTS_CONTROL), so that calls of workers count too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WATCH, NO_SPACE, IO_ERROR, SHORT_WRITE, KILL };
enum { LOG = 8192 };

/* The same fields stand in injection.py. */
struct control {
    int enabled;
    int kind;
    long at;    /* the call at which it happens, counted from 1 */
    long count; /* calls so far */
    char folder[1024];
    char calls[LOG]; /* a letter for each call */
};

static struct control *control;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("FAULTS_CONTROL");
    int handle = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (handle < 0) return;
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    control = found == MAP_FAILED ? NULL : found;
    syscall(SYS_close, handle);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int below(const char *path) {
    size_t length = strlen(control->folder);
    return length && !strncmp(path, control->folder, length) && (path[length] == '/' || !path[length]);
}

/* Where the file of a handle lies; the handle AT_FDCWD is the working folder. */
static int place_of(int handle, char *place) {
    char link[64];
    snprintf(link, sizeof link, handle == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, place, PATH_MAX - 1);
    place[length > 0 ? length : 0] = 0;
    return length > 0;
}

static int watched_path(int folder, const char *path) {
    char place[2 * PATH_MAX + 2];
    if (!control || !control->enabled || !path) return 0;
    if (path[0] == '/') return below(path);
    if (!place_of(folder, place)) return 0;
    size_t length = strlen(place);
    snprintf(place + length, sizeof place - length, "/%s", path);
    return below(place);
}

static int watched_handle(int handle) {
    char place[PATH_MAX];
    return control && control->enabled && place_of(handle, place) && below(place);
}

/* Count a call: gives the error to fail with, or 0, or -1 if a write is to be cut short. A full disk stays full. */
static int next_call(char letter, int takes_space) {
    long number = __sync_add_and_fetch(&control->count, 1);
    if (number <= LOG) control->calls[number - 1] = letter;
    if (control->kind == NO_SPACE && number >= control->at && (number == control->at || takes_space)) return ENOSPC;
    if (number != control->at) return 0;
    if (control->kind == IO_ERROR) return EIO;
    if (control->kind == KILL && letter != 'w') syscall(SYS_kill, getpid(), SIGKILL);
    return letter == 'w' && (control->kind == SHORT_WRITE || control->kind == KILL) ? -1 : 0;
}

#define FAIL_IF_TOLD(watched, letter, takes_space, failed)            \
    do {                                                              \
        if (watched) {                                                \
            int found = next_call(letter, takes_space);               \
            if (found > 0) {                                          \
                errno = found;                                        \
                return failed;                                        \
            }                                                         \
        }                                                             \
    } while (0)

static int writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)); }

#define OPEN(name)                                                                              \
    int name(const char *path, int flags, ...) {                                                \
        va_list rest;                                                                           \
        va_start(rest, flags);                                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                 \
        va_end(rest);                                                                           \
        FAIL_IF_TOLD(writes(flags) && watched_path(AT_FDCWD, path), 'o', flags & O_CREAT, -1);  \
        return REAL(name)(path, flags, mode);                                                   \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                            \
    int name(int folder, const char *path, int flags, ...) {                                    \
        va_list rest;                                                                           \
        va_start(rest, flags);                                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                 \
        va_end(rest);                                                                           \
        FAIL_IF_TOLD(writes(flags) && watched_path(folder, path), 'o', flags & O_CREAT, -1);    \
        return REAL(name)(folder, path, flags, mode);                                           \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                             \
    FILE *name(const char *path, const char *mode) {                                            \
        FAIL_IF_TOLD(strpbrk(mode, "wa+") && watched_path(AT_FDCWD, path), 'o', 1, NULL);       \
        return REAL(name)(path, mode);                                                          \
    }
FOPEN(fopen)
FOPEN(fopen64)

/* A write that is cut short, and after which the process dies if it is to. */
#define CUT(handle, size, call)                                       \
    if (watched_handle(handle)) {                                     \
        int found = next_call('w', 1);                                \
        if (found > 0) {                                              \
            errno = found;                                            \
            return -1;                                                \
        }                                                             \
        if (found < 0) {                                              \
            size = size > 1 ? size / 2 : size;                        \
            ssize_t written = call;                                   \
            if (control->kind == KILL) syscall(SYS_kill, getpid(), SIGKILL); \
            return written;                                           \
        }                                                             \
    }                                                                 \
    return call

ssize_t write(int handle, const void *data, size_t size) { CUT(handle, size, REAL(write)(handle, data, size)); }

ssize_t pwrite(int handle, const void *data, size_t size, off_t place) {
    CUT(handle, size, REAL(pwrite)(handle, data, size, place));
}

ssize_t pwrite64(int handle, const void *data, size_t size, off64_t place) {
    CUT(handle, size, REAL(pwrite64)(handle, data, size, place));
}

ssize_t writev(int handle, const struct iovec *parts, int count) {
    CUT(handle, count, REAL(writev)(handle, parts, count));
}

int fsync(int handle) {
    FAIL_IF_TOLD(watched_handle(handle), 's', 0, -1);
    return REAL(fsync)(handle);
}

int fdatasync(int handle) {
    FAIL_IF_TOLD(watched_handle(handle), 's', 0, -1);
    return REAL(fdatasync)(handle);
}

int ftruncate(int handle, off_t size) {
    FAIL_IF_TOLD(watched_handle(handle), 't', 0, -1);
    return REAL(ftruncate)(handle, size);
}

int ftruncate64(int handle, off64_t size) {
    FAIL_IF_TOLD(watched_handle(handle), 't', 0, -1);
    return REAL(ftruncate64)(handle, size);
}

int rename(const char *from, const char *to) {
    FAIL_IF_TOLD(watched_path(AT_FDCWD, to), 'r', 0, -1);
    return REAL(rename)(from, to);
}

int renameat(int source, const char *from, int target, const char *to) {
    FAIL_IF_TOLD(watched_path(target, to), 'r', 0, -1);
    return REAL(renameat)(source, from, target, to);
}

int renameat2(int source, const char *from, int target, const char *to, unsigned flags) {
    FAIL_IF_TOLD(watched_path(target, to), 'r', 0, -1);
    return REAL(renameat2)(source, from, target, to, flags);
}

int unlink(const char *path) {
    FAIL_IF_TOLD(watched_path(AT_FDCWD, path), 'u', 0, -1);
    return REAL(unlink)(path);
}

int unlinkat(int folder, const char *path, int flags) {
    FAIL_IF_TOLD(watched_path(folder, path), 'u', 0, -1);
    return REAL(unlinkat)(folder, path, flags);
}

int rmdir(const char *path) {
    FAIL_IF_TOLD(watched_path(AT_FDCWD, path), 'u', 0, -1);
    return REAL(rmdir)(path);
}

int mkdir(const char *path, mode_t mode) {
    FAIL_IF_TOLD(watched_path(AT_FDCWD, path), 'm', 1, -1);
    return REAL(mkdir)(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode) {
    FAIL_IF_TOLD(watched_path(folder, path), 'm', 1, -1);
    return REAL(mkdirat)(folder, path, mode);
}
