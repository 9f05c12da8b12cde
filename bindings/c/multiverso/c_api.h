/* c_api.h - the name under which Multiverso has its C functions */
#include <multiverso.h>
