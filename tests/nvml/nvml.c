/* A stand-in for libnvidia-ml.so.1, so that the real nvidia-ml-py can be driven on a machine without a GPU.
 *
 * FAKE_NVML_STATE names a text file that is read again whenever it changes (tests/nvml/fake.py writes it):
 *   driver TEXT                              device N TOTAL RESERVED UUID NAME...
 *   used N BYTES (of no process)             process N PID BYTES|-
 *   temperature N C      power N MILLIWATT   clocks N MASK        ecc N VOLATILE AGGREGATE
 *   rows N CORRECTABLE UNCORRECTABLE PENDING FAILURE              recovery N CODE
 *   xid N CODE (one line per event, only ever added)              lag SECONDS
 *   error FUNCTION CODE [N]   delay FUNCTION MS [N]   hang FUNCTION [N]
 * FAKE_NVML_DIR names a directory of files PID holding {"device": N, "bytes": B}, which processes that play servers
 * write. Such memory goes `lag` seconds after the process has ended; until then its pid stays listed, as the real
 * driver does for 0.1 to 0.6 s. Numbers that the real library was seen to give are marked "measured".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMED_OUT = 10 };
enum { DEVICES = 16, PROCESSES = 256, XIDS = 256, RULES = 64 };
#define PROCESS_OVERHEAD 9240576ULL /* measured: `used` exceeds the sum of the listed by this, with one process */
#define NOT_AVAILABLE 0xffffffffffffffffULL
#define EXPORT __attribute__((visibility("default")))

typedef unsigned long long u64;
typedef struct { u64 total, free, used; } Memory1;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; } ProcessInfo;
typedef struct { void *device; u64 type, data; unsigned gpu_instance, compute_instance; } EventData;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
    char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32];
} Pci;
typedef struct {
    unsigned field, scope; long long timestamp, latency; unsigned type, result;
    union { double d; unsigned ui; u64 ull; } value;
} FieldValue;

typedef struct {
    int present, temperature; unsigned power, rows[4], recovery;
    u64 total, reserved, used, clocks, ecc[2];
    char uuid[96], name[96];
} Gpu;
typedef struct { int device; unsigned pid; u64 bytes; } Process;
typedef struct { char kind, function[64]; int value, device; } Rule;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int initialized, gpu_count, process_count, xid_count, rule_count;
static char driver[64];
static double lag;
static Gpu gpus[DEVICES];
static Process processes[PROCESSES]; /* of the state file */
static struct { int device, code; } xids[XIDS];
static Rule rules[RULES];
static struct stat seen;

static void read_line(char *line) {
    char word[64], text[96] = "";
    int n = -1, taken = 0;
    if (sscanf(line, "%63s", word) != 1) return;
    if (!strcmp(word, "driver")) { sscanf(line, "%*s %63[^\n]", driver); return; }
    if (!strcmp(word, "lag")) { sscanf(line, "%*s %lf", &lag); return; }
    if (!strcmp(word, "error") || !strcmp(word, "delay") || !strcmp(word, "hang")) {
        if (rule_count == RULES) return;
        Rule *rule = &rules[rule_count++];
        *rule = (Rule){.kind = word[0], .device = -1};
        if (word[0] == 'h') sscanf(line, "%*s %63s %d", rule->function, &rule->device);
        else sscanf(line, "%*s %63s %d %d", rule->function, &rule->value, &rule->device);
        return;
    }
    if (sscanf(line, "%*s %d %n", &n, &taken) < 1 || n < 0 || n >= DEVICES) return;
    Gpu *gpu = &gpus[n];
    char *values = line + taken;
    if (!strcmp(word, "device")) {
        gpu->present = 1;
        if (n >= gpu_count) gpu_count = n + 1;
        sscanf(values, "%llu %llu %95s %95[^\n]", &gpu->total, &gpu->reserved, gpu->uuid, gpu->name);
    } else if (!strcmp(word, "used")) sscanf(values, "%llu", &gpu->used);
    else if (!strcmp(word, "temperature")) sscanf(values, "%d", &gpu->temperature);
    else if (!strcmp(word, "power")) sscanf(values, "%u", &gpu->power);
    else if (!strcmp(word, "clocks")) sscanf(values, "%llu", &gpu->clocks);
    else if (!strcmp(word, "ecc")) sscanf(values, "%llu %llu", &gpu->ecc[0], &gpu->ecc[1]);
    else if (!strcmp(word, "rows"))
        sscanf(values, "%u %u %u %u", &gpu->rows[0], &gpu->rows[1], &gpu->rows[2], &gpu->rows[3]);
    else if (!strcmp(word, "recovery")) sscanf(values, "%u", &gpu->recovery);
    else if (!strcmp(word, "process") && process_count < PROCESSES) {
        Process *process = &processes[process_count++];
        *process = (Process){.device = n, .bytes = NOT_AVAILABLE};
        if (sscanf(values, "%u %95s", &process->pid, text) == 2 && text[0] != '-')
            process->bytes = strtoull(text, NULL, 10);
    } else if (!strcmp(word, "xid") && xid_count < XIDS) {
        xids[xid_count].device = n;
        xids[xid_count++].code = atoi(values);
    }
}

