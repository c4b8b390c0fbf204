/* Bytes of Parquet's encodings. rankscope.store.packing makes the same ones with numpy. Little-endian machines only. */
#include "native.h"

enum { BLOCK = 128, LONGEST_VARINT = 10 };

static uint8_t *put_varint(uint8_t *out, uint64_t value) {
    for (; value > 0x7f; value >>= 7) *out++ = (uint8_t)(value | 0x80);
    *out++ = (uint8_t)value;
    return out;
}

static uint8_t *put_zigzag(uint8_t *out, int64_t value) {
    return put_varint(out, (uint64_t)value << 1 ^ (uint64_t)(value >> 63));
}

/* A block of one miniblock: the smallest difference, the width of the miniblock, and by how much each difference
   exceeds the smallest, in whole bytes. Writes up to seven bytes more than it returns. */
static uint8_t *put_block(uint8_t *out, const int64_t *values, size_t count) {
    uint64_t excess[BLOCK] = {0}, bits = 0;
    int64_t smallest = INT64_MAX;
    for (size_t i = 0; i < count; i++) {
        int64_t step = (int64_t)((uint64_t)values[i + 1] - (uint64_t)values[i]);
        excess[i] = (uint64_t)step;
        if (step < smallest) smallest = step;
    }
    for (size_t i = 0; i < count; i++) {
        excess[i] -= (uint64_t)smallest;
        bits |= excess[i];
    }
    size_t width = bits ? 8 - (size_t)__builtin_clzll(bits) / 8 : 0;
    out = put_zigzag(out, smallest);
    *out++ = (uint8_t)(width * 8);
    for (size_t i = 0; width && i < BLOCK; i++, out += width) memcpy(out, &excess[i], 8);
    return out;
}

static PyObject *pack_deltas(PyObject *self, PyObject *argument) {
    (void)self;
    Py_buffer view;
    if (PyObject_GetBuffer(argument, &view, PyBUF_SIMPLE) < 0) return NULL;
    size_t count = (size_t)view.len / 8;
    if (!count || view.len % 8) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "expected numbers of 8 bytes, at least one");
        return NULL;
    }
    const int64_t *values = view.buf;
    Array array = {0};
    Py_BEGIN_ALLOW_THREADS;
    size_t blocks = (count + BLOCK - 2) / BLOCK;
    size_t room = 4 * LONGEST_VARINT + blocks * (LONGEST_VARINT + 1 + BLOCK * 8) + 8;
    if (array_reserve(&array, room)) {
        uint8_t *out = put_varint(array.data, BLOCK);
        out = put_varint(out, 1);
        out = put_varint(out, count);
        out = put_zigzag(out, values[0]);
        for (size_t i = 0; i + 1 < count; i += BLOCK) {
            out = put_block(out, values + i, count - 1 - i < BLOCK ? count - 1 - i : BLOCK);
        }
        array.size = (size_t)(out - array.data);
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    PyObject *made = array_to_python(&array);
    if (!made) array_free(&array);
    return made;
}

/* False where a code or an offset is outside its array. */
static bool put_texts(Array *array, const Py_buffer *data, const Py_buffer *offsets, const Py_buffer *codes) {
    const int64_t *begins = offsets->buf, *code = codes->buf;
    int64_t texts = (int64_t)(offsets->len / 8) - 1;
    for (size_t i = 0; i < (size_t)codes->len / 8; i++) {
        if (code[i] < 0 || code[i] >= texts) return false;
        int64_t begin = begins[code[i]], end = begins[code[i] + 1];
        if (begin < 0 || end < begin || end > (int64_t)data->len || end - begin > INT32_MAX) return false;
        array_append_i32(array, (int32_t)(end - begin));
        array_append(array, (const uint8_t *)data->buf + begin, (size_t)(end - begin));
    }
    return true;
}

static PyObject *plain_texts(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer data, offsets, codes;
    if (!PyArg_ParseTuple(arguments, "y*y*y*", &data, &offsets, &codes)) return NULL;
    Array array = {0};
    bool inside;
    Py_BEGIN_ALLOW_THREADS;
    inside = put_texts(&array, &data, &offsets, &codes);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&data);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&codes);
    PyObject *made = NULL;
    if (inside)
        made = array_to_python(&array);
    else
        PyErr_SetString(PyExc_ValueError, "a code without a text");
    if (!made) array_free(&array);
    return made;
}

/* Up to 19 digits; returns the end. */
static uint8_t *put_digits(uint8_t *out, uint64_t number) {
    uint8_t digits[20];
    size_t count = 0;
    do digits[count++] = (uint8_t)('0' + number % 10);
    while (number /= 10);
    while (count) *out++ = digits[--count];
    return out;
}

