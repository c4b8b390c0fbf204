#include "event_columns.h"

#define LARGEST_ARGS (INT32_MAX - 64) /* of all events: offsets have 32 bits */
#define MOST_NESTED 256
#define LINKING_NUMBERS (BYTES - CORRELATION + 1)

/* What a category or a name means: one bit for each list of words, in this order. */
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

int32_t code_of(EventColumns *columns, const uint8_t *bytes, size_t count) {
    int32_t known = columns->texts.count;
    int32_t code = texts_code(&columns->texts, bytes, count);
    if (columns->texts.count > known) {
        size_t unused;
        int32_t word = texts_find(&columns->words, bytes, count, hash_bytes(bytes, count), &unused);
        array_append(&columns->marks, word < 0 ? &(uint8_t){0} : &columns->word_marks[word], 1);
        if (columns->marks.failed) return NOT_CODED;
    }
    return code;
}

int32_t code_of_string(EventColumns *columns, Place begin, Place end, Spelling spelling) {
    if (!spelling.escaped) return code_of(columns, begin, (size_t)(end - begin));
    columns->decoded.size = 0;
    if (!array_reserve(&columns->decoded, (size_t)(end - begin))) return NOT_CODED;
    uint8_t *decoded_end = decode_string(begin, end, columns->decoded.data);
    if (!decoded_end) return NOT_CODED;
    return code_of(columns, columns->decoded.data, (size_t)(decoded_end - columns->decoded.data));
}

bool is_plain_integer(Place begin, Place end) {
    Place digits = begin + (*begin == '-');
    if (digits == end || end - digits > 18 || skip_digits(digits) != end) return false;
    return *digits != '0' || end - begin == 1; /* not -0, no leading zeros */
}

/* Copy what has been read up to here. */
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

