/* Untrusted pickles as a compact tree: numbers, texts, lists and dictionaries in a few growing arrays, no Python object
 * for any of them. Nothing in a pickle can run: opcodes that refer to a class or a function are refused.
 *
 * A value is a Ref of 32 bits: a small number, or the kind of a value and its place in the array of that kind. Texts are
 * kept once. So are the keys of dictionaries that have the same keys, and the members of lists that have the same
 * members: the stacks of a memory snapshot repeat in every step. */
#include "native.h"
#include "texts.h"

#include <stdio.h>

typedef uint32_t Ref;

enum { PLAIN, NUMBER, TEXT, LIST, DICT, REAL }; /* kinds */
enum { NOTHING, NONE, FALSE_VALUE, TRUE_VALUE, OTHER, MARK_VALUE }; /* of kind PLAIN: the values themselves */
enum { KIND_BITS = 28, MOST_OF_A_KIND = 1 << KIND_BITS };
enum { MORE, DONE, REFUSED, DAMAGED, NO_MEMORY }; /* states */

#define SMALL UINT32_C(0x80000000) /* the other 31 bits are a signed number */
#define TUPLE_ROOM UINT32_MAX      /* a tuple: its members never change */
#define OWN_KEYS UINT32_MAX        /* a dictionary that was filled in several parts: pairs of its own */
#define NULL_NUMBER INT64_MIN
#define RELEASED_EVERY (32 << 20)
#define LARGE_ARRAYS(tree) {&(tree)->cells, &(tree)->lists, &(tree)->dicts, &(tree)->numbers, &(tree)->reals}

typedef struct {
    uint32_t begin, count; /* in cells */
    uint32_t room;         /* cells from begin on that are its own; 0 where others may share them */
} List;

typedef struct {
    uint32_t begin, count; /* in cells: its values, or its pairs */
    uint32_t shape;        /* its keys, or OWN_KEYS */
    uint32_t room;         /* pairs */
} Dict;

typedef struct {
    uint32_t hash, begin, count; /* count 0: the slot is free */
    uint32_t id;
} Run;

/* Runs of cells by their content. */
typedef struct {
    Run *slots;
    size_t mask, count;
} Runs;

typedef struct {
    Array cells, lists, dicts, shapes, numbers, reals, stack, marks, memo;
    Texts texts;
    Runs same_lists, same_keys;
    size_t unreleased; /* bytes of the pickle since memory was given back */
    int state;
    char why[256];
    char folder[4000]; /* of the files of the large arrays */
} Tree;

static inline size_t length(const Array *array, size_t item) { return array->size / item; }
static inline Ref *cells(const Tree *tree) { return (Ref *)tree->cells.data; }
static inline uint32_t cell_count(const Tree *tree) { return (uint32_t)length(&tree->cells, sizeof(Ref)); }
static inline Ref make_ref(int kind, size_t place) { return (Ref)kind << KIND_BITS | (Ref)place; }
static inline bool is_small(Ref ref) { return ref & SMALL; }
static inline int kind_of(Ref ref) { return is_small(ref) ? NUMBER : (int)(ref >> KIND_BITS); }
static inline uint32_t place_of(Ref ref) { return ref & (MOST_OF_A_KIND - 1); }
static inline List *list_of(const Tree *tree, Ref ref) { return (List *)tree->lists.data + place_of(ref); }
static inline Dict *dict_of(const Tree *tree, Ref ref) { return (Dict *)tree->dicts.data + place_of(ref); }

static bool stop(Tree *tree, int state, const char *why) {
    if (tree->state == MORE) {
        tree->state = state;
        snprintf(tree->why, sizeof tree->why, "%s", why);
    }
    return false;
}

static bool no_memory(Tree *tree) { return stop(tree, NO_MEMORY, ""); }

/* Room for more cells, which are 0. Returns where they begin; UINT32_MAX where memory has run out. */
static uint32_t new_cells(Tree *tree, size_t count) {
    size_t begin = length(&tree->cells, sizeof(Ref)), bytes = count * sizeof(Ref);
    bool fits = begin + count < UINT32_MAX;
    if (!fits || !array_reserve(&tree->cells, bytes)) {
        no_memory(tree);
        return UINT32_MAX;
    }
    if (bytes) memset(tree->cells.data + tree->cells.size, 0, bytes);
    tree->cells.size += bytes;
    return (uint32_t)begin;
}

static bool grow_runs(Runs *runs) {
    size_t places = runs->slots ? 2 * (runs->mask + 1) : 1024;
    Run *slots = calloc(places, sizeof *slots);
    if (!slots) return false;
    for (size_t old = 0; runs->slots && old <= runs->mask; old++) {
        if (!runs->slots[old].count) continue;
        size_t at = runs->slots[old].hash & (places - 1);
        while (slots[at].count) at = (at + 1) & (places - 1);
        slots[at] = runs->slots[old];
    }
    free(runs->slots);
    runs->slots = slots;
    runs->mask = places - 1;
    return true;
}

