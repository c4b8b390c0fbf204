/* Reads rows of a table from the pages of a sqlite file (https://www.sqlite.org/fileformat2.html).
 *
 * The file may be damaged: every offset is checked, no page of the tree is visited twice, and what is not as sqlite
 * writes it ends with an error. The file is read, not mapped: truncating a mapped file would kill the process. */
#include "native.h"
#include "texts.h"

#include <errno.h>
#include <unistd.h>

enum {
    INTERIOR = 5,
    LEAF = 13,
    MOST_LEVELS = 20,
    MOST_COLUMNS = 2000, /* of a table, as in sqlite */
    READ_AT_ONCE = 1 << 18,
};

#define NULL_NUMBER INT64_MIN

static const char *const DAMAGED = "a page is damaged";
static const char *const NO_MEMORY = "";

typedef struct {
    int file;
    uint32_t page_size;
    uint32_t usable; /* bytes of a page without those that extensions reserve */
    uint32_t pages;
} Database;

/* Pages have numbers from 1; the first belongs to the schema. */
static bool is_page(const Database *database, uint32_t page) { return page >= 2 && page <= database->pages; }

static const char *read_pages(const Database *database, uint32_t page, uint32_t count, uint8_t *target) {
    off_t at = (off_t)(page - 1) * database->page_size;
    size_t missing = (size_t)count * database->page_size;
    while (missing) {
        ssize_t got = pread(database->file, target, missing, at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return "the file cannot be read, or ends early";
        target += got;
        at += got;
        missing -= (size_t)got;
    }
    return NULL;
}

static inline uint32_t big_endian(const uint8_t *at, int bytes) {
    uint32_t value = 0;
    while (bytes--) value = value << 8 | *at++;
    return value;
}

/* A number of 1 to 9 bytes; returns where it ends, or NULL where the bytes end first. */
static inline const uint8_t *varint(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    if (at < end && *at < 0x80) {
        *value = *at;
        return at + 1;
    }
    uint64_t read = 0;
    for (int place = 0; place < 8; place++, at++) {
        if (at >= end) return NULL;
        read = read << 7 | (*at & 0x7f);
        if (*at < 0x80) {
            *value = read;
            return at + 1;
        }
    }
    if (at >= end) return NULL;
    *value = read << 8 | *at;
    return at + 1;
}

/* The leaves of a table in order, and the largest rowid that each can have. */
typedef struct {
    const Database *database;
    uint8_t *visited; /* a bit for each page */
    Array pages;
    Array last_rowids;
} Walk;

static bool visit(Walk *walk, uint32_t page) {
    uint8_t bit = (uint8_t)(1u << (page & 7));
    if (!is_page(walk->database, page) || walk->visited[page >> 3] & bit) return false;
    walk->visited[page >> 3] |= bit;
    return true;
}

/* The number of cells of a page of the tree; -1 if their offsets do not fit into it. */
static int cell_count(const Database *database, const uint8_t *page, uint32_t header) {
    uint32_t count = big_endian(page + 3, 2);
    return header + 2 * count <= database->usable ? (int)count : -1;
}

static const char *descend(Walk *walk, uint32_t page, int levels, int64_t *previous, int64_t last) {
    if (!visit(walk, page)) return DAMAGED;
    if (levels == 0) {
        array_append(&walk->pages, &page, sizeof page);
        array_append_i64(&walk->last_rowids, last);
        return walk->pages.failed || walk->last_rowids.failed ? NO_MEMORY : NULL;
    }
    const Database *database = walk->database;
    uint8_t *bytes = malloc(database->page_size);
    if (!bytes) return NO_MEMORY;
    const char *error = read_pages(database, page, 1, bytes);
    int cells = error ? 0 : cell_count(database, bytes, 12);
    if (!error && (bytes[0] != INTERIOR || cells < 0)) error = DAMAGED;
    for (int cell = 0; !error && cell < cells; cell++) {
        uint32_t at = big_endian(bytes + 12 + 2 * cell, 2);
        uint64_t key;
        if (at + 4 > database->usable || !varint(bytes + at + 4, bytes + database->usable, &key)) {
            error = DAMAGED;
        } else if ((int64_t)key < *previous || (int64_t)key > last) {
            error = DAMAGED;
        } else {
            error = descend(walk, big_endian(bytes + at, 4), levels - 1, previous, (int64_t)key);
            *previous = (int64_t)key;
        }
    }
    if (!error) error = descend(walk, big_endian(bytes + 8, 4), levels - 1, previous, last);
    free(bytes);
    return error;
}

/* All leaves have the same depth: that of the first one. */
static const char *find_levels(const Database *database, uint32_t page, int *levels) {
    uint8_t *bytes = malloc(database->page_size);
    if (!bytes) return NO_MEMORY;
    const char *error = NULL;
    for (*levels = 0; !error; (*levels)++) {
        error = is_page(database, page) && *levels <= MOST_LEVELS ? read_pages(database, page, 1, bytes) : DAMAGED;
        if (error || bytes[0] == LEAF) break;
        int cells = cell_count(database, bytes, 12);
        uint32_t at = cells > 0 ? big_endian(bytes + 12, 2) : 8;
        if (bytes[0] != INTERIOR) error = "it is not a table with rowids";
        else if (cells < 0 || at + 4 > database->usable) error = DAMAGED;
        else page = big_endian(bytes + at, 4);
    }
    free(bytes);
    return error;
}

/* One column that is wanted: numbers, or codes of its distinct texts. */
typedef struct {
    bool is_text;
    Array values;
    Texts texts;
} Column;

typedef struct {
    Database database;
    int count;
    Column *columns;
    Column *rowids;                /* NULL if they are not wanted */
    Column *at_place[MOST_COLUMNS]; /* of a record; NULL if it is not wanted */
    int places;                    /* of a record, up to the last that is wanted */
    size_t rows;
    Array payload;        /* of a row that overflows its page */
    uint32_t overflowing; /* pages that rows may still continue on: each belongs to one row */
} Scan;

static inline const char *store_number(Column *column, size_t row, int64_t value) {
    if (column->is_text) return "a text is a number";
    if (value == NULL_NUMBER) return "a number is that which stands for null";
    ((int64_t *)column->values.data)[row] = value;
    return NULL;
}

static inline void store_null(Column *column, size_t row) {
    if (column->is_text) ((int32_t *)column->values.data)[row] = NO_TEXT;
    else ((int64_t *)column->values.data)[row] = NULL_NUMBER;
}

static const char *store_text(Column *column, size_t row, const uint8_t *text, size_t size) {
    if (!column->is_text) return "a number is a text";
    if (memchr(text, 0, size)) return "a text has a zero byte";
    int32_t code = texts_code(&column->texts, text, size);
    ((int32_t *)column->values.data)[row] = code;
    return code == NOT_CODED ? "the texts of a column cannot be numbered" : NULL;
}

static inline int64_t signed_number(const uint8_t *at, int bytes) {
    uint64_t value = (uint64_t)(int64_t)(int8_t)*at;
    while (--bytes) value = value << 8 | *++at;
    return (int64_t)value;
}

/* Serial types 0 to 9; 10 and 11 are reserved, and from 12 on a blob or text has (type - 12) / 2 bytes. */
static const uint8_t SIZES[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0};

static const char *store_value(Column *column, size_t row, uint64_t type, const uint8_t *value, uint64_t size) {
    switch (type) {
    case 0: store_null(column, row); return NULL;
    case 1: return store_number(column, row, (int8_t)*value);
    case 2: return store_number(column, row, signed_number(value, 2));
    case 3: return store_number(column, row, signed_number(value, 3));
    case 4: return store_number(column, row, signed_number(value, 4));
    case 5: return store_number(column, row, signed_number(value, 6));
    case 6: return store_number(column, row, signed_number(value, 8));
    case 7: return "a number has a fraction";
    case 8: return store_number(column, row, 0);
    case 9: return store_number(column, row, 1);
    default: return type & 1 ? store_text(column, row, value, size) : "a value is a blob";
    }
}

static const char *store_record(Scan *scan, const uint8_t *record, uint64_t size) {
    const uint8_t *end = record + size;
    uint64_t header;
    const uint8_t *type_at = varint(record, end, &header);
    if (!type_at || header > size) return DAMAGED;
    const uint8_t *types_end = record + header, *value = types_end;
    int place = 0;
    for (; place < scan->places && type_at < types_end; place++) {
        uint64_t type;
        type_at = varint(type_at, types_end, &type);
        if (!type_at || type == 10 || type == 11) return DAMAGED;
        uint64_t bytes = type < 12 ? SIZES[type] : (type - 12) / 2;
        if (bytes > (uint64_t)(end - value)) return DAMAGED;
        Column *column = scan->at_place[place];
        if (column) {
            const char *error = store_value(column, scan->rows, type, value, bytes);
            if (error) return error;
        }
        value += bytes;
    }
    for (; place < scan->places; place++) /* columns that were added to the table after this row */
        if (scan->at_place[place]) store_null(scan->at_place[place], scan->rows);
    return NULL;
}

/* Collect the payload of a row: what its cell holds, and what overflow pages do. */
static const char *join_payload(Scan *scan, const uint8_t *local, size_t local_size, uint64_t size, uint32_t next) {
    const Database *database = &scan->database;
    scan->payload.size = 0;
    array_append(&scan->payload, local, local_size);
    uint8_t *bytes = malloc(database->page_size);
    const char *error = bytes ? NULL : NO_MEMORY;
    uint64_t missing = size - local_size;
    while (!error && missing) {
        if (!is_page(database, next) || !scan->overflowing) {
            error = DAMAGED;
            break;
        }
        scan->overflowing--;
        error = read_pages(database, next, 1, bytes);
        if (error) break;
        size_t here = missing < database->usable - 4 ? (size_t)missing : database->usable - 4;
        array_append(&scan->payload, bytes + 4, here);
        if (scan->payload.failed) error = NO_MEMORY;
        missing -= here;
        next = big_endian(bytes, 4);
    }
    free(bytes);
    return error;
}

static const char *store_cell(Scan *scan, const uint8_t *at, const uint8_t *end, int64_t *rowid) {
    const Database *database = &scan->database;
    uint64_t size, id;
    at = varint(at, end, &size);
    if (at) at = varint(at, end, &id);
    if (!at || size > (uint64_t)database->pages * database->page_size) return DAMAGED;
    *rowid = (int64_t)id;
    if (size <= database->usable - 35) return size <= (uint64_t)(end - at) ? store_record(scan, at, size) : DAMAGED;
    uint32_t least = (database->usable - 12) * 32 / 255 - 23;
    uint32_t local = least + (uint32_t)((size - least) % (database->usable - 4));
    if (local > database->usable - 35) local = least;
    if (local + 4 > (uint64_t)(end - at)) return DAMAGED;
    const char *error = join_payload(scan, at, local, size, big_endian(at + local, 4));
    return error ? error : store_record(scan, scan->payload.data, size);
}

static bool reserve_rows(Column *column, size_t rows) {
    Array *values = &column->values;
    size_t width = column->is_text ? sizeof(int32_t) : sizeof(int64_t);
    return rows * width <= values->size || array_reserve(values, rows * width - values->size);
}

static void set_rows(Column *column, size_t rows) {
    column->values.size = rows * (column->is_text ? sizeof(int32_t) : sizeof(int64_t));
}

static const char *scan_leaf(Scan *scan, const uint8_t *page, int64_t *next, bool *ended, int64_t last) {
    int cells = page[0] == LEAF ? cell_count(&scan->database, page, 8) : -1;
    if (cells < 0) return DAMAGED;
    for (int column = 0; column < scan->count; column++)
        if (!reserve_rows(&scan->columns[column], scan->rows + (size_t)cells)) return NO_MEMORY;
    const uint8_t *end = page + scan->database.usable;
    for (int cell = 0; cell < cells; cell++) {
        uint32_t at = big_endian(page + 8 + 2 * cell, 2);
        int64_t rowid;
        if (at >= scan->database.usable) return DAMAGED;
        const char *error = store_cell(scan, page + at, end, &rowid);
        if (error) return error;
        if (*ended || rowid < *next || rowid > last) return DAMAGED; /* rows have ascending ids */
        *ended = rowid == INT64_MAX;
        if (!*ended) *next = rowid + 1;
        if (scan->rowids) {
            error = store_number(scan->rowids, scan->rows, rowid);
            if (error) return error;
        }
        scan->rows++;
    }
    for (int column = 0; column < scan->count; column++) set_rows(&scan->columns[column], scan->rows);
    return NULL;
}

/* Leaves that follow each other in the file are read at once. */
static const char *scan_leaves(Scan *scan, const uint32_t *leaves, size_t count, int64_t first, int64_t last) {
    const Database *database = &scan->database;
    size_t most = READ_AT_ONCE / database->page_size;
    uint8_t *bytes = malloc(most * database->page_size);
    const char *error = bytes ? NULL : NO_MEMORY;
    bool ended = false;
    for (size_t leaf = 0; !error && leaf < count;) {
        uint32_t page = leaves[leaf], run = 1;
        while (run < most && leaf + run < count && leaves[leaf + run] == page + run) run++;
        if (!is_page(database, page) || !is_page(database, page + run - 1)) error = DAMAGED;
        else error = read_pages(database, page, run, bytes);
        for (uint32_t each = 0; !error && each < run; each++)
            error = scan_leaf(scan, bytes + (size_t)each * database->page_size, &first, &ended, last);
        leaf += run;
    }
    free(bytes);
    return error;
}

static bool parse_database(PyObject *tuple, Database *database) {
    unsigned int page_size, usable, pages;
    if (!PyArg_ParseTuple(tuple, "iIII", &database->file, &page_size, &usable, &pages)) return false;
    if (page_size < 512 || page_size > 65536 || usable < 480 || usable > page_size || pages >= UINT32_MAX - 1) {
        PyErr_SetString(PyExc_ValueError, "the header is damaged");
        return false;
    }
    database->page_size = page_size;
    database->usable = usable;
    database->pages = pages;
    return true;
}

static PyObject *failed(const char *error) {
    if (error == NO_MEMORY) return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, error);
    return NULL;
}

