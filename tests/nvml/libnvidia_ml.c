/* A libnvidia-ml.so.1 for tests: answers from the state file named by TEST_NVML_STATE.
 *
 * The file is read again whenever it changes (inode, time or size), so write another file and rename it.
 * Lines are KEY=VALUE; library.py writes and documents them. Errors and given answers are looked up by the
 * name of the call (`CALL`, `CALL.ARGUMENT`, `field.ID`, `gpm.ID`). Calls are counted by name. A hanging call
 * continues when the file changes.
 * Build variants: -DOLD omits functions that a driver of 2020 lacked; -DR535 has the symbols of a driver 535
 * with the longer process structure; -DNEWER omits deprecated functions, refreshes energy counters every 100 ms
 * only, and takes its timestamps from the clock of 1970.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;

enum { MAX_GPUS = 32, MAX_INSTANCES = 8, MAX_RULES = 256, MAX_ANSWERS = 256, MAX_EVENTS = 256, TEXT = 96 };
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25
};
#define ABSENT 0xFFFFFFFFu

/* Numbers of one GPU with their defaults. -1 for `mig` and `fan` means not supported; `memory` is 0 normal,
 * 1 not supported, 2 a total of zero. `nvlinks` is a number of links, `nvlinks_down` a bit of each. */
#define NUMBERS(X) \
    X(minor, -2) X(bus, -2) X(cores, 16896) X(major_cc, 9) X(minor_cc, 0) X(architecture, 9) \
    X(utilization, 0) X(memory_utilization, 0) X(encoder, 0) X(decoder, 0) \
    X(memory, 0) X(memory_total, 85899345920) X(memory_used, 1073741824) X(memory_reserved, 536870912) \
    X(power, 100000) X(power_limit, 700000) X(power_limit_requested, 700000) X(power_limit_max, 700000) X(energy, 1000000) \
    X(temperature, 40) X(memory_temperature, 45) X(fan, -1) X(pstate, 0) \
    X(graphics_clock, 1980) X(sm_clock, 1980) X(memory_clock, 2619) X(video_clock, 1545) \
    X(pcie_tx, 1000) X(pcie_rx, 2000) X(pcie_replays, 0) X(ecc_corrected, 0) X(ecc_uncorrected, 0) X(mig, 0) \
    X(persistence, 1) X(accounting, 0) X(virtualization, 0) X(compute_mode, 0) \
    X(power_instant, 101000) X(power_limit_min, 200000) X(power_limit_default, 700000) \
    X(temperature_slowdown, 87) X(temperature_shutdown, 92) X(clock_event_reasons, 1) \
    X(max_sm_clock, 1980) X(max_memory_clock, 2619) X(max_video_clock, 1545) X(app_sm_clock, 1980) X(app_memory_clock, 2619) \
    X(bar1_total, 137438953472) X(bar1_used, 1048576) X(ecc_corrected_volatile, 0) X(ecc_uncorrected_volatile, 0) \
    X(retired_corrected, 0) X(retired_uncorrected, 0) X(retired_pending, 0) \
    X(remapped_corrected, 0) X(remapped_uncorrected, 0) X(remap_pending, 0) X(remap_failure, 0) X(recovery, 0) X(reset, 0) X(drain_and_reset, 0) X(fabric, 0) \
    X(violation_power, 0) X(violation_thermal, 0) X(violation_sync_boost, 0) X(violation_board_limit, 0) \
    X(violation_low_utilization, 0) X(violation_reliability, 0) X(nvlink_tx, 4000) X(nvlink_rx, 5000) \
    X(nvlink_crc_flit, 0) X(nvlink_crc_data, 0) X(nvlink_replay, 0) X(nvlink_recovery, 0) \
    X(nvlinks, 18) X(nvlinks_down, 0) X(nvlink_speed, 26562) X(time_software_thermal, 0) X(time_hardware_thermal, 0) \
    X(time_power_brake, 0) X(pcie_generation, 5) X(pcie_generation_max, 5) X(pcie_generation_gpu_max, 5) \
    X(pcie_width, 16) X(pcie_width_max, 16) \
    X(jpeg, 0) X(ofa, 0) X(power_average, 99000) X(edpp, 100) X(margin, 47) X(inactive_corrected, 0) X(inactive_uncorrected, 0) \
    X(ecc_mode, 1) X(ecc_pending, 1) X(mig_pending, -2) X(display, 0) X(sessions, 0) X(fbc_sessions, 0) X(vgpus, 0) \
    X(protected, 0) X(protected_used, 0) X(fabric_clique, 0) X(fabric_version, 3) X(platform_version, 2) X(supported_reasons, 511)
#define AS_ENUM(name, value) N_##name,
#define AS_NAME(name, value) #name,
#define AS_VALUE(name, value) (u64)(value),
enum { NUMBERS(AS_ENUM) N_COUNT };
static const char *const number_names[] = { NUMBERS(AS_NAME) };
static const u64 number_values[] = { NUMBERS(AS_VALUE) };

typedef struct { u32 pid, gi, ci, sm, mem, enc, dec, jpg, ofa; u64 memory; char types[4]; } Process;
typedef struct { u32 pid, sm, mem, enc, dec, jpg, ofa; u64 at; } GivenSample;
typedef struct { u32 pid, running; u64 start, time; } Account;
typedef struct { int used; u32 gi, ci, sms; u64 total, held; double activity; char uuid[TEXT], profile[TEXT]; } Slice;
typedef struct {
    int used, processes_used, processes_room, samples_used, samples_room, accounts_used, accounts_room;
    u64 number[N_COUNT];
    double activity;
    char uuid[TEXT], name[TEXT], serial[TEXT], vbios[TEXT];
    Process *processes;
    GivenSample *samples;
    Account *accounts;
    Slice slices[MAX_INSTANCES];
} Gpu;
typedef struct { int gpu, code; char call[TEXT]; } Rule;
typedef struct { int gpu; char key[TEXT], text[32]; } Answer;
typedef struct { u64 id; int gpu; u64 xid; u32 gi, ci; } Event;
typedef struct { u32 pid; char text[4096]; } Name;

