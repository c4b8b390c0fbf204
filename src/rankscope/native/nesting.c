/* Rows and parents of slices on their tracks: what rankscope.store.nesting does with numpy, in one pass. */
#include "native.h"

#define NONE (-1)

typedef struct {
    int64_t start, end;
    int32_t index;
} Slice;

/* Parents before children: by start, then the longer one, then in the order of the input. */
static inline bool comes_first(const Slice *a, const Slice *b) {
    if (a->start != b->start) return a->start < b->start;
    if (a->end != b->end) return a->end > b->end;
    return a->index < b->index;
}

/* Where the slices from `begin` on stop being in order, at most `count`. */
static size_t run_end(const Slice *slices, size_t begin, size_t count) {
    size_t end = begin + 1;
    while (end < count && comes_first(&slices[end - 1], &slices[end])) end++;
    return end;
}

/* Merge sort of what is in order already: a track is mostly written in order, or as a few parts that are. */
static void sort_slices(Slice *slices, Slice *spare, size_t count) {
    Slice *from = slices, *to = spare;
    while (run_end(from, 0, count) < count) {
        for (size_t begin = 0; begin < count;) {
            size_t middle = run_end(from, begin, count);
            size_t end = middle < count ? run_end(from, middle, count) : count;
            size_t a = begin, b = middle, out = begin;
            while (a < middle && b < end) to[out++] = comes_first(&from[b], &from[a]) ? from[b++] : from[a++];
            memcpy(to + out, from + a, (middle - a) * sizeof *to);
            out += middle - a;
            memcpy(to + out, from + b, (end - b) * sizeof *to);
            begin = end;
        }
        Slice *other = from;
        from = to;
        to = other;
    }
    if (from != slices) memcpy(slices, from, count * sizeof *slices);
}

/* In order of start, each slice gets the first free row below the innermost open slice that contains it. `open` has the
 * latest slice of each row; rows above the last one that is still open are forgotten. */
static void nest_track(const Slice *slices, size_t count, Slice *open, int32_t *row, int32_t *parent) {
    int32_t rows = 0;
    for (size_t i = 0; i < count; i++) {
        const Slice *slice = &slices[i];
        while (rows && open[rows - 1].end <= slice->start) rows--;
        int32_t inside = rows - 1;
        while (inside >= 0 && !(open[inside].end > slice->start && open[inside].end >= slice->end)) inside--;
        int32_t at = inside + 1;
        while (at < rows && open[at].end > slice->start) at++;
        row[slice->index] = at;
        parent[slice->index] = inside >= 0 ? open[inside].index : NONE;
        open[at] = *slice;
        if (at == rows) rows++;
    }
}

static bool nest_all(
    const int32_t *track, const int64_t *start, const int64_t *end, size_t count, size_t tracks, Array *out
) {
    for (int i = 0; i < 3; i++)
        if (!array_reserve(&out[i], count * 4)) return true;
    int32_t *order = (int32_t *)out[0].data, *row = (int32_t *)out[1].data, *parent = (int32_t *)out[2].data;
    size_t *begins = calloc(tracks + 1, sizeof *begins);
    size_t largest = 0;
    bool valid = true;
    for (size_t i = 0; begins && i < count && valid; i++) {
        valid = track[i] >= 0 && (size_t)track[i] < tracks;
        if (valid) begins[track[i] + 1]++;
    }
    for (size_t t = 0; begins && t < tracks; t++) {
        if (begins[t + 1] > largest) largest = begins[t + 1];
        begins[t + 1] += begins[t];
    }
    Slice *slices = malloc((largest + 1) * sizeof *slices), *spare = malloc((largest + 1) * sizeof *spare);
    if (!begins || !slices || !spare) out[0].failed = true;
    else if (valid) {
        /* `order` first holds the slices by track, then by track and time. */
        for (size_t i = 0; i < count; i++) order[begins[track[i]]++] = (int32_t)i;
        size_t begin = 0;
        for (size_t t = 0; t < tracks; t++) {
            size_t size = begins[t] - begin;
            for (size_t i = 0; i < size; i++) {
                int32_t index = order[begin + i];
                slices[i] = (Slice){start[index], end[index] > start[index] ? end[index] : start[index] + 1, index};
            }
            sort_slices(slices, spare, size);
            for (size_t i = 0; i < size; i++) order[begin + i] = slices[i].index;
            nest_track(slices, size, spare, row, parent);
            begin += size;
        }
    }
    free(begins);
    free(slices);
    free(spare);
    for (int i = 0; i < 3; i++) out[i].size = count * 4;
    return valid;
}

static PyObject *nest(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer track, start, end;
    Py_ssize_t tracks;
    if (!PyArg_ParseTuple(arguments, "y*y*y*n", &track, &start, &end, &tracks)) return NULL;
    size_t count = (size_t)track.len / 4;
    bool valid = tracks >= 0 && count < INT32_MAX && (size_t)start.len == count * 8 && (size_t)end.len == count * 8;
    Array out[3] = {{0}, {0}, {0}}; /* order, row, parent */
    Py_BEGIN_ALLOW_THREADS;
    if (valid) valid = nest_all(track.buf, start.buf, end.buf, count, (size_t)tracks, out);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&track);
    PyBuffer_Release(&start);
    PyBuffer_Release(&end);
    if (valid) return arrays_to_python(out, 3);
    for (int i = 0; i < 3; i++) array_free(&out[i]);
    PyErr_SetString(PyExc_ValueError, "expected tracks (4 bytes), starts and ends (8 bytes) of as many slices");
    return NULL;
}

static bool find_ancestors(const int32_t *order, const int32_t *parent, const uint8_t *wanted, size_t count, Array *out) {
    if (!array_reserve(out, count * 4)) return true;
    int32_t *nearest = (int32_t *)out->data;
    for (size_t i = 0; i < count; i++) nearest[i] = NONE;
    out->size = count * 4;
    for (size_t i = 0; i < count; i++) {
        int32_t at = order[i];
        if (at < 0 || (size_t)at >= count || parent[at] >= (int32_t)count) return false;
        int32_t above = parent[at];
        if (above >= 0) nearest[at] = wanted[above] ? above : nearest[above];
    }
    return true;
}

static PyObject *nearest_ancestor(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer order, parent, wanted;
    if (!PyArg_ParseTuple(arguments, "y*y*y*", &order, &parent, &wanted)) return NULL;
    size_t count = (size_t)wanted.len;
    bool valid = (size_t)order.len == count * 4 && (size_t)parent.len == count * 4 && count < INT32_MAX;
    Array nearest = {0};
    Py_BEGIN_ALLOW_THREADS;
    if (valid) valid = find_ancestors(order.buf, parent.buf, wanted.buf, count, &nearest);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&order);
    PyBuffer_Release(&parent);
    PyBuffer_Release(&wanted);
    if (valid) {
        PyObject *made = array_to_python(&nearest);
        array_free(&nearest);
        return made;
    }
    array_free(&nearest);
    PyErr_SetString(PyExc_ValueError, "expected an order and parents (4 bytes) and marks (1 byte) of as many slices");
    return NULL;
}

PyMethodDef nesting_methods[] = {
    {"nest", nest, METH_VARARGS,
     "(track, start, end, tracks): the order of slices by track and time, their rows and parents (4 bytes each)."},
    {"nearest_ancestor", nearest_ancestor, METH_VARARGS,
     "(order, parent, wanted): for each slice the innermost one around it that is wanted, or -1 (4 bytes)."},
    {NULL, NULL, 0, NULL},
};