static PyObject *sqlite_leaves(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *tuple;
    unsigned int root;
    Database database;
    if (!PyArg_ParseTuple(arguments, "O!I", &PyTuple_Type, &tuple, &root)) return NULL;
    if (!parse_database(tuple, &database)) return NULL;
    Walk walk = {.database = &database};
    const char *error = NO_MEMORY;
    Py_BEGIN_ALLOW_THREADS;
    walk.visited = calloc(database.pages / 8 + 1, 1);
    if (walk.visited) {
        int levels;
        int64_t previous = INT64_MIN;
        error = find_levels(&database, root, &levels);
        if (!error) error = descend(&walk, root, levels, &previous, INT64_MAX);
        free(walk.visited);
    }
    Py_END_ALLOW_THREADS;
    PyObject *result = NULL;
    if (error) {
        failed(error);
    } else {
        PyObject *pages = array_to_python(&walk.pages), *rowids = array_to_python(&walk.last_rowids);
        if (pages && rowids) result = PyTuple_Pack(2, pages, rowids);
        Py_XDECREF(pages);
        Py_XDECREF(rowids);
    }
    array_free(&walk.pages);
    array_free(&walk.last_rowids);
    return result;
}

/* A column for Python: its numbers, or a tuple of codes, offsets and data of its texts. */
static PyObject *column_to_python(Column *column) {
    PyObject *values = array_to_python(&column->values);
    if (!values || !column->is_text) return values;
    PyObject *offsets = array_to_python(&column->texts.offsets), *data = array_to_python(&column->texts.data);
    PyObject *result = offsets && data ? PyTuple_Pack(3, values, offsets, data) : NULL;
    Py_DECREF(values);
    Py_XDECREF(offsets);
    Py_XDECREF(data);
    return result;
}

