/* Scans a block of Kineto's JSON in one pass: complete events to columns (readers/columns.py).
 *
 * What this file reads, it reads as the SELECT of readers/kineto/reader.py does. Whatever it might read differently it
 * refuses, and with it the block, which the caller then reads with that SELECT. A function that returns a Place returns
 * NULL to refuse. */
#include "event_columns.h"
#include "times.h"

#define LONGEST_EVENT (8 << 20) /* DuckDB reads events of up to 16 MiB */
#define EVENT_BYTES 256 /* about, so that columns seldom grow */
#define SAMPLE (1 << 16) /* where the reader looks for times since 1970 (_LONG_TIME_SAMPLE) */

/* A token and the code of its text. */
typedef struct {
    Place begin;
    size_t length;
    int32_t code;
} Remembered;

/* The fields of an event that are read: the text fields, and these. */
enum { FIELD_TIME = FLOW + 1, FIELD_DURATION, FIELD_ARGS, FIELD_OTHER };

/* The text before a value, and what the value is. */
typedef struct {
    Place text;
    size_t length;
    int field;
    bool colon_follows; /* the key at once */
} Part;

#define MOST_PARTS FIELD_OTHER /* each field once */
#define MOST_LAYOUTS 16

/* The text of an event without the values that differ from event to event. Most events are written like one before
 * them: comparing this text is quicker than reading it again. */
typedef struct {
    Part part[MOST_PARTS];
    int parts;
    Place tail; /* after the last value */
    size_t tail_length;
    EventRow row; /* what the text says */
} Layout;

typedef struct {
    Place begin, end;
    EventColumns columns;
    Remembered last[TEXT_FIELDS]; /* the text of the event before: mostly the same */
    TimeKinds times;
    Layout layout[MOST_LAYOUTS];
    uint8_t order[MOST_LAYOUTS]; /* those used most come first */
    int layouts;
    size_t like_others, unlike; /* events */
} Scan;

static inline bool goes_on_number(uint8_t byte) {
    return is_digit(byte) || byte == '.' || byte == 'e' || byte == 'E';
}

/* A string or a whole number as text; null leaves the code as it is. */
static inline Place read_text(Scan *scan, Place p, int field, int32_t *code) {
    Remembered *last = &scan->last[field];
    if ((size_t)(scan->end - p) > last->length && last->length && same_bytes(last->begin, p, last->length) &&
        (*p == '"' || !goes_on_number(p[last->length]))) {
        *code = last->code;
        return p + last->length;
    }
    Place begin = p;
    Spelling spelling = {0};
    p = skip_scalar(p, scan->end, &spelling);
    if (!p || *begin == 'n') return p;
    if (*begin == '"') *code = code_of_string(&scan->columns, begin + 1, p - 1, spelling);
    else if (is_plain_integer(begin, p)) *code = code_of(&scan->columns, begin, (size_t)(p - begin));
    else return NULL;
    *last = (Remembered){begin, (size_t)(p - begin), *code};
    return *code == NOT_CODED ? NULL : p;
}

/* The id of a flow: a whole number, or the code of a text (readers/columns.py); null leaves it as it is. */
static inline Place read_flow(Scan *scan, Place p, int64_t *flow) {
    Place begin = p;
    Spelling spelling = {0};
    p = skip_scalar(p, scan->end, &spelling);
    if (!p || *begin == 'n') return p;
    bool quoted = *begin == '"';
    Place text = begin + quoted, text_end = p - quoted;
    if (spelling.escaped) return NULL; /* it may be a number that is spelt with escapes */
    if (text_end - text <= MOST_DIGITS && is_digit(*text) && skip_digits(text) == text_end &&
        (*text != '0' || text_end - text == 1)) {
        uint64_t number = 0;
        for (Place digit = text; digit < text_end; digit++) number = number * 10 + (uint64_t)(*digit - '0');
        if (number <= INT64_MAX) {
            *flow = (int64_t)number;
            return p;
        }
    }
    if (!quoted && !is_plain_integer(text, text_end)) return NULL;
    int32_t code = code_of(&scan->columns, text, (size_t)(text_end - text));
    *flow = -1 - (int64_t)code;
    return code == NOT_CODED ? NULL : p;
}

/* A number, or a number in quotes, as Ascend's profilers write it. */
static inline Place read_time(Scan *scan, Place p, bool colon_follows, int64_t *result) {
    Place begin = p;
    if (*p == 'n') return skip_null(p, scan->end);
    bool quoted = *p == '"';
    Decimal number;
    p = read_decimal(p + quoted, scan->end, &number);
    if (!p || (quoted && *p++ != '"')) return NULL;
    bool since_1970 = scan->times.since_1970;
    if (!time_ns(&number, &scan->times, result)) return NULL;
    if (number.fraction && number.whole >= LEAST_SINCE_1970 - 1 && !colon_follows) return NULL;
    if (scan->times.since_1970 && !since_1970 && begin - scan->begin > SAMPLE - 64) return NULL;
    return p;
}