/* The run of cells with this content; the cells and the run are made where there is none. `step` 2 takes every second
 * value. NULL where memory has run out. After too many probes the content is stored again: the run has no slot. */
static Run *find_run(Tree *tree, Runs *runs, const Ref *values, uint32_t count, uint32_t step, uint32_t id) {
    static Run unshared;
    if ((!runs->slots || runs->count * 2 > runs->mask) && !grow_runs(runs)) return NULL;
    uint64_t mixed = count;
    for (uint32_t i = 0; i < count; i++) {
        mixed = (mixed ^ values[i * step]) * UINT64_C(0x9E3779B97F4A7C15);
        mixed ^= mixed >> 29;
    }
    uint32_t hash = (uint32_t)mixed;
    size_t at = hash & runs->mask;
    Run *run = &unshared;
    for (int probe = 0; probe < MOST_PROBES; probe++, at = (at + 1) & runs->mask) {
        Run *slot = &runs->slots[at];
        if (!slot->count) {
            run = slot;
            runs->count++;
            break;
        }
        if (slot->hash != hash || slot->count != count) continue;
        const Ref *known = cells(tree) + slot->begin;
        uint32_t same = 0;
        while (same < count && known[same] == values[same * step]) same++;
        if (same == count) return slot;
    }
    *run = (Run){hash, cell_count(tree), count, id};
    uint32_t begin = new_cells(tree, count);
    if (begin == UINT32_MAX) return NULL;
    for (uint32_t i = 0; i < count; i++) cells(tree)[begin + i] = values[i * step];
    return run;
}

static bool push(Tree *tree, Ref ref) {
    array_append(&tree->stack, &ref, sizeof ref);
    return !tree->stack.failed || no_memory(tree);
}

static bool push_new(Tree *tree, int kind, Array *array, const void *value, size_t size) {
    size_t place = length(array, size);
    if (place >= MOST_OF_A_KIND) return no_memory(tree);
    array_append(array, value, size);
    return array->failed ? no_memory(tree) : push(tree, make_ref(kind, place));
}

static bool push_number(Tree *tree, int64_t value) {
    if (value >= -(1 << 30) && value < 1 << 30) return push(tree, SMALL | ((Ref)value & ~SMALL));
    return push_new(tree, NUMBER, &tree->numbers, &value, sizeof value);
}

static bool push_text(Tree *tree, const uint8_t *bytes, size_t count) {
    int32_t code = texts_code(&tree->texts, bytes, count);
    if (code < 0 || code >= MOST_OF_A_KIND) return no_memory(tree);
    return push(tree, make_ref(TEXT, (size_t)code));
}

/* A number of any length, little endian, two's complement. */
static bool push_long(Tree *tree, const uint8_t *bytes, size_t count) {
    bool negative = count && bytes[count - 1] & 0x80;
    while (count > 8 && bytes[count - 1] == (negative ? 0xff : 0) && (bytes[count - 2] & 0x80) == (negative ? 0x80 : 0)) count--;
    if (count > 8) return push(tree, OTHER);
    uint64_t value = negative ? UINT64_MAX : 0;
    for (size_t i = count; i-- > 0;) value = value << 8 | bytes[i];
    return (int64_t)value == NULL_NUMBER ? push(tree, OTHER) : push_number(tree, (int64_t)value);
}

static size_t depth(const Tree *tree) { return length(&tree->stack, sizeof(Ref)); }

/* The bottom of what may be popped: the innermost mark. */
static size_t floor_of(const Tree *tree) {
    size_t marks = length(&tree->marks, sizeof(size_t));
    return marks ? ((size_t *)tree->marks.data)[marks - 1] : 0;
}

static bool too_few(Tree *tree) { return stop(tree, DAMAGED, "an instruction finds too few values"); }

/* The values above the innermost mark, which is removed. They stay in memory until the next push. */
static bool pop_mark(Tree *tree, Ref **values, size_t *count) {
    if (!tree->marks.size) return too_few(tree);
    size_t bottom = floor_of(tree);
    tree->marks.size -= sizeof(size_t);
    *values = (Ref *)tree->stack.data + bottom;
    *count = depth(tree) - bottom;
    tree->stack.size = bottom * sizeof(Ref);
    return true;
}

static bool pop(Tree *tree, size_t count, Ref **values) {
    if (depth(tree) < floor_of(tree) + count) return too_few(tree);
    tree->stack.size -= count * sizeof(Ref);
    *values = (Ref *)tree->stack.data + depth(tree);
    return true;
}

