/* Scans a block of Kineto's JSON in one pass: complete events to columns (readers/columns.py).
 *
 * What this file reads, it reads as the SELECT of readers/kineto/reader.py does. Whatever it might read differently it
 * refuses, and with it the block, which the caller then reads with that SELECT. A function that returns a Place returns
 * NULL to refuse. */
#include "json.h"
#include "native.h"
#include "texts.h"
#include "times.h"

#define NO_NUMBER INT64_MIN
#define NO_ARGS UINT32_MAX
#define LONGEST_EVENT (8 << 20) /* DuckDB reads events of up to 16 MiB */
#define LARGEST_BLOCK (INT32_MAX - 64) /* offsets of arguments have 32 bits */
#define MOST_NESTED 100
#define SAMPLE (1 << 16) /* where the reader looks for times since 1970 (_LONG_TIME_SAMPLE) */

/* The columns, in the order in which scan_events returns them. */
enum {
    PHASE, CATEGORY, NAME, PID, TID,
    FLOW, TIME, DURATION, ARGS, ARGS_OFFSET,
    LINKED, CORRELATION, EXTERNAL_ID, DEVICE, STREAM, BYTES, COLLECTIVE,
    MEMORY_EVENTS, MEMORY, COMPUTING, SHAPES,
    COLUMNS,
};
#define TEXT_FIELDS (TID + 1)

/* What a category or a name means: one bit for each list of words that scan_events gets, in this order. */
enum {
    CATEGORY_UNTYPED = 1 << 0, /* its events have no typed arguments */
    CATEGORY_ID_ANYWHERE = 1 << 1, /* ... but an External id */
    CATEGORY_ID_FIRST = 1 << 2, /* ... but an External id, if it is the first argument and a number */
    CATEGORY_OPS = 1 << 3,
    NAME_TYPED = 1 << 4, /* typed arguments in every category */
    NAME_MEMORY = 1 << 5,
    NAME_COMPUTING = 1 << 6,
    WORD_LISTS = 7,
};

/* The arguments with columns, in the order of the lists of names that scan_events gets: numbers that link events, texts
 * that do, numbers of memory events, shapes. */
enum { LINK_NUMBERS, LINK_TEXTS, MEMORY_NUMBERS, SHAPE_TEXTS, NAME_LISTS };
#define LINKING_NUMBERS (BYTES - CORRELATION + 1)
#define MOST_NAMES 32

typedef struct {
    Place begin, end; /* in the block */
    const uint8_t *out, *out_end; /* in the column ARGS, without space */
    Spelling spelling;
} Value;

/* A token and the code of its text. */
typedef struct {
    Place begin;
    size_t length;
    int32_t code;
} Remembered;

typedef struct {
    Place begin, end;
    Array columns[COLUMNS];
    Texts texts;
    Array marks; /* uint8 for each text: the lists of words that have it */
    Texts words;
    uint8_t word_marks[256];
    Texts names;
    int32_t names_of[NAME_LISTS + 1]; /* where each list begins */
    uint32_t name_lengths[256]; /* by first byte: bit i is set if a name of that length, modulo 32, begins so */
    Remembered last[TEXT_FIELDS]; /* the text of the event before: mostly the same */
    Array decoded;
    int32_t events;
    TimeKinds times;
    uint8_t *out; /* the end of the arguments copied so far */
    /* Of the current event. */
    uint32_t has; /* one bit for each name */
    int32_t first_name;
    Value values[MOST_NAMES];
} Scan;

static int32_t code_of(Scan *scan, const uint8_t *bytes, size_t count) {
    int32_t known = scan->texts.count;
    int32_t code = texts_code(&scan->texts, bytes, count);
    if (code == known) {
        size_t unused;
        int32_t word = texts_find(&scan->words, bytes, count, hash_bytes(bytes, count), &unused);
        array_append(&scan->marks, word < 0 ? &(uint8_t){0} : &scan->word_marks[word], 1);
        if (scan->marks.failed) return NOT_CODED;
    }
    return code;
}

