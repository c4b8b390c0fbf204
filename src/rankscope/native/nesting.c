/* Rows and parents of slices on their tracks: what rankscope.timeline.nesting does with numpy, in one pass. */
#include "merge_sort.h"
#include "native.h"

#define NONE (-1)

/* The slices' own columns: what is sorted are their indices, so that nothing is copied. */
typedef struct {
    const int64_t *start, *end;
} Times;

/* An empty slice is treated as 1 ns long. */
static inline int64_t end_of(const Times *times, int32_t slice) {
    int64_t start = times->start[slice], end = times->end[slice];
    return end > start ? end : start + 1;
}

/* Parents before children: by start, then the longer one, then in the order of the input. */
static inline bool comes_first(const void *items, int32_t a, int32_t b) {
    const Times *times = items;
    if (times->start[a] != times->start[b]) return times->start[a] < times->start[b];
    int64_t end_a = end_of(times, a), end_b = end_of(times, b);
    return end_a != end_b ? end_a > end_b : a < b;
}

/* The latest slice of a row. */
typedef struct {
    int64_t end;
    int32_t slice;
} Open;

/* The latest and the earliest end of the rows below a node of the tree. */
typedef struct {
    int64_t latest, earliest;
} Ends;

/* The rows of a track; those above the last one that is still open are forgotten. Slices that nest are found next to
 * each other. Where a row is further away than SHORT_SCAN, a binary tree over all rows is made, and kept up to date
 * until few are left: it has its leaves in the second half, and the node i has the children 2i and 2i + 1. */
typedef struct {
    Array open; /* Open, by row */
    Array tree; /* Ends */
    size_t leaves; /* 0: there is no tree */
    int32_t count;
    bool failed;
} Rows;

#define SHORT_SCAN 32

static void join_ends(Ends *nodes, size_t at) {
    const Ends *left = &nodes[2 * at], *right = left + 1;
    nodes[at].latest = left->latest > right->latest ? left->latest : right->latest;
    nodes[at].earliest = left->earliest < right->earliest ? left->earliest : right->earliest;
}

static const Ends *tree_of(Rows *rows) {
    Ends *nodes = (Ends *)rows->tree.data;
    if (rows->leaves) return nodes;
    size_t leaves = 2 * SHORT_SCAN;
    while (leaves < 2 * (size_t)rows->count) leaves *= 2;
    rows->tree.size = 0;
    if (!array_reserve(&rows->tree, 2 * leaves * sizeof(Ends))) {
        rows->failed = true;
        return NULL;
    }
    nodes = (Ends *)rows->tree.data;
    const Open *open = (const Open *)rows->open.data;
    for (size_t row = 0; row < leaves; row++) { /* rows that are not in use are free */
        int64_t end = row < (size_t)rows->count ? open[row].end : INT64_MIN;
        nodes[leaves + row] = (Ends){end, end};
    }
    for (size_t at = leaves - 1; at > 0; at--) join_ends(nodes, at);
    rows->leaves = leaves;
    return nodes;
}

/* The last row whose slice ends at `end` or later; NONE if there is none. */
static int32_t row_around(Rows *rows, int64_t end) {
    const Open *open = (const Open *)rows->open.data;
    int32_t row = rows->count - 1, stop = row - SHORT_SCAN;
    while (row >= 0 && row > stop && open[row].end < end) row--;
    if (row < 0 || row > stop) return row;
    const Ends *nodes = tree_of(rows);
    if (!nodes || nodes[1].latest < end) return NONE;
    size_t at = 1;
    while (at < rows->leaves) at = 2 * at + (nodes[2 * at + 1].latest >= end);
    return (int32_t)(at - rows->leaves);
}

/* The first row from `row` on that is free at `start`. */
static int32_t free_row(Rows *rows, int32_t row, int64_t start) {
    const Open *open = (const Open *)rows->open.data;
    int32_t stop = row + SHORT_SCAN;
    while (row < rows->count && row < stop && open[row].end > start) row++;
    if (row < stop || row == rows->count) return row;
    const Ends *nodes = tree_of(rows);
    if (!nodes) return rows->count;
    size_t at = rows->leaves + (size_t)row;
    while (nodes[at].earliest > start) {
        while (at & 1) at >>= 1;
        at++; /* the last leaf is always free: there is one to the right */
    }
    while (at < rows->leaves) at = 2 * at + (nodes[2 * at].earliest > start);
    return (int32_t)(at - rows->leaves);
}