static bool top(Tree *tree, Ref *ref) {
    if (depth(tree) <= floor_of(tree)) return too_few(tree);
    *ref = ((Ref *)tree->stack.data)[depth(tree) - 1];
    return true;
}

static bool append(Tree *tree, const Ref *values, size_t count) {
    Ref target;
    if (!top(tree, &target)) return false;
    if (!count) return true;
    if (kind_of(target) != LIST || list_of(tree, target)->room == TUPLE_ROOM)
        return stop(tree, DAMAGED, "values are appended to something that is not a list");
    List *list = list_of(tree, target);
    if (!list->count) {
        Run *run = find_run(tree, &tree->same_lists, values, (uint32_t)count, 1, 0);
        if (!run) return no_memory(tree);
        *list = (List){run->begin, run->count, 0};
        return true;
    }
    if (count > UINT32_MAX / 4 || list->count > UINT32_MAX / 4) return no_memory(tree);
    if (list->room < list->count + count) { /* into cells of its own, with room to grow */
        uint32_t room = 2 * (list->count + (uint32_t)count), begin = new_cells(tree, room);
        if (begin == UINT32_MAX) return false;
        memcpy(cells(tree) + begin, cells(tree) + list->begin, list->count * sizeof(Ref));
        list->begin = begin;
        list->room = room;
    }
    memcpy(cells(tree) + list->begin + list->count, values, count * sizeof(Ref));
    list->count += (uint32_t)count;
    return true;
}

static bool is_hashable(const Tree *tree, Ref key) {
    return kind_of(key) != DICT && (kind_of(key) != LIST || list_of(tree, key)->room == TUPLE_ROOM);
}

/* Give a dictionary pairs of its own, with room for `more`. */
static bool own_pairs(Tree *tree, Dict *dict, uint32_t more) {
    if (dict->count > UINT32_MAX / 8 || more > UINT32_MAX / 8) return no_memory(tree);
    if (dict->shape == OWN_KEYS && dict->count + more <= dict->room) return true;
    uint32_t room = 2 * (dict->count + more), begin = new_cells(tree, 2 * (size_t)room);
    if (begin == UINT32_MAX) return false;
    Ref *to = cells(tree) + begin;
    if (dict->shape == OWN_KEYS) memcpy(to, cells(tree) + dict->begin, 2 * dict->count * sizeof(Ref));
    else
        for (uint32_t i = 0; i < dict->count; i++) {
            to[2 * i] = cells(tree)[((uint32_t *)tree->shapes.data)[dict->shape] + i];
            to[2 * i + 1] = cells(tree)[dict->begin + i];
        }
    *dict = (Dict){begin, dict->count, OWN_KEYS, room};
    return true;
}

static bool set_items(Tree *tree, const Ref *pairs, size_t count) {
    Ref target;
    if (!top(tree, &target)) return false;
    if (count % 2) return stop(tree, DAMAGED, "a key has no value");
    count /= 2;
    if (!count) return true;
    if (kind_of(target) != DICT) return stop(tree, DAMAGED, "keys are set in something that is not a dictionary");
    for (size_t i = 0; i < count; i++)
        if (!is_hashable(tree, pairs[2 * i])) return stop(tree, DAMAGED, "a key is a list or a dictionary");
    Dict *dict = dict_of(tree, target);
    if (!dict->count) {
        uint32_t next = (uint32_t)length(&tree->shapes, sizeof(uint32_t));
        Run *keys = find_run(tree, &tree->same_keys, pairs, (uint32_t)count, 2, next);
        if (!keys) return no_memory(tree);
        if (keys->id == next) array_append_i32(&tree->shapes, (int32_t)keys->begin);
        uint32_t shape = keys->id, begin = new_cells(tree, count);
        if (begin == UINT32_MAX) return false;
        for (size_t i = 0; i < count; i++) cells(tree)[begin + i] = pairs[2 * i + 1];
        *dict = (Dict){begin, (uint32_t)count, shape, 0};
        return !tree->shapes.failed || no_memory(tree);
    }
    if (count > UINT32_MAX / 8 || !own_pairs(tree, dict, (uint32_t)count)) return no_memory(tree);
    memcpy(cells(tree) + dict->begin + 2 * dict->count, pairs, 2 * count * sizeof(Ref));
    dict->count += (uint32_t)count;
    return true;
}

static bool push_tuple(Tree *tree, const Ref *values, size_t count) {
    uint32_t begin = new_cells(tree, count);
    if (begin == UINT32_MAX) return false;
    if (count) memcpy(cells(tree) + begin, values, count * sizeof(Ref));
    List tuple = {begin, (uint32_t)count, TUPLE_ROOM};
    return push_new(tree, LIST, &tree->lists, &tuple, sizeof tuple);
}