static void refresh(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat now;
    if (!path || stat(path, &now)) return;
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec
        && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char line[512];
    gpu_count = process_count = xid_count = rule_count = 0;
    lag = 0;
    memset(gpus, 0, sizeof gpus);
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
    seen = now;
}

/* What the state file wants of this call: it may be slow, hang for good, or fail. */
static int enter(const char *function, int device) {
    pthread_mutex_lock(&lock);
    refresh();
    int result = initialized || !strncmp(function, "nvmlInit", 8) ? SUCCESS : UNINITIALIZED, delay_ms = 0, hang = 0;
    for (Rule *rule = rules; rule < rules + rule_count; rule++) {
        if (strcmp(rule->function, function) || (rule->device >= 0 && rule->device != device)) continue;
        if (rule->kind == 'h') hang = 1;
        else if (rule->kind == 'd') delay_ms += rule->value;
        else result = rule->value;
    }
    pthread_mutex_unlock(&lock);
    while (hang) pause();
    if (delay_ms) usleep(delay_ms * 1000);
    return result;
}

/* The waiting thread may read the state again at any moment: a call holds the lock while it looks at a device. */
static int hold(void) { return pthread_mutex_lock(&lock); }
static void let_go(int *held) { (void)held; pthread_mutex_unlock(&lock); }

static int index_of(void *handle) { return (int)((Gpu *)handle - gpus); }

#define ENTER(handle)                                                      \
    int n = index_of(handle), failed = n < 0 || n >= DEVICES ? INVALID : enter(__func__, n); \
    if (failed) return failed;                                             \
    __attribute__((cleanup(let_go))) int held = hold();                    \
    Gpu *gpu = &gpus[n];                                                   \
    (void)held;                                                            \
    (void)gpu

static int ended(unsigned pid) {
    char path[64], line[512], *end;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 1;
    char *text = fgets(line, sizeof line, file);
    fclose(file);
    end = text ? strrchr(text, ')') : NULL;
    return !end || end[2] == 'Z' || end[2] == 'X';
}

/* Whether the driver still holds the memory of a process; the moment of death is the first look that finds it dead,
 * kept beside its file so that all clients agree. */
