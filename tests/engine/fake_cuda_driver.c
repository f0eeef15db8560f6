// A double of the CUDA driver: it runs nothing, and writes down what it is asked, a line each.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char* text = NULL;
static size_t used = 0, room = 0;
static __thread void* context = NULL;

static void note(const char* form, ...) {
    if (room - used < 8192) {
        room = room * 2 + 65536;
        text = realloc(text, room);
    }
    va_list arguments;
    va_start(arguments, form);
    used += vsnprintf(text + used, room - used, form, arguments);
    va_end(arguments);
}

const char* double_notes(void) {
    return text == NULL ? "" : text;
}

void double_forget_context(void) {
    context = NULL;
}

int cuCtxGetCurrent(void** current) {
    *current = context;
    return 0;
}

int cuCtxSetCurrent(void* current) {
    context = current;
    return 0;
}

int cuDevicePrimaryCtxRetain(void** primary, int device) {
    *primary = (void*)(intptr_t)(device + 1);
    note("context %d\n", device);
    return 0;
}

int cuModuleLoadData(void** module, const void* image) {
    *module = (void*)image;
    return memcmp(image, "\177ELF", 4) == 0 ? 0 : 200;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
    (void)module;
    *function = strdup(name);
    note("function %s\n", name);
    return 0;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
    note("attribute %s %d %d\n", (char*)function, attribute, value);
    return value > 227 * 1024 ? 1 : 0;
}

int cuFuncSetCacheConfig(void* function, int preference) {
    note("cache %s %d\n", (char*)function, preference);
    return 0;
}

int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
    if (context == NULL)
        return 201;
    if (parameters != NULL || extra[0] != (void*)1 || extra[2] != (void*)2 || extra[4] != NULL)
        return 1;
    note("launch %s %u,%u,%u %u,%u,%u %u %ld ", (char*)function, gx, gy, gz, bx, by, bz, shared,
         (long)(intptr_t)stream);
    const unsigned char* bytes = extra[1];
    for (size_t index = 0; index < *(size_t*)extra[3]; ++index)
        note("%02x", bytes[index]);
    note("\n");
    return 0;
}

int cuGetErrorName(int code, const char** name) {
    *name = code == 200 ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR_INVALID_VALUE";
    return 0;
}