static void set_row(Rows *rows, int32_t row, Open open) {
    ((Open *)rows->open.data)[row] = open;
    if (row == rows->count) rows->count++;
    if ((size_t)rows->count >= rows->leaves) rows->leaves = 0; /* a larger one is made when it is needed */
    if (!rows->leaves) return;
    Ends *nodes = (Ends *)rows->tree.data;
    size_t at = rows->leaves + (size_t)row;
    nodes[at] = (Ends){open.end, open.end};
    while (at >>= 1) join_ends(nodes, at);
}

/* In order of start, each slice gets the first free row below the innermost open slice that contains it. */
static bool nest_track(const Times *times, const int32_t *order, size_t count, Rows *rows, int32_t *row, int32_t *parent) {
    rows->count = 0;
    rows->leaves = 0;
    for (size_t i = 0; i < count && !rows->failed; i++) {
        int32_t slice = order[i];
        int64_t start = times->start[slice], end = end_of(times, slice);
        rows->open.size = (size_t)rows->count * sizeof(Open);
        if (!array_reserve(&rows->open, sizeof(Open))) return false;
        const Open *open = (const Open *)rows->open.data;
        while (rows->count && open[rows->count - 1].end <= start) rows->count--;
        if (rows->count <= SHORT_SCAN) rows->leaves = 0;
        int32_t inside = row_around(rows, end), at = free_row(rows, inside + 1, start);
        row[slice] = at;
        parent[slice] = inside >= 0 ? open[inside].slice : NONE;
        set_row(rows, at, (Open){end, slice});
    }
    return !rows->failed;
}

/* The slices by track, and where those of each track begin. */
static bool sort_by_track(const int32_t *track, size_t count, size_t tracks, Array *out) {
    if (!array_reserve(&out[0], count * 4) || !array_reserve(&out[1], (tracks + 1) * 8)) return true;
    int32_t *order = (int32_t *)out[0].data;
    int64_t *begins = (int64_t *)(void *)out[1].data;
    memset(begins, 0, (tracks + 1) * 8);
    for (size_t i = 0; i < count; i++) {
        if (track[i] < 0 || (size_t)track[i] >= tracks) return false;
        begins[track[i]]++;
    }
    int64_t begin = 0;
    for (size_t t = 0; t <= tracks; t++) {
        int64_t size = begins[t];
        begins[t] = begin;
        begin += size;
    }
    for (size_t i = 0; i < count; i++) order[begins[track[i]]++] = (int32_t)i;
    for (size_t t = tracks; t > 0; t--) begins[t] = begins[t - 1]; /* they are where the tracks end now */
    begins[0] = 0;
    out[0].size = count * 4;
    out[1].size = (tracks + 1) * 8;
    return true;
}

static PyObject *by_track(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer track;
    Py_ssize_t tracks;
    if (!PyArg_ParseTuple(arguments, "y*n", &track, &tracks)) return NULL;
    size_t count = (size_t)track.len / 4;
    bool valid = tracks >= 0 && tracks < INT32_MAX && count < INT32_MAX;
    Array out[2] = {{0}, {0}};
    Py_BEGIN_ALLOW_THREADS;
    if (valid) valid = sort_by_track(track.buf, count, (size_t)tracks, out);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&track);
    if (valid) return arrays_to_python(out, 2);
    for (int i = 0; i < 2; i++) array_free(&out[i]);
    PyErr_SetString(PyExc_ValueError, "expected the tracks of slices (4 bytes), and their number");
    return NULL;
}

