/* What the files of this extension share: a growing array, and handing one to Python as a buffer. */
#ifndef RANKSCOPE_NATIVE_H
#define RANKSCOPE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Columns are handed to numpy as they are, and digits are read eight at a time. */
#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rankscope's C parts are for little-endian processors; rankscope can be installed without them"
#endif

/* Bytes that grow. `failed` stays set once memory has run out: check it at the end, not after each append. */
typedef struct {
    uint8_t *data;
    size_t size;
    size_t room;
    bool failed;
    const char *folder; /* where its file is made once it is large; NULL: it stays in memory */
    int file;           /* 0: in memory */
} Array;

bool array_grow(Array *array, size_t more); /* for array_reserve only */
void array_free(Array *array);
void array_release(const Array *array); /* give back the memory of an array in a file; the bytes stay there */

/* Make room for `more` bytes after those there are; false if there is no memory. An array grows by half at least, and
 * only where there is no room yet: one that is filled step by step takes at most half more than it needs. */
static inline bool array_reserve(Array *array, size_t more) {
    return (array->data && array->room - array->size >= more) || array_grow(array, more);
}

static inline void array_append(Array *array, const void *bytes, size_t count) {
    if (!array_reserve(array, count)) return;
    memcpy(array->data + array->size, bytes, count);
    array->size += count;
}

static inline void array_append_i32(Array *array, int32_t value) { array_append(array, &value, sizeof value); }
static inline void array_append_i64(Array *array, int64_t value) { array_append(array, &value, sizeof value); }

/* A number as JSON, whatever the locale: with the fewest of 15, 16 or 17 digits that give the same number, and null for
 * what JSON has no number for. */
void array_append_double(Array *array, double value);

/* A whole number as text. */
void array_append_unsigned(Array *array, uint64_t value);
void array_append_signed(Array *array, int64_t value);

/* A Python object with the array's bytes, for numpy.frombuffer. Takes the memory over; NULL with an exception. */
PyObject *array_to_python(Array *array);

/* A tuple of such objects. All arrays are empty afterwards, whether it succeeds or not. */
PyObject *arrays_to_python(Array *arrays, size_t count);

/* What each file adds to the module. */
extern PyMethodDef scan_methods[];
extern PyMethodDef packing_methods[];
extern PyMethodDef nesting_methods[];
extern PyMethodDef interval_methods[];
extern PyMethodDef replay_methods[];
extern PyMethodDef sqlite_methods[];
extern PyMethodDef repeated_methods[];
extern PyMethodDef xplane_methods[];
extern PyMethodDef pickled_methods[];

#endif