static Gpu gpus[MAX_GPUS];
static Rule rules[MAX_RULES];
static Answer answers[MAX_ANSWERS];
static Event events[MAX_EVENTS];
static Name *names;
static int rule_count, answer_count, event_count, name_count, name_room, real_time = 1, long_struct, zero_count, reload_wanted;
static u64 given_time, sample_period, delivered_event;
static double energy_since, energy_time, energy_added[MAX_GPUS], worked[MAX_GPUS], slice_worked[MAX_GPUS][MAX_INSTANCES];
static char hanging[1024], driver_version[TEXT];
static struct stat seen;
static int references, reload_started, registered[MAX_GPUS], accounting_set[MAX_GPUS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct { const char *call; u64 count; } counts[256];
static int counted;

/* Microseconds of the driver's clock: this machine's, or the one given in the file. */
static u64 driver_time(void) {
    struct timespec now;
    if (!real_time) return given_time;
#ifdef NEWER
    clock_gettime(CLOCK_REALTIME, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

/* Energy counters follow power over time, and engine time follows activity (percent): each call adds the
 * amounts since the last call. */
static void add_energy(void) {
    double now = (double)driver_time() / 1e6;
    if (energy_time > 0 && now > energy_time)
        for (int i = 0; i < MAX_GPUS; i++) {
            if (!gpus[i].used) continue;
            energy_added[i] += (double)gpus[i].number[N_power] * (now - energy_time);
            if (!isnan(gpus[i].activity)) worked[i] += gpus[i].activity * (now - energy_time);
            for (int n = 0; n < MAX_INSTANCES; n++)
                if (gpus[i].slices[n].used) slice_worked[i][n] += gpus[i].slices[n].activity * (now - energy_time);
        }
    energy_time = now;
}

static void copy(char *to, const char *from, size_t room) { snprintf(to, room, "%s", from); }

/* \xNN in the file is that byte, so that names can contain any byte except NUL. */
static void unescape(char *to, const char *from, size_t room) {
    size_t n = 0;
    while (*from && n + 1 < room) {
        u32 byte;
        if (from[0] == '\\' && from[1] == 'x' && sscanf(from + 2, "%2x", &byte) == 1) { to[n++] = (char)byte; from += 4; }
        else to[n++] = *from++;
    }
    to[n] = 0;
}

static void *room_for_one_more(void *list, int used, int *room, size_t size) {
    if (used < *room) return list;
    *room = *room ? *room * 2 : 64;
    return realloc(list, (size_t)*room * size);
}

static void add_rule(int gpu, const char *call, int code) {
    if (rule_count == MAX_RULES) return;
    rules[rule_count].gpu = gpu;
    rules[rule_count].code = code;
    copy(rules[rule_count++].call, call, TEXT);
}

static void add_answer(int gpu, const char *key, const char *text) {
    if (answer_count == MAX_ANSWERS) return;
    answers[answer_count].gpu = gpu;
    copy(answers[answer_count].key, key, TEXT);
    copy(answers[answer_count++].text, text, sizeof answers->text);
}

static void read_process(Gpu *gpu, const char *value) {
    Process p = { .gi = ABSENT, .ci = ABSENT };
    gpu->processes = room_for_one_more(gpu->processes, gpu->processes_used, &gpu->processes_room, sizeof p);
    sscanf(value, "%u,%llu,%3[CGM],%u,%u,%u,%u,%u,%u,%u,%u", &p.pid, &p.memory, p.types, &p.gi, &p.ci, &p.sm,
           &p.mem, &p.enc, &p.dec, &p.jpg, &p.ofa);
    gpu->processes[gpu->processes_used++] = p;
}

static void read_sample(Gpu *gpu, const char *value) {
    GivenSample t = { 0 };
    gpu->samples = room_for_one_more(gpu->samples, gpu->samples_used, &gpu->samples_room, sizeof t);
    sscanf(value, "%u,%llu,%u,%u,%u,%u,%u,%u", &t.pid, &t.at, &t.sm, &t.mem, &t.enc, &t.dec, &t.jpg, &t.ofa);
    gpu->samples[gpu->samples_used++] = t;
}

static void read_account(Gpu *gpu, const char *value) {
    Account a = { 0 };
    gpu->accounts = room_for_one_more(gpu->accounts, gpu->accounts_used, &gpu->accounts_room, sizeof a);
    sscanf(value, "%u,%llu,%llu,%u", &a.pid, &a.start, &a.time, &a.running);
    gpu->accounts[gpu->accounts_used++] = a;
}

static void read_gpu(int index, const char *key, const char *value) {
    Gpu *gpu = &gpus[index];
    gpu->used = 1;
    if (!strncmp(key, "error.", 6)) add_rule(index, key + 6, atoi(value));
    else if (!strncmp(key, "answer.", 7)) add_answer(index, key + 7, value);
    else if (!strncmp(key, "process.", 8)) read_process(gpu, value);
    else if (!strncmp(key, "sample.", 7)) read_sample(gpu, value);
    else if (!strncmp(key, "account.", 8)) read_account(gpu, value);
    else if (!strncmp(key, "instance.", 9)) {
        int slot = atoi(key + 9);
        if (slot < 0 || slot >= MAX_INSTANCES) return;
        Slice *s = &gpu->slices[slot];
        s->used = sscanf(value, "%95[^,],%u,%u,%95[^,],%u,%llu,%llu,%lf", s->uuid, &s->gi, &s->ci, s->profile, &s->sms,
                         &s->total, &s->held, &s->activity) == 8;
    }
    else if (!strcmp(key, "activity")) gpu->activity = strtod(value, NULL);
    else if (!strcmp(key, "uuid")) copy(gpu->uuid, value, TEXT);
    else if (!strcmp(key, "name")) unescape(gpu->name, value, TEXT);
    else if (!strcmp(key, "serial")) copy(gpu->serial, value, TEXT);
    else if (!strcmp(key, "vbios")) copy(gpu->vbios, value, TEXT);
    else for (int n = 0; n < N_COUNT; n++)
        if (!strcmp(key, number_names[n])) gpu->number[n] = (u64)strtoull(value, NULL, 10);
}

static void read_line(char *line) {
    char *value = strchr(line, '=');
    int index, length;
    if (!value || *line == '#') return;
    *value++ = 0;
    if (sscanf(line, "gpu.%d.%n", &index, &length) == 1 && index >= 0 && index < MAX_GPUS)
        read_gpu(index, line + length, value);
    else if (!strncmp(line, "error.", 6)) add_rule(-1, line + 6, atoi(value));
    else if (!strncmp(line, "event.", 6) && event_count < MAX_EVENTS) {
        Event e = { .id = strtoull(line + 6, NULL, 10), .gi = ABSENT, .ci = ABSENT };
        sscanf(value, "%d,%llu,%u,%u", &e.gpu, &e.xid, &e.gi, &e.ci);
        events[event_count++] = e;
    }
    else if (!strncmp(line, "pid.", 4)) {
        names = room_for_one_more(names, name_count, &name_room, sizeof *names);
        names[name_count].pid = (u32)strtoul(line + 4, NULL, 10);
        unescape(names[name_count++].text, value, sizeof names->text);
    }
    else if (!strcmp(line, "hang")) copy(hanging, value, sizeof hanging);
    else if (!strcmp(line, "driver_version")) copy(driver_version, value, TEXT);
    else if (!strcmp(line, "time")) { real_time = !strcmp(value, "real"); given_time = (u64)(atof(value) * 1e6); }
    else if (!strcmp(line, "energy_since")) energy_since = atof(value);
    else if (!strcmp(line, "sample_period")) sample_period = strtoull(value, NULL, 10);
    else if (!strcmp(line, "no_samples")) zero_count = !strcmp(value, "count_zero");
    else if (!strcmp(line, "reload")) reload_wanted = atoi(value);
    else if (!strcmp(line, "r535")) long_struct = atoi(value);
}

static void set_defaults(void) {
    for (int i = 0; i < MAX_GPUS; i++) {
        Gpu *gpu = &gpus[i];
        free(gpu->processes);
        free(gpu->samples);
        free(gpu->accounts);
        memset(gpu, 0, sizeof *gpu);
        memcpy(gpu->number, number_values, sizeof number_values);
        gpu->number[N_minor] = (u64)i;
        gpu->number[N_bus] = (u64)i + 1;
        snprintf(gpu->uuid, TEXT, "GPU-00000000-0000-0000-0000-%012d", i);
        copy(gpu->name, "NVIDIA H100 80GB HBM3", TEXT);
        snprintf(gpu->serial, TEXT, "165000000000%d", i);
        copy(gpu->vbios, "96.00.61.00.01", TEXT);
    }
    rule_count = answer_count = event_count = name_count = zero_count = reload_wanted = 0;
    hanging[0] = 0;
    real_time = 1;
    energy_since = 0;
    sample_period = 166667;
    copy(driver_version, "570.86.15", TEXT);
#ifdef R535
    long_struct = 1;
#else
    long_struct = 0;
#endif
}

static void refresh(void) {
    const char *path = getenv("TEST_NVML_STATE");
    struct stat now = { 0 };
    static char line[20000];
    if (!path || stat(path, &now)) return;
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    if (seen.st_ino) add_energy();
    set_defaults();
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        read_line(line);
    }
    fclose(file);
    if (seen.st_ino) add_energy(); else energy_time = energy_since > 0 ? energy_since : (double)driver_time() / 1e6;
    seen = now;
}

static void unlock(int *unused) { (void)unused; pthread_mutex_unlock(&mutex); }

static int hangs(const char *call) {
    char *at = hanging;
    size_t length = strlen(call);
    while ((at = strstr(at, call))) {
        if ((at == hanging || at[-1] == ',') && (at[length] == 0 || at[length] == ',')) return 1;
        at += length;
    }
    return 0;
}

static int slot_of(const char *call) {
    for (int i = 0; i < counted; i++) if (!strcmp(counts[i].call, call)) return i;
    counts[counted].call = call;
    return counted++;
}

static int ruled(int gpu, const char *call) {
    for (int i = 0; i < rule_count; i++)
        if ((rules[i].gpu == -1 || rules[i].gpu == gpu) && (rules[i].call[0] == '*' || !strcmp(rules[i].call, call)))
            return rules[i].code;
    return SUCCESS;
}

/* The error of a call with this argument. */
static int ruled_with(int gpu, const char *call, u32 argument) {
    char rule[TEXT];
    if (!rule_count) return SUCCESS;
    snprintf(rule, sizeof rule, "%s.%u", call, argument);
    return ruled(gpu, rule);
}

/* The answer that the file gives for a call, or NULL. */
static const char *given(int gpu, const char *key) {
    for (int i = 0; i < answer_count; i++)
        if (answers[i].gpu == gpu && !strcmp(answers[i].key, key)) return answers[i].text;
    return NULL;
}
static const char *given_with(int gpu, const char *call, u32 argument) {
    char key[TEXT];
    if (!answer_count) return NULL;
    snprintf(key, sizeof key, "%s.%u", call, argument);
    return given(gpu, key);
}
static u64 answer_or(int gpu, const char *call, u64 otherwise) {
    const char *text = given(gpu, call);
    return text ? strtoull(text, NULL, 10) : otherwise;
}
static u64 answer_with(int gpu, const char *call, u32 argument, u64 otherwise) {
    const char *text = given_with(gpu, call, argument);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static int slice_ruled(int gpu, const char *call) {
    char rule[TEXT];
    snprintf(rule, sizeof rule, "mig.%s", call);
    for (int i = 0; i < rule_count; i++)
        if ((rules[i].gpu == -1 || rules[i].gpu == gpu) && (!strcmp(rules[i].call, "mig.*") || !strcmp(rules[i].call, rule)))
            return rules[i].code;
    return SUCCESS;
}

/* Takes the lock, counts the call, reads the file if it changed, and hangs if the file says so. */
static void enter(const char *call, int *slot) {
    pthread_mutex_lock(&mutex);
    if (*slot < 0) *slot = slot_of(call);
    counts[*slot].count++;
    refresh();
    while (hangs(call)) {
        pthread_mutex_unlock(&mutex);
        usleep(5000);
        pthread_mutex_lock(&mutex);
        refresh();
    }
}

#define COUNTED \
    static int slot = -1; \
    __attribute__((cleanup(unlock))) int held = 0; \
    (void)held; \
    enter(__func__, &slot)
#define RULED_AS(gpu, rule) do { int code = ruled(gpu, rule); if (code) return code; } while (0)
#define RULED(gpu) RULED_AS(gpu, __func__)
#define STARTED do { if (!references || reload_started != reload_wanted) return UNINITIALIZED; } while (0)
#define SYSTEM COUNTED; STARTED; RULED(-1)
/* A call on a device: `g` is the GPU, `s` the MIG slice or NULL. Rules only for slices are `mig.CALL`, `mig.*`. */
#define DEVICE \
    COUNTED; STARTED; \
    Gpu *g; Slice *s; int i = locate(device, &g, &s); \
    if (i < 0) return INVALID_ARGUMENT; \
    RULED(i); \
    do { int code = s ? slice_ruled(i, __func__) : 0; if (code) return code; } while (0)
#define WHOLE DEVICE; if (s) return NOT_SUPPORTED
#define API __attribute__((visibility("default")))

static char gpu_handles[MAX_GPUS], slice_handles[MAX_GPUS][MAX_INSTANCES];

static int locate(const char *device, Gpu **gpu, Slice **slice) {
    int index = -1;
    *slice = NULL;
    if (device >= gpu_handles && device < gpu_handles + MAX_GPUS) index = (int)(device - gpu_handles);
    else if (device >= slice_handles[0] && device < slice_handles[0] + sizeof slice_handles) {
        int at = (int)(device - slice_handles[0]);
        index = at / MAX_INSTANCES;
        *slice = &gpus[index].slices[at % MAX_INSTANCES];
        if (!(*slice)->used) return -1;
    }
    if (index < 0 || !gpus[index].used) return -1;
    *gpu = &gpus[index];
    return index;
}

static int put(char *to, u32 room, const char *text) {
    if (strlen(text) >= room) { if (room) copy(to, text, room); return INSUFFICIENT_SIZE; }
    strcpy(to, text);
    return SUCCESS;
}

static int count_gpus(void) {
    int n = 0;
    while (n < MAX_GPUS && gpus[n].used) n++;
    return n;
}

/* Functions for tests: call counts. */
API u64 test_nvml_calls(void) { u64 n = 0; for (int i = 0; i < counted; i++) n += counts[i].count; return n; }
API u64 test_nvml_count(const char *call) { return counts[slot_of(strdup(call))].count; }
API void test_nvml_reset(void) {
    for (int i = 0; i < counted; i++) counts[i].count = 0;
    memset(energy_added, 0, sizeof energy_added);
    memset(worked, 0, sizeof worked);
    memset(slice_worked, 0, sizeof slice_worked);
    memset(accounting_set, 0, sizeof accounting_set);
    memset(&seen, 0, sizeof seen);
    references = 0;
    delivered_event = 0;
    energy_time = 0;
}

/* The real library keeps /dev/nvidiactl open while it is initialized; this one the file named by TEST_NVML_DEVICE. */
static int device = -1;
static void hold_device(void) {
    const char *path = getenv("TEST_NVML_DEVICE");
    if (path && device < 0) device = open(path, O_RDWR | O_CLOEXEC);
}
static int release_device(void) {
    if (--references == 0 && device >= 0) { close(device); device = -1; }
    return SUCCESS;
}

static int start(void) {
    references++;
    hold_device();
    if (reload_started != reload_wanted) memset(accounting_set, 0, sizeof accounting_set);
    reload_started = reload_wanted;
    memset(registered, 0, sizeof registered);
    return SUCCESS;
}
API int nvmlInitWithFlags(u32 flags) { COUNTED; (void)flags; RULED(-1); return start(); }
API int nvmlInit_v2(void) { COUNTED; RULED(-1); return start(); }
API int nvmlInit(void) { COUNTED; RULED(-1); return start(); }
API int nvmlShutdown(void) { COUNTED; if (!references) return UNINITIALIZED; return release_device(); }
API const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "test error %d", code);
    return text;
}
API int nvmlSystemGetDriverVersion(char *to, u32 room) { SYSTEM; return put(to, room, driver_version); }
API int nvmlSystemGetNVMLVersion(char *to, u32 room) { SYSTEM; return put(to, room, "12.570.86.15"); }
API int nvmlSystemGetCudaDriverVersion(int *to) { SYSTEM; *to = 12080; return SUCCESS; }
API int nvmlSystemGetCudaDriverVersion_v2(int *to) { SYSTEM; *to = 12080; return SUCCESS; }
API int nvmlSystemGetProcessName(u32 pid, char *to, u32 room) {
    SYSTEM;
    for (int n = 0; n < name_count; n++) if (names[n].pid == pid) return put(to, room, names[n].text);
    return NOT_FOUND;
}

API int nvmlDeviceGetCount_v2(u32 *to) { SYSTEM; *to = (u32)count_gpus(); return SUCCESS; }
API int nvmlDeviceGetCount(u32 *to) { SYSTEM; *to = (u32)count_gpus(); return SUCCESS; }
static int by_index(u32 index, char **to, const char *call) {
    if (index >= (u32)count_gpus()) return INVALID_ARGUMENT;
    *to = &gpu_handles[index];
    return ruled((int)index, call);
}
API int nvmlDeviceGetHandleByIndex_v2(u32 index, char **to) { COUNTED; STARTED; return by_index(index, to, __func__); }
API int nvmlDeviceGetHandleByIndex(u32 index, char **to) { COUNTED; STARTED; return by_index(index, to, __func__); }
API int nvmlDeviceGetHandleByUUID(const char *uuid, char **to) {
    COUNTED; STARTED;
    for (int i = 0; i < count_gpus(); i++) {
        if (!strcmp(gpus[i].uuid, uuid)) return by_index((u32)i, to, __func__);
        for (int n = 0; n < MAX_INSTANCES; n++)
            if (gpus[i].slices[n].used && !strcmp(gpus[i].slices[n].uuid, uuid)) {
                *to = &slice_handles[i][n];
                return ruled(i, __func__);
            }
    }
    return NOT_FOUND;
}
API int nvmlDeviceGetIndex(char *device, u32 *to) {
    DEVICE;
    *to = s ? (u32)(s - g->slices) : (u32)i;
    return SUCCESS;
}
API int nvmlDeviceGetUUID(char *device, char *to, u32 room) { DEVICE; return put(to, room, s ? s->uuid : g->uuid); }
API int nvmlDeviceGetName(char *device, char *to, u32 room) {
    char text[3 * TEXT];
    DEVICE;
    if (s) snprintf(text, sizeof text, "%s MIG %s", g->name, s->profile); else copy(text, g->name, sizeof text);
    return put(to, room, text);
}
typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
static int pci(int i, Gpu *g, Pci *to) {
    memset(to, 0, sizeof *to);
    to->bus = (u32)g->number[N_bus];
    to->id = 0x233010DE;
    to->subsystem = 0x16C110DE;
    snprintf(to->legacy, sizeof to->legacy, "0000:%02X:00.0", to->bus & 0xFF);
    snprintf(to->bus_id, sizeof to->bus_id, "00000000:%02X:00.0", to->bus & 0xFF);
    return i < 0;
}
API int nvmlDeviceGetPciInfo_v2(char *device, Pci *to) { WHOLE; return pci(i, g, to); }
API int nvmlDeviceGetPciInfo_v3(char *device, Pci *to) { WHOLE; return pci(i, g, to); }
API int nvmlDeviceGetSerial(char *device, char *to, u32 room) { WHOLE; return put(to, room, g->serial); }
API int nvmlDeviceGetVbiosVersion(char *device, char *to, u32 room) { WHOLE; return put(to, room, g->vbios); }
API int nvmlDeviceGetCudaComputeCapability(char *device, int *major, int *minor) {
    WHOLE;
    *major = (int)g->number[N_major_cc];
    *minor = (int)g->number[N_minor_cc];
    return SUCCESS;
}

/* Getters of one unsigned int. -1 in the file for `fan` means that the card has none. */
#define GETTER(call, field) \
    API int call(char *device, u32 *to) { WHOLE; *to = (u32)answer_or(i, __func__, g->number[N_##field]); return SUCCESS; }
GETTER(nvmlDeviceGetMinorNumber, minor)
GETTER(nvmlDeviceGetArchitecture, architecture)
GETTER(nvmlDeviceGetNumGpuCores, cores)
GETTER(nvmlDeviceGetPowerUsage, power)
GETTER(nvmlDeviceGetPowerManagementLimit, power_limit_requested)
GETTER(nvmlDeviceGetEnforcedPowerLimit, power_limit)
GETTER(nvmlDeviceGetPerformanceState, pstate)
GETTER(nvmlDeviceGetPcieReplayCounter, pcie_replays)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, pcie_generation)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, pcie_generation_max)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, pcie_width)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, pcie_width_max)
#ifndef OLD
GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, pcie_generation_gpu_max)
#endif
API int nvmlDeviceGetNvLinkState(char *device, u32 link, u32 *to) {
    WHOLE;
    if (link >= g->number[N_nvlinks]) return g->number[N_nvlinks] ? INVALID_ARGUMENT : NOT_SUPPORTED;
    int code = ruled_with(i, __func__, link);
    *to = (u32)answer_with(i, __func__, link, !(g->number[N_nvlinks_down] >> link & 1));
    return code;
}
API int nvmlDeviceGetFanSpeed(char *device, u32 *to) {
    WHOLE;
    *to = (u32)answer_or(i, __func__, g->number[N_fan]);
    return g->number[N_fan] == (u64)-1 ? NOT_SUPPORTED : SUCCESS;
}
/* Calls that write several numbers have answers by the index of each number. */
API int nvmlDeviceGetPowerManagementLimitConstraints(char *device, u32 *low, u32 *high) {
    WHOLE;
    *low = (u32)answer_with(i, __func__, 0, g->number[N_power_limit_min]);
    *high = (u32)answer_with(i, __func__, 1, g->number[N_power_limit_max]);
    return SUCCESS;
}
#define GETTER_WITH(call, ...) \
    API int call(char *device, u32 argument, u32 *to) { \
        static const u32 numbers[] = { __VA_ARGS__ }; \
        WHOLE; \
        if (argument >= sizeof numbers / sizeof *numbers) return INVALID_ARGUMENT; \
        do { int code = ruled_with(i, __func__, argument); if (code) return code; } while (0); \
        *to = (u32)answer_with(i, __func__, argument, g->number[numbers[argument]]); \
        return SUCCESS; \
    }
