/* Scans the nodes of a PyTorch execution trace: the ops among them as columns. Called by readers/execution_trace.py.
 *
 * What this file reads, it reads as that module does in Python. It stops before a node that it might read differently,
 * and before one that is not complete. A function that returns a Place returns NULL to stop. */
#include "event_columns.h"

enum { RECORD, NODE, OP_NAME, OP_SHAPES, OP_TYPES, OP_PLAIN, VALUES, VALUES_OFFSET, NODE_COLUMNS };
enum {
    KEY_OTHER, KEY_ID, KEY_NAME, KEY_RECORD, KEY_INPUTS, KEY_ATTRS, KEY_INPUT_SHAPES, KEY_INPUT_TYPES, /* of a node */
    KEY_VALUES, KEY_SHAPES, KEY_TYPES, /* of its inputs */
    KEY_VALUE /* of an attribute */
};

typedef struct {
    uint32_t begin, end;
} Span;

typedef struct {
    Place end;
    Array column[NODE_COLUMNS];
    Texts texts;
    uint64_t nodes;
    /* Of the current node. */
    uint32_t keys; /* one bit for each */
    int64_t record, node;
    Place name;
    size_t name_length;
    bool is_record; /* of the current attribute */
    int64_t value;
    bool has_name, has_values, has_object; /* the inputs are an object: from schema 1.0.3 on */
    Array shapes, types, plain; /* compact JSON */
    Array values;               /* Span: the elements of the list of values, in the column VALUES */
    Array tensors;              /* uint8 for each type: whether it is of tensors */
    uint8_t *out;               /* the end of what is copied into the column VALUES */
} Nodes;

static bool is_text(Place begin, Place end, const char *text) {
    size_t length = strlen(text);
    return (size_t)(end - begin) == length && memcmp(begin, text, length) == 0;
}

/* From the quote of a string without escapes to the place after it. */
static Place read_string(Nodes *nodes, Place p, Place *text_end) {
    Spelling spelling = {0};
    if (*p != '"') return NULL;
    p = find_string_end(p + 1, nodes->end, &spelling);
    if (!p || spelling.escaped) return NULL;
    *text_end = p;
    return p + 1;
}

/* From the quote of a key to its value. */
static Place read_key(Nodes *nodes, Place p, int *key) {
    static const struct {
        const char *text;
        int key;
    } keys[] = {{"id", KEY_ID},           {"name", KEY_NAME},           {"rf_id", KEY_RECORD},
                {"inputs", KEY_INPUTS},   {"attrs", KEY_ATTRS},         {"values", KEY_VALUES},
                {"shapes", KEY_SHAPES},   {"types", KEY_TYPES},         {"input_shapes", KEY_INPUT_SHAPES},
                {"input_types", KEY_INPUT_TYPES}, {"value", KEY_VALUE}};
    Place begin = p + 1, text_end;
    p = read_string(nodes, p, &text_end);
    if (!p) return NULL;
    *key = KEY_OTHER;
    for (size_t at = 0; at < sizeof keys / sizeof *keys; at++)
        if (is_text(begin, text_end, keys[at].text)) *key = keys[at].key;
    p = skip_space(p, nodes->end);
    return *p == ':' ? skip_space(p + 1, nodes->end) : NULL;
}

/* After a value in an object or a list: the place of the next one, or that of the closing bracket. */
static Place read_comma(Nodes *nodes, Place p, uint8_t closing) {
    p = skip_space(p, nodes->end);
    if (*p == closing) return p;
    if (*p != ',') return NULL;
    p = skip_space(p + 1, nodes->end);
    return *p == closing ? NULL : p;
}

/* A value, copied without space to `out`, which has room for all text that is left; moves `out` on. */
static Place copy_json(Nodes *nodes, Place p, uint8_t **out) {
    Copy copy = {p, nodes->end, *out};
    Spelling spelling = {0};
    p = copy_value(&copy, p, &spelling);
    if (!p) return NULL;
    memcpy(copy.out, copy.from, (size_t)(p - copy.from));
    *out = copy.out + (p - copy.from);
    return p;
}