static inline Place read_duration(Scan *scan, Place p, int64_t *result) {
    if (*p == 'n') return skip_null(p, scan->end);
    Decimal number;
    p = read_decimal(p, scan->end, &number);
    return p && duration_ns(&number, result) ? p : NULL;
}

/* A key as it is mostly written. */
typedef struct {
    uint8_t text[8];
    uint8_t length;
    uint8_t field;
} Key;

#define KEY_SLOT(first, second) (((first) * 11 + (second)) & 15) /* different for all of them */

static const Key keys[16] = {
    [KEY_SLOT('p', 'h')] = {"\"ph\":", 5, PHASE},
    [KEY_SLOT('c', 'a')] = {"\"cat\":", 6, CATEGORY},
    [KEY_SLOT('n', 'a')] = {"\"name\":", 7, NAME},
    [KEY_SLOT('p', 'i')] = {"\"pid\":", 6, PID},
    [KEY_SLOT('t', 'i')] = {"\"tid\":", 6, TID},
    [KEY_SLOT('i', 'd')] = {"\"id\":", 5, FLOW},
    [KEY_SLOT('t', 's')] = {"\"ts\":", 5, FIELD_TIME},
    [KEY_SLOT('d', 'u')] = {"\"dur\":", 6, FIELD_DURATION},
    [KEY_SLOT('a', 'r')] = {"\"args\":", 7, FIELD_ARGS},
};

/* From the quote of a key to its value. */
static inline Place read_key(Place p, Place end, int *field, bool *colon_follows) {
    if (*p != '"') return NULL;
    if (end - p >= CHUNK) {
        const Key *key = &keys[KEY_SLOT(p[1], p[2])];
        if (key->length && same_bytes(p, key->text, key->length)) {
            *field = key->field;
            *colon_follows = true;
            return skip_space(p + key->length, end);
        }
    }
    Spelling spelling = {0};
    Place text = p;
    p = find_string_end(p + 1, end, &spelling);
    if (!p || spelling.escaped) return NULL;
    p++;
    size_t length = (size_t)(p - text);
    const Key *key = &keys[KEY_SLOT(text[1], text[2])];
    *field = length + 1 == key->length && same_bytes(text, key->text, length) ? key->field : FIELD_OTHER;
    *colon_follows = *p == ':';
    p = skip_space(p, end);
    return *p == ':' ? skip_space(p + 1, end) : NULL;
}

static const EventRow no_values = {.flow = NO_NUMBER, .time = NO_NUMBER, .duration = NO_NUMBER, .args = NO_OFFSET};

/* Any field but FIELD_OTHER. */
static inline Place read_field(Scan *scan, Place p, int field, bool colon_follows, EventRow *row) {
    switch (field) {
    case FLOW: return read_flow(scan, p, &row->flow);
    case FIELD_TIME: return read_time(scan, p, colon_follows, &row->time);
    case FIELD_DURATION: return read_duration(scan, p, &row->duration);
    case FIELD_ARGS: return read_args(&scan->columns, p, scan->end, &row->args);
    default: return read_text(scan, p, field, &row->codes[field]);
    }
}

/* From the brace of an event to the place after it; NULL if it is not written like this. */
static Place read_with_layout(Scan *scan, const Layout *layout, Place begin) {
    Place p = begin, end = scan->end;
    EventRow row = layout->row;
    for (int at = 0; at < layout->parts; at++) {
        const Part *part = &layout->part[at];
        if ((size_t)(end - p) <= part->length || !same_bytes(p, part->text, part->length)) return NULL;
        p = read_field(scan, p + part->length, part->field, part->colon_follows, &row);
        if (!p) return NULL;
    }
    if ((size_t)(end - p) < layout->tail_length || !same_bytes(p, layout->tail, layout->tail_length)) return NULL;
    p += layout->tail_length;
    if (p - begin > LONGEST_EVENT) return NULL;
    return add_event(&scan->columns, &row) ? p : NULL;
}

static inline Place read_like_others(Scan *scan, Place begin) {
    for (int at = 0; at < scan->layouts; at++) {
        Place p = read_with_layout(scan, &scan->layout[scan->order[at]], begin);
        if (!p) continue;
        if (at) {
            uint8_t before = scan->order[at - 1];
            scan->order[at - 1] = scan->order[at];
            scan->order[at] = before;
        }
        scan->like_others++;
        return p;
    }
    scan->unlike++;
    return NULL;
}

