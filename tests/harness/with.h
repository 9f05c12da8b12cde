/* with.h - a config with some members set, as one expression: WITH(tutti_update_defaults(), it.scale = 2) */
#ifndef TT_WITH_H
#define TT_WITH_H
#define WITH(config, ...) __extension__({ __typeof__(config) it = (config); (void)(__VA_ARGS__); it; })
#endif