static Place skip_value(Nodes *nodes, Place p) {
    uint8_t *dropped = nodes->out;
    return copy_json(nodes, p, &dropped);
}

/* A number that may be an id; -1 for other values. */
static Place read_id(Nodes *nodes, Place p, int64_t *id) {
    Place begin = p;
    *id = -1;
    if (!is_digit(*p)) return skip_value(nodes, p);
    Spelling spelling = {0};
    p = skip_number(p, &spelling);
    if (!p || spelling.rewritten) return p;
    if (p - begin > 18) return NULL;
    *id = 0;
    for (Place digit = begin; digit < p; digit++) *id = *id * 10 + (*digit - '0');
    return p;
}

/* A list of JSON values, appended to an array. */
static Place read_list(Nodes *nodes, Place p, Array *list) {
    if (*p != '[' || !array_reserve(list, (size_t)(nodes->end - p) + CHUNK)) return NULL;
    uint8_t *out = list->data + list->size;
    p = copy_json(nodes, p, &out);
    if (p) list->size = (size_t)(out - list->data);
    return p;
}

static bool begins(Place begin, Place end, const char *text) {
    size_t length = strlen(text);
    return (size_t)(end - begin) >= length && memcmp(begin, text, length) == 0;
}

static Place read_types(Nodes *nodes, Place p) {
    Place begin = p;
    if (*p != '[') return NULL;
    p = skip_space(p + 1, nodes->end);
    while (*p != ']') {
        Place text = p + 1, end;
        p = read_string(nodes, p, &end);
        if (!p) return NULL;
        uint8_t is_tensor = (begins(text, end, "Tensor(") && end[-1] == ')') || begins(text, end, "GenericList[Tensor(");
        array_append(&nodes->tensors, &is_tensor, 1);
        p = read_comma(nodes, p, ']');
        if (!p) return NULL;
    }
    return read_list(nodes, begin, &nodes->types);
}

/* The list of values into the column VALUES: its length is set, and the column grows, once the node is an op. */
static Place read_values(Nodes *nodes, Place p) {
    if (*p != '[') return NULL;
    Array *column = &nodes->column[VALUES];
    uint8_t *out = column->data + column->size + 4;
    *out++ = '[';
    p = skip_space(p + 1, nodes->end);
    while (*p != ']') {
        if (nodes->values.size) *out++ = ',';
        Span span = {(uint32_t)(out - column->data), 0};
        p = copy_json(nodes, p, &out);
        if (!p) return NULL;
        span.end = (uint32_t)(out - column->data);
        array_append(&nodes->values, &span, sizeof span);
        p = read_comma(nodes, p, ']');
        if (!p) return NULL;
    }
    *out++ = ']';
    nodes->out = out;
    nodes->has_values = true;
    return p + 1;
}

/* From the brace of an object to its closing brace: a value for each key, those that are known at most once. */
typedef Place (*ReadValue)(Nodes *nodes, Place p, int key);

static Place read_object(Nodes *nodes, Place p, uint32_t *seen, ReadValue read) {
    p = skip_space(p + 1, nodes->end);
    while (*p != '}') {
        int key;
        p = read_key(nodes, p, &key);
        if (!p || (key != KEY_OTHER && *seen >> key & 1)) return NULL;
        *seen |= 1u << key;
        p = read(nodes, p, key);
        if (!p) return NULL;
        p = read_comma(nodes, p, '}');
        if (!p) return NULL;
    }
    return p;
}

/* The place after the closing brace of an object inside a node. */
static Place after_brace(const Nodes *nodes, Place p) { return p && p + 1 < nodes->end ? p + 1 : NULL; }

static Place read_input(Nodes *nodes, Place p, int key) {
    switch (key) {
    case KEY_VALUES: return read_values(nodes, p);
    case KEY_SHAPES: return read_list(nodes, p, &nodes->shapes);
    case KEY_TYPES: return read_types(nodes, p);
    default: return skip_value(nodes, p);
    }
}

