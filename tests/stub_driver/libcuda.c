// A libcuda.so.1 that does nothing but write down what it is asked for: one JSON object a line in $STUB_LOG.
// $STUB_DEVICES: devices as "9.0 8.6" (empty: cuInit fails with 100). $STUB_PARAMS: "offset:size,..." of the entry.
// $CUDA_VISIBLE_DEVICES: as the driver takes it: which of them, in which order.
// $STUB_LAUNCH, $STUB_LOAD, $STUB_MAP: the result codes of launches, loads and tensor maps; $STUB_PARAM_ERROR: of a parameter that is not there. $STUB_HANG: cuInit never returns.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kSuccess = 0, kInvalidValue = 1, kNoDevice = 100, kInvalidImage = 200 };
enum { kAttributeMajor = 75, kAttributeMinor = 76, kAttributeSms = 16, kAttributeSharedOptin = 97 };
enum { kMaxDevices = 8, kMaxParams = 64, kParamBytesShown = 8, kMapBytes = 128, kMapMark = 0x4d };

static int device_count(int major[], int minor[]) {
  const char* text = getenv("STUB_DEVICES");
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  int all_major[kMaxDevices], all_minor[kMaxDevices], all = 0, count = 0, index, used;
  while (text && all < kMaxDevices && sscanf(text, " %d.%d%n", &all_major[all], &all_minor[all], &used) == 2) {
    text += used;
    ++all;
  }
  for (int next = 0; count < kMaxDevices; ++count) {
    if (!visible) index = next++;
    else if (sscanf(visible, "%d%n", &index, &used) == 1) visible += used + (visible[used] == ',');
    else break;
    if (index < 0 || index >= all) break;  // the driver stops at the first that is not there
    major[count] = all_major[index];
    minor[count] = all_minor[index];
  }
  return count;
}

static int params(size_t offset[], size_t size[]) {
  const char* text = getenv("STUB_PARAMS");
  int count = 0, used;
  while (text && count < kMaxParams && sscanf(text, "%zu:%zu%n", &offset[count], &size[count], &used) == 2) {
    text += used;
    if (*text == ',') ++text;
    ++count;
  }
  return count;
}

static void note(const char* format, ...) {
  const char* path = getenv("STUB_LOG");
  FILE* file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  va_list arguments;
  va_start(arguments, format);
  vfprintf(file, format, arguments);
  va_end(arguments);
  fclose(file);
}

static int code(const char* name) {
  const char* text = getenv(name);
  return text ? atoi(text) : kSuccess;
}

static int success(void) { return kSuccess; }
static int init(unsigned flags) {
  int major[kMaxDevices], minor[kMaxDevices];
  if (getenv("STUB_HANG")) pause();
  return device_count(major, minor) ? kSuccess : kNoDevice;
}
static int driver_version(int* version) { *version = getenv("STUB_VERSION") ? code("STUB_VERSION") : 13000; return kSuccess; }
static int get_count(int* count) { int a[kMaxDevices], b[kMaxDevices]; *count = device_count(a, b); return kSuccess; }
static int get_device(int* device, int ordinal) { *device = ordinal; return kSuccess; }
static int get_name(char* name, int length, int device) { snprintf(name, length, "Stub GPU %d", device); return kSuccess; }
static int get_attribute(int* value, int attribute, int device) {
  int major[kMaxDevices], minor[kMaxDevices];
  device_count(major, minor);
  switch (attribute) {
    case kAttributeMajor: *value = major[device]; return kSuccess;
    case kAttributeMinor: *value = minor[device]; return kSuccess;
    case kAttributeSms: *value = 132; return kSuccess;
    case kAttributeSharedOptin: *value = 232448; return kSuccess;
    default: *value = 0; return kSuccess;
  }
}