/* Slots are numbered in the order in which values are first stored; a far higher number would only take memory. */
static bool remember(Tree *tree, size_t slot) {
    Ref ref, nothing = NOTHING;
    if (!top(tree, &ref)) return false;
    size_t known = length(&tree->memo, sizeof(Ref));
    if (slot > 2 * known + (1 << 20)) return no_memory(tree);
    for (; known <= slot; known++) array_append(&tree->memo, &nothing, sizeof nothing);
    if (tree->memo.failed) return no_memory(tree);
    ((Ref *)tree->memo.data)[slot] = ref;
    return true;
}

static bool recall(Tree *tree, size_t slot) {
    if (slot >= length(&tree->memo, sizeof(Ref)) || ((Ref *)tree->memo.data)[slot] == NOTHING)
        return stop(tree, DAMAGED, "it refers to a value that is not in it");
    return push(tree, ((Ref *)tree->memo.data)[slot]);
}

static uint64_t little(const uint8_t *bytes, int count) {
    uint64_t value = 0;
    for (int i = count; i-- > 0;) value = value << 8 | bytes[i];
    return value;
}

static bool push_real(Tree *tree, const uint8_t *bytes) {
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) bits = bits << 8 | bytes[i];
    return push_new(tree, REAL, &tree->reals, &bits, sizeof bits);
}

/* What a class or function is called, for the message: two lines after the opcode, or the two texts on the stack. */
static bool refuse_global(Tree *tree, const uint8_t *at, const uint8_t *end, bool on_stack) {
    const uint8_t *parts[2] = {(const uint8_t *)"?", (const uint8_t *)"?"};
    int sizes[2] = {1, 1};
    for (int part = 0; part < 2; part++) {
        if (on_stack) {
            if (depth(tree) < 2) return too_few(tree);
            Ref ref = ((Ref *)tree->stack.data)[depth(tree) - 2 + (size_t)part];
            if (kind_of(ref) != TEXT) continue;
            const int64_t *offsets = (int64_t *)tree->texts.offsets.data + place_of(ref);
            parts[part] = tree->texts.data.data + offsets[0];
            sizes[part] = (int)(offsets[1] - offsets[0] < 100 ? offsets[1] - offsets[0] : 100);
        } else {
            const uint8_t *line = memchr(at, '\n', (size_t)(end - at));
            if (!line) break;
            parts[part] = at;
            sizes[part] = (int)(line - at < 100 ? line - at : 100);
            at = line + 1;
        }
    }
    char why[256];
    snprintf(why, sizeof why, "it refers to %.*s.%.*s", sizes[0], (const char *)parts[0], sizes[1], (const char *)parts[1]);
    return stop(tree, REFUSED, why);
}

/* The number of bytes of a length after an opcode, and where the text or number itself begins and ends: false if it is
 * not all there yet. */
static bool sized(const uint8_t **at, const uint8_t *end, int width, size_t *count) {
    if (end - *at < width) return false;
    uint64_t size = little(*at, width);
    if (size > (uint64_t)(end - *at - width)) return false;
    *at += width;
    *count = (size_t)size;
    return true;
}