static bool want(Scan *scan, int place, Column *column) {
    Column **target = place < 0 ? &scan->rowids : place < MOST_COLUMNS ? &scan->at_place[place] : NULL;
    if (!target || *target || (place < 0 && column->is_text)) {
        PyErr_SetString(PyExc_ValueError, "a column is wanted twice, or does not exist");
        return false;
    }
    *target = column;
    if (place >= scan->places) scan->places = place + 1;
    return true;
}

static bool parse_columns(PyObject *wanted, Scan *scan) {
    scan->count = (int)PyTuple_Size(wanted);
    scan->columns = calloc((size_t)scan->count + 1, sizeof *scan->columns);
    if (!scan->columns) {
        PyErr_NoMemory();
        return false;
    }
    for (int index = 0; index < scan->count; index++) {
        int place, is_text;
        if (!PyArg_ParseTuple(PyTuple_GetItem(wanted, index), "ip", &place, &is_text)) return false;
        scan->columns[index].is_text = is_text;
        if (is_text && !texts_init(&scan->columns[index].texts)) {
            PyErr_NoMemory();
            return false;
        }
        if (!want(scan, place, &scan->columns[index])) return false;
    }
    return true;
}

static PyObject *columns_to_python(Scan *scan) {
    PyObject *columns = PyTuple_New(scan->count);
    for (int index = 0; columns && index < scan->count; index++) {
        PyObject *column = column_to_python(&scan->columns[index]);
        if (column && PyTuple_SetItem(columns, index, column) == 0) continue;
        Py_DECREF(columns);
        return NULL;
    }
    return columns ? Py_BuildValue("nN", (Py_ssize_t)scan->rows, columns) : NULL;
}

