// What a model's forwards take, measured before the first request. Knows no drafts.
#pragma once

#include <functional>

#include "decode/forward.h"
#include "draft/costs.h"

namespace specqd {

// The least seconds of a few forwards by their number of rows. `clock` returns seconds.
MeasuredCosts measured_costs(LevelModel& model, const std::function<double()>& clock);

}  // namespace specqd