GETTER_WITH(nvmlDeviceGetTemperature, N_temperature)
GETTER_WITH(nvmlDeviceGetTemperatureThreshold, N_temperature_shutdown, N_temperature_slowdown)
GETTER_WITH(nvmlDeviceGetClockInfo, N_graphics_clock, N_sm_clock, N_memory_clock, N_video_clock)
GETTER_WITH(nvmlDeviceGetMaxClockInfo, N_max_sm_clock, N_max_sm_clock, N_max_memory_clock, N_max_video_clock)
#ifndef NEWER
GETTER_WITH(nvmlDeviceGetApplicationsClock, N_app_sm_clock, N_app_sm_clock, N_app_memory_clock)
#endif
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, power_limit_default)
GETTER(nvmlDeviceGetVirtualizationMode, virtualization)
static int reasons(int i, Gpu *g, const char *call, u64 *to) { *to = answer_or(i, call, g->number[N_clock_event_reasons]); return SUCCESS; }
#ifndef NEWER
API int nvmlDeviceGetCurrentClocksThrottleReasons(char *device, u64 *to) { WHOLE; return reasons(i, g, __func__, to); }
#endif
#ifndef OLD
API int nvmlDeviceGetCurrentClocksEventReasons(char *device, u64 *to) { WHOLE; return reasons(i, g, __func__, to); }
#endif

