/* The extension module rankscope.native._native: growing arrays that become Python buffers, and the list of functions. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* madvise, mkstemp, posix_fallocate */
#endif
#include "native.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <math.h>
#include <stdio.h>

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE (4 << 20)

/* Ask for large pages, of which Linux has some: with 4 KiB each, the first use of every page costs a sixth of a scan. */
static void want_large_pages(const Array *array) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)array->data;
    begin = (begin + page - 1) / page * page;
    if (array->room >= LARGE) madvise((void *)begin, array->room - page, MADV_HUGEPAGE);
}

#define IN_FILE (16 << 20)

/* A file in a folder, without a name; -1 where none can be made. */
static int unnamed_file(const char *folder) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/rankscope-XXXXXX", folder) >= (int)sizeof path) return -1;
    int file = mkstemp(path);
    if (file >= 0) unlink(path);
    return file;
}

static void leave_file(Array *array) {
    if (!array->file) return;
    munmap(array->data, array->room);
    close(array->file);
    array->file = 0;
    array->data = NULL;
}

/* The bytes of the array in its file, with more room; NULL where the disk has none. Its blocks are allocated first: a
 * disk that is full would end the process when a page is written. */
static uint8_t *grown_in_file(Array *array, size_t room) {
    int file = array->file ? array->file : unnamed_file(array->folder);
    if (file <= 0) return NULL;
    uint8_t *data = MAP_FAILED;
    if (posix_fallocate(file, 0, (off_t)room) == 0) data = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) {
        if (!array->file) close(file);
        return NULL;
    }
    if (array->file) munmap(array->data, array->room);
    else {
        if (array->size) memcpy(data, array->data, array->size);
        free(array->data);
    }
    array->file = file;
    return data;
}

void array_release(const Array *array) {
    if (array->file) madvise(array->data, array->room, MADV_DONTNEED);
}
#else
#define IN_FILE SIZE_MAX

static void want_large_pages(const Array *array) { (void)array; }
static void leave_file(Array *array) { (void)array; }
static uint8_t *grown_in_file(Array *array, size_t room) {
    (void)array, (void)room;
    return NULL;
}
void array_release(const Array *array) { (void)array; }
#endif

static uint8_t *grown_in_memory(Array *array, size_t room) {
    if (!array->file) return realloc(array->data, room);
    uint8_t *data = malloc(room);
    if (!data) return NULL;
    memcpy(data, array->data, array->size);
    leave_file(array);
    return data;
}

bool array_grow(Array *array, size_t more) {
    if (array->failed || more > SIZE_MAX / 4 || array->size > SIZE_MAX / 4) {
        array->failed = true;
        return false;
    }
    size_t room = array->room + array->room / 2 + 64;
    if (room < array->size + more) room = array->size + more;
    uint8_t *data = array->folder && room >= IN_FILE ? grown_in_file(array, room) : NULL;
    if (!data) data = grown_in_memory(array, room);
    if (!data) {
        array->failed = true;
        return false;
    }
    array->data = data;
    array->room = room;
    if (!array->file) want_large_pages(array);
    return true;
}

void array_free(Array *array) {
    const char *folder = array->folder;
    leave_file(array);
    free(array->data);
    memset(array, 0, sizeof *array);
    array->folder = folder;
}

void array_append_double(Array *array, double value) {
    if (fabs(value) < 1e15 && value == (double)(int64_t)value && (value || !signbit(value))) { /* fewer than 16 digits */
        array_append_signed(array, (int64_t)value);
        return;
    }
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    if (!isfinite(value)) {
        array_append(array, "null", 4);
        return;
    }
    /* The decimal point is what the locale has, which may take several bytes. */
    for (const char *at = text; *at;) {
        size_t count = strspn(at, "0123456789+-e");
        array_append(array, at, count);
        at += count;
        if (*at) array_append(array, ".", 1);
        at += strcspn(at, "0123456789+-e");
    }
}

