/* A thread that loads the driver, calls it and closes it again ends as any other thread, and the
 * driver stays, with all that was mapped. The only argument is the library. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static int failed = 1;

static void *use(void *path)
{
    int version = 0;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "unload: %s\n", dlerror());
        return NULL;
    }
    int (*get_version)(int *);
    int (*init)(unsigned);
    *(void **)&get_version = dlsym(library, "cuDriverGetVersion");
    *(void **)&init = dlsym(library, "cuInit");
    if (!get_version || !init || get_version(&version) || init(0) || dlclose(library)) {
        fprintf(stderr, "unload: a call failed\n");
        return NULL;
    }
    if (!dlopen(path, RTLD_NOW | RTLD_NOLOAD)) {
        fprintf(stderr, "unload: the driver is gone after dlclose\n");
        return NULL;
    }
    failed = 0;
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    if (count != 2 || pthread_create(&thread, NULL, use, arguments[1])) {
        fprintf(stderr, "usage: unload LIBRARY\n");
        return 2;
    }
    pthread_join(thread, NULL);
    return failed;
}