/* Activity of the whole GPU is not available under MIG (nvml.h). */
#define UNCUT WHOLE; if (g->number[N_mig] == 1) return NOT_SUPPORTED
API int nvmlDeviceGetUtilizationRates(char *device, u32 *to) {
    UNCUT;
    to[0] = (u32)answer_with(i, __func__, 0, g->number[N_utilization]);
    to[1] = (u32)answer_with(i, __func__, 1, g->number[N_memory_utilization]);
    return SUCCESS;
}
API int nvmlDeviceGetEncoderUtilization(char *device, u32 *to, u32 *period) {
    UNCUT; *to = (u32)answer_or(i, __func__, g->number[N_encoder]); *period = 167000; return SUCCESS;
}
API int nvmlDeviceGetDecoderUtilization(char *device, u32 *to, u32 *period) {
    UNCUT; *to = (u32)answer_or(i, __func__, g->number[N_decoder]); *period = 167000; return SUCCESS;
}

static int memory(Gpu *g, Slice *s, u64 *total, u64 *reserved, u64 *available, u64 *used) {
    if (g->number[N_memory] == 1) return NOT_SUPPORTED;
    *total = s ? s->total : g->number[N_memory] == 2 ? 0 : g->number[N_memory_total];
    *used = s ? s->held : *total ? g->number[N_memory_used] : 0;
    *reserved = s || !*total ? 0 : g->number[N_memory_reserved];
    *available = *total - *used - *reserved;
    return SUCCESS;
}
API int nvmlDeviceGetMemoryInfo(char *device, u64 *to) {
    u64 reserved = 0;
    DEVICE;
    int code = memory(g, s, &to[0], &reserved, &to[1], &to[2]);
    if (!code) to[2] += reserved;
    return code;
}
#ifndef OLD
typedef struct { u32 version; u64 total, reserved, available, used; } Memory2;
API int nvmlDeviceGetMemoryInfo_v2(char *device, Memory2 *to) {
    DEVICE;
    if (to->version != 0x02000028) return ARGUMENT_VERSION_MISMATCH;
    int code = memory(g, s, &to->total, &to->reserved, &to->available, &to->used);
    u64 *parts[] = { &to->total, &to->reserved, &to->available, &to->used };
    for (u32 n = 0; n < 4 && !s; n++) *parts[n] = answer_with(i, __func__, n, *parts[n]);
    return code;
}
#endif
API int nvmlDeviceGetBAR1MemoryInfo(char *device, u64 *to) {
    WHOLE;
    to[0] = g->number[N_bar1_total];
    to[1] = g->number[N_bar1_total] - g->number[N_bar1_used];
    to[2] = g->number[N_bar1_used];
    for (u32 n = 0; n < 3; n++) to[n] = answer_with(i, __func__, n, to[n]);
    return SUCCESS;
}