static Place read_attribute(Nodes *nodes, Place p, int key) {
    if (key == KEY_NAME) nodes->is_record = begins(p, nodes->end, "\"rf_id\"");
    return key == KEY_VALUE ? read_id(nodes, p, &nodes->value) : skip_value(nodes, p);
}

/* The attribute with the record id. */
static Place read_attributes(Nodes *nodes, Place p) {
    if (*p != '[') return skip_value(nodes, p);
    p = skip_space(p + 1, nodes->end);
    while (*p != ']') {
        if (*p != '{') return NULL;
        uint32_t seen = 0;
        nodes->is_record = false;
        nodes->value = -1;
        p = after_brace(nodes, read_object(nodes, p, &seen, read_attribute));
        if (!p) return NULL;
        if (nodes->is_record) {
            if (nodes->keys >> KEY_RECORD & 1) return NULL;
            nodes->keys |= 1u << KEY_RECORD;
            nodes->record = nodes->value;
        }
        p = read_comma(nodes, p, ']');
        if (!p) return NULL;
    }
    return p + 1;
}

static Place read_field(Nodes *nodes, Place p, int key) {
    uint32_t seen = 0;
    Place end;
    switch (key) {
    case KEY_ID: return read_id(nodes, p, &nodes->node);
    case KEY_RECORD: return read_id(nodes, p, &nodes->record);
    case KEY_ATTRS: return read_attributes(nodes, p);
    case KEY_NAME:
        if (*p != '"') return skip_value(nodes, p);
        nodes->name = p + 1;
        nodes->has_name = true;
        p = read_string(nodes, p, &end);
        if (p) nodes->name_length = (size_t)(end - nodes->name);
        return p;
    case KEY_INPUTS:
        if (*p != '{') return read_values(nodes, p);
        nodes->has_object = true;
        if (nodes->shapes.size || nodes->types.size) return NULL;
        return after_brace(nodes, read_object(nodes, p, &seen, read_input));
    case KEY_INPUT_SHAPES: return nodes->has_object ? NULL : read_list(nodes, p, &nodes->shapes);
    case KEY_INPUT_TYPES: return nodes->has_object ? NULL : read_types(nodes, p);
    default: return skip_value(nodes, p);
    }
}

/* The values that are no tensors; 0 for tensors, and "" for texts, which Kineto does not record either. */
static void write_plain(Nodes *nodes) {
    Array *plain = &nodes->plain;
    const uint8_t *data = nodes->column[VALUES].data;
    const Span *spans = (const Span *)nodes->values.data;
    size_t count = nodes->values.size / sizeof *spans;
    if (count > nodes->tensors.size) count = nodes->tensors.size;
    array_append(plain, "[", 1);
    for (size_t at = 0; at < count; at++) {
        if (at) array_append(plain, ",", 1);
        if (nodes->tensors.data[at]) array_append(plain, "0", 1);
        else if (data[spans[at].begin] == '"') array_append(plain, "\"\"", 2);
        else array_append(plain, data + spans[at].begin, spans[at].end - spans[at].begin);
    }
    array_append(plain, "]", 1);
}

static bool add_op(Nodes *nodes) {
    write_plain(nodes);
    const Array *texts[] = {&nodes->shapes, &nodes->types, &nodes->plain};
    int32_t codes[4] = {texts_code(&nodes->texts, nodes->name, nodes->name_length)};
    for (int at = 0; at < 3; at++) {
        bool is_empty = !texts[at]->size;
        codes[at + 1] = texts_code(&nodes->texts, is_empty ? (Place) "[]" : texts[at]->data, is_empty ? 2 : texts[at]->size);
    }
    for (int at = 0; at < 4; at++)
        if (codes[at] == NOT_CODED) return false;
    Array *values = &nodes->column[VALUES];
    uint8_t *begin = values->data + values->size;
    if (!nodes->has_values) {
        memcpy(begin + 4, "[]", 2);
        nodes->out = begin + 6;
    }
    uint32_t length = (uint32_t)(nodes->out - begin - 4);
    memcpy(begin, &length, sizeof length);
    array_append_i32(&nodes->column[VALUES_OFFSET], (int32_t)values->size);
    values->size = (size_t)(nodes->out - values->data);
    array_append_i64(&nodes->column[RECORD], nodes->record);
    array_append_i64(&nodes->column[NODE], nodes->node);
    for (int at = 0; at < 4; at++) array_append_i32(&nodes->column[OP_NAME + at], codes[at]);
    return true;
}

