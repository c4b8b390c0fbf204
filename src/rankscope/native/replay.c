/* The replay of a graph: what rankscope.analysis.graph.replay does with numpy, level by
 * level, of which a long job has thousands. All numbers have 8 bytes. */
#include "native.h"

typedef struct {
    const int64_t *data;
    size_t count;
} Numbers;

static Numbers numbers(const Py_buffer *buffer) { return (Numbers){buffer->buf, (size_t)buffer->len / 8}; }

/* Whether `first` has the bounds of ranges within so many elements. */
static bool are_bounds(Numbers first, size_t count) {
    if (!first.count || first.data[0] < 0 || (size_t)first.data[first.count - 1] > count) return false;
    for (size_t i = 1; i < first.count; i++)
        if (first.data[i] < first.data[i - 1]) return false;
    return true;
}

static bool are_indices(Numbers of, size_t count) {
    for (size_t i = 0; i < of.count; i++)
        if (of.data[i] < 0 || (size_t)of.data[i] >= count) return false;
    return true;
}

static PyObject *refused(const char *what) {
    PyErr_SetString(PyExc_ValueError, what);
    return NULL;
}

/* The entries by group, in their order, and where each group begins: a sort that compares nothing. */
static PyObject *grouped(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer buffer;
    Py_ssize_t groups;
    if (!PyArg_ParseTuple(arguments, "y*n", &buffer, &groups)) return NULL;
    Numbers group = numbers(&buffer);
    bool valid = groups >= 0 && are_indices(group, (size_t)groups);
    Array out[2] = {{0}, {0}};
    Py_BEGIN_ALLOW_THREADS;
    if (valid && array_reserve(&out[0], group.count * 8 + 1) && array_reserve(&out[1], ((size_t)groups + 1) * 8)) {
        int64_t *order = (int64_t *)out[0].data, *next = (int64_t *)out[1].data;
        memset(next, 0, ((size_t)groups + 1) * 8);
        for (size_t i = 0; i < group.count; i++) next[group.data[i] + 1]++;
        for (Py_ssize_t i = 0; i < groups; i++) next[i + 1] += next[i];
        for (size_t i = 0; i < group.count; i++) order[next[group.data[i]]++] = (int64_t)i;
        memmove(next + 1, next, (size_t)groups * 8); /* each is where the next one begins by now */
        next[0] = 0;
        out[0].size = group.count * 8;
        out[1].size = ((size_t)groups + 1) * 8;
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&buffer);
    return valid ? arrays_to_python(out, 2) : refused("expected the numbers of groups, from 0");
}

/* By unit, the length of the longest chain of causes before it; -1 in a cycle and behind one. */
static PyObject *levels(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer buffers[2];
    if (!PyArg_ParseTuple(arguments, "y*y*", &buffers[0], &buffers[1])) return NULL;
    Numbers first = numbers(&buffers[0]), effect = numbers(&buffers[1]);
    size_t units = first.count ? first.count - 1 : 0;
    bool valid = are_bounds(first, effect.count) && are_indices(effect, units);
    Array out = {0};
    int64_t *missing = NULL, *queue = NULL;
    Py_BEGIN_ALLOW_THREADS;
    if (valid) {
        missing = calloc(units + 1, sizeof *missing);
        queue = malloc((units + 1) * sizeof *queue);
        if (!missing || !queue || !array_reserve(&out, units * 8 + 1)) out.failed = true;
        else {
            int64_t *level = (int64_t *)out.data;
            size_t reached = 0, waiting = 0;
            for (size_t i = 0; i < effect.count; i++) missing[effect.data[i]]++;
            for (size_t unit = 0; unit < units; unit++) {
                level[unit] = missing[unit] ? -1 : 0;
                if (!missing[unit]) queue[waiting++] = (int64_t)unit;
            }
            while (reached < waiting) {
                int64_t unit = queue[reached++];
                for (int64_t at = first.data[unit]; at < first.data[unit + 1]; at++) {
                    int64_t next = effect.data[at];
                    if (--missing[next] == 0) { /* the queue is in the order of the levels: its last cause is this one */
                        level[next] = level[unit] + 1;
                        queue[waiting++] = next;
                    }
                }
            }
            out.size = units * 8;
        }
    }
    free(missing);
    free(queue);
    Py_END_ALLOW_THREADS;
    for (int i = 0; i < 2; i++) PyBuffer_Release(&buffers[i]);
    return valid ? array_to_python(&out) : refused("expected the bounds of each unit's effects, and units");
}

/* Fill in the ends of the points, unit by unit: a unit is done when the last of its points has arrived, which is when
 * the last of the point's ways has. */
static PyObject *replay(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer buffers[7];
    if (!PyArg_ParseTuple(
            arguments, "w*y*y*y*y*y*y*", &buffers[0], &buffers[1], &buffers[2], &buffers[3], &buffers[4], &buffers[5],
            &buffers[6]
        ))
        return NULL;
    int64_t *end = buffers[0].buf;
    size_t ends = (size_t)buffers[0].len / 8;
    Numbers origin = numbers(&buffers[1]), weight = numbers(&buffers[2]), ways = numbers(&buffers[3]),
            shift = numbers(&buffers[4]), points = numbers(&buffers[5]), took = numbers(&buffers[6]);
    bool valid = origin.count == weight.count && ways.count == shift.count + 1 && points.count == took.count + 1 &&
                 shift.count <= ends && are_bounds(ways, origin.count) && are_bounds(points, shift.count) &&
                 are_indices(origin, ends);
    Py_BEGIN_ALLOW_THREADS;
    for (size_t unit = 0; valid && unit < took.count; unit++) {
        int64_t done = INT64_MIN;
        for (int64_t point = points.data[unit]; point < points.data[unit + 1]; point++)
            for (int64_t way = ways.data[point]; way < ways.data[point + 1]; way++) {
                int64_t arrived = end[origin.data[way]] + weight.data[way] - shift.data[point];
                if (arrived > done) done = arrived;
            }
        for (int64_t point = points.data[unit]; point < points.data[unit + 1]; point++)
            end[point] = done + took.data[unit] + shift.data[point];
    }
    Py_END_ALLOW_THREADS;
    for (int i = 0; i < 7; i++) PyBuffer_Release(&buffers[i]);
    if (!valid) return refused("the arrays of the graph do not belong together");
    Py_RETURN_NONE;
}

PyMethodDef replay_methods[] = {
    {"grouped", grouped, METH_VARARGS, "grouped(groups, count) -> the entries by group, and where each group begins."},
    {"levels", levels, METH_VARARGS, "levels(first, effects) -> the level of each unit; -1 where they wait in a cycle."},
    {"replay", replay, METH_VARARGS, "replay(ends, origins, weights, ways, shifts, points, took) fills in the ends."},
    {NULL, NULL, 0, NULL},
};