/* The code of a string, given what is inside its quotes; NOT_CODED also for one with a zero character. */
static int32_t code_of_string(Scan *scan, Place begin, Place end, Spelling spelling) {
    if (!spelling.escaped) return code_of(scan, begin, (size_t)(end - begin));
    scan->decoded.size = 0;
    if (!array_reserve(&scan->decoded, (size_t)(end - begin))) return NOT_CODED;
    uint8_t *decoded_end = decode_string(begin, end, scan->decoded.data);
    if (!decoded_end) return NOT_CODED;
    return code_of(scan, scan->decoded.data, (size_t)(decoded_end - scan->decoded.data));
}

static bool is_plain_integer(Place begin, Place end) {
    Place digits = begin + (*begin == '-');
    if (digits == end || end - digits > 18 || skip_digits(digits) != end) return false;
    return *digits != '0' || end - begin == 1; /* not -0, no leading zeros */
}

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
    if (*begin == '"') *code = code_of_string(scan, begin + 1, p - 1, spelling);
    else if (is_plain_integer(begin, p)) *code = code_of(scan, begin, (size_t)(p - begin));
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
    int32_t code = code_of(scan, text, (size_t)(text_end - text));
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

/* Text is copied in pieces between spaces: what begins at `from` is still to be copied to `out`. */
typedef struct {
    Place from;
    Place end;
    uint8_t *out;
} Copy;

/* Copy what has been read up to here. There is room for the whole block and CHUNK bytes more. */
static inline void copy_piece(Copy *copy, Place p) {
    size_t count = (size_t)(p - copy->from);
    if (copy->end - p >= CHUNK)
        for (size_t at = 0; at < count; at += CHUNK) copy_chunk(copy->out + at, copy->from + at);
    else
        memcpy(copy->out, copy->from, count);
    copy->out += count;
}

/* Leave out space between two tokens. */
static inline Place skip_gap(Copy *copy, Place p) {
    if (*p > ' ') return p;
    copy_piece(copy, p);
    return copy->from = skip_space(p, copy->end);
}

static inline Place skip_colon(Copy *copy, Place p) {
    p = skip_gap(copy, p);
    return *p == ':' ? skip_gap(copy, p + 1) : NULL;
}

/* Any value, copied. */
static Place copy_value(Copy *result, Place p, Spelling *spelling) {
    Copy copy = *result;
    Spelling found = *spelling;
    uint8_t closing[MOST_NESTED];
    int depth = 0;
    for (;;) {
        if (*p == '{' || *p == '[') {
            if (depth == MOST_NESTED) return NULL;
            closing[depth++] = *p + 2; /* ASCII has } and ] two places after { and [ */
            p = skip_gap(&copy, p + 1);
            if (*p != closing[depth - 1]) goto item;
        } else {
            p = skip_scalar(p, copy.end, &found);
            if (!p) return NULL;
            if (!depth) break;
            p = skip_gap(&copy, p);
        }
        while (*p == closing[depth - 1]) {
            p++;
            if (--depth == 0) goto done;
            if (p == copy.end) return NULL;
            p = skip_gap(&copy, p);
        }
        if (*p != ',') return NULL;
        p = skip_gap(&copy, p + 1);
    item:
        if (closing[depth - 1] == '}') {
            if (*p != '"') return NULL;
            p = find_string_end(p + 1, copy.end, &found);
            if (!p) return NULL;
            p = skip_colon(&copy, p + 1);
            if (!p) return NULL;
        }
    }
done:
    *result = copy;
    *spelling = found;
    return p == copy.end ? NULL : p; /* the last brace closes the event */
}

/* The number of the name of an argument with columns, or a negative number. */
static inline int32_t name_of(const Scan *scan, Place key, size_t length) {
    if (!(scan->name_lengths[*key] >> (length & 31) & 1)) return NO_TEXT; /* most names end here */
    size_t unused;
    return texts_find(&scan->names, key, length, hash_bytes(key, length), &unused);
}

