/* Scans a block of Kineto's JSON in one pass. */
#include "native.h"

PyMethodDef scan_methods[] = {{NULL, NULL, 0, NULL}};