static int holds(const char *folder, unsigned pid) {
    char mark[512], path[512];
    struct stat death;
    struct timespec now;
    if (!ended(pid)) return 1;
    snprintf(path, sizeof path, "%s/%u", folder, pid);
    snprintf(mark, sizeof mark, "%s/%u.ended", folder, pid);
    if (stat(mark, &death)) {
        FILE *file = fopen(mark, "w");
        if (file) fclose(file);
        if (stat(mark, &death)) return 0;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    double age = now.tv_sec - death.st_mtim.tv_sec + (now.tv_nsec - death.st_mtim.tv_nsec) / 1e9;
    if (age < lag) return 1;
    unlink(path);
    unlink(mark);
    return 0;
}

static int collect_file(const char *folder, unsigned pid, int device, Process *into, int count) {
    char path[512], text[4096];
    snprintf(path, sizeof path, "%s/%u", folder, pid);
    FILE *file = fopen(path, "r");
    if (!file) return count;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    u64 bytes = 0;
    for (char *at = text; (at = strstr(at, "\"device\"")); at++) {
        int where = -1;
        u64 size = 0;
        char *amount = strstr(at, "\"bytes\"");
        if (sscanf(at, "\"device\" : %d", &where) == 1 && where == device && amount
            && sscanf(amount, "\"bytes\" : %llu", &size) == 1)
            bytes += size;
    }
    if (bytes && count < PROCESSES && holds(folder, pid))
        into[count++] = (Process){.device = device, .pid = pid, .bytes = bytes};
    return count;
}

static int collect(int device, Process *into) {
    int count = 0;
    for (int i = 0; i < process_count; i++)
        if (processes[i].device == device) into[count++] = processes[i];
    const char *folder = getenv("FAKE_NVML_DIR");
    DIR *directory = folder ? opendir(folder) : NULL;
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        char *end;
        unsigned long pid = strtoul(entry->d_name, &end, 10);
        if (pid && !*end) count = collect_file(folder, (unsigned)pid, device, into, count);
    }
    if (directory) closedir(directory);
    return count;
}

static u64 used_by_all(int device) {
    Process found[PROCESSES];
    int count = collect(device, found);
    u64 used = gpus[device].used + (count ? PROCESS_OVERHEAD : 0);
    for (int i = 0; i < count; i++) used += found[i].bytes == NOT_AVAILABLE ? 0 : found[i].bytes;
    return used < gpus[device].total ? used : gpus[device].total;
}

static int text_into(char *into, unsigned size, const char *text) {
    if (strlen(text) >= size) return TOO_SMALL;
    strcpy(into, text);
    return SUCCESS;
}

/* --- the library itself ------------------------------------------------------------------------------------- */

EXPORT const char *nvmlErrorString(int code) { return code == 13 ? "Function Not Found" : "stand-in error"; }

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int failed = enter(__func__, -1);
    if (!failed) initialized = 1;
    return failed;
}
EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlShutdown(void) { initialized = 0; return SUCCESS; }

EXPORT int nvmlSystemGetDriverVersion(char *into, unsigned size) {
    int failed = enter(__func__, -1);
    return failed ? failed : text_into(into, size, driver);
}
EXPORT int nvmlSystemGetNVMLVersion(char *into, unsigned size) {
    int failed = enter(__func__, -1);
    return failed ? failed : text_into(into, size, driver);
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    int failed = enter(__func__, -1);
    *version = 13000;
    return failed;
}
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    int failed = enter(__func__, -1);
    *count = (unsigned)gpu_count;
    return failed;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned n, void **handle) {
    int failed = enter(__func__, (int)n);
    if (failed) return failed;
    if (n >= DEVICES || !gpus[n].present) return INVALID;
    *handle = &gpus[n];
    return SUCCESS;
}

/* --- one device --------------------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetIndex(void *handle, unsigned *index) { ENTER(handle); *index = (unsigned)n; return SUCCESS; }
EXPORT int nvmlDeviceGetName(void *handle, char *into, unsigned size) {
    ENTER(handle);
    return text_into(into, size, gpu->name);
}
EXPORT int nvmlDeviceGetUUID(void *handle, char *into, unsigned size) {
    ENTER(handle);
    return text_into(into, size, gpu->uuid);
}
EXPORT int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) {
    ENTER(handle);
    memset(pci, 0, sizeof *pci);
    pci->device = 6 + (unsigned)n;
    snprintf(pci->legacy, sizeof pci->legacy, "0000:00:%02x.0", pci->device);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:00:%02X.0", pci->device);
    return SUCCESS;
}
EXPORT int nvmlDeviceGetMemoryInfo(void *handle, Memory1 *memory) {
    ENTER(handle);
    u64 used = used_by_all(n) + gpu->reserved; /* measured: the first version counts the reserved part as used */
    *memory = (Memory1){.total = gpu->total, .free = gpu->total - used, .used = used};
    return SUCCESS;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *memory) {
    ENTER(handle);
    u64 used = used_by_all(n);
    memory->total = gpu->total;
    memory->reserved = gpu->reserved;
    memory->used = used;
    memory->free = gpu->total - gpu->reserved - used; /* measured */
    return SUCCESS;
}

