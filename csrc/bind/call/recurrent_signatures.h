// The signatures of the kernels of recurrent layers.
#pragma once

#include <string>
#include <vector>

#include "bind/call/signature.h"

namespace penstock::bind {

// A kernel with the text of its signature; see signature.h.
struct SignatureRow {
    const char* kernel;
    std::string text;
    ObjectKind object = ObjectKind::none;
    Refusal* refusal = nullptr;
};

std::vector<SignatureRow> recurrent_kernels();

} // namespace penstock::bind
