/* The replay of a graph: what rankscope.analysis.graph.replay does with numpy, level by
 * level, of which a long job has thousands. All numbers have 8 bytes. */
#include "native.h"

enum { MOST_LANES = 8 };

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

typedef struct {
    Numbers origin, ways, shift, points;
    Numbers weight[2], took[2];  /* the second: of the lane that a way or unit is in */
    const int8_t *lane_of_way, *lane_of_unit;
} Graph;

/* The ends of all lanes, unit by unit: a unit is done when the last of its points has arrived, which is when the last of
 * the point's ways has. */
static inline void replay_lanes(const Graph *graph, int64_t *end, int lanes) {
    for (size_t unit = 0; unit < graph->took[0].count; unit++) {
        int64_t done[MOST_LANES];
        for (int lane = 0; lane < lanes; lane++) done[lane] = INT64_MIN;
        int64_t first = graph->points.data[unit], last = graph->points.data[unit + 1];
        for (int64_t point = first; point < last; point++) {
            int64_t shift = graph->shift.data[point];
            for (int64_t way = graph->ways.data[point]; way < graph->ways.data[point + 1]; way++) {
                const int64_t *from = end + graph->origin.data[way] * lanes;
                int64_t weight = graph->weight[0].data[way] - shift;
                int own = graph->lane_of_way[way];
                int64_t kept = own < 0 ? 0 : done[own];
                for (int lane = 0; lane < lanes; lane++)
                    if (from[lane] + weight > done[lane]) done[lane] = from[lane] + weight;
                if (own < 0) continue;
                int64_t arrived = from[own] + graph->weight[1].data[way] - shift;
                done[own] = arrived > kept ? arrived : kept;
            }
        }
        for (int64_t point = first; point < last; point++)
            for (int lane = 0; lane < lanes; lane++)
                end[point * lanes + lane] = done[lane] + graph->shift.data[point] +
                                            graph->took[lane == graph->lane_of_unit[unit]].data[unit];
    }
}

static bool are_lanes(const Py_buffer *buffer, size_t count, int lanes) {
    const int8_t *lane = buffer->buf;
    for (size_t i = 0; i < count; i++)
        if (lane[i] < -1 || lane[i] >= lanes) return false;
    return true;
}

/* Fill in the ends of the points in several lanes at once, which differ in the durations of few. */
static PyObject *replay(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer buffers[11];
    int lanes;
    if (!PyArg_ParseTuple(
            arguments, "w*iy*y*y*y*y*y*y*y*y*y*", &buffers[0], &lanes, &buffers[1], &buffers[2], &buffers[3],
            &buffers[4], &buffers[5], &buffers[6], &buffers[7], &buffers[8], &buffers[9], &buffers[10]
        ))
        return NULL;
    Graph graph = {
        .origin = numbers(&buffers[1]),
        .ways = numbers(&buffers[2]),
        .shift = numbers(&buffers[3]),
        .points = numbers(&buffers[4]),
        .weight = {numbers(&buffers[5]), numbers(&buffers[6])},
        .took = {numbers(&buffers[7]), numbers(&buffers[8])},
        .lane_of_way = buffers[9].buf,
        .lane_of_unit = buffers[10].buf,
    };
    size_t ways = graph.origin.count, units = graph.took[0].count;
    size_t ends = lanes > 0 ? (size_t)buffers[0].len / 8 / (size_t)lanes : 0;
    bool valid = lanes > 0 && lanes <= MOST_LANES && graph.weight[0].count == ways && graph.weight[1].count == ways &&
                 graph.took[1].count == units && graph.ways.count == graph.shift.count + 1 &&
                 graph.points.count == units + 1 && graph.shift.count <= ends && are_bounds(graph.ways, ways) &&
                 are_bounds(graph.points, graph.shift.count) && are_indices(graph.origin, ends) &&
                 (size_t)buffers[9].len == ways && (size_t)buffers[10].len == units &&
                 are_lanes(&buffers[9], ways, lanes) && are_lanes(&buffers[10], units, lanes);
    Py_BEGIN_ALLOW_THREADS;
    if (valid && lanes == 1) replay_lanes(&graph, buffers[0].buf, 1);
    else if (valid && lanes == MOST_LANES) replay_lanes(&graph, buffers[0].buf, MOST_LANES);
    else if (valid) replay_lanes(&graph, buffers[0].buf, lanes);
    Py_END_ALLOW_THREADS;
    for (int i = 0; i < 11; i++) PyBuffer_Release(&buffers[i]);
    if (!valid) return refused("the arrays of the graph do not belong together");
    Py_RETURN_NONE;
}

PyMethodDef replay_methods[] = {
    {"grouped", grouped, METH_VARARGS, "grouped(groups, count) -> the entries by group, and where each group begins."},
    {"levels", levels, METH_VARARGS, "levels(first, effects) -> the level of each unit; -1 where they wait in a cycle."},
    {"replay", replay, METH_VARARGS, 
     "replay(ends, lanes, origins, ways, shifts, points, weights, others, took, others, lanes of ways, of units) fills in "
     "the ends."},
    {NULL, NULL, 0, NULL},
};
