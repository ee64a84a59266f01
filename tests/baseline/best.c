/* The best that plain C does with the same calls: file descriptors are kept until the importer has
 * answered and sent to the next importer without exporting again, and one export stays open for the
 * life of the program. */
#define KEEP 1
#include "sharing.h"
