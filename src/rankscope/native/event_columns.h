/* Events as columns (readers/columns.py): what the scanner of JSON (scan.c) builds, and which arguments of an event get columns. */
#ifndef RANKSCOPE_EVENT_COLUMNS_H
#define RANKSCOPE_EVENT_COLUMNS_H

#include "json.h"
#include "native.h"
#include "texts.h"

#define NO_NUMBER INT64_MIN
#define NO_OFFSET UINT32_MAX /* instead of an offset: no arguments */
#define EMPTY_TEXT 0         /* the code of '' */

/* The columns, in the order in which columns_to_python returns them. */
enum {
    PHASE, CATEGORY, NAME, PID, TID,
    FLOW, TIME, DURATION, ARGS, ARGS_OFFSET,
    LINKED, CORRELATION, EXTERNAL_ID, DEVICE, STREAM, BYTES, COLLECTIVE,
    MEMORY_EVENTS, MEMORY, COMPUTING, SHAPES,
    COLUMNS,
};
#define TEXT_FIELDS (TID + 1)

/* The arguments with columns, in the order of the lists of names: numbers that link events, texts that do, numbers of
 * memory events, shapes. */
enum { LINK_NUMBERS, LINK_TEXTS, MEMORY_NUMBERS, SHAPE_TEXTS, NAME_LISTS };
#define MOST_NAMES 32

/* The value of an argument, in the column ARGS. */
typedef struct {
    Place begin, end;
    Spelling spelling;
} Value;

typedef struct {
    Array column[COLUMNS];
    Texts texts;
    int32_t events;
    Array marks; /* uint8 for each text: the lists of words that have it */
    Texts words;
    uint8_t word_marks[256];
    Texts names;
    int32_t names_of[NAME_LISTS + 1]; /* where each list begins */
    uint32_t name_lengths[256]; /* by first byte: bit i is set if a name of that length, modulo 32, begins so */
    Array decoded;
    /* Of the current event. */
    uint32_t has; /* one bit for each name */
    int32_t first_name;
    Value values[MOST_NAMES];
} EventColumns;

typedef struct {
    int32_t codes[TEXT_FIELDS];
    int64_t flow, time, duration; /* or NO_NUMBER */
    uint32_t args;                /* or NO_OFFSET */
} EventRow;

/* Read the lists of words and names that readers/kineto/reader.py gives. False with an exception. */
bool columns_init(EventColumns *columns, PyObject *words, PyObject *names);
void columns_free(EventColumns *columns);

/* Begin with no events, and the empty text. False if there is no memory. */
bool columns_start(EventColumns *columns);

/* A tuple of the columns, then the offsets and bytes of their texts. All are empty afterwards. */
PyObject *columns_to_python(EventColumns *columns);

/* The code of a text, or NOT_CODED. */
int32_t code_of(EventColumns *columns, const uint8_t *bytes, size_t count);

/* The code of a string, given what is inside its quotes; NOT_CODED also for one with a zero character. */
int32_t code_of_string(EventColumns *columns, Place begin, Place end, Spelling spelling);

/* Copy the arguments of the next event, an object in text as json.h needs it. Returns the place after them, or NULL. */
Place read_args(EventColumns *columns, Place p, Place end, uint32_t *offset);

/* Add an event, whose arguments are those read last. False if it is refused. */
bool add_event(EventColumns *columns, const EventRow *row);

bool is_plain_integer(Place begin, Place end);

/* Text is copied in pieces between spaces: what begins at `from` is still to be copied to `out`. */
typedef struct {
    Place from;
    Place end;
    uint8_t *out;
} Copy;

/* Any value, copied but for its last piece. There is room for all text that is left and CHUNK bytes more. */
Place copy_value(Copy *result, Place p, Spelling *spelling);

#endif
