// Writes one panel of packed weights. Private to pack.cc.
#pragma once

#include "cpu/pack.h"

namespace penstock::cpu {

// Packs rows [panel * 16, (panel + 1) * 16) of `source` into their place in `part`, in the
// layout of panel.h. Rows past the end become zeros.
void pack_panel(const MatrixSource& source, const PanelPart& part, int64_t panel);

} // namespace penstock::cpu