static PyObject *sqlite_rows(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *tuple, *wanted, *result = NULL;
    Py_buffer leaves;
    long long first, last;
    if (!PyArg_ParseTuple(arguments, "O!y*LLO!", &PyTuple_Type, &tuple, &leaves, &first, &last, &PyTuple_Type, &wanted))
        return NULL;
    Scan *scan = calloc(1, sizeof *scan);
    if (!scan) {
        PyBuffer_Release(&leaves);
        return PyErr_NoMemory();
    }
    if (parse_database(tuple, &scan->database) && parse_columns(wanted, scan)) {
        const char *error;
        Py_BEGIN_ALLOW_THREADS;
        scan->overflowing = scan->database.pages;
        error = scan_leaves(scan, leaves.buf, (size_t)leaves.len / sizeof(uint32_t), first, last);
        Py_END_ALLOW_THREADS;
        result = error ? failed(error) : columns_to_python(scan);
    }
    for (int index = 0; scan->columns && index < scan->count; index++) {
        array_free(&scan->columns[index].values);
        texts_free(&scan->columns[index].texts);
    }
    free(scan->columns);
    array_free(&scan->payload);
    free(scan);
    PyBuffer_Release(&leaves);
    return result;
}

PyMethodDef sqlite_methods[] = {
    {"sqlite_leaves", sqlite_leaves, METH_VARARGS,
     "sqlite_leaves((file, page_size, usable, pages), root) -> (pages, last_rowids)\n\n"
     "The leaves of a table in order (uint32), and the largest rowid each can have (int64)."},
    {"sqlite_rows", sqlite_rows, METH_VARARGS,
     "sqlite_rows((file, page_size, usable, pages), leaves, first, last, ((place, is_text), ...)) -> (rows, columns)\n\n"
     "Columns of the rows on these leaves, whose rowids must be in the range; the place -1 stands for the rowid.\n"
     "A column of numbers is int64; one of texts a tuple of codes (int32), offsets (int64) and data."},
    {NULL, NULL, 0, NULL},
};
