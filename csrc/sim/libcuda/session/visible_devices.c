#include "libcuda/session/visible_devices.h"

#include "libcuda/session/config.h"

#include <stdlib.h>
#include <string.h>

static int devices[SIM_DEVICES_MAX];
static int count;

int sim_visible_device_find(int in_machine)
{
    for (int device = 0; device < count; device++)
        if (devices[device] == in_machine)
            return device;
    return -1;
}

void sim_visible_devices_read(int total)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");

    count = 0;
    if (text == NULL)
        while (count < total) {
            devices[count] = count;
            count++;
        }
    while (text != NULL && *text != '\0') {
        char *end;
        long device = strtol(text, &end, 10);
        if (end == text || device < 0 || device >= total ||
            sim_visible_device_find((int)device) >= 0)
            return;
        devices[count++] = (int)device;
        text = end + strspn(end, " ");
        if (*text == ',')
            text++;
    }
}

int sim_visible_device_count(void)
{
    return count;
}

int sim_visible_device(int device)
{
    return devices[device];
}
