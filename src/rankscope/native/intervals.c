/* Sets of time: what rankscope.analysis.core.intervals does with numpy, for which most sets are too small. */
#include "merge_sort.h"
#include "native.h"

static inline bool starts_first(const void *items, int32_t a, int32_t b) {
    const int64_t *start = items;
    return start[a] < start[b];
}

/* `out`: the starts, and the ends. */
static void unite(const int64_t *start, const int64_t *end, size_t count, Array *out) {
    Array real = {0}; /* the spans that are not empty */
    bool fits = array_reserve(&real, count * sizeof(int32_t) + 1);
    int32_t *order = (int32_t *)(void *)real.data;
    size_t used = 0;
    for (size_t i = 0; fits && i < count; i++)
        if (end[i] > start[i]) order[used++] = (int32_t)i;
    if (!fits || !merge_sort(start, starts_first, order, used)) out[0].failed = true;
    else {
        for (size_t i = 0; i < used;) {
            int64_t span_start = start[order[i]], span_end = end[order[i]];
            for (i++; i < used && start[order[i]] <= span_end; i++)
                if (end[order[i]] > span_end) span_end = end[order[i]];
            array_append_i64(&out[0], span_start);
            array_append_i64(&out[1], span_end);
        }
    }
    array_free(&real);
}

/* The first of the sorted numbers that is above a limit. */
static size_t first_above(const int64_t *numbers, size_t count, int64_t limit) {
    size_t low = 0;
    while (low < count) {
        size_t middle = low + (count - low) / 2;
        if (numbers[middle] > limit) count = middle;
        else low = middle + 1;
    }
    return low;
}

/* Each interval of `a` with those of `b` that it meets, which are neighbours. The intervals of `b` are in order; those
 * of `a` mostly are. */
static void meet(
    const int64_t *a_start, const int64_t *a_end, size_t a_count, const int64_t *b_start, const int64_t *b_end,
    size_t b_count, Array *out
) {
    size_t first = 0;
    for (size_t i = 0; i < a_count; i++) {
        if (i && a_start[i] < a_start[i - 1]) first = first_above(b_end, b_count, a_start[i]);
        while (first < b_count && b_end[first] <= a_start[i]) first++;
        for (size_t at = first; at < b_count && b_start[at] < a_end[i]; at++) {
            array_append_i64(&out[0], a_start[i] > b_start[at] ? a_start[i] : b_start[at]);
            array_append_i64(&out[1], a_end[i] < b_end[at] ? a_end[i] : b_end[at]);
        }
    }
}

static PyObject *result(bool valid, Array *out) {
    if (valid) return arrays_to_python(out, 2);
    PyErr_SetString(PyExc_ValueError, "expected as many ends as starts, of 8 bytes each");
    return NULL;
}

static PyObject *union_of(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer start, end;
    if (!PyArg_ParseTuple(arguments, "y*y*", &start, &end)) return NULL;
    bool valid = start.len == end.len && start.len % 8 == 0 && start.len / 8 < INT32_MAX;
    Array out[2] = {{0}, {0}};
    Py_BEGIN_ALLOW_THREADS;
    if (valid) unite(start.buf, end.buf, (size_t)start.len / 8, out);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&start);
    PyBuffer_Release(&end);
    return result(valid, out);
}

static PyObject *intersection(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer a_start, a_end, b_start, b_end;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*", &a_start, &a_end, &b_start, &b_end)) return NULL;
    bool valid = a_start.len == a_end.len && b_start.len == b_end.len && a_start.len % 8 == 0 && b_start.len % 8 == 0;
    Array out[2] = {{0}, {0}};
    size_t a_count = (size_t)a_start.len / 8, b_count = (size_t)b_start.len / 8;
    Py_BEGIN_ALLOW_THREADS;
    if (valid) meet(a_start.buf, a_end.buf, a_count, b_start.buf, b_end.buf, b_count, out);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&a_start);
    PyBuffer_Release(&a_end);
    PyBuffer_Release(&b_start);
    PyBuffer_Release(&b_end);
    return result(valid, out);
}

PyMethodDef interval_methods[] = {
    {"union_of", union_of, METH_VARARGS, "union_of(starts, ends) -> starts and ends of the set that they cover."},
    {"intersection", intersection, METH_VARARGS,
     "intersection(starts, ends, other_starts, other_ends) -> starts and ends of what lies in both sets."},
    {NULL, NULL, 0, NULL},
};