/* From the brace of a node to the place after it, which may be the end. */
static Place read_node(Nodes *nodes, Place p) {
    static const char groups[] = "## process_group:init ##"; /* its input is read in Python */
    nodes->keys = 0;
    nodes->record = nodes->node = -1;
    nodes->name = NULL;
    nodes->name_length = 0;
    nodes->has_name = nodes->has_values = nodes->has_object = false;
    nodes->shapes.size = nodes->types.size = nodes->plain.size = nodes->values.size = nodes->tensors.size = 0;
    nodes->out = nodes->column[VALUES].data + nodes->column[VALUES].size + 4;
    if (*p != '{') return NULL;
    p = read_object(nodes, p, &nodes->keys, read_field);
    if (!p || (nodes->has_name && is_text(nodes->name, nodes->name + nodes->name_length, groups))) return NULL;
    return nodes->record <= 0 || !nodes->has_name || add_op(nodes) ? p + 1 : NULL;
}

/* Nodes with commas between them, as far as they are read; returns the place after the last of them. */
static Place read_nodes(Nodes *nodes, Place p) {
    Place done = p;
    while (p < nodes->end && (p = skip_space(p, nodes->end)) < nodes->end) {
        if (*p == ',') p = skip_space(p + 1, nodes->end);
        p = read_node(nodes, p);
        if (!p) break;
        nodes->nodes++;
        done = p;
    }
    return done;
}

static PyObject *scan_nodes(PyObject *module, PyObject *argument) {
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(argument, &view, PyBUF_SIMPLE) < 0) return NULL;
    Nodes nodes = {0};
    Place begin = view.buf, done = begin;
    size_t size = (size_t)view.len;
    while (size && begin[size - 1] != '}') size--; /* what json.h needs */
    nodes.end = begin + size;
    /* What is copied of a node is shorter than the node, and so is what is skipped. */
    bool ready = size < INT32_MAX - 4 * CHUNK && texts_init(&nodes.texts) &&
                 array_reserve(&nodes.column[VALUES], size + 4 * CHUNK);
    Py_BEGIN_ALLOW_THREADS
    if (ready && size) done = read_nodes(&nodes, begin);
    Py_END_ALLOW_THREADS
    Array *scratch[] = {&nodes.shapes, &nodes.types, &nodes.plain, &nodes.values, &nodes.tensors};
    bool failed = !ready;
    for (size_t at = 0; at < sizeof scratch / sizeof *scratch; at++) {
        failed = failed || scratch[at]->failed;
        array_free(scratch[at]);
    }
    Array arrays[NODE_COLUMNS + 2];
    memcpy(arrays, nodes.column, sizeof nodes.column);
    arrays[NODE_COLUMNS] = nodes.texts.offsets;
    arrays[NODE_COLUMNS + 1] = nodes.texts.data;
    memset(&nodes.texts.offsets, 0, sizeof nodes.texts.offsets);
    memset(&nodes.texts.data, 0, sizeof nodes.texts.data);
    texts_free(&nodes.texts);
    arrays[0].failed = arrays[0].failed || failed;
    PyObject *columns = arrays_to_python(arrays, sizeof arrays / sizeof *arrays);
    PyBuffer_Release(&view);
    return columns ? Py_BuildValue("(NKn)", columns, (unsigned long long)nodes.nodes, (Py_ssize_t)(done - begin)) : NULL;
}

PyMethodDef node_methods[] = {
    {"scan_nodes", scan_nodes, METH_O,
     "scan_nodes(text): the ops among the nodes at its beginning as columns, then the offsets and bytes of their texts; the "
     "number of nodes; and where the next one begins. Called by rankscope.readers.execution_trace."},
    {NULL, NULL, 0, NULL},
};