typedef struct { unsigned char cluster[16]; u32 status, clique; unsigned char state; } Fabric;
API int nvmlDeviceGetGpuFabricInfo(char *device, Fabric *to) {
    WHOLE;
    memset(to, 0, sizeof *to);
    to->state = (unsigned char)answer_or(i, __func__, g->number[N_fabric]);
    return SUCCESS;
}

#ifdef NEWER
static u64 energy_of(int i) {
    static double shown[MAX_GPUS];
    static u64 shown_at[MAX_GPUS];
    u64 period = driver_time() / 100000;
    add_energy();
    if (shown_at[i] != period) { shown[i] = energy_added[i]; shown_at[i] = period; }
    return gpus[i].number[N_energy] + (u64)shown[i];
}
#else
static u64 energy_of(int i) { add_energy(); return gpus[i].number[N_energy] + (u64)energy_added[i]; }
#endif
API int nvmlDeviceGetTotalEnergyConsumption(char *device, u64 *to) { WHOLE; *to = energy_of(i); return SUCCESS; }
API int nvmlDeviceGetTotalEccErrors(char *device, u32 kind, u32 counter, u64 *to) {
    WHOLE;
    int kept = kind ? N_ecc_uncorrected : N_ecc_corrected;
    int since_load = kind ? N_ecc_uncorrected_volatile : N_ecc_corrected_volatile;
    *to = g->number[counter ? kept : since_load];
    return SUCCESS;
}

#ifndef OLD
typedef struct { u32 id, scope; long long at, latency; u32 type; int code; u64 value; } Field;
enum { U32 = 1, U64 = 3, ANY = 0 };
/* Number, type (nvmlValueType_t) and architectures of each field id. */
static const struct { u32 id; int number; u32 type, scope, from, to; } known_fields[] = {
    { 3, N_ecc_corrected_volatile, U64, 0, ANY, 99 }, { 4, N_ecc_uncorrected_volatile, U64, 0, ANY, 99 },
    { 5, N_ecc_corrected, U64, 0, ANY, 99 }, { 6, N_ecc_uncorrected, U64, 0, ANY, 99 },
    { 29, N_retired_corrected, U64, 0, ANY, 6 }, { 30, N_retired_uncorrected, U64, 0, ANY, 6 },
    { 31, N_retired_pending, U32, 0, ANY, 6 },
    { 38, N_nvlink_crc_flit, U64, 0, ANY, 99 }, { 45, N_nvlink_crc_data, U64, 0, ANY, 99 },
    { 52, N_nvlink_replay, U64, 0, ANY, 99 }, { 59, N_nvlink_recovery, U64, 0, ANY, 99 },
    { 74, N_violation_power, U64, 0, ANY, 99 }, { 75, N_violation_thermal, U64, 0, ANY, 99 },
    { 76, N_violation_sync_boost, U64, 0, ANY, 99 }, { 77, N_violation_board_limit, U64, 0, ANY, 99 },
    { 78, N_violation_low_utilization, U64, 0, ANY, 99 }, { 79, N_violation_reliability, U64, 0, ANY, 99 },
    { 82, N_memory_temperature, U32, 0, ANY, 99 }, { 83, N_energy, U64, 0, 5, 99 },
    { 94, N_pcie_replays, U32, 0, ANY, 99 },
    { 138, N_nvlink_tx, U64, ABSENT, ANY, 99 }, { 139, N_nvlink_rx, U64, ABSENT, ANY, 99 },
    { 142, N_remapped_corrected, U32, 0, 7, 99 }, { 143, N_remapped_uncorrected, U32, 0, 7, 99 },
    { 144, N_remap_pending, U32, 0, 7, 99 }, { 145, N_remap_failure, U32, 0, 7, 99 },
    { 226, N_reset, U32, 0, ANY, 99 }, { 227, N_drain_and_reset, U32, 0, ANY, 99 },
    { 230, N_recovery, U32, 0, ANY, 99 }, { 90, N_nvlink_speed, U32, 0, ANY, 99 },
    { 269, N_time_software_thermal, U64, 0, ANY, 99 }, { 270, N_time_hardware_thermal, U64, 0, ANY, 99 },
    { 271, N_time_power_brake, U64, 0, ANY, 99 }, { 188, N_power_limit_max, U32, 0, ANY, 99 },
    { 186, N_power_instant, U32, 0, 7, 99 }, { 187, N_power_limit_min, U32, 0, ANY, 99 },
    { 189, N_power_limit_default, U32, 0, ANY, 99 }, { 192, N_power_limit_requested, U32, 0, ANY, 99 },
    { 197, N_pcie_tx, U64, 0, 7, 99 }, { 198, N_pcie_rx, U64, 0, 7, 99 },
    { 185, N_power_average, U32, 0, 7, 99 }, { 274, N_edpp, U32, 0, 9, 99 },
    { 301, N_inactive_corrected, U32, 0, 7, 99 }, { 302, N_inactive_uncorrected, U32, 0, 7, 99 },
};
static void fill(int i, Gpu *g, Field *f) {
    f->code = NOT_SUPPORTED;
    if (f->id == 165 && f->scope < g->number[N_nvlinks]) {
        char key[TEXT];
        snprintf(key, sizeof key, "field.165.%u", f->scope);
        f->code = ruled_with(i, "field", f->id);
        if (!f->code) f->code = ruled(i, key);
        f->type = U32;
        f->value = answer_or(i, key, !(g->number[N_nvlinks_down] >> f->scope & 1));
        f->type = (u32)answer_with(i, "type", f->id, f->type);
    } else if (f->id == 165) f->code = g->number[N_nvlinks] ? INVALID_ARGUMENT : NOT_SUPPORTED;
    for (size_t k = 0; k < sizeof known_fields / sizeof *known_fields; k++) {
        if (known_fields[k].id != f->id) continue;
        u64 held = g->number[known_fields[k].number], architecture = g->number[N_architecture];
        if (architecture < known_fields[k].from || architecture > known_fields[k].to) return;
        f->code = f->scope == known_fields[k].scope ? ruled_with(i, "field", f->id) : INVALID_ARGUMENT;
        f->type = known_fields[k].type;
        f->value = answer_with(i, "field", f->id, f->id == 83 ? energy_of(i) : held);
        f->type = (u32)answer_with(i, "type", f->id, f->type);
    }
}
API int nvmlDeviceGetFieldValues(char *device, int count, Field *fields) {
    WHOLE;
    for (int n = 0; n < count; n++) {
        fill(i, g, &fields[n]);
        fields[n].at = (long long)driver_time();
    }
    return SUCCESS;
}
#endif