static int list(int n, unsigned *count, ProcessInfo *into) {
    Process found[PROCESSES];
    unsigned there = (unsigned)collect(n, found), room = *count;
    *count = there;
    if (!there) return SUCCESS;
    if (!into || room < there) return TOO_SMALL;
    for (unsigned i = 0; i < there; i++)
        into[i] = (ProcessInfo){found[i].pid, found[i].bytes, 0xffffffffu, 0xffffffffu}; /* measured */
    return SUCCESS;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *into) {
    ENTER(handle);
    return list(n, count, into);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, ProcessInfo *into) {
    ENTER(handle);
    return list(n, count, into);
}
#define NO_PROCESSES(name)                                               \
    EXPORT int name(void *handle, unsigned *count, ProcessInfo *into) {  \
        ENTER(handle);                                                   \
        (void)into;                                                      \
        *count = 0;                                                      \
        return SUCCESS;                                                  \
    }
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)

EXPORT int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *celsius) {
    ENTER(handle);
    (void)sensor;
    *celsius = (unsigned)gpu->temperature;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatt) {
    ENTER(handle);
    *milliwatt = gpu->power;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatt) {
    ENTER(handle);
    *milliwatt = 700000;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates) {
    ENTER(handle);
    *rates = (Utilization){100, 11}; /* measured: right after boot, with nothing running */
    return SUCCESS;
}
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *handle, u64 *reasons) {
    ENTER(handle);
    *reasons = gpu->clocks;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetTotalEccErrors(void *handle, unsigned type, unsigned counter, u64 *count) {
    ENTER(handle);
    if (counter > 1) return INVALID;
    *count = type == 1 ? gpu->ecc[counter] : 0;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetRemappedRows(void *handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                                     unsigned *failure) {
    ENTER(handle);
    *correctable = gpu->rows[0];
    *uncorrectable = gpu->rows[1];
    *pending = gpu->rows[2];
    *failure = gpu->rows[3];
    return SUCCESS;
}
EXPORT int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values) {
    ENTER(handle);
    for (int i = 0; i < count; i++) {
        values[i].result = values[i].field == 230 ? SUCCESS : NOT_SUPPORTED;
        values[i].type = 1;
        values[i].value.ui = gpu->recovery;
    }
    return SUCCESS;
}

/* --- events ------------------------------------------------------------------------------------------------- */

typedef struct { unsigned devices; int taken; } EventSet;

EXPORT int nvmlDeviceGetSupportedEventTypes(void *handle, u64 *types) {
    ENTER(handle);
    *types = 0xff9f; /* measured */
    return SUCCESS;
}
EXPORT int nvmlEventSetCreate(EventSet **set) {
    int failed = enter(__func__, -1);
    if (failed) return failed;
    *set = calloc(1, sizeof **set);
    (*set)->taken = xid_count; /* what happened before is not told */
    return SUCCESS;
}
EXPORT int nvmlDeviceRegisterEvents(void *handle, u64 types, EventSet *set) {
    ENTER(handle);
    if (types & 8) set->devices |= 1u << n;
    return SUCCESS;
}
EXPORT int nvmlEventSetFree(EventSet *set) { free(set); return SUCCESS; }

static int next_event(EventSet *set, EventData *event) {
    pthread_mutex_lock(&lock);
    refresh();
    int found = 0;
    while (!found && set->taken < xid_count) {
        int device = xids[set->taken].device, code = xids[set->taken].code;
        set->taken++;
        if (!(set->devices & 1u << device)) continue;
        *event = (EventData){&gpus[device], 8, (u64)code, 0xffffffffu, 0xffffffffu};
        found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
EXPORT int nvmlEventSetWait_v2(EventSet *set, EventData *event, unsigned timeout_ms) {
    int failed = enter(__func__, -1);
    if (failed) return failed;
    for (unsigned waited_ms = 0; !next_event(set, event); waited_ms += 10) {
        if (waited_ms >= timeout_ms) return TIMED_OUT;
        usleep(10000);
    }
    return SUCCESS;
}
