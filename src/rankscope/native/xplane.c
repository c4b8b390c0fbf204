/* Lines of XLA's XSpace protobuf (readers/xla/planes.py): where their fields are, and their events as columns.
 *
 * An event that is damaged is left out and counted; bytes that are no text become U+FFFD. */
#include "json.h"
#include "protobuf.h"

#define NO_ARGS UINT32_MAX
#define LONGEST_ARGS (1u << 28) /* of a piece: stats may refer to one long text again and again */

enum { LINE_EVENT = 4 };
enum { EVENT_METADATA = 1, EVENT_OFFSET = 2, EVENT_DURATION = 3, EVENT_STAT = 4, EVENT_OCCURRENCES = 5 };
enum { STAT_METADATA = 1, STAT_DOUBLE = 2, STAT_UNSIGNED = 3, STAT_SIGNED = 4, STAT_TEXT = 5, STAT_BYTES = 6, STAT_REFERENCE = 7 };

/* line_cuts(view, step) -> (where each piece of at least `step` bytes ends (int64), its fields that are no events,
 * number of events, whether it ends early) */
static PyObject *line_cuts(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer view;
    Py_ssize_t step;
    if (!PyArg_ParseTuple(args, "y*n", &view, &step)) return NULL;
    Array found[2] = {{0}, {0}};
    Bytes line = bytes_of(view.buf, (size_t)view.len);
    const uint8_t *begin = line.at, *last = line.at, *before = line.at;
    long long events = 0;
    Field field;
    Py_BEGIN_ALLOW_THREADS
    for (; next_field(&line, &field); before = line.at) {
        if (field.number == LINE_EVENT && field.wire == WIRE_BYTES) events++;
        else array_append(&found[1], before, (size_t)(line.at - before));
        if (line.at - last >= step) {
            array_append_i64(&found[0], line.at - begin);
            last = line.at;
        }
    }
    if (before > last) array_append_i64(&found[0], before - begin);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    PyObject *both = arrays_to_python(found, 2);
    return both ? Py_BuildValue("NLO", both, events, line.damaged ? Py_True : Py_False) : NULL;
}

/* Texts by the ids that events refer to them by; the ids are in ascending order. XLA counts them up, so that a table of
 * all of them is mostly small. */
typedef struct {
    const int64_t *ids;
    const uint8_t *data;
    const int64_t *offsets;
    size_t count;
    int32_t *table; /* NULL if it would be large */
    uint64_t table_size;
} Named;

static void make_table(Named *named) {
    if (!named->count || named->ids[0] < 0 || named->ids[named->count - 1] >= (int64_t)(8 * named->count + 1024)) return;
    named->table_size = (uint64_t)named->ids[named->count - 1] + 1;
    named->table = malloc(named->table_size * sizeof *named->table);
    if (!named->table) return;
    for (uint64_t id = 0; id < named->table_size; id++) named->table[id] = -1;
    for (size_t place = 0; place < named->count; place++) named->table[named->ids[place]] = (int32_t)place;
}

static inline int64_t place_of(const Named *named, int64_t id) {
    if (named->table) return (uint64_t)id < named->table_size ? named->table[id] : -1;
    size_t low = 0, high = named->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (named->ids[middle] < id) low = middle + 1;
        else high = middle;
    }
    return low < named->count && named->ids[low] == id ? (int64_t)low : -1;
}

typedef struct {
    Named metadata; /* what all events of a metadata have in their arguments: JSON without braces */
    Named stats;    /* names as JSON text; empty for those that are left out */
    const int64_t *picked;
    size_t picks;
    Array index, offset, duration, values, args, args_offset;
    long long without_time, without_metadata, damaged, without_args;
} Reading;

/* One stat of an event: into its arguments, and into a column if it is one of those picked. False if it is damaged. */
static bool read_stat(Reading *reading, Bytes stat, int64_t *values, bool *has_args) {
    int64_t id = 0;
    Field field, value = {0};
    while (next_field(&stat, &field)) {
        if (field.number == STAT_METADATA) id = (int64_t)field.value;
        else if (field.number <= STAT_REFERENCE) value = field;
    }
    if (stat.damaged) return false;
    bool is_whole = value.number == STAT_UNSIGNED || value.number == STAT_SIGNED || value.number == STAT_REFERENCE;
    for (size_t pick = 0; pick < reading->picks; pick++)
        if (reading->picked[pick] == id && is_whole) values[pick] = (int64_t)value.value;
    int64_t place = place_of(&reading->stats, id);
    if (place < 0) return true;
    const int64_t *offsets = reading->stats.offsets;
    const uint8_t *names = reading->stats.data;
    Array *out = &reading->args;
    size_t length = (size_t)(offsets[place + 1] - offsets[place]);
    if (!length) return true;
    array_append(out, *has_args ? "," : "{", 1);
    *has_args = true;
    array_append(out, names + offsets[place], length);
    array_append(out, ":", 1);
    switch (value.number) {
    case STAT_DOUBLE: array_append_double(out, double_of(&value)); return true;
    case STAT_UNSIGNED: array_append_unsigned(out, value.value); return true;
    case STAT_SIGNED: array_append_signed(out, (int64_t)value.value); return true;
    case STAT_TEXT: append_quoted(out, value.bytes.at, value.bytes.end); return true;
    case STAT_BYTES:
        array_append(out, "\"", 1);
        array_append_unsigned(out, bytes_left(&value.bytes));
        array_append(out, " bytes\"", 7);
        return true;
    case STAT_REFERENCE: {
        int64_t referred = place_of(&reading->stats, (int64_t)value.value);
        length = referred < 0 ? 0 : (size_t)(offsets[referred + 1] - offsets[referred]);
        if (length) array_append(out, names + offsets[referred], length);
        else array_append(out, "\"\"", 2);
        return true;
    }
    default: array_append(out, "null", 4); return true;
    }
}

