// The whole test framework: CHECK ends the program with the failed expression and its line.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, __func__,          \
                         #condition);                                                              \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (false)
