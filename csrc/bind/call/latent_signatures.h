// The signatures of the kernels of latent attention.
#pragma once

#include <string>
#include <vector>

#include "bind/call/recurrent_signatures.h"
#include "bind/call/signature.h"

namespace penstock::bind {

// Returns why kernels whose vectors have `lanes` floats cannot read KV blocks of P tokens, or an
// empty string.
std::string block_refusal(const Symbols& symbols, int lanes);

std::vector<SignatureRow> latent_kernels();

} // namespace penstock::bind