/* Arguments: an object, copied behind its length. Values of arguments with columns are remembered. */
static inline Place read_args(Scan *scan, Place p, uint32_t *offset) {
    if (*p == 'n') return skip_null(p, scan->end);
    if (*p != '{') return NULL;
    uint8_t *column = scan->columns[ARGS].data, *length = scan->out;
    *offset = (uint32_t)(length - column);
    Copy copy = {p, scan->end, length + 4};
    p = skip_gap(&copy, p + 1);
    bool more = *p != '}';
    for (bool first = true; more; first = false) {
        if (*p != '"') return NULL;
        Spelling spelling = {0};
        Place key = p + 1;
        p = find_string_end(key, copy.end, &spelling);
        if (!p || spelling.escaped) return NULL;
        int32_t name = name_of(scan, key, (size_t)(p - key));
        p = skip_colon(&copy, p + 1);
        if (!p) return NULL;
        Place value = p;
        uint8_t *out = copy.out + (p - copy.from);
        p = *p == '{' || *p == '[' ? copy_value(&copy, p, &spelling) : skip_scalar(p, copy.end, &spelling);
        if (!p) return NULL;
        if (name >= 0) {
            if (scan->has >> name & 1) return NULL;
            scan->has |= 1u << name;
            scan->values[name] = (Value){value, p, out, copy.out + (p - copy.from), spelling};
            if (first) scan->first_name = name;
        }
        p = skip_gap(&copy, p);
        more = *p == ',';
        if (more) p = skip_gap(&copy, p + 1);
    }
    if (*p++ != '}' || p == copy.end) return NULL;
    copy_piece(&copy, p);
    uint32_t count = (uint32_t)(copy.out - length - 4);
    for (int at = 0; at < 4; at++) length[at] = (uint8_t)(count >> 8 * at);
    scan->out = copy.out;
    return p;
}

/* The number that text writes; NO_NUMBER if it does not fit. */
static int64_t integer_of(Place begin, Place end) {
    bool negative = *begin == '-';
    uint64_t value = 0;
    if (end - begin - negative > MOST_DIGITS) return NO_NUMBER;
    for (Place p = begin + negative; p < end; p++) value = value * 10 + (uint64_t)(*p - '0');
    if (value > INT64_MAX) return NO_NUMBER; /* also right for -2**63, which is NO_NUMBER */
    return negative ? -(int64_t)value : (int64_t)value;
}

/* An argument as a number: false if it is written in a way that is read by DuckDB. */
static bool number_of(const Scan *scan, int32_t name, int64_t *result) {
    *result = NO_NUMBER;
    if (!(scan->has >> name & 1)) return true;
    const Value *value = &scan->values[name];
    Place begin = value->begin, end = value->end;
    switch (*begin) {
    case 'n': case '[': case '{': return true;
    case 't': case 'f': return false;
    case '"':
        begin++;
        end--;
        if (begin == end || (uint8_t)((*begin | 0x20) - 'a') < 26) /* empty or from a letter on: not a number */
            return !value->spelling.escaped;
        if (!is_plain_integer(begin, end)) return false;
        break;
    default:
        if (skip_digits(begin + (*begin == '-')) != end) return false;
    }
    *result = integer_of(begin, end);
    return true;
}

/* An argument as text: strings decoded, other values as JSON. False if DuckDB would write it differently. */
static bool text_of(Scan *scan, int32_t name, int32_t *code) {
    *code = NO_TEXT;
    if (!(scan->has >> name & 1)) return true;
    const Value *value = &scan->values[name];
    if (*value->begin == 'n') return true;
    if (*value->begin == '"') {
        *code = code_of_string(scan, value->begin + 1, value->end - 1, value->spelling);
    } else {
        if (value->spelling.rewritten) return false;
        *code = code_of(scan, value->out, (size_t)(value->out_end - value->out));
    }
    return *code != NOT_CODED;
}

static bool add_links(Scan *scan, uint8_t category, bool typed) {
    Array *columns = scan->columns;
    int64_t numbers[LINKING_NUMBERS] = {NO_NUMBER, NO_NUMBER, NO_NUMBER, NO_NUMBER, NO_NUMBER};
    int32_t collective = NO_TEXT, external_id = EXTERNAL_ID - CORRELATION;
    if (typed) {
        for (int32_t name = 0; name < LINKING_NUMBERS; name++)
            if (!number_of(scan, name, &numbers[name])) return false;
        if (!text_of(scan, scan->names_of[LINK_TEXTS], &collective)) return false;
    } else if (category & CATEGORY_ID_ANYWHERE) {
        if (!number_of(scan, external_id, &numbers[external_id])) return false;
    } else if (category & CATEGORY_ID_FIRST && scan->first_name == external_id) {
        int64_t number;
        if (!number_of(scan, external_id, &number)) return false;
        if (number >= 0 && *scan->values[external_id].begin != '"') numbers[external_id] = number;
    }
    bool linked = collective != NO_TEXT;
    for (int at = 0; at < LINKING_NUMBERS; at++) linked |= numbers[at] != NO_NUMBER;
    if (!linked) return true;
    array_append_i32(&columns[LINKED], scan->events);
    for (int at = 0; at < LINKING_NUMBERS; at++) array_append_i64(&columns[CORRELATION + at], numbers[at]);
    array_append_i32(&columns[COLLECTIVE], collective);
    return true;
}