API int nvmlDeviceGetMigMode(char *device, u32 *now, u32 *pending) {
    WHOLE;
    if (g->number[N_mig] == (u64)-1) return NOT_SUPPORTED;
    u64 mode = g->number[N_mig], wanted = g->number[N_mig_pending];
    *pending = (u32)(wanted == (u64)-2 ? mode : wanted);
    *now = (u32)answer_or(i, __func__, mode);
    return SUCCESS;
}
API int nvmlDeviceGetMaxMigDeviceCount(char *device, u32 *to) {
    WHOLE; *to = (u32)answer_or(i, __func__, g->number[N_mig] == 1 ? MAX_INSTANCES - 1 : 0); return SUCCESS;
}
API int nvmlDeviceGetMigDeviceHandleByIndex(char *device, u32 index, char **to) {
    WHOLE;
    if (index >= MAX_INSTANCES - 1) return INVALID_ARGUMENT;
    if (g->number[N_mig] != 1 || !g->slices[index].used) return NOT_FOUND;
    *to = &slice_handles[i][index];
    return SUCCESS;
}
API int nvmlDeviceIsMigDeviceHandle(char *device, u32 *to) { DEVICE; *to = s != NULL; return SUCCESS; }
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(char *device, char **to) {
    DEVICE; *to = &gpu_handles[i]; return s ? SUCCESS : INVALID_ARGUMENT;
}
#define SLICE DEVICE; if (!s) return NOT_SUPPORTED
API int nvmlDeviceGetGpuInstanceId(char *device, u32 *to) { SLICE; *to = s->gi; return SUCCESS; }
API int nvmlDeviceGetComputeInstanceId(char *device, u32 *to) { SLICE; *to = s->ci; return SUCCESS; }
typedef struct { u32 sms, copy, decoders, encoders, jpeg, ofa, gi_slices, ci_slices; u64 megabytes; } Attributes;
API int nvmlDeviceGetAttributes_v2(char *device, Attributes *to) {
    SLICE;
    memset(to, 0, sizeof *to);
    to->sms = s->sms;
    to->megabytes = s->total >> 20;
    return SUCCESS;
}

typedef struct { u32 pid; u64 memory; } Entry1;
typedef struct { u32 pid; u64 memory; u32 gi, ci; } Entry2;
typedef struct { u32 pid; u64 memory; u32 gi, ci; u64 protected_memory; } Entry535;

/* One list: processes of this kind, only those on the slice if there is one, as entries of the given size. */
static int list(Gpu *g, Slice *s, char kind, u32 *count, void *to, size_t size) {
    u32 found = 0, room = *count;
    for (int n = 0; n < g->processes_used; n++) {
        Process *p = &g->processes[n];
        if (!strchr(p->types, kind) || (s && (p->gi != s->gi || p->ci != s->ci))) continue;
        if (found < room && to) {
            Entry535 e = { p->pid, p->memory, p->gi, p->ci, 0 };
            memcpy((char *)to + found * size, &e, size);
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
#define LIST(call, kind, size) \
    API int call(char *device, u32 *count, void *to) { DEVICE; return list(g, s, kind, count, to, size); }
#ifndef NEWER
LIST(nvmlDeviceGetComputeRunningProcesses, 'C', sizeof(Entry1))
LIST(nvmlDeviceGetGraphicsRunningProcesses, 'G', sizeof(Entry1))
#endif
#ifndef OLD
#define SIZE3 (long_struct ? sizeof(Entry535) : sizeof(Entry2))
#ifndef NEWER
LIST(nvmlDeviceGetMPSComputeRunningProcesses, 'M', sizeof(Entry1))
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'C', sizeof(Entry2))
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G', sizeof(Entry2))
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M', sizeof(Entry2))
#endif
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'C', SIZE3)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G', SIZE3)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M', SIZE3)
API int nvmlDeviceGetConfComputeMemSizeInfo(char *device, u64 *to) { WHOLE; to[0] = to[1] = 0; return SUCCESS; }
#ifndef R535
API int nvmlDeviceGetRunningProcessDetailList(char *device, void *to) { WHOLE; (void)to; return NOT_SUPPORTED; }
#endif
#endif

/* Samples newer than `after`: those given in the file, else one per busy process and sample period. The driver
 * keeps the last six periods. */
static u32 samples(Gpu *g, u64 after, GivenSample *to, u32 room) {
    u32 found = 0;
    u64 now = driver_time() / sample_period * sample_period;
    for (int n = 0; n < g->samples_used; n++)
        if (g->samples[n].at > after) { if (found < room) to[found] = g->samples[n]; found++; }
    if (g->samples_used) return found;
    for (int n = 0; n < g->processes_used; n++) {
        Process *p = &g->processes[n];
        if (!(p->sm | p->mem | p->enc | p->dec | p->jpg | p->ofa)) continue;
        for (int back = 5; back >= 0; back--) {
            u64 at = now - (u64)back * sample_period;
            if (at <= after || at > now) continue;
            GivenSample t = { p->pid, p->sm, p->mem, p->enc, p->dec, p->jpg, p->ofa, at };
            if (found < room) to[found] = t;
            found++;
        }
    }
    return found;
}
typedef struct { u32 pid; u64 at; u32 sm, mem, enc, dec; } Sample;
static GivenSample scratch[65536];
API int nvmlDeviceGetProcessUtilization(char *device, Sample *to, u32 *count, u64 after) {
    UNCUT;
    u32 found = samples(g, after, scratch, 65536), room = *count;
    *count = found;
    if (!found) return zero_count ? SUCCESS : NOT_FOUND;
    if (found > room || !to) return INSUFFICIENT_SIZE;
    for (u32 n = 0; n < found; n++)
        to[n] = (Sample){ scratch[n].pid, scratch[n].at, scratch[n].sm, scratch[n].mem, scratch[n].enc, scratch[n].dec };
    return SUCCESS;
}
#ifndef OLD
typedef struct { u64 at; u32 pid, sm, mem, enc, dec, jpg, ofa; } SampleInfo;
typedef struct { u32 version, count; u64 after; SampleInfo *to; } SamplesInfo;
API int nvmlDeviceGetProcessesUtilizationInfo(char *device, SamplesInfo *info) {
    UNCUT;
    if (info->version != 0x01000018) return ARGUMENT_VERSION_MISMATCH;
    u32 found = samples(g, info->after, scratch, 65536), room = info->count;
    info->count = found;
    if (!found) return zero_count ? SUCCESS : NOT_FOUND;
    if (found > room || !info->to) return INSUFFICIENT_SIZE;
    for (u32 n = 0; n < found; n++) {
        GivenSample *t = &scratch[n];
        info->to[n] = (SampleInfo){ t->at, t->pid, t->sm, t->mem, t->enc, t->dec, t->jpg, t->ofa };
    }
    return SUCCESS;
}
#endif

/* Accounting mode, which is kept until the driver is loaded again; not available under MIG. */
static int accounts(int i, Gpu *g) { return g->number[N_mig] != 1 && (g->number[N_accounting] || accounting_set[i]); }
API int nvmlDeviceGetAccountingMode(char *device, u32 *to) { WHOLE; *to = (u32)accounts(i, g); return SUCCESS; }
API int nvmlDeviceSetAccountingMode(char *device, u32 mode) {
    UNCUT;
    accounting_set[i] = mode == 1;
    return SUCCESS;
}
API int nvmlDeviceGetAccountingBufferSize(char *device, u32 *to) { WHOLE; *to = 4000; return SUCCESS; }
API int nvmlDeviceGetAccountingPids(char *device, u32 *count, u32 *to) {
    UNCUT;
    u32 room = *count;
    if (!accounts(i, g)) return NOT_SUPPORTED;
    *count = (u32)g->accounts_used;
    if (*count > room) return INSUFFICIENT_SIZE;
    for (int n = 0; n < g->accounts_used; n++) to[n] = g->accounts[n].pid;
    return SUCCESS;
}
typedef struct { u32 gpu, memory; u64 most, time, start; u32 running, reserved[5]; } AccountingStats;
/* The rule for one process is `account.PID`. */
API int nvmlDeviceGetAccountingStats(char *device, u32 pid, AccountingStats *to) {
    char rule[TEXT];
    UNCUT;
    if (!accounts(i, g)) return NOT_SUPPORTED;
    snprintf(rule, sizeof rule, "account.%u", pid);
    RULED_AS(i, rule);
    for (int n = 0; n < g->accounts_used; n++)
        if (g->accounts[n].pid == pid) {
            *to = (AccountingStats){ .time = g->accounts[n].time, .start = g->accounts[n].start, .running = g->accounts[n].running };
            return SUCCESS;
        }
    return NOT_FOUND;
}