Place copy_value(Copy *result, Place p, Spelling *spelling) {
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
static inline int32_t name_of(const EventColumns *columns, Place key, size_t length) {
    if (!(columns->name_lengths[*key] >> (length & 31) & 1)) return NO_TEXT; /* most names end here */
    size_t unused;
    return texts_find(&columns->names, key, length, hash_bytes(key, length), &unused);
}

Place read_args(EventColumns *columns, Place p, Place end, uint32_t *offset) {
    if (*p == 'n') return skip_null(p, end);
    Array *args = &columns->column[ARGS];
    if (*p != '{' || args->size > LARGEST_ARGS || !array_reserve(args, 4 + (size_t)(end - p) + CHUNK)) return NULL;
    uint8_t *length = args->data + args->size;
    Copy copy = {p, end, length + 4};
    columns->has = 0;
    columns->first_name = NO_TEXT;
    p = skip_gap(&copy, p + 1);
    bool more = *p != '}';
    for (bool first = true; more; first = false) {
        if (*p != '"') return NULL;
        Spelling spelling = {0};
        Place key = p + 1;
        p = find_string_end(key, end, &spelling);
        if (!p || spelling.escaped) return NULL;
        int32_t name = name_of(columns, key, (size_t)(p - key));
        p = skip_colon(&copy, p + 1);
        if (!p) return NULL;
        Place value = copy.out + (p - copy.from);
        p = *p == '{' || *p == '[' ? copy_value(&copy, p, &spelling) : skip_scalar(p, end, &spelling);
        if (!p) return NULL;
        if (name >= 0) {
            if (columns->has >> name & 1) return NULL;
            columns->has |= 1u << name;
            columns->values[name] = (Value){value, copy.out + (p - copy.from), spelling};
            if (first) columns->first_name = name;
        }
        p = skip_gap(&copy, p);
        more = *p == ',';
        if (more) p = skip_gap(&copy, p + 1);
    }
    if (*p++ != '}' || p == end) return NULL;
    copy_piece(&copy, p);
    uint32_t count = (uint32_t)(copy.out - length - 4);
    for (int at = 0; at < 4; at++) length[at] = (uint8_t)(count >> 8 * at);
    *offset = (uint32_t)args->size;
    args->size = (size_t)(copy.out - args->data);
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

/* An argument as a number, NO_NUMBER for what is none. False if DuckDB might read another one. */
static bool number_of(const EventColumns *columns, int32_t name, int64_t *result) {
    *result = NO_NUMBER;
    if (!(columns->has >> name & 1)) return true;
    Place begin = columns->values[name].begin, end = columns->values[name].end;
    bool is_whole;
    switch (*begin) {
    case 'n': case '[': case '{': return true;
    case 't': case 'f': return false;
    case '"':
        begin++;
        end--;
        if (begin == end || (uint8_t)((*begin | 0x20) - 'a') < 26) /* empty or from a letter on: not a number */
            return !columns->values[name].spelling.escaped;
        is_whole = is_plain_integer(begin, end);
        break;
    default: is_whole = skip_digits(begin + (*begin == '-')) == end;
    }
    if (is_whole) *result = integer_of(begin, end);
    return is_whole;
}

/* An argument as text: strings decoded, other values as JSON. False if DuckDB might write it differently. */
static bool text_of(EventColumns *columns, int32_t name, int32_t *code) {
    *code = NO_TEXT;
    if (!(columns->has >> name & 1)) return true;
    const Value *value = &columns->values[name];
    if (*value->begin == 'n') return true;
    if (*value->begin == '"') *code = code_of_string(columns, value->begin + 1, value->end - 1, value->spelling);
    else *code = code_of(columns, value->begin, (size_t)(value->end - value->begin));
    if (*code == NOT_CODED) {
        *code = NO_TEXT;
        return false;
    }
    return *value->begin == '"' || !value->spelling.rewritten;
}

static bool add_links(EventColumns *columns, uint8_t category, bool typed) {
    int64_t numbers[LINKING_NUMBERS] = {NO_NUMBER, NO_NUMBER, NO_NUMBER, NO_NUMBER, NO_NUMBER};
    int32_t collective = NO_TEXT, external_id = EXTERNAL_ID - CORRELATION;
    if (typed) {
        for (int32_t name = 0; name < LINKING_NUMBERS; name++)
            if (!number_of(columns, name, &numbers[name])) return false;
        if (!text_of(columns, columns->names_of[LINK_TEXTS], &collective)) return false;
    } else if (category & CATEGORY_ID_ANYWHERE) {
        if (!number_of(columns, external_id, &numbers[external_id])) return false;
    } else if (category & CATEGORY_ID_FIRST && columns->first_name == external_id) {
        int64_t number;
        if (!number_of(columns, external_id, &number)) return false;
        if (number >= 0 && *columns->values[external_id].begin != '"') numbers[external_id] = number;
    }
    bool linked = collective != NO_TEXT;
    for (int at = 0; at < LINKING_NUMBERS; at++) linked |= numbers[at] != NO_NUMBER;
    if (!linked) return true;
    array_append_i32(&columns->column[LINKED], columns->events);
    for (int at = 0; at < LINKING_NUMBERS; at++) array_append_i64(&columns->column[CORRELATION + at], numbers[at]);
    array_append_i32(&columns->column[COLLECTIVE], collective);
    return true;
}

static bool add_memory(EventColumns *columns) {
    array_append_i32(&columns->column[MEMORY_EVENTS], columns->events);
    for (int32_t name = columns->names_of[MEMORY_NUMBERS]; name < columns->names_of[SHAPE_TEXTS]; name++) {
        int64_t number;
        if (!number_of(columns, name, &number)) return false;
        array_append_i64(&columns->column[MEMORY], number);
    }
    return true;
}

static bool add_shapes(EventColumns *columns) {
    array_append_i32(&columns->column[COMPUTING], columns->events);
    for (int32_t name = columns->names_of[SHAPE_TEXTS]; name < columns->names_of[NAME_LISTS]; name++) {
        int32_t code;
        if (!text_of(columns, name, &code)) return false;
        array_append_i32(&columns->column[SHAPES], code);
    }
    return true;
}

bool add_event(EventColumns *columns, const EventRow *row) {
    for (int field = 0; field < TEXT_FIELDS; field++) array_append_i32(&columns->column[field], row->codes[field]);
    array_append_i64(&columns->column[FLOW], row->flow);
    array_append_i64(&columns->column[TIME], row->time);
    array_append_i64(&columns->column[DURATION], row->duration);
    array_append_i32(&columns->column[ARGS_OFFSET], (int32_t)row->args);
    if (row->args != NO_OFFSET) {
        uint8_t category = columns->marks.data[row->codes[CATEGORY]], name = columns->marks.data[row->codes[NAME]];
        bool typed = !(category & CATEGORY_UNTYPED) || name & NAME_TYPED;
        if (!add_links(columns, category, typed)) return false;
        if (name & NAME_MEMORY && !add_memory(columns)) return false;
        if (category & CATEGORY_OPS && name & NAME_COMPUTING && !add_shapes(columns)) return false;
    }
    columns->events++;
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

bool columns_init(EventColumns *columns, PyObject *words, PyObject *names) {
    if (!read_lists(words, WORD_LISTS, &columns->words, sizeof columns->word_marks, columns->word_marks, NULL) ||
        !read_lists(names, NAME_LISTS, &columns->names, MOST_NAMES, NULL, columns->names_of))
        return false;
    if (columns->names_of[LINK_TEXTS] != LINKING_NUMBERS || columns->names_of[MEMORY_NUMBERS] != LINKING_NUMBERS + 1) {
        PyErr_SetString(PyExc_ValueError, "not one name for each column of linked events");
        return false;
    }
    const int64_t *offsets = (const int64_t *)columns->names.offsets.data;
    for (int32_t name = 0; name < columns->names.count; name++) {
        uint8_t first = columns->names.data.data[offsets[name]];
        columns->name_lengths[first] |= 1u << ((offsets[name + 1] - offsets[name]) & 31);
    }
    return true;
}

bool columns_start(EventColumns *columns) {
    texts_free(&columns->texts);
    columns->marks.size = 0;
    columns->events = 0;
    return texts_init(&columns->texts) && code_of(columns, (const uint8_t *)"", 0) == EMPTY_TEXT;
}

PyObject *columns_to_python(EventColumns *columns) {
    Array arrays[COLUMNS + 2];
    memcpy(arrays, columns->column, sizeof columns->column);
    arrays[COLUMNS] = columns->texts.offsets;
    arrays[COLUMNS + 1] = columns->texts.data;
    memset(columns->column, 0, sizeof columns->column);
    memset(&columns->texts.offsets, 0, sizeof columns->texts.offsets);
    memset(&columns->texts.data, 0, sizeof columns->texts.data);
    return arrays_to_python(arrays, COLUMNS + 2);
}

void columns_free(EventColumns *columns) {
    for (int at = 0; at < COLUMNS; at++) array_free(&columns->column[at]);
    array_free(&columns->marks);
    array_free(&columns->decoded);
    texts_free(&columns->texts);
    texts_free(&columns->words);
    texts_free(&columns->names);
}