/* Put a layout in the place of the one used least. */
static void add_layout(Scan *scan, const Layout *layout) {
    if (scan->layouts < MOST_LAYOUTS) {
        scan->order[scan->layouts] = (uint8_t)scan->layouts;
        scan->layouts++;
    }
    scan->layout[scan->order[scan->layouts - 1]] = *layout;
}

/* From the brace of an event to the place after it. */
static Place read_event(Scan *scan, Place p) {
    Place begin = p, end = scan->end;
    bool differ = scan->unlike > 64 && scan->unlike > scan->like_others / 4;
    if (!differ && (p = read_like_others(scan, begin))) return p;
    p = begin;
    EventRow row = no_values;
    Layout layout = {.tail = begin, .row = no_values};
    uint32_t fields = 0;
    p = skip_space(p + 1, end);
    bool more = *p != '}';
    while (more) {
        int field;
        bool colon_follows;
        p = read_key(p, end, &field, &colon_follows);
        if (!p || (field != FIELD_OTHER && fields >> field & 1)) return NULL;
        fields |= 1u << field;
        if (field == FIELD_OTHER) {
            const Array *args = &scan->columns.column[ARGS];
            Copy dropped = {p, end, args->data + args->size};
            Spelling spelling = {0};
            p = copy_value(&dropped, p, &spelling);
        } else if (field == PHASE || field == CATEGORY) {
            p = read_field(scan, p, field, colon_follows, &row);
            layout.row.codes[field] = row.codes[field];
        } else {
            Place value = p;
            p = read_field(scan, p, field, colon_follows, &row);
            layout.part[layout.parts++] = (Part){layout.tail, (size_t)(value - layout.tail), field, colon_follows};
            layout.tail = p;
        }
        if (!p) return NULL;
        p = skip_space(p, end);
        more = *p == ',';
        if (more) p = skip_space(p + 1, end);
    }
    if (*p++ != '}' || p - begin > LONGEST_EVENT) return NULL;
    layout.tail_length = (size_t)(p - layout.tail);
    if (!differ) add_layout(scan, &layout);
    return add_event(&scan->columns, &row) ? p : NULL;
}

/* Events with commas between them. */
static bool read_events(Scan *scan) {
    Place p = scan->begin;
    while (p < scan->end) {
        if (*p != '{') return false;
        p = read_event(scan, p);
        if (!p) return false;
        if (p == scan->end) break;
        p = skip_space(p, scan->end);
        if (*p != ',') return false;
        p = skip_space(p + 1, scan->end);
    }
    return !(scan->times.since_1970 && scan->times.finer_than_ns);
}

/* Leave out space and at most one comma before and after the events. */
static void trim(Scan *scan) {
    Place begin = scan->begin, end = scan->end;
    while (begin < end && is_space(*begin)) begin++;
    if (begin < end && *begin == ',') begin++;
    while (begin < end && is_space(*begin)) begin++;
    while (begin < end && is_space(end[-1])) end--;
    if (begin < end && end[-1] == ',') end--;
    while (begin < end && is_space(end[-1])) end--;
    scan->begin = begin;
    scan->end = end;
}

static bool scan_block(Scan *scan) {
    trim(scan);
    size_t size = (size_t)(scan->end - scan->begin);
    if (size && scan->end[-1] != '}') return false; /* what json.h needs */
    if (!columns_start(&scan->columns)) return false;
    for (int column = 0; column <= ARGS_OFFSET; column++)
        if (column != ARGS && !array_reserve(&scan->columns.column[column], size / EVENT_BYTES * 8)) return false;
    /* Copied arguments are shorter than what they are copied from: "args": is longer than the length before them. */
    return array_reserve(&scan->columns.column[ARGS], size + CHUNK) && read_events(scan);
}

static PyObject *scan_events(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *words, *names, *result = NULL;
    Py_buffer view;
    if (!PyArg_ParseTuple(arguments, "y*O!O!", &view, &PyTuple_Type, &words, &PyTuple_Type, &names)) return NULL;
    Scan *scan = calloc(1, sizeof *scan);
    if (!scan) {
        PyErr_NoMemory();
    } else if (columns_init(&scan->columns, words, names)) {
        scan->begin = view.buf;
        scan->end = scan->begin + view.len;
        bool read = false;
        Py_BEGIN_ALLOW_THREADS
        read = scan_block(scan);
        Py_END_ALLOW_THREADS
        result = read ? columns_to_python(&scan->columns) : Py_NewRef(Py_None);
    }
    if (scan) columns_free(&scan->columns);
    free(scan);
    PyBuffer_Release(&view);
    return result;
}

PyMethodDef scan_methods[] = {
    {"scan_events", scan_events, METH_VARARGS,
     "scan_events(block, words, names): the columns of a block's events, then the offsets and bytes of their texts; "
     "None if the block is refused. Called by rankscope.readers.kineto.reader, which says what the lists are."},
    {NULL, NULL, 0, NULL},
};
