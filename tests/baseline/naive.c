/* Sharing as anybody would write it first: export each chunk, send up to 253 file descriptors a
 * message, close them; import each, close it, map, one call for access, acknowledge. */
#define KEEP 0
#include "sharing.h"