/* Run one instruction. Returns where the next begins; NULL if this one is not all there, or the state is not MORE. */
static const uint8_t *step(Tree *tree, const uint8_t *at, const uint8_t *end) {
    Ref *values, ref;
    size_t count = 0;
    int opcode = *at++;
#define NEED(bytes) \
    if (end - at < (bytes)) return NULL
#define SIZED(width) \
    if (!sized(&at, end, width, &count)) return NULL
    bool fine;
    switch (opcode) {
    case 0x80: /* PROTO */
        NEED(1);
        return *at > 5 ? (stop(tree, DAMAGED, "its protocol is newer than 5"), NULL) : at + 1;
    case 0x95: /* FRAME: a hint for reading ahead */
        NEED(8);
        return at + 8;
    case '}': {
        Dict empty = {0, 0, OWN_KEYS, 0};
        fine = push_new(tree, DICT, &tree->dicts, &empty, sizeof empty);
        break;
    }
    case ']': {
        List empty = {0, 0, 0};
        fine = push_new(tree, LIST, &tree->lists, &empty, sizeof empty);
        break;
    }
    case '(': {
        size_t here = depth(tree);
        array_append(&tree->marks, &here, sizeof here);
        fine = !tree->marks.failed || no_memory(tree);
        break;
    }
    case 0x94: fine = remember(tree, length(&tree->memo, sizeof(Ref))); break; /* MEMOIZE */
    case 'q': NEED(1); fine = remember(tree, *at++); break;
    case 'r': NEED(4); fine = remember(tree, little(at, 4)); at += 4; break;
    case 'h': NEED(1); fine = recall(tree, *at++); break;
    case 'j': NEED(4); fine = recall(tree, little(at, 4)); at += 4; break;
    case 'e': fine = pop_mark(tree, &values, &count) && append(tree, values, count); break;
    case 'a': fine = pop(tree, 1, &values) && append(tree, values, 1); break;
    case 'u': fine = pop_mark(tree, &values, &count) && set_items(tree, values, count); break;
    case 's': fine = pop(tree, 2, &values) && set_items(tree, values, 2); break;
    case 'J': NEED(4); fine = push_number(tree, (int32_t)little(at, 4)); at += 4; break;
    case 'K': NEED(1); fine = push_number(tree, *at++); break;
    case 'M': NEED(2); fine = push_number(tree, (int64_t)little(at, 2)); at += 2; break;
    case 0x8a: SIZED(1); fine = push_long(tree, at, count); at += count; break;
    case 0x8b: SIZED(4); fine = push_long(tree, at, count); at += count; break;
    case 'G': NEED(8); fine = push_real(tree, at); at += 8; break;
    case 'N': fine = push(tree, NONE); break;
    case 0x88: fine = push(tree, TRUE_VALUE); break;
    case 0x89: fine = push(tree, FALSE_VALUE); break;
    case 0x8c: case 'U': SIZED(1); fine = push_text(tree, at, count); at += count; break;
    case 'X': case 'T': SIZED(4); fine = push_text(tree, at, count); at += count; break;
    case 0x8d: SIZED(8); fine = push_text(tree, at, count); at += count; break;
    case 'C': SIZED(1); fine = push(tree, OTHER); at += count; break; /* bytes */
    case 'B': SIZED(4); fine = push(tree, OTHER); at += count; break;
    case 0x8e: case 0x96: SIZED(8); fine = push(tree, OTHER); at += count; break;
    case 0x8f: fine = push(tree, OTHER); break; /* EMPTY_SET */
    case 0x90: fine = pop_mark(tree, &values, &count) && top(tree, &ref); break; /* ADDITEMS */
    case 0x91: fine = pop_mark(tree, &values, &count) && push(tree, OTHER); break; /* FROZENSET */
    case ')': fine = push_tuple(tree, NULL, 0); break;
    case 0x85: case 0x86: case 0x87:
        count = (size_t)opcode - 0x84;
        fine = pop(tree, count, &values) && push_tuple(tree, values, count);
        break;
    case 't': fine = pop_mark(tree, &values, &count) && push_tuple(tree, values, count); break;
    case '0': fine = pop(tree, 1, &values); break;
    case '1': fine = pop_mark(tree, &values, &count); break;
    case '2': fine = top(tree, &ref) && push(tree, ref); break;
    case '.':
        if (top(tree, &ref)) tree->state = DONE;
        return at;
    case 'c': case 'i': fine = refuse_global(tree, at, end, false); break;
    case 0x93: fine = refuse_global(tree, at, end, true); break;
    case 'R': case 'o': case 'b': case 0x81: case 0x92: fine = stop(tree, REFUSED, "it calls a function"); break;
    case 0x82: case 0x83: case 0x84: fine = stop(tree, REFUSED, "it refers to a registered class"); break;
    case 'P': case 'Q': case 0x97: case 0x98: fine = stop(tree, REFUSED, "it refers to an object outside the file"); break;
    default: {
        char why[64];
        snprintf(why, sizeof why, "0x%02x is not an instruction of torch's pickles", opcode);
        fine = stop(tree, DAMAGED, why);
    }
    }
    return fine ? at : NULL;
}

static void tree_free(Tree *tree) {
    Array *arrays[] = {&tree->cells, &tree->lists, &tree->dicts, &tree->shapes, &tree->numbers,
                       &tree->reals, &tree->stack, &tree->marks, &tree->memo};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) array_free(arrays[i]);
    texts_free(&tree->texts);
    free(tree->same_lists.slots);
    free(tree->same_keys.slots);
    free(tree);
}

/* --- functions for Python */

#define TREE "rankscope.native.pickled"

static void capsule_free(PyObject *capsule) { tree_free(PyCapsule_GetPointer(capsule, TREE)); }

static PyObject *pickled_tree(PyObject *module, PyObject *arguments) {
    (void)module;
    const char *folder;
    if (!PyArg_ParseTuple(arguments, "s", &folder)) return NULL;
    Tree *tree = calloc(1, sizeof *tree);
    if (!tree) return PyErr_NoMemory();
    if (strlen(folder) < sizeof tree->folder) {
        strcpy(tree->folder, folder);
        Array *large[] = LARGE_ARRAYS(tree);
        for (size_t i = 0; i < sizeof large / sizeof *large; i++) large[i]->folder = tree->folder;
    }
    PyObject *capsule = texts_init(&tree->texts) ? PyCapsule_New(tree, TREE, capsule_free) : PyErr_NoMemory();
    if (!capsule) tree_free(tree);
    return capsule;
}

