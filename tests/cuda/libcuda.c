/* A libcuda.so.1 for tests: the calls of tests/hardware/cuda_work.py, with the rules of the real driver API.
 *
 * A call out of order, such as an allocation without a context, returns the error of the real library. Each call
 * is appended to the file named by TEST_CUDA_LOG. A process that holds a context has a file with its pid in the
 * directory named by TEST_CUDA_PROCESSES. TEST_CUDA_LEAST is the oldest target that the compiler accepts (50
 * stands for sm_50); TEST_CUDA_FAIL names a call that returns an error. A kernel takes 4 ns per round.
 *
 * With TEST_CUDA_WAIT, a new context waits until something is written into the file of its process: until the
 * test NVML library lists the process, as a driver does from the beginning.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, INVALID_PTX = 218, NOT_FOUND = 500
};
#define API __attribute__((visibility("default")))

static int initialized, current, entry;
static char context, module, function;
static u64 allocated, device_memory = 1ull << 34;

static void append(const char *call) {
    const char *path = getenv("TEST_CUDA_LOG");
    char line[128];
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    if (file < 0) return;
    int length = snprintf(line, sizeof line, "%s\n", call);
    if (write(file, line, (size_t)length) != length) abort();
    close(file);
}
static int fails(const char *call) {
    const char *named = getenv("TEST_CUDA_FAIL");
    return named && !strcmp(named, call);
}
static void sleep_for(double seconds) {
    struct timespec time = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
    nanosleep(&time, NULL);
}
static void wait_for_text(const char *path) {
    struct stat found;
    while (!stat(path, &found) && !found.st_size) sleep_for(0.005);
}
#define CALL append(__func__); if (fails(__func__)) return NO_DEVICE
#define STARTED CALL; if (!initialized) return NOT_INITIALIZED
#define CURRENT STARTED; if (!current) return INVALID_CONTEXT

API int cuGetErrorName(int code, const char **to) {
    *to = code == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
          : code == INVALID_PTX ? "CUDA_ERROR_INVALID_PTX" : code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return *to ? SUCCESS : INVALID_VALUE;
}
API int cuInit(unsigned flags) { CALL; if (flags) return INVALID_VALUE; initialized = 1; return SUCCESS; }
API int cuDeviceGet(int *device, int ordinal) {
    STARTED;
    if (ordinal) return INVALID_DEVICE;
    *device = 7;  /* Not the ordinal: a program must pass on what it got. */
    return SUCCESS;
}
API int cuDeviceGetAttribute(int *value, int attribute, int device) {
    STARTED;
    if (device != 7) return INVALID_DEVICE;
    if (attribute != 16) return INVALID_VALUE;
    *value = 132;
    return SUCCESS;
}
API int cuDevicePrimaryCtxRetain(void **to, int device) {
    char path[512];
    const char *folder = getenv("TEST_CUDA_PROCESSES");
    STARTED;
    if (device != 7) return INVALID_DEVICE;
    *to = &context;
    if (folder) {
        snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
        close(open(path, O_WRONLY | O_CREAT, 0644));
        if (getenv("TEST_CUDA_WAIT")) wait_for_text(path);
    }
    return SUCCESS;
}
API int cuCtxSetCurrent(void *to) { STARTED; if (to != &context) return INVALID_CONTEXT; current = 1; return SUCCESS; }
API int cuCtxSynchronize(void) { CURRENT; return SUCCESS; }
API int cuMemAlloc_v2(u64 *to, size_t size) {
    CURRENT;
    if (!size) return INVALID_VALUE;
    if (allocated + size > device_memory) return OUT_OF_MEMORY;
    *to = 0x700000000000ull + allocated;
    allocated += size;
    return SUCCESS;
}
API int cuMemcpyDtoD_v2(u64 to, u64 from, size_t size) {
    CURRENT;
    if (to < 0x700000000000ull || from < 0x700000000000ull || to + size > 0x700000000000ull + allocated) return INVALID_VALUE;
    sleep_for(0.002);
    return SUCCESS;
}
/* Options 5 and 6 are the buffer of error messages and its size. */
API int cuModuleLoadDataEx(void **to, const char *image, unsigned count, int *options, void **values) {
    int target = 0;
    const char *least = getenv("TEST_CUDA_LEAST");
    CURRENT;
    const char *at = strstr(image, ".target sm_");
    if (strncmp(image, ".version ", 9) || !at || !strstr(image, ".address_size 64")) return INVALID_PTX;
    sscanf(at, ".target sm_%d", &target);
    entry = strstr(image, ".visible .entry compute(") != NULL;
    if (least && target < atoi(least)) {
        if (count == 2 && options[0] == 5 && options[1] == 6)
            snprintf(values[0], (size_t)values[1], "ptxas fatal : target sm_%d is not supported\n", target);
        return INVALID_PTX;
    }
    *to = &module;
    return SUCCESS;
}
API int cuModuleGetFunction(void **to, void *of, const char *name) {
    CURRENT;
    if (of != &module || !entry || strcmp(name, "compute")) return NOT_FOUND;
    *to = &function;
    return SUCCESS;
}
API int cuLaunchKernel(void *which, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                       unsigned shared, void *stream, void **parameters, void **extra) {
    CURRENT;
    if (which != &function || !x || y != 1 || z != 1 || !threads || threads > 1024 || ty != 1 || tz != 1) return INVALID_VALUE;
    if (shared || stream || extra || !parameters || *(u64 *)parameters[0] < 0x700000000000ull) return INVALID_VALUE;
    sleep_for(4e-9 * *(unsigned *)parameters[1]);
    return SUCCESS;
}