#ifndef OLD
/* GPM, since Hopper (architecture 9). A sample has the engine time of a GPU, of a GPU instance (the mean of its
 * compute instances by multiprocessors) or of one compute instance. All shares of time follow from it;
 * bandwidths (MiB per second) are fixed. */
typedef struct { int gpu, gi, ci; double at, work, now; } GpmSample;
typedef struct { u32 version, supported; } GpmSupport;
typedef struct { u32 id; int code; double value; const char *names[3]; } GpmMetric;
typedef struct { u32 version, count; GpmSample *older, *newer; GpmMetric metrics[477]; } GpmMetrics;
API int nvmlGpmQueryDeviceSupport(char *device, GpmSupport *to) {
    DEVICE;
    if (to->version != 1) return ARGUMENT_VERSION_MISMATCH;
    to->supported = g->number[N_architecture] >= 9;
    return SUCCESS;
}
API int nvmlGpmSampleAlloc(GpmSample **to) { SYSTEM; *to = calloc(1, sizeof **to); (*to)->gpu = -1; return SUCCESS; }
API int nvmlGpmSampleFree(GpmSample *sample) { SYSTEM; free(sample); return SUCCESS; }
API int nvmlGpmSampleGet(char *device, GpmSample *to) {
    DEVICE;
    if (g->number[N_architecture] < 9) return NOT_SUPPORTED;
    add_energy();
    *to = (GpmSample){ i, s ? (int)s->gi : -1, s ? (int)s->ci : -1, energy_time,
                       s ? slice_worked[i][s - g->slices] : worked[i], s ? s->activity : g->activity };
    return SUCCESS;
}
API int nvmlGpmMigSampleGet(char *device, u32 gi, GpmSample *to) {
    double work = 0, sms = 0;
    WHOLE;
    add_energy();
    for (int n = 0; n < MAX_INSTANCES; n++)
        if (g->slices[n].used && g->slices[n].gi == gi) {
            work += slice_worked[i][n] * g->slices[n].sms;
            sms += g->slices[n].sms;
        }
    if (g->number[N_mig] != 1 || !sms) return INVALID_ARGUMENT;
    *to = (GpmSample){ i, (int)gi, -1, energy_time, work / sms, 0 };
    return SUCCESS;
}
static const struct { u32 id; double share, rate; int on_slices, on_shared; } known_metrics[] = {
    { 1, 1.0, 0, 1, 1 }, { 2, 0.9, 0, 1, 1 }, { 3, 0.5, 0, 1, 1 }, { 5, 0.4, 0, 1, 1 }, { 10, 0.3, 0, 1, 0 },
    { 11, 0.01, 0, 1, 1 }, { 12, 0.2, 0, 1, 1 }, { 13, 0.1, 0, 1, 1 },
    { 20, 0, 1000, 0, 0 }, { 21, 0, 500, 0, 0 }, { 60, 0, 300, 0, 0 }, { 61, 0, 200, 0, 0 },
};
API int nvmlGpmMetricsGet(GpmMetrics *to) {
    SYSTEM;
    GpmSample *a = to->older, *b = to->newer;
    if (to->version != 1) return ARGUMENT_VERSION_MISMATCH;
    if (a->gpu < 0 || a->gpu != b->gpu || a->gi != b->gi || a->ci != b->ci || b->at <= a->at) return INVALID_ARGUMENT;
    RULED(a->gpu);
    for (u32 n = 0; n < to->count; n++) {
        GpmMetric *m = &to->metrics[n];
        m->code = NOT_SUPPORTED;
        for (size_t k = 0; k < sizeof known_metrics / sizeof *known_metrics; k++) {
            if (known_metrics[k].id != m->id || (a->gi >= 0 && !known_metrics[k].on_slices) ||
                (a->ci >= 0 && !known_metrics[k].on_shared))
                continue;
            const char *text = given_with(a->gpu, "gpm", m->id);
            m->code = ruled_with(a->gpu, "gpm", m->id);
            m->value = b->at - a->at < 0.1 || isnan(b->now) ? NAN
                       : known_metrics[k].rate + known_metrics[k].share * (b->work - a->work) / (b->at - a->at);
            if (text) m->value = strtod(text, NULL);
        }
    }
    return SUCCESS;
}
#endif

typedef struct { char *device; u64 type, data; u32 gi, ci; } EventData;
static char event_set;
API int nvmlEventSetCreate(char **to) { SYSTEM; *to = &event_set; return SUCCESS; }
/* Freeing a set discards its waiting events. */
API int nvmlEventSetFree(char *set) {
    SYSTEM;
    (void)set;
    memset(registered, 0, sizeof registered);
    for (int n = 0; n < event_count; n++) if (events[n].id > delivered_event) delivered_event = events[n].id;
    return SUCCESS;
}
API int nvmlDeviceGetSupportedEventTypes(char *device, u64 *to) { WHOLE; *to = 8; return SUCCESS; }
API int nvmlDeviceRegisterEvents(char *device, u64 types, char *set) {
    WHOLE;
    if (set != &event_set) return INVALID_ARGUMENT;
    registered[i] = (types & 8) != 0;
    return SUCCESS;
}
API int nvmlEventSetWait_v2(char *set, EventData *to, u32 milliseconds) {
    SYSTEM;
    (void)milliseconds;
    if (set != &event_set) return INVALID_ARGUMENT;
    /* A card that fell off the bus must be registered again. */
    for (int n = 0; n < MAX_GPUS; n++) if (ruled(n, "*") == GPU_IS_LOST) registered[n] = 0;
    for (int n = 0; n < event_count; n++) {
        Event *e = &events[n];
        if (e->id <= delivered_event) continue;
        delivered_event = e->id;
        if (e->gpu < 0 || e->gpu >= MAX_GPUS || !registered[e->gpu]) continue;
        *to = (EventData){ &gpu_handles[e->gpu], 8, e->xid, e->gi, e->ci };
        return SUCCESS;
    }
    return TIMEOUT;
}

/* Under MIG supported only by slices. */
API int nvmlDeviceGetComputeMode(char *device, u32 *to) {
    DEVICE;
    *to = (u32)answer_or(i, __func__, g->number[N_compute_mode]);
    return !s && g->number[N_mig] == 1 ? NOT_SUPPORTED : SUCCESS;
}
GETTER(nvmlDeviceGetPersistenceMode, persistence)

/* Columns of nvidia-smi. Answers to calls that write several numbers have the index of each. */
#define ANSWER(n, value) answer_with(i, __func__, n, value)
API int nvmlDeviceGetDisplayMode(char *device, u32 *to) { WHOLE; *to = (u32)answer_or(i, __func__, g->number[N_display]); return SUCCESS; }
API int nvmlDeviceGetDisplayActive(char *device, u32 *to) { WHOLE; *to = (u32)answer_or(i, __func__, g->number[N_display]); return SUCCESS; }
#define PAIR(call, first, second) \
    API int call(char *device, u32 *a, u32 *b) { WHOLE; *a = (u32)ANSWER(0, first); *b = (u32)ANSWER(1, second); return SUCCESS; }