static int library_load(void** library, const void* image) {
  int is_elf = memcmp(image, "\177ELF", 4) == 0;
  note("{\"call\": \"load\", \"elf\": %s}\n", is_elf ? "true" : "false");
  *library = (void*)0x2000;
  return code("STUB_LOAD");
}
static int library_kernel(void** kernel, void* library, const char* name) {
  note("{\"call\": \"kernel\", \"name\": \"%s\"}\n", name);
  *kernel = (void*)0x3000;
  return kSuccess;
}
static int set_attribute(int attribute, int value, void* kernel, int device) {
  note("{\"call\": \"attribute\", \"attribute\": %d, \"value\": %d, \"device\": %d}\n", attribute, value, device);
  return kSuccess;
}
static int param_info(void* kernel, size_t index, size_t* offset, size_t* size) {
  size_t offsets[kMaxParams], sizes[kMaxParams];
  if (index >= (size_t)params(offsets, sizes)) return getenv("STUB_PARAM_ERROR") ? code("STUB_PARAM_ERROR") : kInvalidValue;
  *offset = offsets[index];
  if (size) *size = sizes[index];
  return kSuccess;
}

// The head of CUlaunchConfig (cuda.h).
struct Config { unsigned grid[3], block[3], shared_bytes; void* stream; const unsigned* attributes; unsigned attribute_count; };

static int launch(const struct Config* config, void* kernel, void** arguments, void** extra) {
  size_t offsets[kMaxParams], sizes[kMaxParams];
  int count = params(offsets, sizes);
  note("{\"call\": \"launch\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"shared\": %u, \"stream\": %llu, \"attributes\": %u, \"arguments\": [",
       config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2],
       config->shared_bytes, (unsigned long long)(uintptr_t)config->stream, config->attribute_count);
  for (int i = 0; i < count; ++i) {
    uint64_t value = 0;
    memcpy(&value, arguments[i], sizes[i] < kParamBytesShown ? sizes[i] : kParamBytesShown);
    note("%s%llu", i ? ", " : "", (unsigned long long)value);
  }
  note("]}\n");
  return code("STUB_LAUNCH");
}

// The map is the address, then bytes that nothing else has.
static int encode_map(void* map, int type, unsigned rank, void* address, const uint64_t* dims, const uint64_t* strides,
                      const unsigned* box, const unsigned* steps, int interleave, int swizzle, int promotion, int fill) {
  memset(map, kMapMark, kMapBytes);
  memcpy(map, &address, sizeof address);
  note("{\"call\": \"map\", \"type\": %d, \"address\": %llu, \"swizzle\": %d, \"promotion\": %d, \"others\": [%d, %d]", type,
       (unsigned long long)(uintptr_t)address, swizzle, promotion, interleave, fill);
  for (unsigned i = 0; i < rank; ++i)
    note("%s[%llu, %llu, %u, %u]%s", i ? ", " : ", \"axes\": [", (unsigned long long)dims[i],
         i ? (unsigned long long)strides[i - 1] : 0ull, box[i], steps[i], i + 1 == rank ? "]}\n" : "");
  return code("STUB_MAP");
}

static int error_text(int error, const char** text) { *text = "an error of the stub"; return kSuccess; }

int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* status) {
  static const struct { const char* name; void* function; } kTable[] = {
      {"cuInit", init}, {"cuDriverGetVersion", driver_version}, {"cuDeviceGetCount", get_count},
      {"cuDeviceGet", get_device}, {"cuDeviceGetName", get_name}, {"cuDeviceGetAttribute", get_attribute},
      {"cuLibraryLoadData", library_load}, {"cuLibraryGetKernel", library_kernel},
      {"cuKernelSetAttribute", set_attribute}, {"cuKernelGetParamInfo", param_info},
      {"cuTensorMapEncodeTiled", encode_map}, {"cuLaunchKernelEx", launch}, {"cuGetErrorName", error_text}, {"cuGetErrorString", error_text},
      {"cuGetProcAddress", cuGetProcAddress_v2},
  };
  if (status) *status = 0;
  *function = success;
  for (unsigned i = 0; i < sizeof kTable / sizeof *kTable; ++i)
    if (strcmp(name, kTable[i].name) == 0) *function = kTable[i].function;
  return kSuccess;
}

int cuInit(unsigned flags) { return init(flags); }
int cuDriverGetVersion(int* version) { return driver_version(version); }
