/* Rows that repeat: which are distinct, and texts that rows share with only some numbers in them of their own. */
#include "native.h"
#include "texts.h"

enum { FREE = -1, LONGEST_NUMBER = 24, MILLION = 1000000, NUMBER_MARK = 1 };

#define NO_ARGS UINT32_MAX
#define NULL_NUMBER INT64_MIN

/* Buffers of a tuple; `count` of them are to be released. */
typedef struct {
    Py_buffer *views;
    Py_ssize_t count;
} Buffers;

static void release(Buffers *buffers) {
    while (buffers->count) PyBuffer_Release(&buffers->views[--buffers->count]);
    free(buffers->views);
}

/* Get the buffers of a tuple; `same_size`: they must all have the same size. */
static bool get_buffers(PyObject *tuple, bool same_size, Buffers *buffers) {
    Py_ssize_t size = PyTuple_Size(tuple);
    buffers->views = calloc((size_t)size + 1, sizeof *buffers->views);
    if (!buffers->views) {
        PyErr_NoMemory();
        return false;
    }
    for (; buffers->count < size; buffers->count++) {
        Py_buffer *view = &buffers->views[buffers->count];
        if (PyObject_GetBuffer(PyTuple_GetItem(tuple, buffers->count), view, PyBUF_SIMPLE) < 0) return false;
        if (same_size && view->len != buffers->views[0].len) {
            PyBuffer_Release(view);
            PyErr_SetString(PyExc_ValueError, "the columns differ in length");
            return false;
        }
    }
    return true;
}

/* Distinct rows by a hash of their columns. */
typedef struct {
    const Buffers *columns;
    uint64_t *hashes; /* of each row */
    int32_t *places;  /* codes, or FREE */
    uint32_t mask;    /* number of places - 1, a power of two */
    Array firsts;     /* for each code the first row that has it */
    int32_t count;
} Distinct;

static void hash_rows(Distinct *distinct, size_t rows) {
    for (Py_ssize_t column = 0; column < distinct->columns->count; column++) {
        const uint64_t *values = distinct->columns->views[column].buf;
        for (size_t row = 0; row < rows; row++) {
            uint64_t hash = (distinct->hashes[row] ^ values[row]) * 0x9e3779b97f4a7c15u;
            distinct->hashes[row] = hash ^ hash >> 29;
        }
    }
}

static bool is_same(const Distinct *distinct, size_t row, size_t other) {
    if (distinct->hashes[row] != distinct->hashes[other]) return false;
    for (Py_ssize_t column = 0; column < distinct->columns->count; column++) {
        const int64_t *values = distinct->columns->views[column].buf;
        if (values[row] != values[other]) return false;
    }
    return true;
}

static bool make_room(Distinct *distinct) {
    uint32_t places = distinct->places ? 2 * (distinct->mask + 1) : 1024;
    int32_t *larger = malloc(places * sizeof *larger);
    if (!larger) return false;
    memset(larger, 0xff, places * sizeof *larger);
    const int32_t *firsts = (const int32_t *)distinct->firsts.data;
    for (int32_t code = 0; code < distinct->count; code++) {
        uint32_t place = (uint32_t)distinct->hashes[firsts[code]] & (places - 1);
        while (larger[place] != FREE) place = (place + 1) & (places - 1);
        larger[place] = code;
    }
    free(distinct->places);
    distinct->places = larger;
    distinct->mask = places - 1;
    return true;
}

static const char *number_rows(Distinct *distinct, size_t rows, int32_t *codes) {
    hash_rows(distinct, rows);
    for (size_t row = 0; row < rows; row++) {
        if ((!distinct->places || (uint32_t)distinct->count * 2 > distinct->mask) && !make_room(distinct)) return "";
        uint32_t place = (uint32_t)distinct->hashes[row] & distinct->mask;
        const int32_t *firsts = (const int32_t *)distinct->firsts.data;
        int probes = 0;
        while (distinct->places[place] != FREE && !is_same(distinct, row, (size_t)firsts[distinct->places[place]])) {
            if (++probes > MOST_PROBES) return "too many rows have the same hash";
            place = (place + 1) & distinct->mask;
        }
        if (distinct->places[place] == FREE) {
            array_append_i32(&distinct->firsts, (int32_t)row);
            if (distinct->firsts.failed) return "";
            distinct->places[place] = distinct->count++;
        }
        codes[row] = distinct->places[place];
    }
    return NULL;
}