static PyObject *nest(PyObject *self, PyObject *arguments) {
    (void)self;
    enum { ORDER, BEGINS, START, END, ROW, PARENT, COUNT };
    static const size_t width[COUNT] = {4, 8, 8, 8, 4, 4};
    Py_buffer column[COUNT];
    if (!PyArg_ParseTuple(
            arguments, "w*y*y*y*w*w*", &column[ORDER], &column[BEGINS], &column[START], &column[END], &column[ROW],
            &column[PARENT]
        ))
        return NULL;
    size_t count = (size_t)column[ROW].len / 4, tracks = (size_t)column[BEGINS].len / 8;
    bool valid = count < INT32_MAX && column[ORDER].len <= column[ROW].len, fits = true;
    for (int i = START; i < COUNT; i++) valid &= (size_t)column[i].len == count * width[i];
    Py_BEGIN_ALLOW_THREADS;
    Times times = {column[START].buf, column[END].buf};
    Rows rows = {0};
    int32_t *order = column[ORDER].buf;
    const int64_t *begins = column[BEGINS].buf;
    int64_t size = (int64_t)(column[ORDER].len / 4);
    for (int64_t i = 0; i < size && valid; i++) valid = order[i] >= 0 && (size_t)order[i] < count;
    for (size_t t = 0; t + 1 < tracks && valid && fits; t++) {
        int64_t begin = begins[t] - begins[0], end = begins[t + 1] - begins[0];
        valid = 0 <= begin && begin <= end && end <= size;
        if (!valid) break;
        fits = merge_sort(&times, comes_first, order + begin, (size_t)(end - begin)) &&
               nest_track(&times, order + begin, (size_t)(end - begin), &rows, column[ROW].buf, column[PARENT].buf);
    }
    array_free(&rows.open);
    array_free(&rows.tree);
    Py_END_ALLOW_THREADS;
    for (int i = 0; i < COUNT; i++) PyBuffer_Release(&column[i]);
    if (!fits) return PyErr_NoMemory();
    if (valid) Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "expected the slices of some tracks, and columns of as many slices");
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

static bool subtract_children(const int32_t *parent, const int64_t *duration, size_t count, Array *out) {
    if (!array_reserve(out, count * 8)) return true;
    int64_t *own = (int64_t *)out->data;
    out->size = count * 8;
    memcpy(own, duration, count * 8);
    for (size_t i = 0; i < count; i++) {
        if (parent[i] >= (int64_t)count) return false;
        if (parent[i] >= 0) own[parent[i]] -= duration[i];
    }
    for (size_t i = 0; i < count; i++)
        if (own[i] < 0) own[i] = 0;
    return true;
}

static PyObject *self_time(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer parent, duration;
    if (!PyArg_ParseTuple(arguments, "y*y*", &parent, &duration)) return NULL;
    size_t count = (size_t)parent.len / 4;
    bool valid = (size_t)duration.len == count * 8 && count < INT32_MAX;
    Array own = {0};
    Py_BEGIN_ALLOW_THREADS;
    if (valid) valid = subtract_children(parent.buf, duration.buf, count, &own);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&parent);
    PyBuffer_Release(&duration);
    PyObject *made = valid ? array_to_python(&own) : NULL;
    array_free(&own);
    if (valid) return made;
    PyErr_SetString(PyExc_ValueError, "expected parents (4 bytes) and durations (8 bytes) of as many slices");
    return NULL;
}

/* The slices of one track are order[begin..end). The next questions are mostly about times a little later, so the
 * search goes on from `at`: how many of the slices start at the last time or before. */
typedef struct {
    size_t begin, end, at;
} Track;

static size_t count_started(const int64_t *start, const int32_t *order, Track *track, int64_t time) {
    size_t low = track->begin, high = track->end, step = 1, at = track->at;
    if (at < high && start[order[at]] <= time) {
        low = at + 1;
        while (low < high && high - low > step && start[order[low + step]] <= time) low += step + 1, step *= 2;
        if (high - low > step) high = low + step;
    } else {
        high = at;
        while (high > low && high - low > step && start[order[high - step]] > time) high -= step, step *= 2;
        if (high - low > step) low = high - step;
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (start[order[middle]] <= time) low = middle + 1;
        else high = middle;
    }
    return track->at = low;
}

static bool find_open(
    const int32_t *order, const int32_t *parent, const int32_t *track, const int64_t *start, const int64_t *duration,
    size_t count, const int32_t *at_track, const int64_t *at_time, size_t questions, size_t tracks, Array *out
) {
    Track *known = calloc(tracks + 1, sizeof *known);
    if (!known || !array_reserve(out, questions * 4)) {
        free(known);
        out->failed = true;
        return true;
    }
    bool valid = true;
    for (size_t i = 0; i < count && valid; i++) {
        valid = track[i] >= 0 && (size_t)track[i] < tracks && order[i] >= 0 && (size_t)order[i] < count &&
                parent[i] < (int64_t)count;
        if (valid) known[track[i]].end++;
    }
    for (size_t t = 0, begin = 0; t < tracks; t++) {
        known[t].begin = known[t].at = begin;
        begin = known[t].end += begin;
    }
    int32_t *found = (int32_t *)out->data;
    for (size_t i = 0; i < questions && valid; i++) {
        int32_t slice = NONE;
        if (at_track[i] >= 0 && (size_t)at_track[i] < tracks) {
            Track *own = &known[at_track[i]];
            size_t started = count_started(start, order, own, at_time[i] > 0 ? at_time[i] : 0);
            if (started > own->begin) slice = order[started - 1];
        }
        while (slice >= 0 && start[slice] + duration[slice] <= at_time[i] && start[slice] != at_time[i])
            slice = parent[slice];
        found[i] = slice;
    }
    out->size = questions * 4;
    free(known);
    return valid;
}

