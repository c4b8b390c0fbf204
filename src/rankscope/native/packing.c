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

/* False where a code or an offset is outside its array. */
static bool put_texts(
    Array *array, const Py_buffer *data, const Py_buffer *offsets, const int64_t *code, size_t count
) {
    const int64_t *begins = offsets->buf;
    int64_t texts = (int64_t)(offsets->len / 8) - 1;
    for (size_t i = 0; i < count; i++) {
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
    inside = put_texts(&array, &data, &offsets, codes.buf, (size_t)codes.len / 8);
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

enum { PLAIN = 0, DELTA_BINARY_PACKED = 5, RLE_DICTIONARY = 8, FEW = 256 };

typedef struct {
    size_t entries;
    Array levels, values;
} Page;

/* A column, as the fields of rankscope.store.packing.Pages. */
typedef struct {
    Array valid;  /* a byte for each entry: 1 if it is not null */
    Array values; /* those that are not null, `width` bytes each */
    size_t width, count;
    int encoding;
    Array dictionary; /* PLAIN */
    size_t distinct;
    int64_t low, high;
    Array pages; /* of Page */
} Column;

static void column_free(Column *column) {
    Page *pages = (Page *)(void *)column->pages.data;
    for (size_t i = 0; i < column->pages.size / sizeof *pages; i++) {
        array_free(&pages[i].levels);
        array_free(&pages[i].values);
    }
    array_free(&column->valid);
    array_free(&column->values);
    array_free(&column->dictionary);
    array_free(&column->pages);
}

/* Definition levels of 0 and 1: one run if they are equal, else a bit each. Their size comes first, in four bytes. */
static void put_levels(Array *levels, const uint8_t *valid, size_t entries, size_t present) {
    size_t groups = (entries + 7) / 8;
    if (!array_reserve(levels, 4 + LONGEST_VARINT + groups)) return;
    uint8_t *out = levels->data + 4;
    if (present == 0 || present == entries) {
        out = put_varint(out, (uint64_t)entries << 1);
        *out++ = present > 0;
    } else {
        out = put_varint(out, (uint64_t)groups << 1 | 1);
        size_t i = 0;
        for (; i + 8 <= entries; i += 8) {
            uint64_t eight;
            memcpy(&eight, valid + i, 8);
            *out++ = (uint8_t)(eight * UINT64_C(0x0102040810204080) >> 56); /* the byte at place n becomes bit n */
        }
        if (i < entries) *out = 0;
        for (; i < entries; i++) *out |= (uint8_t)(valid[i] << i % 8);
        if (entries % 8) out++;
    }
    levels->size = (size_t)(out - levels->data);
    uint32_t size = (uint32_t)(levels->size - 4);
    memcpy(levels->data, &size, 4);
}

static void put_deltas(Array *array, const int64_t *values, size_t count) {
    size_t blocks = (count + BLOCK - 2) / BLOCK;
    if (!array_reserve(array, 4 * LONGEST_VARINT + blocks * (LONGEST_VARINT + 1 + BLOCK * 8) + 8)) return;
    uint8_t *out = put_varint(array->data, BLOCK);
    out = put_varint(out, 1);
    out = put_varint(out, count);
    out = put_zigzag(out, values[0]);
    for (size_t i = 0; i + 1 < count; i += BLOCK)
        out = put_block(out, values + i, count - 1 - i < BLOCK ? count - 1 - i : BLOCK);
    array->size = (size_t)(out - array->data);
}

/* Codes in whole bytes are Parquet's bit-packed numbers, in groups of eight; one run if there is only one code. */
static void put_codes(Array *array, const uint8_t *codes, size_t count, size_t width, size_t distinct) {
    size_t groups = (count + 7) / 8, padding = (groups * 8 - count) * width;
    if (!array_reserve(array, 2 + LONGEST_VARINT + groups * 8 * width)) return;
    uint8_t *out = array->data;
    *out++ = distinct == 1 ? 1 : (uint8_t)(width * 8);
    out = put_varint(out, distinct == 1 ? (uint64_t)count << 1 : (uint64_t)groups << 1 | 1);
    if (distinct == 1) {
        *out++ = 0;
    } else {
        memcpy(out, codes, count * width);
        memset(out + count * width, 0, padding);
        out += count * width + padding;
    }
    array->size = (size_t)(out - array->data);
}

/* The entry of a value, given another entry and its value before it. */
static size_t entry_of(const uint8_t *valid, size_t entry, size_t before, size_t value) {
    for (;; entry++) {
        if (!valid[entry]) continue;
        if (before++ == value) return entry;
    }
}

/* Pages of `most` values; nulls before the first value of a page are at the end of the page before. */
static void put_pages(Column *column, size_t most) {
    size_t entries = column->valid.size, entry = 0, value = 0;
    do {
        size_t end = column->count - value > most ? value + most : column->count;
        size_t stop = end == column->count ? entries : entry_of(column->valid.data, entry, value, end);
        Page page = {.entries = stop - entry};
        put_levels(&page.levels, column->valid.data + entry, stop - entry, end - value);
        const uint8_t *values = column->values.data + value * column->width;
        if (end == value) {
            array_reserve(&page.values, 1);
        } else if (column->encoding == RLE_DICTIONARY) {
            put_codes(&page.values, values, end - value, column->width, column->distinct);
        } else if (column->encoding == DELTA_BINARY_PACKED) {
            put_deltas(&page.values, (const int64_t *)(const void *)values, end - value);
        } else {
            array_append(&page.values, values, (end - value) * column->width);
        }
        array_append(&column->pages, &page, sizeof page);
        entry = stop;
        value = end;
    } while (value < column->count && !column->pages.failed);
}

static bool column_failed(const Column *column) {
    bool failed = column->valid.failed || column->values.failed || column->dictionary.failed || column->pages.failed;
    const Page *pages = (const Page *)(const void *)column->pages.data;
    for (size_t i = 0; i < column->pages.size / sizeof *pages; i++)
        failed = failed || pages[i].levels.failed || pages[i].values.failed;
    return failed;
}

static PyObject *pages_to_python(Column *column) {
    Page *pages = (Page *)(void *)column->pages.data;
    Py_ssize_t count = (Py_ssize_t)(column->pages.size / sizeof *pages);
    PyObject *made = PyTuple_New(count);
    for (Py_ssize_t i = 0; made && i < count; i++) {
        PyObject *levels = array_to_python(&pages[i].levels), *values = array_to_python(&pages[i].values);
        PyObject *page = levels && values ? Py_BuildValue("nOO", (Py_ssize_t)pages[i].entries, levels, values) : NULL;
        Py_XDECREF(levels);
        Py_XDECREF(values);
        if (!page || PyTuple_SetItem(made, i, page) < 0) {
            Py_DECREF(made);
            made = NULL;
        }
    }
    return made;
}

/* The fields of Pages; `size` bytes for each of the limits, none if it is 0. The column is empty afterwards. */
static PyObject *column_to_python(Column *column, Py_ssize_t size) {
    PyObject *made = NULL, *pages = NULL, *valid = NULL;
    const char *dictionary = column->dictionary.data ? (const char *)column->dictionary.data : "";
    if (column_failed(column)) {
        PyErr_NoMemory();
    } else if ((pages = pages_to_python(column)) && (valid = array_to_python(&column->valid))) {
        PyObject *limits = size && column->count
            ? Py_BuildValue("y#y#", (const char *)&column->low, size, (const char *)&column->high, size)
            : Py_NewRef(Py_None);
        made = Py_BuildValue(
            "OniOy#nN", valid, (Py_ssize_t)column->count, column->encoding, pages, dictionary,
            (Py_ssize_t)column->dictionary.size, (Py_ssize_t)column->distinct, limits
        );
    }
    Py_XDECREF(pages);
    Py_XDECREF(valid);
    column_free(column);
    return made;
}

typedef struct {
    Py_buffer values, mask;
    size_t count, bytes; /* numbers, and of how many bytes each */
    bool has_mask, has_null;
    int64_t null;
} Source;

static inline int64_t number_at(const Source *source, size_t i) {
    if (source->bytes == 8) return ((const int64_t *)source->values.buf)[i];
    return ((const int32_t *)source->values.buf)[i];
}

/* Take the numbers that are not null and fit the file's type. */
static void take_numbers(Column *column, const Source *source, size_t size) {
    size_t count = source->count, kept = 0;
    if (!array_reserve(&column->valid, count + 1) || !array_reserve(&column->values, count * 8 + 8)) return;
    int64_t *out = (int64_t *)(void *)column->values.data;
    int64_t lowest = size == 4 ? INT32_MIN : INT64_MIN, highest = size == 4 ? INT32_MAX : INT64_MAX;
    int64_t low = INT64_MAX, high = INT64_MIN;
    const uint8_t *mask = source->mask.buf;
    for (size_t i = 0; i < count; i++) {
        int64_t value = number_at(source, i);
        bool valid = (value >= lowest) & (value <= highest) & !(source->has_null & (value == source->null));
        if (source->has_mask) valid &= mask[i] != 0;
        column->valid.data[i] = valid;
        out[kept] = value;
        kept += valid;
    }
    for (size_t i = 0; i < kept; i++) {
        if (out[i] < low) low = out[i];
        if (out[i] > high) high = out[i];
    }
    column->valid.size = count;
    column->count = kept;
    column->low = low;
    column->high = high;
}

/* Choose the encoding, and bring the values into its form. */
static void choose_encoding(Column *column, size_t size) {
    int64_t *values = (int64_t *)(void *)column->values.data;
    uint64_t range = (uint64_t)column->high - (uint64_t)column->low;
    column->width = 8;
    if (!column->count) return;
    if (range == 0 || (range < 256 && column->count >= FEW)) {
        column->encoding = RLE_DICTIONARY;
        column->width = 1;
        column->distinct = (size_t)range + 1;
        for (size_t i = 0; i < column->count; i++)
            column->values.data[i] = (uint8_t)((uint64_t)values[i] - (uint64_t)column->low);
        for (uint64_t i = 0; i <= range; i++) {
            int64_t value = (int64_t)((uint64_t)column->low + i);
            array_append(&column->dictionary, &value, size);
        }
    } else if (column->count >= FEW && range < UINT64_C(1) << (size * 8 - 2)) {
        /* Differences must fit the type: readers do not agree on what follows from an overflow. */
        column->encoding = DELTA_BINARY_PACKED;
    } else if (size == 4) {
        column->width = 4;
        for (size_t i = 0; i < column->count; i++) {
            int32_t value = (int32_t)values[i];
            memcpy(column->values.data + i * 4, &value, 4);
        }
    }
}

static PyObject *number_pages(PyObject *self, PyObject *arguments) {
    (void)self;
    Source source = {0};
    PyObject *mask, *null;
    Py_ssize_t bytes, size, most;
    if (!PyArg_ParseTuple(arguments, "y*nOOnn", &source.values, &bytes, &mask, &null, &size, &most)) return NULL;
    source.has_mask = mask != Py_None;
    source.has_null = null != Py_None;
    source.bytes = (size_t)bytes;
    PyObject *made = NULL;
    if ((bytes != 4 && bytes != 8) || (size != 4 && size != 8) || source.values.len % bytes || most < 1) {
        PyErr_SetString(PyExc_ValueError, "expected numbers of 4 or 8 bytes");
    } else if (source.has_null && (source.null = PyLong_AsLongLong(null)) == -1 && PyErr_Occurred()) {
    } else if (!source.has_mask || PyObject_GetBuffer(mask, &source.mask, PyBUF_SIMPLE) == 0) {
        source.count = (size_t)(source.values.len / bytes);
        if (source.has_mask && (size_t)source.mask.len != source.count) {
            PyErr_SetString(PyExc_ValueError, "expected a mask as long as the numbers");
        } else {
            Column column = {0};
            Py_BEGIN_ALLOW_THREADS;
            take_numbers(&column, &source, (size_t)size);
            if (!column.valid.failed && !column.values.failed) {
                choose_encoding(&column, (size_t)size);
                put_pages(&column, (size_t)most);
            }
            Py_END_ALLOW_THREADS;
            made = column_to_python(&column, size);
        }
        if (source.has_mask) PyBuffer_Release(&source.mask);
    }
    PyBuffer_Release(&source.values);
    return made;
}

/* Which codes are not null, the codes that occur, ascending, and instead of each code its place among those. False
   where a code is outside the texts. */
static bool take_codes(Column *column, Array *used, const int32_t *codes, size_t count, size_t texts) {
    uint32_t *place = calloc(texts + 1, sizeof *place); /* of each text */
    if (!place || !array_reserve(&column->valid, count + 1) || !array_reserve(&column->values, count * 4 + 4)) {
        free(place);
        column->valid.failed = true;
        return true;
    }
    uint32_t *out = (uint32_t *)(void *)column->values.data;
    for (size_t i = 0; i < count; i++) {
        int32_t code = codes[i];
        if (code >= 0 && (size_t)code >= texts) {
            free(place);
            return false;
        }
        size_t at = code < 0 ? texts : (size_t)code; /* the last place is that of null */
        place[at] = 1;
        out[column->count] = (uint32_t)at;
        column->valid.data[i] = code >= 0;
        column->count += code >= 0;
    }
    for (size_t text = 0; text < texts; text++) {
        if (!place[text]) continue;
        place[text] = (uint32_t)column->distinct++;
        array_append_i64(used, (int64_t)text);
    }
    column->width = column->distinct <= 1 << 8 ? 1 : column->distinct <= 1 << 16 ? 2 : 4;
    /* In place: nothing is overwritten before it is read. */
    if (column->width == 1) {
        for (size_t i = 0; i < column->count; i++) column->values.data[i] = (uint8_t)place[out[i]];
    } else if (column->width == 2) {
        for (size_t i = 0; i < column->count; i++) {
            uint16_t found = (uint16_t)place[out[i]];
            memcpy(column->values.data + i * 2, &found, 2);
        }
    } else {
        for (size_t i = 0; i < column->count; i++) out[i] = place[out[i]];
    }
    column->valid.size = count;
    free(place);
    return true;
}

static PyObject *code_pages(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer codes, data, offsets;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(arguments, "y*y*y*n", &codes, &data, &offsets, &most)) return NULL;
    Column column = {.encoding = RLE_DICTIONARY};
    Array used = {0};
    bool inside = most > 0 && offsets.len >= 8, distinct = false;
    Py_BEGIN_ALLOW_THREADS;
    if (inside) inside = take_codes(&column, &used, codes.buf, (size_t)codes.len / 4, (size_t)offsets.len / 8 - 1);
    distinct = column.count > 1 && 2 * column.distinct > column.count;
    if (inside && !distinct && !column.valid.failed && !used.failed) {
        const int64_t *texts = (const int64_t *)(const void *)used.data;
        inside = put_texts(&column.dictionary, &data, &offsets, texts, column.distinct);
        if (!column.count) column.encoding = PLAIN;
        if (inside) put_pages(&column, (size_t)most);
    }
    Py_END_ALLOW_THREADS;
    column.valid.failed = column.valid.failed || used.failed;
    array_free(&used);
    PyBuffer_Release(&codes);
    PyBuffer_Release(&data);
    PyBuffer_Release(&offsets);
    if (inside && !distinct) return column_to_python(&column, 0);
    column_free(&column);
    if (inside) return Py_NewRef(Py_None);
    PyErr_SetString(PyExc_ValueError, "a code without a text");
    return NULL;
}

PyMethodDef packing_methods[] = {
    {"number_texts", number_texts, METH_O,
     "Numbers of 8 bytes as PLAIN texts, and where each begins (4 bytes); one below 0 has none."},
    {"plain_texts", plain_texts, METH_VARARGS,
     "(data, offsets, codes): the texts of these codes as PLAIN. Offsets and codes are numbers of 8 bytes."},
    {"number_pages", number_pages, METH_VARARGS,
     "(numbers, bytes of each, mask or None, null or None, bytes in the file, values in a page): the pages of a column "
     "of integers, as the fields of rankscope.store.packing.Pages."},
    {"code_pages", code_pages, METH_VARARGS,
     "(codes, data, offsets, values in a page): the pages of a column of texts by code, and their dictionary. None "
     "where most texts occur once. Codes are numbers of 4 bytes, offsets of 8."},
    {NULL, NULL, 0, NULL},
};