/* Two buffers for Python; NULL with an exception. The error is '' where memory has run out. */
static PyObject *pair(const char *error, Array *first, Array *second) {
    if (error && *error) PyErr_SetString(PyExc_ValueError, error);
    else if (error) PyErr_NoMemory();
    PyObject *one = error ? NULL : array_to_python(first), *two = one ? array_to_python(second) : NULL;
    PyObject *result = two ? PyTuple_Pack(2, one, two) : NULL;
    Py_XDECREF(one);
    Py_XDECREF(two);
    array_free(first);
    array_free(second);
    return result;
}

static PyObject *distinct_rows(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *tuple;
    Buffers columns = {0};
    if (!PyArg_ParseTuple(arguments, "O!", &PyTuple_Type, &tuple)) return NULL;
    if (!get_buffers(tuple, true, &columns)) {
        release(&columns);
        return NULL;
    }
    size_t rows = columns.count ? (size_t)columns.views[0].len / sizeof(int64_t) : 0;
    Distinct distinct = {.columns = &columns};
    Array codes = {0};
    const char *error = "";
    Py_BEGIN_ALLOW_THREADS;
    distinct.hashes = calloc(rows + 1, sizeof *distinct.hashes);
    if (distinct.hashes && rows < INT32_MAX && array_reserve(&codes, rows * sizeof(int32_t))) {
        codes.size = rows * sizeof(int32_t);
        error = number_rows(&distinct, rows, (int32_t *)codes.data);
    }
    free(distinct.hashes);
    free(distinct.places);
    Py_END_ALLOW_THREADS;
    release(&columns);
    return pair(error, &codes, &distinct.firsts);
}

static uint8_t *write_number(uint8_t *at, uint64_t value) {
    uint8_t digits[LONGEST_NUMBER];
    int count = 0;
    do digits[count++] = (uint8_t)('0' + value % 10);
    while (value /= 10);
    while (count) *at++ = digits[--count];
    return at;
}

/* Write a number of millionths with at least one decimal place. */
static uint8_t *write_millionths(uint8_t *at, uint64_t value) {
    at = write_number(at, value / MILLION);
    *at++ = '.';
    uint64_t rest = value % MILLION, unit = MILLION / 10;
    do {
        *at++ = (uint8_t)('0' + rest / unit);
        rest %= unit;
        unit /= 10;
    } while (rest);
    return at;
}

typedef struct {
    const uint8_t *texts;
    size_t size;
    const int64_t *numbers; /* of each row */
    bool millionths;
    Array made;
    Array offsets;
} Filling;

/* Copy a text with the number of its row. */
static const char *fill(Filling *filling, size_t row, const uint8_t *text, uint32_t size) {
    Array *made = &filling->made;
    size_t start = made->size, most = 4 + (size_t)size + LONGEST_NUMBER;
    if (start + most > NO_ARGS) return "the texts are longer than 4 GB";
    if (!array_reserve(made, most)) return "";
    uint8_t *at = made->data + start + 4;
    const uint8_t *mark = memchr(text, NUMBER_MARK, size);
    size_t before = mark ? (size_t)(mark - text) : size;
    memcpy(at, text, before);
    at += before;
    if (mark) {
        int64_t value = filling->numbers[row];
        if (value == NULL_NUMBER) return "a text has a place for a number that its row does not have";
        if (value < 0) *at++ = '-';
        uint64_t digits = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
        at = filling->millionths ? write_millionths(at, digits) : write_number(at, digits);
        memcpy(at, mark + 1, size - before - 1);
        at += size - before - 1;
    }
    uint32_t length = (uint32_t)(at - (made->data + start) - 4);
    for (uint32_t byte = 0; byte < 4; byte++) made->data[start + byte] = (uint8_t)(length >> 8 * byte);
    made->size = start + 4 + length;
    return NULL;
}

static const char *fill_rows(Filling *filling, const uint32_t *offsets, size_t rows) {
    for (size_t row = 0; row < rows; row++) {
        uint32_t at = offsets[row], size = 0, start = (uint32_t)filling->made.size;
        if (at == NO_ARGS) {
            array_append(&filling->offsets, &at, sizeof at);
            continue;
        }
        if ((size_t)at + 4 > filling->size) return "a text is outside of its buffer";
        for (uint32_t byte = 0; byte < 4; byte++) size |= (uint32_t)filling->texts[at + byte] << 8 * byte;
        if (size > filling->size - at - 4) return "a text is outside of its buffer";
        const char *error = fill(filling, row, filling->texts + at + 4, size);
        if (error) return error;
        array_append(&filling->offsets, &start, sizeof start);
    }
    return filling->offsets.failed ? "" : NULL;
}