static bool add_memory(Scan *scan) {
    array_append_i32(&scan->columns[MEMORY_EVENTS], scan->events);
    for (int32_t name = scan->names_of[MEMORY_NUMBERS]; name < scan->names_of[SHAPE_TEXTS]; name++) {
        int64_t number;
        if (!number_of(scan, name, &number)) return false;
        array_append_i64(&scan->columns[MEMORY], number);
    }
    return true;
}

static bool add_shapes(Scan *scan) {
    array_append_i32(&scan->columns[COMPUTING], scan->events);
    for (int32_t name = scan->names_of[SHAPE_TEXTS]; name < scan->names_of[NAME_LISTS]; name++) {
        int32_t code;
        if (!text_of(scan, name, &code)) return false;
        array_append_i32(&scan->columns[SHAPES], code);
    }
    return true;
}

/* The fields of an event that are read: the text fields, and these. */
enum { FIELD_TIME = FLOW + 1, FIELD_DURATION, FIELD_ARGS, FIELD_OTHER };

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

/* From the brace of an event to the place after it. */
static Place read_event(Scan *scan, Place p) {
    Place begin = p, end = scan->end;
    int32_t codes[TEXT_FIELDS];
    for (int field = 0; field < TEXT_FIELDS; field++) codes[field] = NO_TEXT;
    int64_t flow = NO_NUMBER, time = NO_NUMBER, duration = NO_NUMBER;
    uint32_t args = NO_ARGS, fields = 0;
    scan->has = 0;
    scan->first_name = NO_TEXT;
    p = skip_space(p + 1, end);
    bool more = *p != '}';
    while (more) {
        int field;
        bool colon_follows;
        p = read_key(p, end, &field, &colon_follows);
        if (!p || (field != FIELD_OTHER && fields >> field & 1)) return NULL;
        fields |= 1u << field;
        switch (field) {
        case FLOW: p = read_flow(scan, p, &flow); break;
        case FIELD_TIME: p = read_time(scan, p, colon_follows, &time); break;
        case FIELD_DURATION: p = read_duration(scan, p, &duration); break;
        case FIELD_ARGS: p = read_args(scan, p, &args); break;
        case FIELD_OTHER: {
            Copy dropped = {p, end, scan->out};
            Spelling spelling = {0};
            p = copy_value(&dropped, p, &spelling);
            break;
        }
        default: p = read_text(scan, p, field, &codes[field]);
        }
        if (!p) return NULL;
        p = skip_space(p, end);
        more = *p == ',';
        if (more) p = skip_space(p + 1, end);
    }
    if (*p++ != '}' || p - begin > LONGEST_EVENT) return NULL;

    Array *columns = scan->columns;
    for (int field = 0; field < TEXT_FIELDS; field++) {
        if (codes[field] == NO_TEXT) {
            codes[field] = code_of(scan, begin, 0);
            if (codes[field] == NOT_CODED) return NULL;
        }
        array_append_i32(&columns[field], codes[field]);
    }
    array_append_i64(&columns[FLOW], flow);
    array_append_i64(&columns[TIME], time);
    array_append_i64(&columns[DURATION], duration);
    array_append_i32(&columns[ARGS_OFFSET], (int32_t)args);
    if (args != NO_ARGS) {
        uint8_t category = scan->marks.data[codes[CATEGORY]], name = scan->marks.data[codes[NAME]];
        bool typed = !(category & CATEGORY_UNTYPED) || name & NAME_TYPED;
        if (!add_links(scan, category, typed)) return NULL;
        if (name & NAME_MEMORY && !add_memory(scan)) return NULL;
        if (category & CATEGORY_OPS && name & NAME_COMPUTING && !add_shapes(scan)) return NULL;
    }
    scan->events++;
    return p;
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
    if (size > LARGEST_BLOCK || !texts_init(&scan->texts)) return false;
    Array *args = &scan->columns[ARGS];
    /* Copied arguments are shorter than what they are copied from: "args": is longer than the length before them. */
    if (!array_reserve(args, size + CHUNK)) return false;
    scan->out = args->data;
    if (!read_events(scan)) return false;
    args->size = (size_t)(scan->out - args->data);
    return true;
}

