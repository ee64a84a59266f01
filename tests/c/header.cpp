// c/vmm_ipc.h is C++ as well: this only has to compile.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../../c/vmm_ipc.h"

int main()
{
    vmm_buffer buffer;
    int failed = vmm_import("/nowhere", 0, &buffer);
    vmm_close(&buffer);
    return failed ? 1 : 0;
}
