/* Bytes of Parquet's encodings. rankscope.store.packing makes the same ones with numpy. Little-endian machines only. */
#include "native.h"

enum { BLOCK = 128, MINIBLOCK = 32, LONGEST_VARINT = 10 };

static uint8_t *put_varint(uint8_t *out, uint64_t value) {
    for (; value > 0x7f; value >>= 7) *out++ = (uint8_t)(value | 0x80);
    *out++ = (uint8_t)value;
    return out;
}

static uint8_t *put_zigzag(uint8_t *out, int64_t value) {
    return put_varint(out, (uint64_t)value << 1 ^ (uint64_t)(value >> 63));
}

/* One block: the smallest difference, then for each miniblock its width and by how much its differences exceed that
   one, in whole bytes. Writes up to seven bytes more than it returns. */
static uint8_t *put_block(uint8_t *out, const int64_t *values, size_t count) {
    uint64_t excess[BLOCK] = {0};
    int64_t smallest = INT64_MAX;
    for (size_t i = 0; i < count; i++) {
        int64_t step = (int64_t)((uint64_t)values[i + 1] - (uint64_t)values[i]);
        excess[i] = (uint64_t)step;
        if (step < smallest) smallest = step;
    }
    for (size_t i = 0; i < count; i++) excess[i] -= (uint64_t)smallest;
    out = put_zigzag(out, smallest);
    uint8_t *widths = out;
    out += BLOCK / MINIBLOCK;
    for (size_t begin = 0; begin < BLOCK; begin += MINIBLOCK) {
        uint64_t bits = 0;
        for (size_t i = begin; i < begin + MINIBLOCK; i++) bits |= excess[i];
        size_t bytes = bits ? 8 - (size_t)__builtin_clzll(bits) / 8 : 0;
        *widths++ = (uint8_t)(bytes * 8);
        for (size_t i = begin; bytes && i < begin + MINIBLOCK; i++, out += bytes) memcpy(out, &excess[i], 8);
    }
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
    size_t room = 4 * LONGEST_VARINT + blocks * (LONGEST_VARINT + BLOCK / MINIBLOCK + BLOCK * 8) + 8;
    if (array_reserve(&array, room)) {
        uint8_t *out = put_varint(array.data, BLOCK);
        out = put_varint(out, BLOCK / MINIBLOCK);
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

PyMethodDef packing_methods[] = {
    {"pack_deltas", pack_deltas, METH_O, "Numbers of 8 bytes as DELTA_BINARY_PACKED."},
    {"plain_texts", plain_texts, METH_VARARGS,
     "(data, offsets, codes): the texts of these codes as PLAIN. Offsets and codes are numbers of 8 bytes."},
    {NULL, NULL, 0, NULL},
};