/* Number the texts of several tuples of bytes. In `marks`, bit i of a text's entry says that tuple i has it; in `begins`,
 * entry i is the number of different texts before tuple i. */
static bool read_lists(PyObject *lists, int count, Texts *texts, int32_t most, uint8_t *marks, int32_t *begins) {
    if (!texts_init(texts)) {
        PyErr_NoMemory();
        return false;
    }
    if (PyTuple_Size(lists) != count) goto wrong;
    for (int list = 0; list < count; list++) {
        PyObject *tuple = PyTuple_GetItem(lists, list);
        if (begins) begins[list] = texts->count;
        for (Py_ssize_t at = 0, size = PyTuple_Size(tuple); at < size; at++) {
            char *bytes;
            Py_ssize_t length;
            if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, at), &bytes, &length) < 0) return false;
            int32_t code = texts_code(texts, (const uint8_t *)bytes, (size_t)length);
            if (code < 0 || code >= most) goto wrong;
            if (marks) marks[code] |= (uint8_t)(1 << list);
        }
    }
    if (begins) begins[count] = texts->count;
    return !PyErr_Occurred();
wrong:
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "lists of words or names of another length");
    return false;
}

/* Prepare name_of. */
static void note_lengths(Scan *scan) {
    const int64_t *offsets = (const int64_t *)scan->names.offsets.data;
    for (int32_t name = 0; name < scan->names.count; name++) {
        uint8_t first = scan->names.data.data[offsets[name]];
        scan->name_lengths[first] |= 1u << ((offsets[name + 1] - offsets[name]) & 31);
    }
}

static PyObject *columns_to_python(Scan *scan) {
    PyObject *result = PyTuple_New(COLUMNS + 2);
    for (int at = 0; result && at < COLUMNS + 2; at++) {
        Array *array = at < COLUMNS ? &scan->columns[at] : at == COLUMNS ? &scan->texts.offsets : &scan->texts.data;
        PyObject *buffer = array_to_python(array);
        if (!buffer || PyTuple_SetItem(result, at, buffer) < 0) {
            Py_DECREF(result);
            return NULL;
        }
    }
    return result;
}

static PyObject *scan_events(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *words, *names, *result = NULL;
    Py_buffer view;
    if (!PyArg_ParseTuple(arguments, "y*O!O!", &view, &PyTuple_Type, &words, &PyTuple_Type, &names)) return NULL;
    Scan *scan = calloc(1, sizeof *scan);
    if (!scan) {
        PyErr_NoMemory();
    } else if (!read_lists(words, WORD_LISTS, &scan->words, sizeof scan->word_marks, scan->word_marks, NULL) ||
               !read_lists(names, NAME_LISTS, &scan->names, MOST_NAMES, NULL, scan->names_of)) {
        /* the exception is set */
    } else if (scan->names_of[LINK_TEXTS] != LINKING_NUMBERS ||
               scan->names_of[MEMORY_NUMBERS] != LINKING_NUMBERS + 1) {
        PyErr_SetString(PyExc_ValueError, "not one name for each column of linked events");
    } else {
        scan->begin = view.buf;
        scan->end = scan->begin + view.len;
        note_lengths(scan);
        bool read = false;
        Py_BEGIN_ALLOW_THREADS
        read = scan_block(scan);
        Py_END_ALLOW_THREADS
        result = read ? columns_to_python(scan) : Py_NewRef(Py_None);
    }
    if (scan) {
        for (int at = 0; at < COLUMNS; at++) array_free(&scan->columns[at]);
        array_free(&scan->marks);
        array_free(&scan->decoded);
        texts_free(&scan->texts);
        texts_free(&scan->words);
        texts_free(&scan->names);
        free(scan);
    }
    PyBuffer_Release(&view);
    return result;
}

PyMethodDef scan_methods[] = {
    {"scan_events", scan_events, METH_VARARGS,
     "scan_events(block, words, names): the columns of a block's events, then the offsets and bytes of their texts; "
     "None if the block is refused. Called by rankscope.readers.kineto.reader, which says what the lists are."},
    {NULL, NULL, 0, NULL},
};