static void release_memory(Tree *tree) {
    Array *large[] = LARGE_ARRAYS(tree);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) array_release(large[i]);
    tree->unreleased = 0;
}

/* After the last instruction only the values are needed. */
static void drop_working_memory(Tree *tree) {
    array_free(&tree->memo);
    array_free(&tree->marks);
    free(tree->same_lists.slots);
    free(tree->same_keys.slots);
    memset(&tree->same_lists, 0, sizeof tree->same_lists);
    memset(&tree->same_keys, 0, sizeof tree->same_keys);
}

static PyObject *pickled_feed(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *capsule;
    Py_buffer bytes;
    if (!PyArg_ParseTuple(arguments, "Oy*", &capsule, &bytes)) return NULL;
    Tree *tree = PyCapsule_GetPointer(capsule, TREE);
    if (!tree) {
        PyBuffer_Release(&bytes);
        return NULL;
    }
    const uint8_t *begin = bytes.buf, *at = begin, *end = begin + bytes.len;
    while (at < end && tree->state == MORE) {
        const uint8_t *next = step(tree, at, end);
        if (!next) break;
        at = next;
    }
    if (tree->state == DONE) drop_working_memory(tree);
    Py_ssize_t consumed = at - begin;
    tree->unreleased += (size_t)consumed;
    if (tree->unreleased > RELEASED_EVERY) release_memory(tree);
    PyBuffer_Release(&bytes);
    if (tree->state == NO_MEMORY) return PyErr_NoMemory();
    PyObject *why = PyUnicode_DecodeUTF8(tree->why, (Py_ssize_t)strlen(tree->why), "replace");
    return why ? Py_BuildValue("niN", consumed, tree->state, why) : NULL;
}

static PyObject *pickled_root(PyObject *module, PyObject *capsule) {
    (void)module;
    Tree *tree = PyCapsule_GetPointer(capsule, TREE);
    Ref ref;
    if (!tree) return NULL;
    return top(tree, &ref) ? PyLong_FromUnsignedLong(ref) : PyErr_Format(PyExc_ValueError, "the pickle is not read");
}

/* A function of many values: the tree, and a buffer of refs that are checked to be of the tree. */
typedef struct {
    Tree *tree;
    Py_buffer buffer;
    const Ref *refs;
    size_t count;
} Call;

static bool is_known(const Tree *tree, Ref ref) {
    const Array *arrays[] = {NULL, &tree->numbers, NULL, &tree->lists, &tree->dicts, &tree->reals};
    const size_t sizes[] = {0, sizeof(int64_t), 0, sizeof(List), sizeof(Dict), sizeof(double)};
    if (is_small(ref)) return true;
    int kind = kind_of(ref);
    if (kind == PLAIN) return place_of(ref) < MARK_VALUE;
    if (kind == TEXT) return (int32_t)place_of(ref) < tree->texts.count;
    return kind <= REAL && place_of(ref) < length(arrays[kind], sizes[kind]);
}

static bool begin_call(PyObject *arguments, Call *call, const char **text, Py_ssize_t *size) {
    PyObject *capsule;
    if (!(text ? PyArg_ParseTuple(arguments, "Oy*y#", &capsule, &call->buffer, text, size)
               : PyArg_ParseTuple(arguments, "Oy*", &capsule, &call->buffer)))
        return false;
    call->tree = PyCapsule_GetPointer(capsule, TREE);
    call->refs = call->buffer.buf;
    call->count = (size_t)call->buffer.len / sizeof(Ref);
    bool fine = call->tree != NULL;
    for (size_t i = 0; fine && i < call->count; i++) fine = is_known(call->tree, call->refs[i]);
    if (fine) return true;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a value is not of this pickle");
    PyBuffer_Release(&call->buffer);
    return false;
}

static PyObject *end_call(Call *call, Array *made) {
    PyBuffer_Release(&call->buffer);
    call->tree->unreleased += call->count * sizeof(Dict);
    if (call->tree->unreleased > RELEASED_EVERY) release_memory(call->tree);
    PyObject *result = array_to_python(made);
    array_free(made);
    return result;
}

static PyObject *pickled_kinds(PyObject *module, PyObject *arguments) {
    (void)module;
    Call call;
    Array made = {0};
    if (!begin_call(arguments, &call, NULL, NULL)) return NULL;
    for (size_t i = 0; i < call.count; i++) array_append(&made, &(uint8_t){(uint8_t)kind_of(call.refs[i])}, 1);
    return end_call(&call, &made);
}