PAIR(nvmlDeviceGetEccMode, g->number[N_ecc_mode], g->number[N_ecc_pending])
API int nvmlDeviceGetInforomVersion(char *device, u32 object, char *to, u32 room) {
    static const char *const versions[] = { "2.1", "7.16", "" };
    WHOLE;
    const char *text = given_with(i, __func__, object);
    if (object > 2) return INVALID_ARGUMENT;
    if (!text) text = versions[object];
    return *text ? put(to, room, text) : NOT_SUPPORTED;
}
/* Places: L1, L2, memory, registers, textures, shared textures, CBU, SRAM. Ampere and later count memory and SRAM. */
API int nvmlDeviceGetMemoryErrorCounter(char *device, u32 kind, u32 counter, u32 place, u64 *to) {
    char key[TEXT];
    WHOLE;
    if (kind > 1 || counter > 1 || place > 7) return INVALID_ARGUMENT;
    if (g->number[N_architecture] >= 7 ? place != 2 && place != 7 : place == 7) return NOT_SUPPORTED;
    snprintf(key, sizeof key, "%s.%u.%u.%u", __func__, kind, counter, place);
    *to = answer_or(i, key, 0);
    return SUCCESS;
}
API int nvmlDeviceGetEncoderStats(char *device, u32 *sessions, u32 *fps, u32 *latency) {
    WHOLE;
    *sessions = (u32)ANSWER(0, g->number[N_sessions]); *fps = (u32)ANSWER(1, 0); *latency = (u32)ANSWER(2, 0);
    return SUCCESS;
}
API int nvmlDeviceGetFBCStats(char *device, u32 *to) {
    WHOLE;
    for (u32 n = 0; n < 3; n++) to[n] = (u32)ANSWER(n, n ? 0 : g->number[N_fbc_sessions]);
    return SUCCESS;
}
API int nvmlDeviceGetSupportedClocksThrottleReasons(char *device, u64 *to) { WHOLE; *to = answer_or(i, __func__, g->number[N_supported_reasons]); return SUCCESS; }
API int nvmlDeviceGetActiveVgpus(char *device, u32 *count, u32 *ids) {
    WHOLE;
    u32 room = *count;
    if (g->number[N_virtualization] != 3) return NOT_SUPPORTED;
    *count = (u32)g->number[N_vgpus];
    if (*count > room) return INSUFFICIENT_SIZE;
    for (u32 n = 0; n < *count; n++) ids[n] = 3000000000u + 1000 * (u32)i + n;
    return SUCCESS;
}
/* Of one virtual GPU; an error can be given for each by `CALL.NUMBER`. */
#define VGPU SYSTEM; do { int code = ruled_with(-1, __func__, id % 1000); if (code) return code; } while (0)
API int nvmlVgpuInstanceGetUUID(u32 id, char *to, u32 room) {
    VGPU; if (room < 40) return INSUFFICIENT_SIZE; snprintf(to, room, "00000000-0000-0000-0000-%012u", id % 1000000); return SUCCESS;
}
API int nvmlVgpuInstanceGetVmID(u32 id, char *to, u32 room, u32 *type) {
    VGPU; *type = 1; snprintf(to, room, "vm-%u", id % 1000); return SUCCESS;
}
API int nvmlVgpuInstanceGetType(u32 id, u32 *to) { VGPU; *to = 500; return SUCCESS; }
API int nvmlVgpuTypeGetName(u32 id, char *to, u32 *room) { VGPU; *room = (u32)snprintf(to, *room, "NVIDIA A100-10C"); return SUCCESS; }
API int nvmlVgpuInstanceGetFbUsage(u32 id, u64 *to) { VGPU; *to = ((u64)(id % 1000) + 1) << 30; return SUCCESS; }
#ifndef OLD
#define VERSIONED(to, wanted) do { if (*(u32 *)(to) != (wanted)) return ARGUMENT_VERSION_MISMATCH; } while (0)
API int nvmlDeviceGetSupportedClocksEventReasons(char *device, u64 *to) { WHOLE; *to = answer_or(i, __func__, g->number[N_supported_reasons]); return SUCCESS; }
PAIR(nvmlDeviceGetGspFirmwareMode, 1, 1)
API int nvmlDeviceGetJpgUtilization(char *device, u32 *to, u32 *period) { UNCUT; *to = (u32)answer_or(i, __func__, g->number[N_jpeg]); *period = 167000; return SUCCESS; }
API int nvmlDeviceGetOfaUtilization(char *device, u32 *to, u32 *period) { UNCUT; *to = (u32)answer_or(i, __func__, g->number[N_ofa]); *period = 167000; return SUCCESS; }
API int nvmlDeviceGetC2cModeInfoV(char *device, u32 *to) { WHOLE; *to = (u32)answer_or(i, __func__, 0); return SUCCESS; }
typedef struct { u32 version, domain, bus, device, id, subsystem, base, sub; char bus_id[32]; } PciExt;
API int nvmlDeviceGetPciInfoExt(char *device, PciExt *to) { WHOLE; VERSIONED(to, 0x1000040); to->base = 3; to->sub = 2; return SUCCESS; }
typedef struct { u32 version, state; } Versioned;
API int nvmlDeviceGetDramEncryptionMode(char *device, Versioned *now, Versioned *pending) {
    WHOLE; VERSIONED(now, 0x1000008); VERSIONED(pending, 0x1000008);
    if (g->number[N_architecture] < 10) return NOT_SUPPORTED;
    now->state = (u32)ANSWER(0, 0); pending->state = (u32)ANSWER(1, 1);
    return SUCCESS;
}
API int nvmlDeviceGetMarginTemperature(char *device, Versioned *to) {
    WHOLE; VERSIONED(to, 0x1000008);
    to->state = (u32)answer_or(i, __func__, g->number[N_margin]);
    return SUCCESS;
}
typedef struct { u32 version; u64 count[11]; u32 exceeded; } SramStatus;
API int nvmlDeviceGetSramEccErrorStatus(char *device, SramStatus *to) {
    WHOLE; VERSIONED(to, 0x1000068);
    if (g->number[N_architecture] < 7) return NOT_SUPPORTED;
    for (u32 n = 0; n < 11; n++) to->count[n] = ANSWER(n, 0);
    to->exceeded = (u32)ANSWER(11, 0);
    return SUCCESS;
}
API int nvmlDeviceGetRowRemapperHistogram(char *device, u32 *to) {
    WHOLE;
    if (g->number[N_architecture] < 7) return NOT_SUPPORTED;
    for (u32 n = 0; n < 5; n++) to[n] = (u32)ANSWER(n, n ? 0 : 3072);
    return SUCCESS;
}
API int nvmlDeviceGetConfComputeProtectedMemoryUsage(char *device, u64 *to) {
    WHOLE;
    to[0] = g->number[N_protected]; to[2] = g->number[N_protected_used]; to[1] = to[0] - to[2];
    return SUCCESS;
}
API int nvmlSystemGetConfComputeState(u32 *to) { SYSTEM; to[0] = to[1] = to[2] = 0; return SUCCESS; }
typedef struct { u32 version; Fabric info; u32 mask; unsigned char summary; } FabricV;
API int nvmlDeviceGetGpuFabricInfoV(char *device, FabricV *to) {
    WHOLE; VERSIONED(to, g->number[N_fabric_version] == 3 ? 0x3000028 : 0x2000024);
    to->info.clique = (u32)g->number[N_fabric_clique];
    to->info.state = (unsigned char)g->number[N_fabric];
    return SUCCESS;
}
typedef struct { u32 version; unsigned char guid[16]; char chassis[16]; unsigned char slot, tray, host, peer, module; } Platform;
API int nvmlDeviceGetPlatformInfo(char *device, Platform *to) {
    WHOLE; VERSIONED(to, g->number[N_platform_version] == 2 ? 0x200002C : 0x100002C);
    for (unsigned char n = 0; n < 16; n++) to->guid[n] = n;
    copy(to->chassis, "1820325", sizeof to->chassis);
    to->slot = (unsigned char)ANSWER(0, 1); to->tray = (unsigned char)ANSWER(1, 2); to->host = (unsigned char)ANSWER(2, 3);
    to->module = (unsigned char)ANSWER(3, 4);
    return SUCCESS;
}
#endif

/* Functions that only other tools call. */
API int nvmlDeviceGetPcieThroughput(char *device, u32 counter, u32 *to) {
    WHOLE;
    int code = ruled_with(i, __func__, counter);
    *to = (u32)ANSWER(counter, 1000 + counter);
    return code;
}
API int nvmlDeviceGetCurrentDriverModel(char *device, u32 *to) { WHOLE; (void)to; return NOT_SUPPORTED; }