void array_append_unsigned(Array *array, uint64_t value) {
    char text[24], *end = text + sizeof text, *begin = end;
    do *--begin = (char)('0' + value % 10);
    while (value /= 10);
    array_append(array, begin, (size_t)(end - begin));
}

void array_append_signed(Array *array, int64_t value) {
    if (value < 0) array_append(array, "-", 1);
    array_append_unsigned(array, value < 0 ? -(uint64_t)value : (uint64_t)value);
}

typedef struct {
    PyObject_HEAD
    Array array;
} Buffer;

static PyObject *buffer_type;

static void buffer_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    array_free(&((Buffer *)self)->array);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int buffer_get(PyObject *self, Py_buffer *view, int flags) {
    static uint8_t nothing;
    Array *array = &((Buffer *)self)->array;
    return PyBuffer_FillInfo(view, self, array->data ? array->data : &nothing, (Py_ssize_t)array->size, 0, flags);
}

static Py_ssize_t buffer_length(PyObject *self) { return (Py_ssize_t)((Buffer *)self)->array.size; }

static PyType_Slot buffer_slots[] = {
    {Py_tp_dealloc, buffer_dealloc},
    {Py_bf_getbuffer, buffer_get},
    {Py_sq_length, buffer_length},
    {Py_tp_doc, "Bytes made by a function of this module; numpy.frombuffer reads and changes them in place."},
    {0, NULL},
};

static PyType_Spec buffer_spec = {
    .name = "rankscope.native._native.Buffer",
    .basicsize = sizeof(Buffer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = buffer_slots,
};

PyObject *array_to_python(Array *array) {
    if (array->failed) return PyErr_NoMemory();
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)buffer_type, Py_tp_alloc);
    Buffer *buffer = (Buffer *)allocate((PyTypeObject *)buffer_type, 0);
    if (!buffer) return NULL;
    if (array->room > array->size + array->size / 8) { /* growing leaves up to a third unused */
        uint8_t *smaller = realloc(array->data, array->size ? array->size : 1);
        if (smaller) array->data = smaller;
    }
    buffer->array = *array;
    memset(array, 0, sizeof *array);
    return (PyObject *)buffer;
}

PyObject *arrays_to_python(Array *arrays, size_t count) {
    PyObject *made = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; made && i < count; i++) {
        PyObject *buffer = array_to_python(&arrays[i]);
        if (!buffer || PyTuple_SetItem(made, (Py_ssize_t)i, buffer) < 0) {
            Py_DECREF(made);
            made = NULL;
        }
    }
    for (size_t i = 0; i < count; i++) array_free(&arrays[i]);
    return made;
}

/* The C library keeps memory that was freed in small parts, which large arrays do not fit into. */
static PyObject *release_memory(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
#ifdef __GLIBC__
    Py_BEGIN_ALLOW_THREADS;
    malloc_trim(0);
    Py_END_ALLOW_THREADS;
#endif
    Py_RETURN_NONE;
}

static PyMethodDef memory_methods[] = {
    {"release_memory", release_memory, METH_NOARGS, "Give memory that was freed back to the system, where that helps."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "The parts of rankscope that are written in C. Called through rankscope.native.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    buffer_type = PyType_FromSpec(&buffer_spec);
    if (!buffer_type || PyModule_AddFunctions(module, memory_methods) < 0 ||
        PyModule_AddFunctions(module, scan_methods) < 0 ||
        PyModule_AddFunctions(module, packing_methods) < 0 || PyModule_AddFunctions(module, nesting_methods) < 0 ||
        PyModule_AddFunctions(module, sqlite_methods) < 0 || PyModule_AddFunctions(module, repeated_methods) < 0 ||
        PyModule_AddFunctions(module, xplane_methods) < 0 || PyModule_AddFunctions(module, pickled_methods) < 0 ||
        PyModule_AddFunctions(module, interval_methods) < 0 || PyModule_AddFunctions(module, replay_methods) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