static PyObject *pickled_numbers(PyObject *module, PyObject *arguments) {
    (void)module;
    Call call;
    Array made = {0};
    if (!begin_call(arguments, &call, NULL, NULL)) return NULL;
    for (size_t i = 0; i < call.count; i++) {
        Ref ref = call.refs[i];
        int64_t value = is_small(ref)             ? (int32_t)(ref << 1) >> 1
                        : kind_of(ref) == NUMBER ? ((int64_t *)call.tree->numbers.data)[place_of(ref)]
                                                 : NULL_NUMBER;
        array_append_i64(&made, value);
    }
    return end_call(&call, &made);
}

/* Of each list its length and what identifies its members; of anything else -1. */
static PyObject *pickled_lengths(PyObject *module, PyObject *arguments) {
    (void)module;
    Call call;
    Array lengths = {0}, contents = {0};
    if (!begin_call(arguments, &call, NULL, NULL)) return NULL;
    for (size_t i = 0; i < call.count; i++) {
        const List *list = kind_of(call.refs[i]) == LIST ? list_of(call.tree, call.refs[i]) : NULL;
        array_append_i64(&lengths, list ? (int64_t)list->count : -1);
        array_append_i64(&contents, list ? (int64_t)list->begin << 32 | list->count : -1);
    }
    PyBuffer_Release(&call.buffer);
    Array both[] = {lengths, contents};
    return arrays_to_python(both, 2);
}

static PyObject *pickled_members(PyObject *module, PyObject *arguments) {
    (void)module;
    Call call;
    Array made = {0};
    if (!begin_call(arguments, &call, NULL, NULL)) return NULL;
    for (size_t i = 0; i < call.count && !made.failed; i++) {
        if (kind_of(call.refs[i]) != LIST) continue;
        const List *list = list_of(call.tree, call.refs[i]);
        if (list->count) array_append(&made, cells(call.tree) + list->begin, list->count * sizeof(Ref));
    }
    return end_call(&call, &made);
}

/* The value of a key in a dictionary, or NOTHING. Where a key is set twice, the last counts. `places` holds the place of
 * the key in each shape, found when it is needed; `work` limits the search in dictionaries that share no keys. */
static Ref field(const Tree *tree, Ref ref, Ref key, int32_t *places, uint64_t *work) {
    enum { UNKNOWN = -2, ABSENT = -1 };
    const Dict *dict = dict_of(tree, ref);
    if (dict->shape == OWN_KEYS) {
        *work += dict->count;
        for (uint32_t i = dict->count; i-- > 0;)
            if (cells(tree)[dict->begin + 2 * i] == key) return cells(tree)[dict->begin + 2 * i + 1];
        return NOTHING;
    }
    int32_t *place = &places[dict->shape];
    if (*place == UNKNOWN) {
        const Ref *keys = cells(tree) + ((uint32_t *)tree->shapes.data)[dict->shape];
        *place = (int32_t)dict->count - 1;
        while (*place >= 0 && keys[*place] != key) --*place;
    }
    return *place == ABSENT ? NOTHING : cells(tree)[dict->begin + (uint32_t)*place];
}

static PyObject *pickled_fields(PyObject *module, PyObject *arguments) {
    (void)module;
    Call call;
    Array made = {0};
    const char *name;
    Py_ssize_t size;
    if (!begin_call(arguments, &call, &name, &size)) return NULL;
    size_t shapes = length(&call.tree->shapes, sizeof(uint32_t)), unused;
    int32_t *places = malloc((shapes + 1) * sizeof *places);
    const uint8_t *bytes = (const uint8_t *)name;
    int32_t code = texts_find(&call.tree->texts, bytes, (size_t)size, hash_bytes(bytes, (size_t)size), &unused);
    uint64_t work = 0, most = cell_count(call.tree) + UINT64_C(64) * call.count;
    made.failed = !places;
    for (size_t i = 0; places && i < shapes; i++) places[i] = -2;
    for (size_t i = 0; places && i < call.count && work <= most; i++) {
        bool is_there = code >= 0 && kind_of(call.refs[i]) == DICT;
        Ref value = is_there ? field(call.tree, call.refs[i], make_ref(TEXT, (size_t)code), places, &work) : NOTHING;
        array_append(&made, &value, sizeof value);
    }
    free(places);
    made.failed |= work > most;
    return end_call(&call, &made);
}