static PyObject *open_slices(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer column[7]; /* order, parent, track, start, duration; the track and the time of each question */
    static const int width[7] = {4, 4, 4, 8, 8, 4, 8};
    Py_ssize_t tracks;
    if (!PyArg_ParseTuple(
            arguments, "y*y*y*y*y*y*y*n", &column[0], &column[1], &column[2], &column[3], &column[4], &column[5],
            &column[6], &tracks
        ))
        return NULL;
    size_t count = (size_t)column[0].len / 4, questions = (size_t)column[5].len / 4;
    bool valid = tracks >= 0 && count < INT32_MAX;
    for (int i = 0; i < 7; i++) valid &= (size_t)column[i].len == (i < 5 ? count : questions) * (size_t)width[i];
    Array found = {0};
    Py_BEGIN_ALLOW_THREADS;
    if (valid)
        valid = find_open(
            column[0].buf, column[1].buf, column[2].buf, column[3].buf, column[4].buf, count, column[5].buf,
            column[6].buf, questions, (size_t)tracks, &found
        );
    Py_END_ALLOW_THREADS;
    for (int i = 0; i < 7; i++) PyBuffer_Release(&column[i]);
    PyObject *made = valid ? array_to_python(&found) : NULL;
    array_free(&found);
    if (!valid) PyErr_SetString(PyExc_ValueError, "expected columns of as many slices, and of as many questions");
    return made;
}

/* Where each wanted number is among `count` ascending ones; `count` if it is not. The next is mostly a little larger. */
static void find_places(const int32_t *sorted, size_t count, const int32_t *wanted, size_t questions, int32_t *out) {
    size_t at = 0;
    for (size_t i = 0; i < questions; i++) {
        size_t low = 0, high = count, step = 1;
        if (at < count && sorted[at] < wanted[i]) {
            low = at + 1;
            while (low + step < high && sorted[low + step] < wanted[i]) low += step + 1, step *= 2;
            if (low + step < high) high = low + step;
        } else if (at < count && (at == 0 || sorted[at - 1] < wanted[i])) {
            low = high = at;
        } else if (at < count) {
            high = at;
        }
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (sorted[middle] < wanted[i]) low = middle + 1;
            else high = middle;
        }
        at = low;
        out[i] = (int32_t)(at < count && sorted[at] == wanted[i] ? at : count);
    }
}

static PyObject *places(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer sorted, wanted;
    if (!PyArg_ParseTuple(arguments, "y*y*", &sorted, &wanted)) return NULL;
    Array out = {0};
    Py_BEGIN_ALLOW_THREADS;
    if (array_reserve(&out, (size_t)wanted.len)) {
        find_places(sorted.buf, (size_t)sorted.len / 4, wanted.buf, (size_t)wanted.len / 4, (int32_t *)out.data);
        out.size = (size_t)wanted.len;
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&sorted);
    PyBuffer_Release(&wanted);
    PyObject *made = array_to_python(&out);
    array_free(&out);
    return made;
}

PyMethodDef nesting_methods[] = {
    {"places", places, METH_VARARGS,
     "(sorted, wanted): where each wanted number is among ascending ones, or after the last (4 bytes each)."},
    {"by_track", by_track, METH_VARARGS,
     "(track, tracks): the slices by track (4 bytes each), and where those of each track begin (8 bytes)."},
    {"nest", nest, METH_VARARGS,
     "(order, begins, start, end, row, parent): sort the slices of some tracks by time, and fill in their rows and "
     "parents. Threads may do that with different tracks."},
    {"nearest_ancestor", nearest_ancestor, METH_VARARGS,
     "(order, parent, wanted): for each slice the innermost one around it that is wanted, or -1 (4 bytes)."},
    {"self_time", self_time, METH_VARARGS,
     "(parent, duration): the duration of each slice without those directly inside it, at least 0 (8 bytes)."},
    {"open_slices", open_slices, METH_VARARGS,
     "(order, parent, track, start, duration, at_track, at_time, tracks): the innermost slice that is open on a track at "
     "a time, or starts then, or -1 (4 bytes)."},
    {NULL, NULL, 0, NULL},
};