static void put_numbers(Array *data, Array *offsets, const int64_t *numbers, size_t count) {
    if (!array_reserve(data, count * 24) || !array_reserve(offsets, count * 4)) return;
    uint8_t *out = data->data;
    uint32_t *begins = (uint32_t *)offsets->data;
    for (size_t i = 0; i < count; i++) {
        begins[i] = numbers[i] < 0 ? UINT32_MAX : (uint32_t)(out - data->data);
        if (numbers[i] < 0) continue;
        uint8_t *end = put_digits(out + 4, (uint64_t)numbers[i]);
        uint32_t length = (uint32_t)(end - out - 4);
        memcpy(out, &length, 4);
        out = end;
    }
    data->size = (size_t)(out - data->data);
    offsets->size = count * 4;
}

static PyObject *number_texts(PyObject *self, PyObject *argument) {
    (void)self;
    Py_buffer view;
    if (PyObject_GetBuffer(argument, &view, PyBUF_SIMPLE) < 0) return NULL;
    size_t count = (size_t)view.len / 8;
    Array made[2] = {{0}, {0}};
    if (count > UINT32_MAX / 24) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "too many numbers");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    put_numbers(&made[0], &made[1], view.buf, count);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    return arrays_to_python(made, 2);
}

static PyObject *split_numbers(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer view;
    long long null, lowest, highest;
    if (!PyArg_ParseTuple(arguments, "y*LLL", &view, &null, &lowest, &highest)) return NULL;
    const int64_t *values = view.buf;
    size_t count = (size_t)view.len / 8, kept = 0;
    Array made[2] = {{0}, {0}};
    Py_BEGIN_ALLOW_THREADS;
    if (array_reserve(&made[0], count) && array_reserve(&made[1], count * 8)) {
        int64_t *out = (int64_t *)(void *)made[1].data;
        for (size_t i = 0; i < count; i++) {
            int64_t value = values[i];
            bool valid = (value != null) & (value >= lowest) & (value <= highest);
            made[0].data[i] = valid;
            out[kept] = value;
            kept += valid;
        }
        made[0].size = count;
        made[1].size = kept * 8;
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    return arrays_to_python(made, 2);
}

/* The mask of the codes that are not null, the codes that occur, ascending, and the place of each code among those.
   False where a code is outside the texts. */
static bool put_places(Array made[3], const int32_t *codes, size_t count, size_t texts) {
    Array *mask = &made[0], *used = &made[1], *places = &made[2];
    uint32_t *place = calloc(texts + 1, sizeof *place); /* of each text */
    if (!place || !array_reserve(mask, count + 1) || !array_reserve(places, count * 4 + 4)) {
        free(place);
        mask->failed = true;
        return true;
    }
    uint32_t *out = (uint32_t *)(void *)places->data;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t code = codes[i];
        if (code >= 0 && (size_t)code >= texts) {
            free(place);
            return false;
        }
        size_t at = code < 0 ? texts : (size_t)code; /* the last place is that of null */
        place[at] = 1;
        out[kept] = (uint32_t)at;
        mask->data[i] = code >= 0;
        kept += code >= 0;
    }
    uint32_t next = 0;
    for (size_t text = 0; text < texts; text++) {
        if (!place[text]) continue;
        place[text] = next++;
        array_append_i64(used, (int64_t)text);
    }
    size_t width = next <= 1 << 8 ? 1 : next <= 1 << 16 ? 2 : 4;
    for (size_t i = 0; i < kept; i++) { /* in place: what is written is never before what is still to be read */
        uint32_t found = place[out[i]];
        memcpy(places->data + i * width, &found, width);
    }
    mask->size = count;
    places->size = kept * width;
    free(place);
    return true;
}

static PyObject *places_of_codes(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer codes;
    Py_ssize_t texts;
    if (!PyArg_ParseTuple(arguments, "y*n", &codes, &texts)) return NULL;
    Array made[3] = {{0}, {0}, {0}};
    bool inside;
    Py_BEGIN_ALLOW_THREADS;
    inside = put_places(made, codes.buf, (size_t)codes.len / 4, (size_t)texts);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&codes);
    if (!inside) {
        for (size_t i = 0; i < 3; i++) array_free(&made[i]);
        PyErr_SetString(PyExc_ValueError, "a code without a text");
        return NULL;
    }
    return arrays_to_python(made, 3);
}

PyMethodDef packing_methods[] = {
    {"number_texts", number_texts, METH_O,
     "Numbers of 8 bytes as PLAIN texts, and where each begins (4 bytes); one below 0 has none."},
    {"pack_deltas", pack_deltas, METH_O, "Numbers of 8 bytes as DELTA_BINARY_PACKED."},
    {"plain_texts", plain_texts, METH_VARARGS,
     "(data, offsets, codes): the texts of these codes as PLAIN. Offsets and codes are numbers of 8 bytes."},
    {"split_numbers", split_numbers, METH_VARARGS,
     "(numbers, null, lowest, highest): which numbers of 8 bytes are not null and within the limits, and those."},
    {"places_of_codes", places_of_codes, METH_VARARGS,
     "(codes, texts): which codes of 4 bytes are not null, the codes that occur, and each code's place among those."},
    {NULL, NULL, 0, NULL},
};