/* The pairs of one dictionary. */
static PyObject *pickled_pairs(PyObject *module, PyObject *arguments) {
    (void)module;
    Call call;
    Array made = {0};
    if (!begin_call(arguments, &call, NULL, NULL)) return NULL;
    const Dict *dict = call.count == 1 && kind_of(call.refs[0]) == DICT ? dict_of(call.tree, call.refs[0]) : NULL;
    for (uint32_t i = 0; dict && i < dict->count; i++) {
        bool own = dict->shape == OWN_KEYS;
        uint32_t keys = own ? 0 : ((uint32_t *)call.tree->shapes.data)[dict->shape];
        array_append(&made, cells(call.tree) + (own ? dict->begin + 2 * i : keys + i), sizeof(Ref));
        array_append(&made, cells(call.tree) + (own ? dict->begin + 2 * i + 1 : dict->begin + i), sizeof(Ref));
    }
    return end_call(&call, &made);
}

static PyObject *value_of(const Tree *tree, Ref ref, Py_ssize_t most) {
    if (kind_of(ref) == TEXT) {
        const int64_t *offsets = (int64_t *)tree->texts.offsets.data + place_of(ref);
        Py_ssize_t count = (Py_ssize_t)(offsets[1] - offsets[0]);
        return PyUnicode_DecodeUTF8((const char *)tree->texts.data.data + offsets[0], count < most ? count : most, "replace");
    }
    if (is_small(ref)) return PyLong_FromLong((int32_t)(ref << 1) >> 1);
    if (kind_of(ref) == NUMBER) return PyLong_FromLongLong(((int64_t *)tree->numbers.data)[place_of(ref)]);
    if (kind_of(ref) == REAL) return PyFloat_FromDouble(((double *)tree->reals.data)[place_of(ref)]);
    if (ref == TRUE_VALUE || ref == FALSE_VALUE) return PyBool_FromLong(ref == TRUE_VALUE);
    Py_RETURN_NONE;
}

static PyObject *pickled_values(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *capsule, *result = NULL;
    Call call;
    int most;
    if (!PyArg_ParseTuple(arguments, "OOi", &capsule, &result, &most)) return NULL;
    PyObject *pair = PyTuple_Pack(2, capsule, result);
    bool fine = pair && begin_call(pair, &call, NULL, NULL);
    Py_XDECREF(pair);
    if (!fine) return NULL;
    result = PyList_New((Py_ssize_t)call.count);
    for (size_t i = 0; result && i < call.count; i++) {
        PyObject *value = value_of(call.tree, call.refs[i], most);
        if (value && PyList_SetItem(result, (Py_ssize_t)i, value) == 0) continue;
        Py_DECREF(result);
        result = NULL;
    }
    PyBuffer_Release(&call.buffer);
    return result;
}

PyMethodDef pickled_methods[] = {
    {"pickled_tree", pickled_tree, METH_VARARGS,
     "pickled_tree(folder) -> tree\n\nAn empty tree, which pickled_feed fills; what is large is in files of the folder."},
    {"pickled_feed", pickled_feed, METH_VARARGS,
     "pickled_feed(tree, bytes) -> (consumed, state, why)\n\n"
     "Run the instructions that are complete in these bytes. States: 0 more is needed, 1 done, 2 refused, 3 damaged."},
    {"pickled_root", pickled_root, METH_O, "The value of the whole pickle, a ref (uint32)."},
    {"pickled_kinds", pickled_kinds, METH_VARARGS,
     "pickled_kinds(tree, refs) -> uint8\n\n"
     "0 None, booleans and what has no place in a tree; 1 numbers, 2 texts, 3 lists and tuples, 4 dictionaries, 5 floats."},
    {"pickled_numbers", pickled_numbers, METH_VARARGS,
     "pickled_numbers(tree, refs) -> int64\n\nThe least int64 for what is not a whole number of 64 bits."},
    {"pickled_lengths", pickled_lengths, METH_VARARGS,
     "pickled_lengths(tree, refs) -> (lengths, contents), int64\n\n"
     "Of lists; -1 for anything else. Lists with the same content have the same members."},
    {"pickled_members", pickled_members, METH_VARARGS,
     "pickled_members(tree, refs) -> refs\n\nThe members of these lists, one after the other."},
    {"pickled_fields", pickled_fields, METH_VARARGS,
     "pickled_fields(tree, refs, key) -> refs\n\nThe value of a key in each dictionary; 0 where there is none."},
    {"pickled_pairs", pickled_pairs, METH_VARARGS,
     "pickled_pairs(tree, refs) -> refs\n\nThe keys and values of one dictionary, by turns."},
    {"pickled_values", pickled_values, METH_VARARGS,
     "pickled_values(tree, refs, most) -> list\n\n"
     "Numbers, booleans and texts of at most so many bytes as Python objects; None for the rest."},
    {NULL, NULL, 0, NULL},
};