static PyObject *fill_texts(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer texts, offsets, numbers;
    int millionths;
    if (!PyArg_ParseTuple(arguments, "y*y*y*p", &texts, &offsets, &numbers, &millionths)) return NULL;
    size_t rows = (size_t)offsets.len / sizeof(uint32_t);
    Filling filling = {.texts = texts.buf, .size = (size_t)texts.len, .numbers = numbers.buf, .millionths = millionths};
    const char *error;
    Py_BEGIN_ALLOW_THREADS;
    if ((size_t)numbers.len / sizeof(int64_t) != rows) error = "the columns differ in length";
    else error = fill_rows(&filling, offsets.buf, rows);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&texts);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&numbers);
    return pair(error, &filling.made, &filling.offsets);
}

/* A text for each row: the pieces, with the row's number of one column after each but the last; null for NULL_NUMBER. */
static const char *spell(const Buffers *pieces, const Buffers *columns, size_t rows, Array *made, Array *offsets) {
    size_t most = 4 + (size_t)columns->count * LONGEST_NUMBER;
    for (Py_ssize_t piece = 0; piece < pieces->count; piece++) most += (size_t)pieces->views[piece].len;
    for (size_t row = 0; row < rows; row++) {
        size_t start = made->size;
        if (start + most > NO_ARGS) return "the texts are longer than 4 GB";
        if (!array_reserve(made, most)) return "";
        uint8_t *at = made->data + start + 4;
        for (Py_ssize_t piece = 0; piece < pieces->count; piece++) {
            const Py_buffer *text = &pieces->views[piece];
            memcpy(at, text->buf, (size_t)text->len);
            at += text->len;
            if (piece == columns->count) break;
            int64_t value = ((const int64_t *)columns->views[piece].buf)[row];
            if (value == NULL_NUMBER) {
                memcpy(at, "null", 4);
                at += 4;
                continue;
            }
            if (value < 0) *at++ = '-';
            at = write_number(at, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
        }
        uint32_t length = (uint32_t)(at - (made->data + start) - 4), offset = (uint32_t)start;
        for (uint32_t byte = 0; byte < 4; byte++) made->data[start + byte] = (uint8_t)(length >> 8 * byte);
        made->size = start + 4 + length;
        array_append(offsets, &offset, sizeof offset);
    }
    return offsets->failed ? "" : NULL;
}

static PyObject *spell_rows(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *texts, *numbers, *result = NULL;
    Buffers pieces = {0}, columns = {0};
    if (!PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &texts, &PyTuple_Type, &numbers)) return NULL;
    if (get_buffers(texts, false, &pieces) && get_buffers(numbers, true, &columns)) {
        Array made = {0}, offsets = {0};
        size_t rows = columns.count ? (size_t)columns.views[0].len / sizeof(int64_t) : 0;
        const char *error;
        Py_BEGIN_ALLOW_THREADS;
        error = pieces.count == columns.count + 1 ? spell(&pieces, &columns, rows, &made, &offsets)
                                                  : "there is not one piece more than columns";
        Py_END_ALLOW_THREADS;
        result = pair(error, &made, &offsets);
    }
    release(&pieces);
    release(&columns);
    return result;
}

PyMethodDef repeated_methods[] = {
    {"distinct_rows", distinct_rows, METH_VARARGS,
     "distinct_rows((column, ...)) -> (codes, firsts)\n\n"
     "For each row of these columns (int64) the code of its values (int32), and for each code the first row that has it."},
    {"fill_texts", fill_texts, METH_VARARGS,
     "fill_texts(texts, offsets, numbers, millionths) -> (texts, offsets)\n\n"
     "A text for each row, as in EventColumns.args: that at its offset, with the number of the row (int64) instead of\n"
     "the byte 1; as decimals if they are millionths."},
    {"spell_rows", spell_rows, METH_VARARGS,
     "spell_rows((piece, ...), (column, ...)) -> (texts, offsets)\n\n"
     "A text for each row, as in EventColumns.args: the pieces, with the row's number of a column (int64) between them."},
    {NULL, NULL, 0, NULL},
};