static void read_event(Reading *reading, Bytes event) {
    int64_t id = 0, offset = 0, duration = 0;
    bool is_counted = false;
    Bytes rest = event;
    Field field;
    while (next_field(&rest, &field)) {
        if (field.number == EVENT_METADATA) id = (int64_t)field.value;
        else if (field.number == EVENT_OFFSET) offset = (int64_t)field.value, is_counted = false;
        else if (field.number == EVENT_DURATION) duration = (int64_t)field.value;
        else if (field.number == EVENT_OCCURRENCES) is_counted = true;
    }
    int64_t place = place_of(&reading->metadata, id);
    if (rest.damaged || is_counted || place < 0) {
        *(rest.damaged ? &reading->damaged : is_counted ? &reading->without_time : &reading->without_metadata) += 1;
        return;
    }
    size_t begin = reading->args.size, row = reading->values.size;
    bool has_args = false;
    for (size_t pick = 0; pick < reading->picks; pick++) array_append_i64(&reading->values, INT64_MIN);
    array_append(&reading->args, "\0\0\0\0", 4);
    const int64_t *offsets = reading->metadata.offsets;
    if (offsets[place + 1] > offsets[place]) {
        has_args = true;
        array_append(&reading->args, "{", 1);
        array_append(&reading->args, reading->metadata.data + offsets[place], (size_t)(offsets[place + 1] - offsets[place]));
    }
    for (rest = event; next_field(&rest, &field);) {
        if (field.number != EVENT_STAT || field.wire != WIRE_BYTES) continue;
        if (reading->values.failed || reading->args.failed) return;
        bool is_long = reading->args.size > LONGEST_ARGS;
        size_t size = reading->args.size;
        if (!read_stat(reading, field.bytes, (int64_t *)(reading->values.data + row), &has_args)) {
            reading->args.size = begin;
            reading->values.size = row;
            reading->damaged++;
            return;
        }
        if (is_long) reading->args.size = size;
    }
    if (has_args) array_append(&reading->args, "}", 1);
    if (reading->args.failed) return;
    if (reading->args.size > LONGEST_ARGS) {
        has_args = false;
        reading->without_args++;
    }
    if (!has_args) reading->args.size = begin;
    if (has_args) {
        uint32_t length = (uint32_t)(reading->args.size - begin - 4);
        uint8_t bytes[4] = {(uint8_t)length, (uint8_t)(length >> 8), (uint8_t)(length >> 16), (uint8_t)(length >> 24)};
        memcpy(reading->args.data + begin, bytes, sizeof bytes);
    }
    array_append_i32(&reading->args_offset, (int32_t)(has_args ? (uint32_t)begin : NO_ARGS));
    array_append_i32(&reading->index, (int32_t)place);
    array_append_i64(&reading->offset, offset);
    array_append_i64(&reading->duration, duration);
}

static bool is_named(const Py_buffer *ids, const Py_buffer *offsets, const Py_buffer *data, Named *named) {
    size_t count = (size_t)ids->len / sizeof(int64_t);
    *named = (Named){.ids = ids->buf, .data = data->buf, .offsets = offsets->buf, .count = count};
    if ((size_t)offsets->len != (count + 1) * sizeof(int64_t) || named->offsets[0] != 0) return false;
    for (size_t i = 0; i < count; i++)
        if (named->offsets[i] > named->offsets[i + 1] || (i && named->ids[i - 1] >= named->ids[i])) return false;
    return named->offsets[count] <= data->len;
}

/* line_events(view, metadata (ids, offsets, texts), stats (ids, offsets, texts), picked ids)
 * -> ((index of metadata, offset ps, duration ps, picked values, args, args_offset), number of events without a time,
 * without metadata, that are damaged, whose arguments were left out) */
static PyObject *line_events(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[8];
    memset(views, 0, sizeof views);
    if (!PyArg_ParseTuple(args, "y*(y*y*y*)(y*y*y*)y*", &views[0], &views[1], &views[2], &views[3], &views[4], &views[5],
                          &views[6], &views[7]))
        return NULL;
    Reading reading = {.picked = views[7].buf, .picks = (size_t)views[7].len / sizeof(int64_t)};
    bool fits = is_named(&views[1], &views[2], &views[3], &reading.metadata) &&
                is_named(&views[4], &views[5], &views[6], &reading.stats);
    Py_BEGIN_ALLOW_THREADS
    if (fits) make_table(&reading.metadata), make_table(&reading.stats);
    Bytes line = bytes_of(views[0].buf, (size_t)views[0].len);
    Field field;
    while (fits && next_field(&line, &field))
        if (field.number == LINE_EVENT && field.wire == WIRE_BYTES) read_event(&reading, field.bytes);
    free(reading.metadata.table);
    free(reading.stats.table);
    Py_END_ALLOW_THREADS
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) PyBuffer_Release(&views[i]);
    Array columns[] = {reading.index, reading.offset, reading.duration, reading.values, reading.args, reading.args_offset};
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "ids are not in ascending order, or texts are not where they are said to be");
        return NULL;
    }
    PyObject *found = arrays_to_python(columns, sizeof columns / sizeof *columns);
    return found ? Py_BuildValue("NLLLL", found, reading.without_time, reading.without_metadata, reading.damaged,
                                 reading.without_args)
                 : NULL;
}

PyMethodDef xplane_methods[] = {
    {"line_cuts", line_cuts, METH_VARARGS, "Where a line of an XPlane can be cut, its number of events, damaged."},
    {"line_events", line_events, METH_VARARGS, "The events of a piece of a line as columns."},
    {NULL, NULL, 0, NULL},
};
